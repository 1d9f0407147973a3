"""Scores so large that digits of mu would be lost in their sums, with what all structures share taken off.

Only differences of structures matter, and those of structures that have weight are at most the number of their parts,
however large the scores are. Potentials that every structure adds up to the same total make the scores of the best
structure 0, and those of the others as small as they can be. The potentials are floats, and what is left of a score is
rounded once, so that sums lose nothing that counts.

    chains       the values v of Viterbi's recursion: steps become v_before + transition + unary - v_after
    assignments  dual prices of rows and columns; where one side is larger, the scores of the best cells of the other
    trees        the scores of the best arcs, which have one head for each token

Dynamic programs do the same with the values of their nodes, in cpu_derivations.py.
"""

import math

import torch
from torch import Tensor

from polymax.structures.assignment import Assignment
from polymax.structures.base import Structure
from polymax.structures.chain import Chain
from polymax.structures.spanning_tree import SpanningTree

# with scores of this size, sums err by as much as the solvers' own arithmetic
_LARGE = 1e3


def all_small(scores: tuple[Tensor, ...]) -> bool:
    """Whether no score is large, infinite or NaN."""
    return all(x.numel() == 0 or bool(x.abs().amax() <= _LARGE) for x in scores)


def reduced(structure: Structure, scores: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor] | None:
    """Scores with the same solution, and how much less structures have by them, (*batch,); None where none is large."""
    if not isinstance(structure, Chain | Assignment | SpanningTree):
        return None
    full = tuple(x.double() for x in structure.full(*scores))
    dims = structure.event_dims(*full)
    sizes = [torch.where(x.isfinite(), x, 0).abs().flatten(x.dim() - d) for x, d in zip(full, dims, strict=True)]
    large = torch.stack([s.amax(-1) > _LARGE for s in sizes if s.shape[-1]], -1).any(-1) if full[0].numel() else None
    if large is None or not bool(large.any()):
        return None
    match structure:
        case Chain():
            less, total = _of_chains(structure, *full)
        case Assignment():
            less, total = _of_assignments(structure, *full)
        case _:
            less, total = _of_trees(structure, *full)
    # one without a structure, or with infinite scores, stays as it is
    large = large & total.isfinite()
    chosen = tuple(
        torch.where(large.reshape(*large.shape, *[1] * d), y, x) for y, x, d in zip(less, full, dims, strict=True)
    )
    return chosen, torch.where(large, total, 0)


def _of_chains(structure: Chain, unary: Tensor, transition: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    n = unary.shape[-2]
    values = [unary[..., 0, :]]
    steps = []
    for t in range(1, n):
        before, step, state = values[-1].unsqueeze(-1), transition[..., t - 1, :, :], unary[..., t, :].unsqueeze(-2)
        values.append((before + step + state).amax(-2))
        steps.append(exact_sum(before, step, state, -values[-1].unsqueeze(-2)))
    v = torch.stack(values, -2)
    last = torch.full(v.shape[:-2], n - 1) if structure.lengths is None else (structure.lengths - 1).clamp(min=0)
    last = last.to(v.device).reshape(*last.shape, 1, 1)
    ends = torch.arange(n, device=v.device).reshape(n, 1) == last
    final = v.gather(-2, last.expand(*v.shape[:-2], 1, v.shape[-1]))
    total = final.amax(-1, keepdim=True)
    states = torch.where(ends, v - total, torch.where(unary == -math.inf, unary, 0))
    moved = torch.stack(steps, -3) if steps else transition
    total = total.reshape(v.shape[:-2])
    if structure.lengths is not None:
        total = torch.where(structure.lengths.to(v.device) == 0, 0, total)
    return (states, moved), total


def _of_assignments(structure: Assignment, scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    n, m = scores.shape[-2:]
    u, v = structure.duals(scores)
    rows, columns = (
        torch.full(u.shape[:-1], size, device=u.device) if given is None else given.to(u.device)
        for given, size in zip(structure.lengths or (None, None), (n, m), strict=True)
    )
    there = torch.arange(n, device=u.device) < rows.unsqueeze(-1)
    beside = torch.arange(m, device=u.device) < columns.unsqueeze(-1)
    best = torch.where(structure.map(scores) > 0, scores, 0)
    square = (rows == columns).unsqueeze(-1)
    u = torch.where(there & (rows <= columns).unsqueeze(-1), torch.where(square, u, best.sum(-1)), 0)
    v = torch.where(beside & (rows >= columns).unsqueeze(-1), torch.where(square, v, best.sum(-2)), 0)
    return (exact_sum(scores, -u.unsqueeze(-1), -v.unsqueeze(-2)),), exact_total(u, v)


def _of_trees(structure: SpanningTree, scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    # arcs are [head, modifier], with labels after them where there are any
    others = (-2,) if structure.event_dims(scores) == (2,) else (-3, -1)
    best = torch.where(structure.map(scores) > 0, scores, 0).sum(others, keepdim=True)
    total = exact_total(best.flatten(scores.dim() - structure.event_dims(scores)[0]))
    total = torch.where(structure.best_score(scores) == -math.inf, -math.inf, total)
    return (exact_sum(scores, -best),), total


def exact_sum(*terms: Tensor) -> Tensor:
    """Their sum, rounded once but for the last bit; -inf where a term is."""
    total, error = terms[0], torch.zeros((), dtype=terms[0].dtype, device=terms[0].device)
    for x in terms[1:]:
        both = total + x
        other = both - total
        error = error + ((total - (both - other)) + (x - other))
        total = both
    found = total + error
    # potentials of what cannot be reached are infinite, too
    return torch.where(found.isfinite(), found, -math.inf)


def exact_total(*terms: Tensor) -> Tensor:
    """The sum of all entries along the last dimension."""
    high, low = halves(terms)
    return torch.stack([t.sum(-1) for t in high]).sum(0) + torch.stack([t.sum(-1) for t in low]).sum(0)


def halves(scores: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Scores as sums of two: multiples of a power of 2 so large that their sums are exact, and what is left."""
    finite = [torch.where(x.isfinite(), x, 0) for x in scores]
    top = sum((2 * x.numel() * x.abs().amax() for x in finite if x.numel()), finite[0].new_zeros(()))
    # adding 1.5 times the power rounds to its last digit
    unit = 1.5 * torch.exp2(torch.log2(torch.where(top > 0, top, 1)).ceil() + 1)
    high = tuple((x + unit) - unit if bool(unit.isfinite()) else x for x in finite)
    low = tuple(x - h for x, h in zip(finite, high, strict=True))
    return tuple(torch.where(x.isfinite(), h, x) for x, h in zip(scores, high, strict=True)), low
