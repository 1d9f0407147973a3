"""The k best trees, for Numba: the best of all, then repeatedly the best of the rest.

A set of trees is given by the heads of tokens 1..fixed and by heads that the next token must not have. Without its best
tree y it splits into disjoint sets of this kind: equal to y up to a token, and different from y there. The best trees
of these sets are the candidates for the next place. Ties are broken by age.

See: Lawler 1972, A procedure for computing the k best solutions to discrete optimization problems.
"""

from heapq import heappop, heappush

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_math import inline, kernel
from polymax.kernels.arborescence.numba_tree import best_tree, workspace


def spanning_tree_kbest(scores: Tensor, lengths: Tensor, k: int, single_root: bool) -> tuple[Tensor, Tensor]:
    batch, size = scores.shape[:2]
    values = scores.new_empty((batch, k))
    heads = torch.empty((batch, k, size - 1), dtype=torch.long, device="cpu")
    args = memory(scores.contiguous()), memory(lengths.contiguous()), single_root
    parallel(_kbest, torch.Size((batch, size * size)), 8 * size * k, *args, memory(values), memory(heads))
    return values, heads


@kernel
def _kbest(start, stop, scores, lengths, single_root, values, heads):
    k, n = values.shape[1], heads.shape[2]
    room = k * n + 1
    fixed = np.empty(room, np.int64)
    trees, barred = np.empty((room, n), np.int64), np.empty((room, n + 1), np.bool_)
    x = np.empty((n + 1, n + 1))
    space = workspace(n)
    # candidates by negative score, then age
    heap = [(0.0, 0)]
    for b in range(start, stop):
        m = lengths[b]
        values[b] = -np.inf
        heads[b] = -1
        heap.clear()
        barred[0] = False
        fixed[0] = 0
        made = _solve(scores[b], m, single_root, x, trees, barred, fixed, 0, heap, space)
        for place in range(k):
            if len(heap) == 0:
                break
            lowest, best = heappop(heap)
            values[b, place] = -lowest
            heads[b, place, :m] = trees[best, :m]
            if place < k - 1:
                for t in range(fixed[best], m):
                    trees[made, :t] = trees[best, :t]
                    for i in range(m + 1):
                        barred[made, i] = t == fixed[best] and barred[best, i]
                    barred[made, trees[best, t]] = True
                    fixed[made] = t
                    made += _solve(scores[b], m, single_root, x, trees, barred, fixed, made, heap, space)


@inline
def _solve(scores, m, single_root, x, trees, barred, fixed, c, heap, space):
    """Complete candidate c to the best tree of its set; return 1 if there is one."""
    for i in range(m + 1):
        for j in range(1, m + 1):
            out = i != trees[c, j - 1] if j <= fixed[c] else j == fixed[c] + 1 and barred[c, i]
            x[i, j] = -np.inf if out else scores[i, j]
    if not best_tree(x, m, single_root, trees[c], space):
        return 0
    total = 0.0
    for j in range(1, m + 1):
        total += scores[trees[c, j - 1], j]
    heappush(heap, (-total, c))
    return 1
