"""The attention function that models of Transformers call in the place of their own."""

from typing import Any

import torch
from torch import Tensor, nn

from polymax.nn.attention import Mapping, grouped, mapped, masked


def attention(
    mapping: Mapping,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    cache: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attention as models call it: the context (N, L, heads, V) and the weights (N, heads, L, S).

    `softcap` bounds scores, `position_bias` is added to them, `s_aux` are scores of a sink for each head, which takes
    its part of the weights, and `indices` (N, L, k) are the keys that an indexer has selected for each query, -1 for
    none. Other arguments concern the kernels of other implementations.
    """
    if cache is not None:
        raise ValueError("cache must be None: attention over the pages of continuous batching is not implemented")
    if block_indices is not None:
        raise ValueError("block_indices must be None: attention over selected blocks of keys is not implemented")
    if key.shape[1] != query.shape[1]:
        key, value = grouped(key, query, "key"), grouped(value, query, "value")
    mask, causal = _visible(module, query, key, attention_mask, is_causal)
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(-2, -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + position_bias
    scores = masked(scores, mask, causal)
    if indices is not None:
        scores = masked(scores, _selected(indices, key.shape[-2]))
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)], -1)
    weights = mapped(mapping, scores)[..., : key.shape[-2]].to(query.dtype)
    weights = nn.functional.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def layer_attention(name: str, module: nn.Module, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """`attention` by the mapping that belongs to the module, as `use` and `load` put it there."""
    mapping = getattr(module, "polymax_mapping", None)
    if mapping is None:
        raise RuntimeError(
            f"{type(module).__name__} has no mapping of its own, which {name!r} needs: call "
            f"polymax.integrations.transformers.use(model, {name!r}) before the optimizer is made, or load a saved "
            "model by polymax.integrations.transformers.load"
        )
    return attention(mapping, module, *args, **options)


def _visible(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool | None
) -> tuple[Tensor | None, bool]:
    """What a query may see: a mask (bool, True = keep, or float) or None, and True if no query sees later keys."""
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # a single query comes after all keys
        return None, bool(causal) and query.shape[2] > 1
    mask = mask[..., : key.shape[-2]]
    if mask.dtype == torch.bool:
        return mask, False
    # a float mask writes the lowest number where it means -inf
    return mask.masked_fill(mask <= torch.finfo(mask.dtype).min, -torch.inf), False


def _selected(indices: Tensor, keys: int) -> Tensor:
    """True for the selected keys: bool (N, 1, L, keys)."""
    # one more key takes what is -1
    keep = torch.zeros(*indices.shape[:-1], keys + 1, dtype=torch.bool, device=indices.device)
    return keep.scatter(-1, indices.long().where(indices >= 0, keys), True)[..., :keys].unsqueeze(1)
