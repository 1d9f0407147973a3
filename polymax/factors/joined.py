"""Joins two solutions of a batch, each for some of the instances."""

import torch
from torch import Tensor

from polymax.kernels.active_set.problem import UsedParts
from polymax.solvers import Solution


def joined_solutions(mask: Tensor, a: Solution, b: Solution) -> Solution:
    """Solution a for the instances in the mask (B,), and b for the others."""

    def pick(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(mask.reshape(-1, *[1] * (x.dim() - mask.dim())), x, y)

    width = max(a.probs.shape[-1], b.probs.shape[-1])

    def wide(t: Tensor, dim: int, value: float) -> Tensor:
        more = list(t.shape)
        more[dim] = width - t.shape[dim]
        return t if not more[dim] else torch.cat([t, t.new_full(more, value)], dim)

    k = a.probs.dim() - 1
    overlaps = pick(*(wide(wide(s.overlaps, k, 0), k + 1, 0) for s in (a, b)))
    found: Tensor | UsedParts
    if isinstance(a.found, UsedParts) and isinstance(b.found, UsedParts):
        parts = [s.found.places for s in (a, b)]  # type: ignore[union-attr]
        most = max(p.shape[-1] for p in parts)
        parts = [torch.nn.functional.pad(p, (0, most - p.shape[-1]), value=-1) for p in parts]
        found = UsedParts(pick(*(wide(p, k, -1) for p in parts)), a.found.events)
    else:
        found = pick(*(wide(s.vertices, k, 0) for s in (a, b)))
    return Solution(
        found,
        pick(*(wide(s.probs, k, 0) for s in (a, b))),
        overlaps,
        pick(a.value, b.value),
        pick(a.iterations, b.iterations),
        pick(a.gap, b.gap),
    )
