"""Biases of attention scores that follow from positions, and their sum with a mask."""

import torch
from torch import Tensor


def distance_bias(slopes: Tensor, positions: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """Return -slope |position - key|, the bias of ALiBi, at least in float32.

    Shapes: slopes (*batch, heads); positions (*batch, queries); the bias (*batch, heads, queries, keys)
    """
    wide = torch.promote_types(dtype, torch.float32)
    distances = (positions[..., None] - torch.arange(keys, device=positions.device)).abs().to(wide)
    return -slopes.to(wide)[..., None, None] * distances.unsqueeze(-3)


def with_bias(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Return the combination of a mask and a bias, or of two masks: either may forbid, and float masks add up."""
    if mask is None or bias is None:
        return bias if mask is None else mask
    if mask.dtype == torch.bool and bias.dtype == torch.bool:
        return mask & bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, -torch.inf)
    return mask.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else mask + bias
