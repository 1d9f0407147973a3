"""SparseMAP on the CPU: MAP and the weights of what it finds in one compiled loop for each instance.

A structure brings `best(problem, mu, vertex)`, which lists the parts of its best structure around mu: those of the
first tensor, then those of others, counted on from the first, then -1. It gives the number of the former and the score
of the structure itself, -inf where there is none.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.active_set.cpu_face import complete
from polymax.kernels.active_set.numba_factor import dot
from polymax.kernels.active_set.numba_steps import ACTIVE_SET
from polymax.kernels.active_set.numba_weights import CONVERGED, FULL, GOING, finish, first, improve, resume
from polymax.kernels.cpu_rows import parallel
from polymax.kernels.numba_math import inline, row_dot

INFEASIBLE = 3
# room for so many structures at first; more where they do not suffice
_ROOM = 128
# some fifty turns, each of a few passes over the scores
_WEIGHT = 200


class Settings(NamedTuple):
    """The step rule, when to stop, whether structures shall span the face, and structures to start from.

    Shapes: seeds (B, S, parts), the parts that structures use, -1 after the last; their scores (B, S, 2), each the sum
    of two numbers, and weights (B, S)
    """

    rule: int
    max_iter: int
    tol: float
    whole: bool
    seeds: Tensor
    scores: Tensor
    weights: Tensor


class Found(NamedTuple):
    """Shapes: places (B, K, parts), probs (B, K), overlaps (B, K, K); the others (B,)."""

    places: Tensor
    probs: Tensor
    overlaps: Tensor
    value: Tensor
    gap: Tensor
    iterations: Tensor
    status: Tensor


def run(solve: Callable[..., None], problem: tuple[Any, ...], work: int, settings: Settings) -> Found:
    """Solve all instances, with more room for structures as long as one needs it; `work` is that of one MAP."""
    given = tuple(t.numpy() for t in settings[4:])
    count, seeds, parts = settings.seeds.shape
    room = max(_ROOM, 2 * seeds)
    while True:
        places = torch.empty(count, room, parts, dtype=torch.int32)
        probs = torch.empty(count, room, dtype=torch.float64)
        overlaps = torch.empty(count, room, room, dtype=torch.int16 if parts < 2**15 else torch.int32)
        value, gap = torch.empty(2, count, dtype=torch.float64)
        iterations, status, found = torch.zeros(3, count, dtype=torch.long)
        outputs = tuple(t.numpy() for t in (places, probs, overlaps, value, gap, iterations, status, found))
        parallel(solve, torch.Size((count, work)), _WEIGHT, *problem, (*settings[:4], *given), outputs)
        if not (outputs[6] == FULL).any():
            break
        room *= 4
    # a place for none at all
    width = max(outputs[7].max(initial=0), 1)
    kept = places[:, :width].contiguous(), probs[:, :width].contiguous(), overlaps[:, :width, :width].contiguous()
    return Found(*kept, value, gap, iterations, status)


@inline
def memory(out, d):
    """What `settle` needs for structures over d parts of the first tensor; it may be used again and again."""
    room, parts = out[0].shape[1:]
    held = np.empty((room, parts), np.int32), np.empty((room, room)), np.empty(room), np.empty(room)
    system = np.empty((room, room)), np.empty((3, room)), np.empty((2, room))
    marks = np.zeros(d, np.bool_), np.empty(parts, np.int32), np.empty(room, np.int64)
    return held, system, np.empty(d), np.empty((2, room)), *marks, np.empty((2, d))


@inline
def settle(best, problem, base, i, settings, space, out):
    """Solve instance i, whose structures have `base` more than `best` says.

    Scores are counted from that of the best structure: those of structures that have weight are then small, and so is
    the rounding of sums with them.
    """
    rule, max_iter, tol, whole, seeds, seed_scores, seed_weights = settings
    held, system, mu, work, mark, vertex, order, nudge = space
    places, probs, overlaps, value, gap, iterations, status, found = out
    mu[:] = 0.0
    size, top = best(problem, mu, vertex)
    if top == -np.inf:
        finish(0, held, order, places[i], probs[i], overlaps[i])
        value[i], gap[i], status[i] = -np.inf, 0.0, INFEASIBLE
        return
    given = seeds[i], seed_scores[i], seed_weights[i]
    count = 0
    if seeds.shape[1] > 0:
        count = resume(given, base, top, mu.size, held, mu, system, work, mark)
    if count == 0:
        count = first(vertex, size, held, mu, system)
    for turn in range(max_iter):
        size, score = best(problem, mu, vertex)
        taken = vertex, size, score - top
        count, gap[i], status[i] = improve(rule, tol, top + base, count, taken, held, mu, system, work, mark)
        iterations[i] = turn
        if status[i] != GOING:
            break
    if whole and rule == ACTIVE_SET and status[i] == CONVERGED:
        count, status[i] = complete(best, problem, top, count, held, mu, system, work, mark, vertex, nudge)
    finish(count, held, order, places[i], probs[i], overlaps[i])
    value[i] = (dot(held[3], held[2], count) - row_dot(mu, mu) / 2) + top + base
    found[i] = count
    if np.isnan(value[i]):
        # MAP passes over NaN, but not where nothing else is left
        probs[i, :count] = np.nan
