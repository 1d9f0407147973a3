"""Hugging Face Transformers: every mapping as an attention implementation, chosen by name."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from polymax import mappings
from polymax.nn.attention import Mapping, checked_mapping, grouped, mapped, masked

# what needs no argument beside the scores
DEFAULTS: dict[str, Mapping] = {
    "entmax": mappings.entmax,
    "fusedmax": mappings.fusedmax,
    "hardmax": mappings.hardmax,
    "normmax": mappings.normmax,
    "oscarmax": mappings.oscarmax,
    "softmax": mappings.softmax,
    "sparsemax": mappings.sparsemax,
    "sq_pnorm_max": mappings.sq_pnorm_max,
}


def register(name: str | None = None, mapping: Mapping | None = None) -> None:
    """Add the attention implementation `polymax_<name>`; without a name, one for every mapping that has defaults.

    A model takes one by name: `AutoModel.from_config(config, attn_implementation="polymax_sparsemax")`. Weights, with
    their exact zeros, come with `output_attentions=True` in the call of the model. A name registered again is replaced.
    Transformers does not tell when an architecture has attention of its own, and ignores the name, as XLNet does:
    `model._supports_attention_backend` is False there.

    Example:
        >>> register()
        >>> register("entmax_1.3", pm.Tsallis(alpha=1.3))
        >>> from transformers import AttentionInterface
        >>> "polymax_sparsemax" in AttentionInterface(), "polymax_entmax_1.3" in AttentionInterface()
        (True, True)
    """
    if (name is None) != (mapping is None):
        raise TypeError("name and mapping must be given together, or neither of them")
    chosen = DEFAULTS if name is None or mapping is None else {name: mapping}
    for key, value in chosen.items():
        AttentionInterface.register(f"polymax_{key}", partial(attention, checked_mapping(value)))
        # True = keep, and None where the module's is_causal says all
        AttentionMaskInterface.register(f"polymax_{key}", sdpa_mask)


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
    cache: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attention as models call it: the context (N, L, heads, V) and the weights (N, heads, L, S).

    `softcap` bounds scores, `position_bias` is added to them, and `s_aux` are scores of a sink for each head, which
    takes its part of the weights. Other arguments concern the kernels of other implementations.
    """
    if cache is not None:
        raise ValueError("cache must be None: attention over the pages of continuous batching is not implemented")
    if key.shape[1] != query.shape[1]:
        key, value = grouped(key, query, "key"), grouped(value, query, "value")
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(-2, -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        # a single query comes after all keys
        scores = masked(scores, None, causal and query.shape[2] > 1)
    else:
        scores = masked(scores, _forbidding(attention_mask[..., : key.shape[-2]]))
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)], -1)
    weights = mapped(mapping, scores)[..., : key.shape[-2]].to(query.dtype)
    weights = nn.functional.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _forbidding(mask: Tensor) -> Tensor:
    """A float mask writes the lowest number where it means -inf."""
    if mask.dtype == torch.bool:
        return mask
    return mask.masked_fill(mask <= torch.finfo(mask.dtype).min, -torch.inf)
