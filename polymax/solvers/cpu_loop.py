"""SparseMAP on the CPU: MAP and the weights of what it finds in one compiled loop for each instance.

A structure brings `best(problem, mu, vertex)`, which lists the parts of its best structure around mu, and gives their
number and the score of the structure itself, -inf where there is none.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import parallel
from polymax.kernels.numba_math import inline
from polymax.solvers.numba_weights import FULL, GOING, finish, first, improve, resume

INFEASIBLE = 3
# room for so many structures at first; more where they do not suffice
_ROOM = 128


class Settings(NamedTuple):
    """The step rule, when to stop, and structures to start from.

    Shapes: seeds (B, S, parts), the parts that structures use, -1 after the last; their scores and weights (B, S)
    """

    rule: int
    max_iter: int
    tol: float
    seeds: Tensor
    scores: Tensor
    weights: Tensor


def run(solve: Callable[..., None], problem: tuple[Any, ...], work: int, settings: Settings) -> tuple[Tensor, ...]:
    """Solve all instances, with more room for structures as long as one needs it.

    The results are parts (B, K, parts), weights (B, K), iterations, gaps and status (B,), and overlaps (B, K, K).
    """
    given, seed_scores, seed_weights = settings[3:]
    count, most, parts = given.shape
    room = max(_ROOM, 2 * most)
    while True:
        used = torch.full((count, room, parts), -1, dtype=torch.int32)
        scores, weights = torch.zeros(count, room, dtype=torch.float64), torch.zeros(count, room, dtype=torch.float64)
        used[:, :most], scores[:, :most], weights[:, :most] = given, seed_scores, seed_weights
        iterations, status = (torch.zeros(count, dtype=torch.long) for _ in range(2))
        gap = torch.zeros(count, dtype=torch.float64)
        overlaps = torch.zeros(count, room, room, dtype=torch.int16)
        outputs = tuple(t.numpy() for t in (used, scores, weights, iterations, gap, status, overlaps))
        parallel(solve, torch.Size((count, work)), 16, *problem, (*settings[:3], most), outputs)
        if not bool((status == FULL).any()):
            break
        room *= 4
    width = max(int((weights > 0).sum(-1).max()) if weights.numel() else 0, 1)
    return used[:, :width], weights[:, :width], iterations, gap, status, overlaps[:, :width, :width]


@inline
def memory(out, d):
    """What `settle` needs for structures over d parts; it may be used again and again."""
    room, parts = out[0].shape[1:]
    matrices = np.empty((room, room)), np.empty((room, room)), np.empty((4, room))
    return *matrices, np.empty(d), np.zeros(d, np.bool_), np.empty(parts + 1, np.int32)


@inline
def settle(best, problem, i, settings, space, out):
    """Solve instance i."""
    rule, max_iter, tol, seeds = settings
    gram, factor, work, mu, mark, vertex = space
    used, scores, weights, overlaps = out[0][i], out[1][i], out[2][i], out[6][i]
    iterations, gap, status = out[3], out[4], out[5]
    mu[:] = 0.0
    count = resume(seeds, used, gram, scores, weights, mu, factor, work, mark)
    size, score = best(problem, mu, vertex)
    if score == -np.inf:
        finish(0, used, gram, weights, overlaps)
        status[i] = INFEASIBLE
        return
    if count == 0:
        count = first(vertex, size, score, used, gram, scores, weights, mu, factor)
    status[i] = GOING
    for turn in range(max_iter):
        size, score = best(problem, mu, vertex)
        count, gap[i], status[i] = improve(
            rule, tol, count, vertex, size, score, used, gram, scores, weights, mu, factor, work, mark
        )
        iterations[i] = turn
        if status[i] != GOING:
            break
    finish(count, used, gram, weights, overlaps)
