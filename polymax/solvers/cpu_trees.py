"""SparseMAP over spanning trees: the best arborescence around mu."""

import numpy as np
from torch import Tensor

from polymax.kernels.arborescence.numba_tree import best_tree, workspace
from polymax.kernels.numba_math import inline, kernel
from polymax.solvers.cpu_loop import Settings, memory, run, settle


def solve_trees(scores: Tensor, lengths: Tensor, single_root: bool, settings: Settings) -> tuple[Tensor, ...]:
    """Spanning trees; tensors as the arborescence kernel takes them."""
    arrays = (scores.double().contiguous().numpy(), lengths.numpy(), single_root)
    return run(_trees, arrays, scores.shape[1] ** 2, settings)


@kernel
def _trees(start, stop, arcs, lengths, single_root, settings, out):
    width = arcs.shape[1]
    space = memory(out, width * width)
    moved, heads, own = np.empty((width, width)), np.empty(width, np.int64), workspace(width - 1)
    for i in range(start, stop):
        problem = arcs[i], lengths[i], single_root, moved, heads, own
        settle(_best_arcs, problem, i, settings, space, out)


@inline
def _best_arcs(problem, mu, vertex):
    """The best tree around mu as a list of arcs: how many, and its own score."""
    arcs, length, single_root, moved, heads, space = problem
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
