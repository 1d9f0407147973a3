"""Rows in which many words have weight, in torch: their thresholds from all logits, and gradients by blocks."""

import torch
from torch import Tensor

from polymax.kernels.linear_loss.reference import capped_logits, shift, value_tau_slope
from polymax.kernels.linear_loss.steps import FlatRows
from polymax.kernels.threshold import TSALLIS, threshold


def solve_in_torch(
    x: Tensor, bias: Tensor | None, alpha: float, softcap: float, sloped: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return top, value, tau and slope of whole rows, from their weights."""
    x = capped_logits(x if bias is None else x + bias, softcap)
    top = shift(x)
    return top, *value_tau_slope(x, threshold(x, alpha, TSALLIS), top, alpha, sloped)


def slopes_in_torch(
    x: Tensor,
    bias: Tensor | None,
    spread: Tensor | None,
    rows: FlatRows,
    alpha: float,
    softcap: float,
    dtype: torch.dtype,
) -> Tensor:
    """Return the gradient of a block of logits, in torch; the block is overwritten."""
    x = x if bias is None else x.add_(bias)
    factor = None
    if softcap:
        x = capped_logits(x, softcap)
        factor = 1 - (x / softcap).square()
    # powers below 1 amplify rounding near the edge of the support
    z = (x.double() if alpha > 2 else x).sub_(rows.top.unsqueeze(1))
    if alpha == 1:
        p = z.sub_(rows.tau.unsqueeze(1)).exp_()
    else:
        w = z.mul_(alpha - 1).sub_(rows.tau.unsqueeze(1)).clamp_(min=0)
        p = w.square_() if alpha == 1.5 else w.pow_(1 / (alpha - 1)) if alpha != 2 else w
    dx = p.mul_(rows.grad_value.unsqueeze(1))
    if spread is not None:
        dx.addcmul_(rows.grad_mean.unsqueeze(1), spread)
    return (dx if factor is None else dx.mul_(factor)).to(dtype)
