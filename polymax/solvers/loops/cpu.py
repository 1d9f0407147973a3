"""SparseMAP on the CPU: one compiled loop for each instance finds structures by MAP, and their weights.

A kind of search has a file, kernels/active_set/cpu_<kind>.py, with `best`, which numba_search.py describes, and
`problem`: the tensors of a search as `best` takes them, the memory it needs, and the work of one call of `best`.
"""

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import run
from polymax.kernels import active_set
from polymax.kernels.active_set import numba_loop, numba_steps
from polymax.kernels.active_set.numba_search import address
from polymax.kernels.active_set.problem import Search, UsedParts
from polymax.kernels.exact_sums import halves
from polymax.solvers.loops.rule import Rule
from polymax.solvers.reduced import LARGEST_SCORE, all_small
from polymax.solvers.solution import Solution, parts_of
from polymax.structures.base import Structure

# exact weights need no step rule
_STEPS = {"frank_wolfe": numba_steps.FRANK_WOLFE, "away": numba_steps.AWAY_STEP, "pairwise": numba_steps.PAIRWISE}
# kinds of search whose problems hold the scores unchanged: the compiled loop checks their size
_AS_GIVEN = ("tags", "arcs", "cells")
# places for structures at first; multiplied by 4 until they suffice
_ROOM = 128
# the cost of an iteration, in passes over a number: at least _LEAST, and _PASSES for each unit of the search's work
_LEAST, _PASSES = 800, 8
# iterations: exact weights take about as many as a structure has parts, and step rules at least this many
_STEPS_TAKEN = 50


def solve(
    solver: Rule,
    structure: Structure,
    scores: tuple[Tensor, ...],
    search: Search,
    start: Solution | None,
    whole: bool,
    wary: bool,
) -> tuple[Solution, Tensor | None] | None:
    """The solution, and `converged` (*batch,), or None if all converged.

    With `wary`, return None if a score is large, NaN or +inf.
    """
    kind, batch, events, parts = _file(search.kind), search.batch, search.events, search.most
    problem = kind.problem(search)
    as_given = search.kind in _AS_GIVEN
    if wary and not as_given and not all_small(scores):
        return None
    count, d, rule = len(problem.own), events[0].numel(), _STEPS.get(solver.step)
    # as many structures as can be independent, and one more
    room = min(_ROOM, d + 2) if rule is None else _ROOM
    seeds: tuple[Any, Any, Any] = (None, None, None)
    if start is not None:
        seeds, room = _seeds(structure, scores, search, start), max(room, 2 * start.probs.shape[-1])
    limit = LARGEST_SCORE if wary and as_given else np.nan
    asked = address(kind.best), rule, (solver.max_iter, solver.tol, whole, limit)
    given = *problem[:4], *problem.memory, problem.choices
    width = d if len(events) == 1 else sum(map(torch.Size.numel, events))
    cost = (parts if rule is None else max(parts, _STEPS_TAKEN)) * (_LEAST + _PASSES * problem.work)
    while True:
        places, probs = np.empty((count, room, parts), np.int32), np.empty((count, room))
        overlaps = np.empty((count, room, room), np.int16 if parts < 2**15 else np.int32)
        means, numbers, counts = np.empty((count, width)), np.empty((2, count)), np.zeros((3, count), np.int64)
        out = places, probs, overlaps, means, numbers, counts
        run(numba_loop.solve, count, cost, *asked, given, d, *seeds, out)
        most, large, full, done = numba_loop.summary(counts)
        if large:
            return None
        if not full:
            break
        room *= 4
    iterations, status, held = counts
    # at least one place, even if no instance has a structure
    k = max(most, 1)
    found = np.empty((count, k, parts), np.int32), np.empty((count, k)), np.empty((count, k, k), overlaps.dtype)
    numba_loop.gather(held, (places, probs, overlaps), found)
    arrays: tuple[np.ndarray, ...] = (*found, numbers[0], iterations, numbers[1])
    if len(batch) != 1:
        # NumPy reshapes in a third of the time of torch
        arrays = tuple(x.reshape((*batch, *x.shape[1:])) for x in arrays)
    lists, weights, gram, value, taken, gap = map(torch.from_numpy, arrays)
    mean = torch.from_numpy(means)
    solution = Solution(UsedParts(lists, events), weights, gram, value, taken, gap, mean=mean)
    return solution, None if done else torch.from_numpy((status > 0).reshape(batch))


@cache
def _file(kind: str) -> Any:
    """The module of a kind of search."""
    return import_module(f"{active_set.__name__}.cpu_{kind}")


def _seeds(
    structure: Structure, scores: tuple[Tensor, ...], search: Search, start: Solution
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Structures to start from: the parts they use, their scores as sums of two numbers, and their weights."""
    count, k = search.batch.numel(), start.probs.shape[-1]
    both = halves(tuple(x.double() for x in scores))
    b = torch.stack([start.rescore(structure, *part) for part in both], -1)
    parts = start.found.places if isinstance(start.found, UsedParts) else parts_of(structure, start.vertices)
    # a negative pad cuts columns, in which all entries are -1
    parts = torch.nn.functional.pad(parts, (0, search.most - parts.shape[-1]), value=-1)
    return (
        memory(parts.int().reshape(count, k, search.most).contiguous()),
        memory(b.reshape(count, k, 2).contiguous()),
        memory(start.probs.reshape(count, k).double().contiguous()),
    )
