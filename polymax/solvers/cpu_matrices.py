"""SparseMAP over spanning trees and assignments: the score matrix less mu, its best structure, and their weights."""

import numpy as np
from torch import Tensor

from polymax.kernels.arborescence.numba_tree import best_tree
from polymax.kernels.arborescence.numba_tree import workspace as tree_workspace
from polymax.kernels.assignment.numba_match import MATCHED, best_match
from polymax.kernels.assignment.numba_match import workspace as match_workspace
from polymax.kernels.numba_math import kernel
from polymax.solvers.cpu import INFEASIBLE, Settings, run
from polymax.solvers.numba_weights import GOING, finish, first, improve, resume


def solve_trees(scores: Tensor, lengths: Tensor, single_root: bool, settings: Settings) -> tuple[Tensor, ...]:
    """Spanning trees; tensors as the arborescence kernel takes them."""
    arrays = (scores.double().contiguous().numpy(), lengths.numpy(), single_root)
    return run(_trees, arrays, scores.shape[1] ** 2, settings)


def solve_matches(scores: Tensor, rows: Tensor, columns: Tensor, settings: Settings) -> tuple[Tensor, ...]:
    """Assignments; tensors as the assignment kernel takes them."""
    arrays = (scores.double().contiguous().numpy(), rows.numpy(), columns.numpy())
    return run(_matches, arrays, 4 * scores.shape[1] * scores.shape[2], settings)


@kernel
def _trees(
    start,
    stop,
    arcs,
    lengths,
    single_root,
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
    _, width, _ = arcs.shape
    room = used.shape[1]
    gram, factor, work = np.empty((room, room)), np.empty((room, room)), np.empty((4, room))
    mu, mark, vertex = np.empty(width * width), np.zeros(width * width, np.bool_), np.empty(width, np.int32)
    moved, heads, space = np.empty((width, width)), np.empty(width, np.int64), tree_workspace(width - 1)
    for i in range(start, stop):
        mu[:] = 0.0
        count = resume(seeds, used[i], gram, scores[i], weights[i], mu, factor, work, mark)
        size, score = _best_arcs(arcs[i], lengths[i], single_root, mu, moved, heads, space, vertex)
        if score == -np.inf:
            finish(0, used[i], gram, weights[i], overlaps[i])
            status[i] = INFEASIBLE
            continue
        if count == 0:
            count = first(vertex, size, score, used[i], gram, scores[i], weights[i], mu, factor)
        status[i] = GOING
        for turn in range(max_iter):
            size, score = _best_arcs(arcs[i], lengths[i], single_root, mu, moved, heads, space, vertex)
            count, gap[i], status[i] = improve(
                rule, tol, count, vertex, size, score, used[i], gram, scores[i], weights[i], mu, factor, work, mark
            )
            iterations[i] = turn
            if status[i] != GOING:
                break
        finish(count, used[i], gram, weights[i], overlaps[i])


@kernel
def _best_arcs(arcs, length, single_root, mu, moved, heads, space, vertex):
    """The best tree around mu as a list of arcs: how many, and its own score."""
    width = arcs.shape[0]
    if length == 0:
        return 0, 0.0
    for h in range(length + 1):
        for m in range(1, length + 1):
            moved[h, m] = arcs[h, m] - mu[h * width + m]
    if not best_tree(moved, length, single_root, heads, space):
        return 0, -np.inf
    score = 0.0
    for m in range(1, length + 1):
        vertex[m - 1] = heads[m - 1] * width + m
        score += arcs[heads[m - 1], m]
    return length, score


@kernel
def _matches(
    start,
    stop,
    cells,
    heights,
    widths,
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
    _, n, m = cells.shape
    room = used.shape[1]
    gram, factor, work = np.empty((room, room)), np.empty((room, room)), np.empty((4, room))
    mu, mark, vertex = np.empty(n * m), np.zeros(n * m, np.bool_), np.empty(min(n, m) + 1, np.int32)
    moved, match, u, v = np.empty((n, m)), np.empty(n, np.int64), np.empty(n), np.empty(m)
    space = match_workspace(n, m)
    for i in range(start, stop):
        mu[:] = 0.0
        warm = False
        count = resume(seeds, used[i], gram, scores[i], weights[i], mu, factor, work, mark)
        size, score = _best_cells(cells[i], heights[i], widths[i], mu, moved, match, u, v, space, warm, vertex)
        if score == -np.inf:
            finish(0, used[i], gram, weights[i], overlaps[i])
            status[i] = INFEASIBLE
            continue
        if count == 0:
            count = first(vertex, size, score, used[i], gram, scores[i], weights[i], mu, factor)
        status[i] = GOING
        for turn in range(max_iter):
            # prices change little from one point to the next
            warm = True
            size, score = _best_cells(cells[i], heights[i], widths[i], mu, moved, match, u, v, space, warm, vertex)
            count, gap[i], status[i] = improve(
                rule, tol, count, vertex, size, score, used[i], gram, scores[i], weights[i], mu, factor, work, mark
            )
            iterations[i] = turn
            if status[i] != GOING:
                break
        finish(count, used[i], gram, weights[i], overlaps[i])


@kernel
def _best_cells(cells, height, width, mu, moved, match, u, v, space, warm, vertex):
    """The best assignment around mu as a list of cells: how many, and its own score."""
    m = cells.shape[1]
    if height == 0 or width == 0:
        return 0, 0.0
    for i in range(height):
        for j in range(width):
            moved[i, j] = cells[i, j] - mu[i * m + j]
    if best_match(moved, height, width, match, u, v, space, warm) != MATCHED:
        return 0, -np.inf
    size, score = 0, 0.0
    for i in range(height):
        if match[i] >= 0:
            vertex[size] = i * m + match[i]
            size += 1
            score += cells[i, match[i]]
    return size, score
