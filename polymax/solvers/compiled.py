"""Which structures have a compiled SparseMAP loop, and how they enter it."""

import torch
from torch import Tensor

from polymax.solvers.base import ActiveSet, AwayStep, FrankWolfe, Pairwise, Solution, Solver
from polymax.structures.alignment import Alignment
from polymax.structures.base import Structure
from polymax.structures.chain import Chain
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.hypergraph import Dag
from polymax.structures.projective_tree import ProjectiveTree
from polymax.structures.semi_markov import SemiMarkov
from polymax.structures.span_tree import SpanTree

_RULES = {ActiveSet: 0, FrankWolfe: 1, AwayStep: 2, Pairwise: 3}
# their structures use a part once at most, so that a row of bytes holds them
_DERIVED = (SemiMarkov, Alignment, SpanTree, ProjectiveTree, Dag)


def solve(
    solver: Solver, structure: Structure, scores: tuple[Tensor, ...], start: Solution | None
) -> tuple[Solution, Tensor] | None:
    """The solution and which instances converged, (*batch,); None where there is no compiled loop."""
    from polymax.solvers import cpu

    if type(solver) not in _RULES or scores[0].device.type != "cpu":
        return None
    dims = structure.event_dims(*scores)[0]
    batch, event = scores[0].shape[: scores[0].dim() - dims], scores[0].shape[scores[0].dim() - dims :]
    settings = (_RULES[type(solver)], solver.max_iter, solver.tol, *_seeds(structure, scores, start, batch, event))
    if isinstance(structure, Chain):
        unary, transition, lengths, _ = structure._flat(*scores)
        found = cpu.solve_chain(unary, transition, lengths, *settings)
    elif isinstance(structure, _DERIVED):
        assert isinstance(structure, DynamicProgram)
        tree = structure.derivations(*scores)
        found = cpu.solve_derivations(tree.scores, *tree.graph.arrays, tree.roots, event.numel(), *settings)
    else:
        return None
    rows, weights, iterations, gap, status = found
    # heaviest first
    order = torch.sort(weights, dim=-1, descending=True, stable=True).indices
    weights = weights.gather(-1, order)
    rows = rows.gather(1, order.unsqueeze(-1).expand_as(rows)).double()
    solution = Solution(
        rows.reshape(*batch, -1, *event) if rows.numel() else rows.reshape(*batch, rows.shape[1], *event),
        weights.reshape(*batch, weights.shape[-1]),
        iterations.reshape(batch),
        gap.clamp(min=0).reshape(batch),
    )
    return solution, (status > 0).reshape(batch)


def _seeds(
    structure: Structure, scores: tuple[Tensor, ...], start: Solution | None, batch: torch.Size, event: torch.Size
) -> tuple[Tensor, Tensor, Tensor]:
    count = batch.numel()
    if start is None:
        none = torch.zeros(count, 0, dtype=torch.float64)
        return torch.zeros(count, 0, event.numel(), dtype=torch.uint8), none, none
    b = structure.rescore(start.vertices.double(), *(x.double() for x in scores))
    k = b.shape[-1]
    rows = start.vertices.reshape(count, k, event.numel()).to(torch.uint8)
    return rows, b.reshape(count, k), start.probs.reshape(count, k).double()
