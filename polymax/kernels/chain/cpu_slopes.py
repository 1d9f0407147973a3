"""Derivatives of chains on the CPU in the fewest calls, for calls that neither autograd nor torch.func traces.

Shapes: as in chain/__init__.py, and transitions (s, s) shared by all instances and steps.
"""

import torch
from torch import Tensor

from polymax.kernels.chain.cpu import chain_inside, chain_outside, chain_tangent


def slope(
    unary: Tensor, transition: Tensor, lengths: Tensor, v: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return the derivative of g v in the scores."""
    return chain_outside(unary, transition, lengths, chart, v.clamp(g, g), alpha)


def mean(
    unary: Tensor, transition: Tensor, lengths: Tensor, full: torch.Size | None, alpha: float
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return (chart, 1 or NaN) and the derivative of the value in the scores; that of the transition is for `full`, if
    given.
    """
    v, chart = chain_inside(unary, transition, lengths, alpha)
    g, each = v.clamp(1, 1), transition if full is None else transition.expand(full)
    return (chart, g), chain_outside(unary, each, lengths, chart, g, alpha)


def mean_slope(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    chart: Tensor,
    g: Tensor,
    d_unary: Tensor | None,
    d_transition: Tensor | None,
    alpha: float,
) -> tuple[Tensor, Tensor]:
    """Return the derivative of `mean` along tangents, summed over what the scores share."""
    moved = torch.zeros_like(unary) if d_unary is None else d_unary
    steps = torch.zeros_like(transition) if d_transition is None else d_transition
    return chain_tangent(unary, transition, lengths, chart, g, moved, steps, alpha)[1:]
