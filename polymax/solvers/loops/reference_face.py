"""The face of the polytope that a solution lies on, in torch, for a batch in lock-step: the method of numba_face.py."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from polymax.kernels.active_set.problem import UsedParts
from polymax.kernels.active_set.tolerances import APART, NUDGE, TIED
from polymax.kernels.response.reference import existing, sensitivity
from polymax.solvers.solution import Solution, parts_of
from polymax.structures.base import Structure

# a function from a point (*batch, *event) to the best structure around it and its score
Best = Callable[[Tensor], tuple[Tensor, Tensor]]


def spanned(structure: Structure, solution: Solution, best: Best) -> Solution:
    """The solution with structures of weight 0 that span, with the others, all directions of its face."""
    probs, y = solution.probs, solution.vertices.double()
    batch, event = probs.shape[:-1], y.shape[probs.dim() :]
    y = y.reshape(*probs.shape, event.numel())
    kept = existing(solution.overlaps, probs)
    overlaps = solution.overlaps.double()
    mu = (probs.unsqueeze(-1) * y).sum(-2)
    # the value of <scores - mu, y> that all structures with weight share
    top = solution.value - mu.square().sum(-1) / 2
    generator = torch.Generator().manual_seed(0)
    side, failed = torch.ones_like(top), (~(probs > 0).any(-1)).long() * 2
    count = probs.shape[-1]
    w = _direction(generator, y, overlaps, kept)
    while bool((failed < 2).any()):
        m, b = best((mu - NUDGE * side.unsqueeze(-1) * w).reshape(*batch, *event))
        m = m.reshape(mu.shape).double()
        behind = top - (b - (m * mu).sum(-1))
        along = side * ((m - y[..., 0, :]) * w).sum(-1)
        good = (failed < 2) & (behind <= TIED * (1 + top.abs())) & (along > APART)
        failed = torch.where(good, 0, failed + 1)
        side = torch.where(good, side, -side)
        if bool(good.any()):
            m = torch.where(good.unsqueeze(-1), m, 0).unsqueeze(-2)
            row = (y * m).sum(-1, keepdim=True)
            below = torch.cat([row.mT, m.square().sum(-1, keepdim=True)], -1)
            overlaps = torch.cat([torch.cat([overlaps, row], -1), below], -2)
            y, kept = torch.cat([y, m], -2), torch.cat([kept, good.unsqueeze(-1)], -1)
            w = _direction(generator, y, overlaps, kept)
    return _joined(structure, solution, y[..., count:, :], kept, overlaps)


def _direction(generator: torch.Generator, y: Tensor, overlaps: Tensor, kept: Tensor) -> Tensor:
    """A random direction w with the same <w, y> for all structures y found so far."""
    w = (2 * torch.rand(y.shape[-1], generator=generator, dtype=torch.float64, device="cpu") - 1).to(y)
    w = w.expand(*y.shape[:-2], y.shape[-1])
    z = sensitivity(overlaps, kept.to(w))
    # the second projection removes the rounding errors of the first
    for _ in range(2):
        along = torch.where(kept, (y * w.unsqueeze(-2)).sum(-1), 0)
        w = w - ((z * along.unsqueeze(-2)).sum(-1).unsqueeze(-1) * y).sum(-2)
    return w


def _joined(structure: Structure, solution: Solution, more: Tensor, kept: Tensor, overlaps: Tensor) -> Solution:
    """The solution with the structures of `more` (flat) after its own, without the empty places between them."""
    dim, found = solution.probs.dim(), solution.found
    most = int(kept.sum(-1).max()) if kept.numel() else 0
    order = torch.sort(~kept, dim=-1, stable=True).indices[..., : max(most, 1)]
    probs = torch.nn.functional.pad(solution.probs, (0, more.shape[-2])).gather(-1, order)
    rows = overlaps.gather(-2, order.unsqueeze(-1).expand(*order.shape, overlaps.shape[-1]))
    overlaps = rows.gather(-1, order.unsqueeze(-2).expand(*rows.shape[:-1], order.shape[-1]))

    def pick(old: Tensor, new: Tensor) -> Tensor:
        both = torch.cat([old, new.to(old.dtype)], -2)
        return both.gather(-2, order.unsqueeze(-1).expand(*order.shape, both.shape[-1]))

    listed: Tensor | UsedParts
    if isinstance(found, UsedParts):
        places = parts_of(structure, more.reshape(*more.shape[:-1], *found.events[0]))
        places = torch.nn.functional.pad(places, (0, found.places.shape[-1] - places.shape[-1]), value=-1)
        listed = UsedParts(pick(found.places, places), found.events)
    else:
        listed = pick(found.flatten(dim), more).reshape(*order.shape, *found.shape[dim:])
    return replace(solution, found=listed, probs=probs, overlaps=overlaps)
