"""SparseMAP over assignments: the best one around mu."""

import numpy as np
from torch import Tensor

from polymax.kernels.active_set.cpu_loop import Found, Settings, memory, run, settle
from polymax.kernels.assignment.numba_match import MATCHED, best_match, workspace
from polymax.kernels.numba_math import inline, kernel


def solve_matches(scores: Tensor, rows: Tensor, columns: Tensor, settings: Settings) -> Found:
    """Assignments; tensors as the assignment kernel takes them."""
    arrays = (scores.double().contiguous().numpy(), rows.numpy(), columns.numpy())
    return run(_matches, arrays, 4 * scores.shape[1] * scores.shape[2], settings)


@kernel
def _matches(start, stop, cells, heights, widths, settings, out):
    _, n, m = cells.shape
    space = memory(out, n * m)
    moved, match, u, v = np.empty((n, m)), np.empty(n, np.int64), np.empty(n), np.empty(m)
    own, warm = workspace(n, m), np.zeros(1, np.bool_)
    for i in range(start, stop):
        warm[0] = False
        problem = cells[i], heights[i], widths[i], moved, match, u, v, own, warm
        settle(_best_cells, problem, 0.0, i, settings, space, out)


@inline
def _best_cells(problem, mu, vertex):
    """The best assignment around mu as a list of cells: how many, and its own score."""
    cells, height, width, moved, match, u, v, space, warm = problem
    m = cells.shape[1]
    vertex[:] = -1
    if height == 0 or width == 0:
        return 0, 0.0
    for i in range(height):
        for j in range(width):
            moved[i, j] = cells[i, j] - mu[i * m + j]
    found = best_match(moved, height, width, match, u, v, space, warm[0])
    # prices change little from one point to the next
    warm[0] = found == MATCHED
    if found != MATCHED:
        return 0, -np.inf
    size, score = 0, 0.0
    for i in range(height):
        if match[i] >= 0:
            vertex[size] = i * m + match[i]
            size += 1
            score += cells[i, match[i]]
    return size, score
