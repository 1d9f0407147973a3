"""Scores of very different sizes: an order that numbers cannot hold all at once, kept by smaller numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor

# scores that are so many times the sum of all smaller ones come first, however large they are
_FIRST = 1e3


def largest(scores: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
    """The largest finite size of a score of each instance, (*batch,)."""
    tops = [_sizes(t, d).amax(-1) for t, d in zip(scores, dims, strict=True) if t.numel()]
    if not tops:
        first = scores[0]
        return torch.zeros(first.shape[: first.dim() - dims[0]], dtype=torch.float64, device=first.device)
    return torch.stack([t.double() for t in tops]).amax(0)


def without_gaps(
    scores: tuple[Tensor, ...], dims: Sequence[int], least: float = 0, above: float = 0
) -> tuple[Tensor, ...]:
    """Scores in which none is more than 1,000 times the sum of all smaller ones, in float64, from those in full shape.

    A score of 1e30 beside scores of 1 decides before these are asked, and so does one of 1e4; only the latter leaves
    digits for them. Scores that have no such gap between them keep their proportions. `least` is the size of what else
    counts in the problem, for each score, however small they are. Scores up to `above` are left as they are.
    """
    if not any(t.numel() for t in scores):
        return scores
    sizes = torch.cat([_sizes(t, d).double() for t, d in zip(scores, dims, strict=True)], -1)
    order = sizes.sort(-1)
    before = torch.nn.functional.pad(order.values.cumsum(-1)[..., :-1], (1, 0)) + least * sizes.shape[-1]
    over = (order.values > _FIRST * before) & (order.values > above) & (before > 0)
    if not bool(over.any()):
        return scores
    # a gap lessens the scores above it, and all that are larger
    step = torch.where(over, _FIRST * before / torch.where(over, order.values, 1), 1).cumprod(-1)
    rates = torch.zeros_like(sizes).scatter(-1, order.indices, step)
    found, place = [], 0
    for t, d in zip(scores, dims, strict=True):
        count = t.shape[t.dim() - d :].numel()
        rate = rates[..., place : place + count].reshape(t.shape)
        # what is infinite or NaN stays
        found.append(torch.where(t.isfinite(), t.double() * rate, t.double()))
        place += count
    return tuple(found)


def _sizes(t: Tensor, dims: int) -> Tensor:
    """The sizes of finite scores, (*batch, count)."""
    flat = t.detach().reshape(*t.shape[: t.dim() - dims], t.shape[t.dim() - dims :].numel())
    return torch.where(flat.isfinite(), flat.abs(), 0)
