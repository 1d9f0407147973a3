"""Spanning trees for SparseMAP on the CPU: the best arborescence around mu."""

import numpy as np

from polymax.backend.cpu_arrays import memory
from polymax.backend.numba_memory import lean_kernel
from polymax.kernels.active_set.numba_search import SearchProblem
from polymax.kernels.arborescence.numba_tree import best_tree_of_rows


def problem(search):
    """Return the problem of scores (B, n + 1, n + 1) [head, modifier] and lengths (B,), with `single_root`."""
    (scores, lengths), (single_root,) = search.tensors, search.options
    count, width, _ = scores.shape
    # the search reads [modifier, head]
    rows = np.ascontiguousarray(memory(scores).swapaxes(1, 2), np.float64).reshape(count, width * width)
    # one row of marks for the loop, one for heads, the rest for the arborescence
    return SearchProblem(
        np.array([width, int(single_root)]),
        np.ascontiguousarray(memory(lengths)).reshape(count, 1),
        rows,
        np.empty((1, 0)),
        ((2 * width, width), 1 + 2 * width, (10, 2 * width)),
        4 * width * width,
    )


@lean_kernel
def best(problem, mu, vertex):
    """Write the best tree around mu to `vertex` as a list of arcs; return its score."""
    table, own, arcs, _, rows, line, marks = problem
    width, length, heads = table[0], own[0], marks[1]
    for u in range(length, vertex.size):
        vertex[u] = -1
    marks[0, 1] = length
    if length == 0:
        return 0.0
    for m in range(1, length + 1):
        for h in range(length + 1):
            rows[m, h] = arcs[m * width + h] - mu[h * width + m]
    if not best_tree_of_rows(length, table[1] != 0, heads, (rows, line[1:], marks[2:])):
        return -np.inf
    score = 0.0
    for m in range(1, length + 1):
        vertex[m - 1] = heads[m - 1] * width + m
        score += arcs[m * width + heads[m - 1]]
    return score
