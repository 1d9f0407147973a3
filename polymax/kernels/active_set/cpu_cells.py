"""Assignments for SparseMAP on the CPU: the best assignment around mu."""

import numpy as np

from polymax.backend.cpu_arrays import memory
from polymax.backend.numba_memory import lean_kernel
from polymax.kernels.active_set.numba_search import SearchProblem
from polymax.kernels.assignment.numba_match import MATCHED, best_match


def problem(search):
    """Return the problem of scores (B, n, m), and numbers of rows and of columns, (B,) each."""
    scores, rows, columns = search.tensors
    count, n, m = scores.shape
    wide = max(n, m) + 1
    # in the grid: scores less mu, five rows for the assignment, duals of rows and of columns, room for a transpose
    both = np.empty((count, 2), np.int64)
    both[:, 0], both[:, 1] = memory(rows), memory(columns)
    return SearchProblem(
        np.array([n, m]),
        both,
        np.ascontiguousarray(memory(scores), np.float64).reshape(count, n * m),
        np.empty((1, 0)),
        ((n + 7 + m, wide), 1, (6, wide)),
        4 * n * m,
    )


@lean_kernel
def best(problem, mu, vertex):
    """Write the best assignment around mu to `vertex` as a list of cells; return its score."""
    table, own, cells, _, grid, _, marks = problem
    n, m, height, width, match = table[0], table[1], own[0], own[1], marks[1]
    for u in range(vertex.size):
        vertex[u] = -1
    marks[0, 1] = 0
    if height == 0 or width == 0:
        return 0.0
    for i in range(height):
        for j in range(width):
            grid[i, j] = cells[i * m + j] - mu[i * m + j]
    # prices change little from one point to the next
    warm = marks[0, 0] != 0
    space = grid[n : n + 5], marks[2:], grid[n + 7 :]
    found = best_match(grid, height, width, match, grid[n + 5], grid[n + 6], space, warm)
    marks[0, 0] = found == MATCHED
    if found != MATCHED:
        return -np.inf
    size, score = 0, 0.0
    for i in range(height):
        if match[i] >= 0:
            vertex[size] = i * m + match[i]
            size += 1
            score += cells[i * m + match[i]]
    marks[0, 1] = size
    return score
