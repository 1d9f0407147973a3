"""Scores of very different sizes, replaced by smaller scores that decide in the same order."""

from collections.abc import Sequence

import torch
from torch import Tensor

# a score that is this many times the sum of all smaller scores decides before them
_FIRST = 1e3


def largest(scores: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
    """The largest absolute value of the finite scores of each instance, (*batch,)."""
    tops = [_sizes(t, d).amax(-1) for t, d in zip(scores, dims, strict=True) if t.numel()]
    if not tops:
        first = scores[0]
        return torch.zeros(first.shape[: first.dim() - dims[0]], dtype=torch.float64, device=first.device)
    return torch.stack([t.double() for t in tops]).amax(0)


def without_gaps(
    scores: tuple[Tensor, ...], dims: Sequence[int], least: float = 0, above: float = 0
) -> tuple[Tensor, ...]:
    """Scores in float64, none of them more than 1,000 times the sum of all smaller scores; from scores in full shape.

    A score of 1e30 decides before scores of 1, and so does a score of 1e4; but only the latter leaves digits for scores
    of 1. Scores without such a gap between them keep their proportions. `least` times the number of scores is added to
    each sum: the size of other terms in the problem. Scores up to `above` are not changed.
    """
    if not any(t.numel() for t in scores):
        return scores
    sizes = torch.cat([_sizes(t, d).double() for t, d in zip(scores, dims, strict=True)], -1)
    order = sizes.sort(-1)
    before = torch.nn.functional.pad(order.values.cumsum(-1)[..., :-1], (1, 0)) + least * sizes.shape[-1]
    over = (order.values > _FIRST * before) & (order.values > above) & (before > 0)
    if not bool(over.any()):
        return scores
    # a gap reduces the score above it, and all larger scores
    step = torch.where(over, _FIRST * before / torch.where(over, order.values, 1), 1).cumprod(-1)
    rates = torch.zeros_like(sizes).scatter(-1, order.indices, step)
    found, place = [], 0
    for t, d in zip(scores, dims, strict=True):
        count = t.shape[t.dim() - d :].numel()
        rate = rates[..., place : place + count].reshape(t.shape)
        # infinities and NaN are not changed
        found.append(torch.where(t.isfinite(), t.double() * rate, t.double()))
        place += count
    return tuple(found)


def _sizes(t: Tensor, dims: int) -> Tensor:
    """The absolute values of scores, (*batch, count); 0 for infinities and NaN."""
    flat = t.detach().reshape(*t.shape[: t.dim() - dims], t.shape[t.dim() - dims :].numel())
    return torch.where(flat.isfinite(), flat.abs(), 0)
