"""The best structure of a factor graph, by branch and bound: all of its variables are 0 or 1."""

import heapq
import itertools
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import checked_scores, tensors
from polymax.factors.factor import Factor
from polymax.factors.graph import FactorGraph, GraphParts

# the price of a variable that differs from its given value, relative to the sum of all scores
_PRICE = 50.0
# a bound must exceed the best value by this share of its size to be explored
_BETTER = 1e-9


def solve_integral(graph: FactorGraph, *scores: Tensor, max_nodes: int = 1000) -> GraphParts:
    """The best structure of a graph, with all variables 0 or 1: exact, unlike the relaxation `HardMax(graph)`.

    Branch and bound: if the relaxation has a variable between 0 and 1, it is solved again with the variable off, and
    with the variable on. Branches whose bound does not exceed the value of the best structure found are dropped. The
    number of relaxations of an instance grows exponentially at worst; a warning says if `max_nodes` of them did not
    suffice to prove the best structure. There is no gradient. The result is 0 for an instance in which scores of -inf
    forbid everything. A ValueError is raised if no setting of 0 and 1 satisfies all factors.

    Shapes: scores as the graph takes them; result like those of `HardMax(graph)`

    Example:
        >>> graph = pm.FactorGraph(3, [pm.factors.at_most_one(pair) for pair in ([0, 1], [1, 2], [0, 2])])
        >>> pm.HardMax(graph)(torch.tensor([1.0, 1.1, 1.2])).variables
        tensor([0.5000, 0.5000, 0.5000])
        >>> solve_integral(graph, torch.tensor([1.0, 1.1, 1.2])).variables
        tensor([0., 0., 1.])

    See: Land and Doig 1960, An automatic method of solving discrete programming problems.
    """
    _check.whole(max_nodes, "max_nodes")
    with torch.no_grad():
        full = graph.full(*checked_scores(scores))
        batch = full[0].shape[:-1]
        flat = [t.reshape(batch.numel(), *t.shape[len(batch) :]).double() for t in full]
        each = [
            _searched(_instance(graph, batch, b), tuple(t[b] for t in flat), b, max_nodes) for b in range(batch.numel())
        ]
        parts = [torch.stack(t) for t in zip(*each, strict=True)] if each else flat
        return graph.named(*(t.reshape(x.shape).to(scores[0].dtype) for t, x in zip(parts, full, strict=True)))


def _instance(graph: FactorGraph, batch: torch.Size, b: int) -> FactorGraph:
    """The graph of one instance of the batch."""
    factors = []
    for factor in graph.factors:
        changes: dict[str, Any] = {}
        if factor.lead:
            event = factor.at.shape[len(factor.lead) :]
            changes["at"] = factor.at.expand(*batch, *event).reshape(batch.numel(), *event)[b]
        if isinstance(factor, Factor) and factor.structure.lengths is not None:
            lengths = factor.structure.lengths
            own = tuple(t.expand(batch).reshape(-1)[b] for t in tensors(lengths))
            changes["structure"] = factor.structure.with_lengths(own if isinstance(lengths, tuple) else own[0])
        factors.append(replace(factor, **changes) if changes else factor)
    return replace(graph, factors=factors)


def _searched(graph: FactorGraph, scores: tuple[Tensor, ...], b: int, max_nodes: int) -> tuple[Tensor, ...]:
    """The best structure (parts of each tensor) for the scores of one instance."""
    best: tuple[Tensor, ...] | None = None
    reached = -torch.inf
    order = itertools.count()
    root = graph.linear_relaxation(*scores)
    if not bool(root.feasible):
        return tuple(torch.zeros_like(t) for t in scores)
    # a heap with the highest bound first; each entry has the values set in its branch
    queue: list[tuple[float, int, Any, dict[int, float]]] = [(-_value(graph, root, scores), next(order), root, {})]
    solved = 1
    while queue:
        bound, _, found, given = heapq.heappop(queue)
        if -bound <= reached + _BETTER * (1 + abs(reached)):
            break
        if bool(found.integral):
            best, reached = tuple(found.parts), -bound
            continue
        if solved >= max_nodes:
            left = f"structures may be better by {-bound - reached:.2g}" if best else "none was found"
            warnings.warn(f"solve_integral stopped after {solved} relaxations of instance {b}: {left}", stacklevel=4)
            break
        free = [i for i in range(graph.variables) if i not in given]
        if not free:
            continue
        branch = free[int((found.variables[free] - 0.5).abs().argmin())]
        for value in (0.0, 1.0):
            child = _relaxed(graph, scores, {**given, branch: value})
            solved += 1
            if child is not None:
                bound = min(_value(graph, child, scores), _value(graph, found, scores))
                heapq.heappush(queue, (-bound, next(order), child, {**given, branch: value}))
    if best is None:
        raise ValueError(f"no setting of 0 and 1 that keeps all factors was found in instance {b}")
    return best


def _value(graph: FactorGraph, found: Any, scores: tuple[Tensor, ...]) -> float:
    return float(graph.score(graph.named(*found.parts), *scores))


def _relaxed(graph: FactorGraph, scores: tuple[Tensor, ...], given: dict[int, float]) -> Any:
    """The relaxation with some variables set to 0 or 1; None if the factors do not allow it.

    Variables are set by a price on other values, which leaves the problem feasible and its compiled graph unchanged. If
    the best point differs from the given values by V, with  price V > 2 sum |scores|,  no point has these values.
    """
    finite = sum(float(torch.where(t.isfinite(), t, 0).abs().sum()) for t in scores)
    price = _PRICE * (1 + finite)
    at, wanted = list(given), scores[0].new_tensor(list(given.values()))
    variables = scores[0].clone()
    if bool((variables[at] == -torch.inf).logical_and(wanted == 1).any()):
        return None
    variables[at] = variables[at] + price * (2 * wanted - 1)
    found = graph.linear_relaxation(variables, *scores[1:])
    return found if float((found.variables[at] - wanted).abs().sum()) <= 2 / _PRICE else None
