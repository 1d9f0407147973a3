"""SparseMAP on the CPU: MAP and the weights of what it finds in one compiled loop for each instance."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import parallel
from polymax.kernels.numba_math import kernel
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


def solve_chain(unary: Tensor, transition: Tensor, lengths: Tensor, settings: Settings) -> tuple[Tensor, ...]:
    """Tag sequences; tensors as the chain kernels take them."""
    scores = [x.double().contiguous().numpy() for x in (unary, transition)]
    n, s = unary.shape[1:]
    return run(_chain, (*scores, lengths.numpy()), n * s * s, settings)


def solve_derivations(
    scores: Tensor,
    first: Tensor,
    tails: Tensor,
    part: Tensor,
    roots: Tensor,
    penalised: int,
    settings: Settings,
) -> tuple[Tensor, ...]:
    """Derivations that use a part once at most, the first `penalised` parts being those of the first tensor."""
    arrays = [x.contiguous().numpy() for x in (scores.double(), first, tails, part, roots)]
    return run(_hypergraph, (*arrays, penalised), part.shape[0], settings)


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
        outputs = [t.numpy() for t in (used, scores, weights, iterations, gap, status, overlaps)]
        parallel(solve, torch.Size((count, work)), 16, *problem, *settings[:3], most, *outputs)
        if not bool((status == FULL).any()):
            break
        room *= 4
    width = max(int((weights > 0).sum(-1).max()) if weights.numel() else 0, 1)
    return used[:, :width], weights[:, :width], iterations, gap, status, overlaps[:, :width, :width]


@kernel
def _chain(
    start,
    stop,
    unary,
    transition,
    lengths,
    rule,
    max_iter,
    tol,
    seeds,
    used,
    scores,
    weights,
    iterations,
    gap,
    status,
    overlaps,
):
    _, n, s = unary.shape
    room = used.shape[1]
    shared = max(unary.shape[0] // max(transition.shape[0], 1), 1)
    gram, factor, work = np.empty((room, room)), np.empty((room, room)), np.empty((4, room))
    mu, mark, vertex = np.empty(n * s), np.zeros(n * s, np.bool_), np.empty(n, np.int32)
    values, back = np.empty((2, s)), np.empty((n, s), np.int32)
    for i in range(start, stop):
        steps = transition[i // shared]
        mu[:] = 0.0
        count = resume(seeds, used[i], gram, scores[i], weights[i], mu, factor, work, mark)
        size, score = _best_tags(unary[i], steps, lengths[i], mu, values, back, vertex)
        if score == -np.inf:
            finish(0, used[i], gram, weights[i], overlaps[i])
            status[i] = INFEASIBLE
            continue
        if count == 0:
            count = first(vertex, size, score, used[i], gram, scores[i], weights[i], mu, factor)
        status[i] = GOING
        for turn in range(max_iter):
            size, score = _best_tags(unary[i], steps, lengths[i], mu, values, back, vertex)
            count, gap[i], status[i] = improve(
                rule, tol, count, vertex, size, score, used[i], gram, scores[i], weights[i], mu, factor, work, mark
            )
            iterations[i] = turn
            if status[i] != GOING:
                break
        finish(count, used[i], gram, weights[i], overlaps[i])


@kernel
def _best_tags(unary, steps, length, mu, values, back, vertex):
    """The best sequence around mu as a list of parts: how many, and its own score."""
    s = unary.shape[1]
    if length == 0:
        return 0, 0.0
    v, w = values[0], values[1]
    for j in range(s):
        v[j] = unary[0, j] - mu[j]
    for t in range(1, length):
        step = steps[min(t - 1, steps.shape[0] - 1)]
        for j in range(s):
            w[j] = -np.inf
            back[t, j] = 0
        for i in range(s):
            for j in range(s):
                a = v[i] + step[i, j]
                better = a > w[j]
                w[j] = a if better else w[j]
                back[t, j] = np.int32(i) if better else back[t, j]
        for j in range(s):
            v[j] = w[j] + (unary[t, j] - mu[t * s + j])
    best = 0
    for j in range(s):
        if v[j] > v[best]:
            best = j
    if v[best] == -np.inf:
        return 0, -np.inf
    score = 0.0
    for t in range(length - 1, -1, -1):
        vertex[t] = t * s + best
        score += unary[t, best]
        if t > 0:
            before = back[t, best]
            score += steps[min(t - 1, steps.shape[0] - 1), before, best]
            best = before
    return length, score


@kernel
def _hypergraph(
    start,
    stop,
    parts,
    first_edge,
    tails,
    part,
    roots,
    penalised,
    rule,
    max_iter,
    tol,
    seeds,
    used,
    scores,
    weights,
    iterations,
    gap,
    status,
    overlaps,
):
    nodes = first_edge.size - 1
    room = used.shape[1]
    gram, factor, work = np.empty((room, room)), np.empty((room, room)), np.empty((4, room))
    mu, mark, vertex = np.empty(penalised), np.zeros(penalised, np.bool_), np.empty(used.shape[2], np.int32)
    values, back, waiting = np.empty(nodes + 1), np.empty(nodes + 1, np.int64), np.empty(nodes + 1, np.int64)
    needed = np.zeros(nodes + 1, np.bool_)
    for i in range(start, stop):
        mu[:] = 0.0
        _reach(first_edge, tails, roots[i], needed)
        count = resume(seeds, used[i], gram, scores[i], weights[i], mu, factor, work, mark)
        size, score = _best_tree(parts[i], first_edge, tails, part, roots[i], needed, mu, values, back, waiting, vertex)
        if score == -np.inf:
            finish(0, used[i], gram, weights[i], overlaps[i])
            status[i] = INFEASIBLE
            continue
        if count == 0:
            count = first(vertex, size, score, used[i], gram, scores[i], weights[i], mu, factor)
        status[i] = GOING
        for turn in range(max_iter):
            size, score = _best_tree(
                parts[i], first_edge, tails, part, roots[i], needed, mu, values, back, waiting, vertex
            )
            count, gap[i], status[i] = improve(
                rule, tol, count, vertex, size, score, used[i], gram, scores[i], weights[i], mu, factor, work, mark
            )
            iterations[i] = turn
            if status[i] != GOING:
                break
        finish(count, used[i], gram, weights[i], overlaps[i])


@kernel
def _reach(first_edge, tails, root, needed):
    """The nodes that a derivation of the root may use."""
    needed[:] = False
    if root >= 0:
        needed[root] = True
    for h in range(root, -1, -1):
        if needed[h]:
            for e in range(first_edge[h], first_edge[h + 1]):
                for t in tails[e]:
                    if t >= 0:
                        needed[t] = True


@kernel
def _best_tree(parts, first_edge, tails, part, root, needed, mu, values, back, waiting, vertex):
    """The best derivation around mu as a list of penalised parts: how many, and its own score."""
    if root < 0:
        return 0, 0.0
    penalised = mu.size
    for h in range(root + 1):
        if not needed[h]:
            continue
        values[h] = 0.0 if first_edge[h] == first_edge[h + 1] else -np.inf
        back[h] = -1
        for e in range(first_edge[h], first_edge[h + 1]):
            a = 0.0
            if part[e] >= 0:
                a = parts[part[e]]
                if part[e] < penalised:
                    a -= mu[part[e]]
            for t in tails[e]:
                if t >= 0:
                    a += values[t]
            if a > values[h]:
                values[h] = a
                back[h] = e
    if values[root] == -np.inf:
        return 0, -np.inf
    size, score = 0, 0.0
    waiting[0] = root
    left = 1
    while left > 0:
        left -= 1
        e = back[waiting[left]]
        if e < 0:
            continue
        if part[e] >= 0:
            score += parts[part[e]]
            if part[e] < penalised:
                vertex[size] = part[e]
                size += 1
        for t in tails[e]:
            if t >= 0:
                waiting[left] = t
                left += 1
    return size, score
