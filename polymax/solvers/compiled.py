"""Which structures have a compiled SparseMAP loop, and how they enter it."""

import torch
from torch import Tensor

from polymax.solvers.reduced import halves
from polymax.solvers.rules import ActiveSet, AwayStep, FrankWolfe, Pairwise, Solution, Solver, UsedParts
from polymax.structures.alignment import Alignment
from polymax.structures.assignment import Assignment
from polymax.structures.base import Structure, checked_lengths, tensors, used_parts
from polymax.structures.chain import Chain
from polymax.structures.counter_chain import CounterChain, rises
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.hypergraph import Dag
from polymax.structures.projective_tree import ProjectiveTree
from polymax.structures.second_order_tree import SecondOrderTree
from polymax.structures.semi_markov import SemiMarkov
from polymax.structures.span_tree import SpanTree
from polymax.structures.spanning_tree import SpanningTree

_RULES = {ActiveSet: 0, FrankWolfe: 1, AwayStep: 2, Pairwise: 3}
# their structures use a part once at most, so that a list of parts holds them
_DERIVED = (CounterChain, SecondOrderTree, SemiMarkov, Alignment, SpanTree, ProjectiveTree, Dag)
_COMPILED = (Chain, SpanningTree, Assignment, *_DERIVED)


def has_lists(solver: Solver, structure: Structure) -> bool:
    """Whether solutions of such a problem come as lists of parts."""
    return type(solver) in _RULES and isinstance(structure, _COMPILED)


def solve(
    solver: Solver, structure: Structure, scores: tuple[Tensor, ...], start: Solution | None, whole: bool
) -> tuple[Solution, Tensor] | None:
    """The solution and which instances converged, (*batch,); None where there is no compiled loop."""
    if not has_lists(solver, structure):
        return None
    if isinstance(structure, SpanningTree) and structure.labelled:
        return None
    # Triton and Numba are loaded with the first problem
    if isinstance(solver, ActiveSet) and scores[0].is_cuda:
        from polymax.kernels.active_set import cuda as device

        return device.solve(solver, structure, scores, start, whole)
    if scores[0].device.type != "cpu":
        return None
    from polymax.kernels.active_set import cpu_chain, cpu_counter, cpu_derivations, cpu_loop, cpu_matches, cpu_trees

    dims = structure.event_dims(*scores)[0]
    batch, event = scores[0].shape[: scores[0].dim() - dims], scores[0].shape[scores[0].dim() - dims :]
    events = tuple(x.shape[len(batch) :] for x in structure.full(*scores))
    seeds = _seeds(structure, scores, start, batch, events)
    settings = cpu_loop.Settings(_RULES[type(solver)], solver.max_iter, solver.tol, whole, *seeds)
    if isinstance(structure, Chain):
        unary, transition, lengths, _ = structure._flat(*scores)
        found = cpu_chain.solve_chain(unary, transition, lengths, settings)
    elif isinstance(structure, CounterChain):
        unary, transition, lengths, _ = structure.chain._flat(*scores)
        rise = rises(event[1], structure.state, structure.runs)
        most = min(structure.k, event[0])
        found = cpu_counter.solve_counter(unary, transition, lengths, rise, most, settings)
    elif isinstance(structure, SpanningTree):
        arcs, lengths, _ = structure._flat(*scores)
        found = cpu_trees.solve_trees(arcs, lengths, structure.single_root, settings)
    elif isinstance(structure, Assignment):
        given = structure.lengths or (None, None)
        rows, columns = (checked_lengths(t, batch, n, scores[0].device, "lengths") for t, n in zip(given, event))
        found = cpu_matches.solve_matches(scores[0].reshape(batch.numel(), *event), rows, columns, settings)
    else:
        assert isinstance(structure, DynamicProgram)
        tree = structure.derivations(*scores)
        found = cpu_derivations.solve_derivations(tree.scores, *tree.graph.arrays, tree.roots, event.numel(), settings)
    solution = Solution(
        UsedParts(found.places.reshape(*batch, *found.places.shape[1:]), events),
        found.probs.reshape(*batch, found.probs.shape[1]),
        found.overlaps.reshape(*batch, *found.overlaps.shape[1:]),
        found.value.reshape(batch),
        found.iterations.reshape(batch),
        found.gap.clamp(min=0).reshape(batch),
    )
    return solution, (found.status > 0).reshape(batch)


def _seeds(
    structure: Structure,
    scores: tuple[Tensor, ...],
    start: Solution | None,
    batch: torch.Size,
    events: tuple[torch.Size, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Structures to start from: the parts they use, their scores in two parts, and weights."""
    count, most = batch.numel(), _most_parts(structure, events[0])
    if start is None:
        none = torch.zeros(count, 0, 2, dtype=torch.float64)
        return torch.zeros(count, 0, most, dtype=torch.int32), none, none[..., 0]
    both = halves(tuple(x.double() for x in scores))
    b = torch.stack([structure.rescore(start.vertices, *part) for part in both], -1)
    k = b.shape[-2]
    if isinstance(start.found, UsedParts):
        parts = start.found.places.reshape(count, k, most)
    else:
        dense = tensors(structure.complete(start.vertices))
        parts = used_parts(torch.cat([t.reshape(count, k, t.shape[len(batch) + 1 :].numel()) for t in dense], -1), 1)
        parts = torch.nn.functional.pad(parts[..., :most], (0, most - parts.shape[-1]), value=-1).int()
    return parts, b.reshape(count, k, 2), start.probs.reshape(count, k).double()


def _most_parts(structure: Structure, event: torch.Size) -> int:
    """How many parts a structure can use."""
    match structure:
        case Chain() | CounterChain() | SemiMarkov():
            return max(2 * event[0] - 1, 0)
        case Alignment():
            return event[0] + event[1]
        case SpanTree() | SecondOrderTree():
            return 2 * event[0]
        case ProjectiveTree() | SpanningTree():
            return event[0]
        case Assignment():
            return min(event)
    return event.numel()
