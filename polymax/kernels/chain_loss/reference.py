"""The loss of a chain by the passes of the chain, and the score of its tags in torch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from polymax.kernels.chain import reference as chain

# a loss below this part of the sum of its terms' sizes is rounding error
ROUNDING = 32 * torch.finfo(torch.float64).eps


Pass = Callable[..., Any]


def by_chain(passes: tuple[Pass, ...], dtype: torch.dtype | None = None) -> tuple[Pass, Pass, Pass]:
    """Return the three passes of a loss by those of a chain, which compute in `dtype`, that of the scores if None.

    They also take transitions (s, s), shared by all instances and steps.
    """

    def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors if dtype is None else tuple(t.to(dtype) for t in tensors)

    def inside(unary: Tensor, transition: Tensor, lengths: Tensor, tags: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
        x, w = wide(unary, _with_dims(transition))
        terms = _terms(x, w, lengths, tags)
        states, steps = (torch.where(t == -torch.inf, 0, t).unsqueeze(-1) for t in terms)
        # first the states, whose difference is 0 on the tags: then each step cancels exactly
        v, chart = passes[0]((x - states) - steps, w, lengths, alpha)
        size = terms.abs().double().sum((0, -1))
        v = torch.where(v.abs() <= ROUNDING * size, 0, v)
        return torch.where((terms == -torch.inf).any(-1).any(0) & (v == v), torch.inf, v).to(unary.dtype), chart

    def outside(unary: Tensor, transition: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        lengths, tags, chart, g, alpha = given
        x, w, slope = wide(unary, _with_dims(transition), g)
        found = passes[1](x, w, lengths, chart, slope, alpha)
        known = _gradient(x, w, lengths, tags, slope)
        mu, edges = (m - y for m, y in zip(found, known, strict=True))
        return mu.to(unary.dtype), edges.to(unary.dtype).view(transition.shape)

    def tangent(unary: Tensor, transition: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        lengths, tags, chart, g, d_unary, d_transition, alpha = given
        x, w, slope, du, dw = wide(unary, _with_dims(transition), g, d_unary, _with_dims(d_transition))
        value, h, steps = passes[2](x, w, lengths, chart, slope, du, dw, alpha)
        value = value - _terms(du, dw, lengths, tags).sum((0, -1))
        return value.to(unary.dtype), h.to(unary.dtype), steps.to(unary.dtype).view(transition.shape)

    return inside, outside, tangent


def _with_dims(transition: Tensor) -> Tensor:
    return transition if transition.dim() == 4 else transition.view(1, 1, *transition.shape)


def _terms(unary: Tensor, transition: Tensor, lengths: Tensor, tags: Tensor) -> Tensor:
    """Return the scores (2, B, n) of the tags and of the transitions into them; 0 past the length."""
    within, tag, at = _places(unary, transition, lengths, tags)
    states = unary.gather(2, tag.unsqueeze(-1)).squeeze(-1)
    steps = torch.nn.functional.pad(transition[at], (1, 0))[:, : states.shape[1]]
    return torch.where(within, torch.stack([states, steps]), 0)


def _gradient(unary: Tensor, transition: Tensor, lengths: Tensor, tags: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return g at the tags, and the sum of g over the transitions between them."""
    within, tag, at = _places(unary, transition, lengths, tags)
    each = torch.where(within, g.unsqueeze(-1), 0)
    states = torch.zeros_like(unary).scatter(2, tag.unsqueeze(-1), each.unsqueeze(-1))
    steps = torch.zeros_like(transition, memory_format=torch.contiguous_format)
    return states, steps.index_put(at, each[:, 1:], accumulate=True)


def _places(
    unary: Tensor, transition: Tensor, lengths: Tensor, tags: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return the positions within the lengths, the tags there, 0 at others, and the places of their transitions."""
    batch, n = tags.shape
    instance, position = (torch.arange(size, device=tags.device) for size in (batch, n))
    within = position < lengths.unsqueeze(-1)
    tag = torch.where(within, tags, 0)
    group = max(batch // max(transition.shape[0], 1), 1)
    step = position[: max(n - 1, 0)] if transition.shape[1] > 1 else torch.zeros_like(position[: max(n - 1, 0)])
    return within, tag, ((instance // group).unsqueeze(-1), step, tag[:, :-1], tag[:, 1:])


chain_loss_inside, chain_loss_outside, chain_loss_tangent = by_chain(
    (chain.chain_inside, chain.chain_outside, chain.chain_tangent)
)


def recorded(unary: Tensor, transition: Tensor, lengths: Tensor, tags: Tensor, alpha: float) -> Tensor:
    """Return the value, recorded by autograd."""
    terms = _terms(unary, transition, lengths, tags)
    return chain.recorded(unary, transition, lengths, alpha) - torch.where(terms == -torch.inf, 0, terms).sum((0, -1))
