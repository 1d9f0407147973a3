"""The attention function that models of Transformers call in the place of their own."""

from typing import Any

import torch
from torch import Tensor, nn

from polymax.integrations.transformers.cache import BOXES
from polymax.integrations.transformers.weights import weights_wanted
from polymax.nn.attention import attention_weights, scaled_dot_product_attention
from polymax.nn.attention_call import repeat_heads
from polymax.nn.attention_mapping import Mapping


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
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as models call it: the context (N, L, heads, V), and weights (N, heads, L, S) if they are asked for.

    Where they are not, it is `pm.nn.scaled_dot_product_attention`, which need not hold all weights at once.

    `softcap` bounds scores, `position_bias` is added to them, `s_aux` are scores of a sink for each head, which takes
    its part of the weights, and `indices` (N, L, k) are the keys that an indexer has selected for each query, -1 for
    none. Other arguments concern the kernels of other implementations.

    Example:
        >>> q = torch.randn(1, 2, 5, 8)
        >>> context, weights = attention(pm.sparsemax, nn.Module(), q, q, q, None, output_attentions=True)
        >>> context.shape, weights.shape
        (torch.Size([1, 5, 2, 8]), torch.Size([1, 2, 5, 5]))
    """
    if cache is not None:
        raise ValueError("cache must be None: attention over the pages of continuous batching is not implemented")
    if block_indices is not None:
        raise ValueError("block_indices must be None: attention over selected blocks of keys is not implemented")
    mask, causal = _visible(module, query, key, attention_mask, is_causal)
    if indices is not None:
        mask = _combined_mask(_selection_mask(indices, key.shape[-2]), mask)
    mask = _combined_mask(position_bias, mask)
    told: dict[str, Any] = {
        "scale": scaling,
        "enable_gqa": key.shape[1] != query.shape[1],
        "mapping": mapping,
        "softcap": softcap,
        "sinks": None if s_aux is None else s_aux.reshape(-1),
    }
    drop = dropout if module.training else 0.0
    if not weights_wanted(module, options):
        boxes = getattr(key, BOXES, None)
        context = scaled_dot_product_attention(query, key, value, mask, drop, causal, key_boxes=boxes, **told)
        return context.transpose(1, 2).contiguous(), None
    weights = nn.functional.dropout(attention_weights(query, key, mask, causal, **told), drop)
    values = repeat_heads(value, query, "value") if told["enable_gqa"] else value
    return (weights @ values).transpose(1, 2).contiguous(), weights


def layer_attention(name: str, module: nn.Module, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
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


def _selection_mask(indices: Tensor, keys: int) -> Tensor:
    """True for the selected keys: bool (N, 1, L, keys)."""
    # one more key takes what is -1
    keep = torch.zeros(*indices.shape[:-1], keys + 1, dtype=torch.bool, device=indices.device)
    return keep.scatter(-1, indices.long().where(indices >= 0, keys), True)[..., :keys].unsqueeze(1)


def _combined_mask(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Two masks, or a bias and a mask, as one: what either forbids is forbidden, and what they add is added."""
    if first is None or second is None:
        return second if first is None else first
    if first.dtype == torch.bool and second.dtype == torch.bool:
        return first & second
    if second.dtype == torch.bool:
        return first.masked_fill(~second, -torch.inf)
    return second.masked_fill(~first, -torch.inf) if first.dtype == torch.bool else first + second
