"""SparseMAP on the CPU: MAP and the weights of what it finds in one compiled loop for each instance.

A kind of search has a file of its own, cpu_<kind>.py, with `best`, which numba_search.py describes, and `problem`: the
tensors of a search as `best` takes them, what memory it needs, and the work of one question.
"""

from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.active_set import numba_loop, numba_steps
from polymax.kernels.active_set.numba_search import address
from polymax.kernels.cpu_rows import parallel
from polymax.kernels.exact_sums import halves
from polymax.solvers.rules import AwayStep, FrankWolfe, Pairwise, Solver
from polymax.solvers.search import Search
from polymax.solvers.solution import Solution, UsedParts, parts_of
from polymax.structures.base import Structure

# exact weights need no step rule
_STEPS = {FrankWolfe: numba_steps.FRANK_WOLFE, AwayStep: numba_steps.AWAY_STEP, Pairwise: numba_steps.PAIRWISE}
# room for so many structures at first; more where they do not suffice
_ROOM = 128
# some fifty iterations, each of a few passes over the scores
_WEIGHT = 200


def solve(
    solver: Solver,
    structure: Structure,
    scores: tuple[Tensor, ...],
    search: Search,
    start: Solution | None,
    whole: bool,
) -> tuple[Solution, Tensor]:
    """The solution, and which instances converged, (*batch,)."""
    kind = import_module(f"{__package__}.cpu_{search.kind}")
    problem, d = kind.problem(search), search.events[0].numel()
    batch, count, parts = search.batch, len(problem.own), search.most
    sizes = [event.numel() for event in search.events]
    rule, where = _STEPS.get(type(solver)), address(kind.best)
    settings = solver.max_iter, solver.tol, whole
    seeds = (None, None, None) if start is None else _seeds(structure, scores, search, start)
    # as many as can be independent, and one more
    room = min(_ROOM, d + 2) if rule is None else _ROOM
    room = room if start is None else max(room, 2 * seeds[0].shape[1])
    while True:
        places, probs = np.empty((count, room, parts), np.int32), np.empty((count, room))
        overlaps = np.empty((count, room, room), np.int16 if parts < 2**15 else np.int32)
        means, numbers, counts = np.empty((count, sum(sizes))), np.empty((2, count)), np.zeros((3, count), np.int64)
        out = places, probs, overlaps, means, numbers, counts

        def some(begin: int, end: int) -> None:
            space = _memory(room, parts, d)
            own = np.empty(problem.memory[0]), np.empty(problem.memory[1]), np.empty(problem.memory[2], np.int64)
            numba_loop.solve(begin, end, where, rule, settings, (*problem[:4], *own), *space, *seeds, out)

        parallel(some, torch.Size((count, problem.work)), _WEIGHT)
        if not (counts[1] == numba_loop.FULL).any():
            break
        room *= 4
    # a place for none at all
    width = max(int(counts[2].max(initial=0)), 1)
    tensors = [torch.from_numpy(t) for t in (places[:, :width], probs[:, :width], overlaps[:, :width, :width])]
    listed, probs, overlaps = (t.contiguous().reshape(*batch, *t.shape[1:]) for t in tensors)
    value, gap = torch.from_numpy(numbers)
    iterations, status, _ = torch.from_numpy(counts)
    solution = Solution(
        UsedParts(listed, search.events),
        probs,
        overlaps,
        value.reshape(batch),
        iterations.reshape(batch),
        gap.clamp(min=0).reshape(batch),
        mean=torch.from_numpy(means),
    )
    return solution, (status > 0).reshape(batch)


def _memory(room: int, parts: int, d: int) -> tuple[Any, ...]:
    """What the loop needs for `room` structures of so many parts, over d parts of the first tensor."""
    held = np.empty((room, parts), np.int32), np.empty((room, room)), np.empty(room), np.empty(room)
    system = np.empty((room, room)), np.empty((3, room)), np.empty((2, room))
    lists = np.zeros(d, np.bool_), np.empty(parts, np.int32), np.empty(room, np.int64)
    return held, system, (np.empty(d), np.empty((2, room)), *lists, np.empty((2, d)))


def _seeds(
    structure: Structure, scores: tuple[Tensor, ...], search: Search, start: Solution
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Structures to start from: the parts they use, their scores as sums of two numbers, and their weights."""
    count, k = search.batch.numel(), start.probs.shape[-1]
    both = halves(tuple(x.double() for x in scores))
    b = torch.stack([structure.rescore(start.vertices, *part) for part in both], -1)
    parts = start.found.places if isinstance(start.found, UsedParts) else parts_of(structure, start.vertices)
    parts = torch.nn.functional.pad(parts[..., : search.most], (0, search.most - parts.shape[-1]), value=-1)
    return (
        parts.int().reshape(count, k, search.most).contiguous().numpy(),
        b.reshape(count, k, 2).contiguous().numpy(),
        start.probs.reshape(count, k).double().contiguous().numpy(),
    )
