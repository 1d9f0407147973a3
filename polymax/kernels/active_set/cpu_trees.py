"""SparseMAP over spanning trees: the best arborescence around mu."""

import numpy as np
from torch import Tensor

from polymax.kernels.active_set.cpu_loop import Found, Settings, memory, run, settle
from polymax.kernels.arborescence.numba_tree import best_tree_of_rows, workspace
from polymax.kernels.numba_math import inline, kernel


def solve_trees(scores: Tensor, lengths: Tensor, single_root: bool, settings: Settings) -> Found:
    """Spanning trees; tensors as the arborescence kernel takes them."""
    # [modifier, head], as the search takes them
    arrays = (scores.double().transpose(1, 2).contiguous().numpy(), lengths.numpy(), single_root)
    return run(_trees, arrays, scores.shape[1] ** 2, settings)


@kernel
def _trees(start, stop, arcs, lengths, single_root, settings, out):
    width = arcs.shape[1]
    space = memory(out, width * width)
    heads, own = np.empty(width, np.int64), workspace(width - 1)
    for i in range(start, stop):
        problem = arcs[i], lengths[i], single_root, heads, own
        settle(_best_arcs, problem, 0.0, i, settings, space, out)


@inline
def _best_arcs(problem, mu, vertex):
    """The best tree around mu as a list of arcs: how many, and its own score."""
    arcs, length, single_root, heads, space = problem
    width = arcs.shape[0]
    vertex[length:] = -1
    if length == 0:
        return 0, 0.0
    rows = space[0]
    for m in range(1, length + 1):
        for h in range(length + 1):
            rows[m, h] = arcs[m, h] - mu[h * width + m]
    if not best_tree_of_rows(length, single_root, heads, space):
        return 0, -np.inf
    score = 0.0
    for m in range(1, length + 1):
        vertex[m - 1] = heads[m - 1] * width + m
        score += arcs[m, heads[m - 1]]
    return length, score
