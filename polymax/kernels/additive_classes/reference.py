"""Two classes of sums in torch: log of the product of matrices exp(e) and exp(p).

Factors are divided by the largest of their rows. A sum that is so small that terms of its size could have been lost to
underflow is added up in the logarithm, a few at a time.
"""

import torch
from torch import Tensor

from polymax.backend.widen import wide

# sums of products below this may have lost terms to underflow
SMALL = 1e-25
# entries (cell, class) of such sums that are in memory at a time
TOGETHER = 1 << 22


def additive_classes(
    e: Tensor, p: Tensor, at: Tensor, frames: Tensor, states: Tensor, blank: int
) -> tuple[Tensor, Tensor, Tensor]:
    e, p = _kept(e, frames), _kept(p, states)
    inside = _cells(e, p, frames, states)
    first, second, most = _factors(e, p)
    sums = torch.bmm(first, second.mT)
    total = torch.where(sums >= SMALL, sums, 1).log() + most
    for part in _small(sums, inside, e.shape[-1]):
        n, t, u = part
        total[n, t, u] = (e[n, t] + p[n, u]).logsumexp(-1)
    base = torch.where(total == -torch.inf, 0, total)
    ends = e[..., blank].unsqueeze(2) + p[..., blank].unsqueeze(1) - base
    index = at[:, None].expand(-1, e.shape[1], -1)
    labels = e.gather(2, index) + p.gather(2, at.unsqueeze(2)).mT - base
    ends, labels, total = (torch.where(inside, x, 0) for x in (ends, labels, total))
    return ends, labels, total


def additive_classes_backward(
    e: Tensor,
    p: Tensor,
    at: Tensor,
    frames: Tensor,
    states: Tensor,
    total: Tensor,
    g_blank: Tensor,
    g_label: Tensor,
    blank: int,
) -> tuple[Tensor, Tensor]:
    dtypes = e.dtype, p.dtype
    e, p = _kept(e, frames), _kept(p, states)
    inside = _cells(e, p, frames, states)
    # cells outside of the frames and states of an instance have no gradient, whatever their entries
    g_blank, g_label = (torch.where(inside, g, 0) for g in (g_blank, g_label))
    weight = torch.where(total == -torch.inf, 0, -(g_blank + g_label))
    first, second, _ = _factors(e, p)
    sums = torch.bmm(first, second.mT)
    ratio = torch.where(sums >= SMALL, weight / sums, 0)
    g_e, g_p = torch.bmm(ratio, second).mul_(first), torch.bmm(ratio.mT, first).mul_(second)
    for part in _small(sums, inside & (weight != 0), e.shape[-1]):
        n, t, u = part
        terms = (e[n, t] + p[n, u] - total[part].unsqueeze(-1)).exp_() * weight[part].unsqueeze(-1)
        g_e.index_put_((n, t), terms, accumulate=True)
        g_p.index_put_((n, u), terms, accumulate=True)
    g_e[..., blank] += g_blank.sum(2)
    g_p[..., blank] += g_blank.sum(1)
    g_e.scatter_add_(2, at[:, None].expand(-1, e.shape[1], -1), g_label.to(g_e.dtype))
    g_p.scatter_add_(2, at.unsqueeze(2), g_label.sum(1).unsqueeze(2).to(g_p.dtype))
    # zeros of padding met NaN of others in the products
    return _kept(g_e, frames).to(dtypes[0]), _kept(g_p, states).to(dtypes[1])


def _kept(x: Tensor, lengths: Tensor) -> Tensor:
    """Return rows that the length of their instance counts, at least in float32, and zeros in the place of others."""
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    return torch.where(inside.unsqueeze(-1), wide(x), 0)


def _cells(e: Tensor, p: Tensor, frames: Tensor, states: Tensor) -> Tensor:
    """Return a bool tensor (B, n, k), True for cells that are not padding."""
    t, u = torch.arange(e.shape[1], device=e.device), torch.arange(p.shape[1], device=e.device)
    return (t[:, None] < frames[:, None, None]) & (u < states[:, None, None])


def _factors(e: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return exponentials of both, each row divided by its largest, and the log of the divisors of products."""
    if not e.shape[-1]:
        return e, p, e.new_zeros(*e.shape[:2], p.shape[1])
    most_e, most_p = (torch.where(t.isfinite(), t, 0) for t in (x.amax(-1, keepdim=True) for x in (e, p)))
    return (e - most_e).exp(), (p - most_p).exp(), most_e + most_p.mT


def _small(sums: Tensor, inside: Tensor, classes: int) -> list[tuple[Tensor, ...]]:
    """Return the cells whose sums may have lost terms, as indices of few cells at a time."""
    cells = (inside & ~(sums >= SMALL)).nonzero()
    few = max(1, TOGETHER // max(1, classes))
    return [part.unbind(1) for part in cells.split(few)] if len(cells) else []
