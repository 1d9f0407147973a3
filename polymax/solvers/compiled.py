"""Which structures have a compiled SparseMAP loop, and how they enter it."""

import torch
from torch import Tensor

from polymax.solvers.base import ActiveSet, AwayStep, FrankWolfe, Pairwise, Solution, Solver, UsedParts
from polymax.structures.alignment import Alignment
from polymax.structures.assignment import Assignment
from polymax.structures.base import Structure, checked_lengths, used_parts
from polymax.structures.chain import Chain
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.hypergraph import Dag
from polymax.structures.projective_tree import ProjectiveTree
from polymax.structures.semi_markov import SemiMarkov
from polymax.structures.span_tree import SpanTree
from polymax.structures.spanning_tree import SpanningTree

_RULES = {ActiveSet: 0, FrankWolfe: 1, AwayStep: 2, Pairwise: 3}
# their structures use a part once at most, so that a list of parts holds them
_DERIVED = (SemiMarkov, Alignment, SpanTree, ProjectiveTree, Dag)


def solve(
    solver: Solver, structure: Structure, scores: tuple[Tensor, ...], start: Solution | None
) -> tuple[Solution, Tensor] | None:
    """The solution and which instances converged, (*batch,); None where there is no compiled loop."""
    # Numba is loaded with the first problem
    from polymax.solvers import cpu_chain, cpu_derivations, cpu_loop, cpu_matches, cpu_trees

    if type(solver) not in _RULES or scores[0].device.type != "cpu":
        return None
    dims = structure.event_dims(*scores)[0]
    batch, event = scores[0].shape[: scores[0].dim() - dims], scores[0].shape[scores[0].dim() - dims :]
    seeds = _seeds(structure, scores, start, batch, event)
    settings = cpu_loop.Settings(_RULES[type(solver)], solver.max_iter, solver.tol, *seeds)
    if isinstance(structure, Chain):
        unary, transition, lengths, _ = structure._flat(*scores)
        found = cpu_chain.solve_chain(unary, transition, lengths, settings)
    elif isinstance(structure, SpanningTree):
        arcs, lengths, _ = structure._flat(*scores)
        found = cpu_trees.solve_trees(arcs, lengths, structure.single_root, settings)
    elif isinstance(structure, Assignment):
        given = structure.lengths or (None, None)
        rows, columns = (checked_lengths(t, batch, n, scores[0].device, "lengths") for t, n in zip(given, event))
        found = cpu_matches.solve_matches(scores[0].reshape(batch.numel(), *event), rows, columns, settings)
    elif isinstance(structure, _DERIVED):
        assert isinstance(structure, DynamicProgram)
        tree = structure.derivations(*scores)
        found = cpu_derivations.solve_derivations(tree.scores, *tree.graph.arrays, tree.roots, event.numel(), settings)
    else:
        return None
    used, weights, iterations, gap, status, overlaps = found
    # heaviest first
    order = torch.sort(weights, dim=-1, descending=True, stable=True).indices
    used = used.gather(1, order.unsqueeze(-1).expand_as(used)).long()
    overlaps = overlaps.gather(1, order.unsqueeze(-1).expand_as(overlaps))
    overlaps = overlaps.gather(2, order.unsqueeze(-2).expand_as(overlaps))
    solution = Solution(
        UsedParts(used.reshape(*batch, *used.shape[1:]), event),
        weights.gather(-1, order).reshape(*batch, used.shape[1]),
        iterations.reshape(batch),
        gap.clamp(min=0).reshape(batch),
        overlaps.double().reshape(*batch, *overlaps.shape[1:]),
    )
    return solution, (status > 0).reshape(batch)


def _seeds(
    structure: Structure, scores: tuple[Tensor, ...], start: Solution | None, batch: torch.Size, event: torch.Size
) -> tuple[Tensor, Tensor, Tensor]:
    """Structures to start from: the parts they use, their scores and weights."""
    count, most = batch.numel(), _most_parts(structure, event)
    if start is None:
        none = torch.zeros(count, 0, dtype=torch.float64)
        return torch.zeros(count, 0, most, dtype=torch.int32), none, none
    b = structure.rescore(start.vertices, *(x.double() for x in scores))
    k = b.shape[-1]
    parts = used_parts(start.vertices.reshape(count, k, event.numel()), 1)[..., :most]
    parts = torch.nn.functional.pad(parts, (0, most - parts.shape[-1]), value=-1)
    return parts.int(), b.reshape(count, k), start.probs.reshape(count, k).double()


def _most_parts(structure: Structure, event: torch.Size) -> int:
    """How many parts of the first tensor a structure can use."""
    match structure:
        case Chain() | SemiMarkov():
            return event[0]
        case Alignment():
            return event[0] + event[1]
        case SpanTree():
            return 2 * event[0]
        case ProjectiveTree() | SpanningTree():
            return event[0]
        case Assignment():
            return min(event)
    return event.numel()
