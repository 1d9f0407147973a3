"""Scores of one sentence as elimination takes them, for Numba: shifted so that the best head of a token counts 0.

A tree has one arc into each token, so a shift of all of them moves its score, and that of all trees alike. With a
single root it has one arc from the root symbol too, and these have a shift of their own.
"""

import numpy as np

from polymax.kernels.numba_math import inline


@inline
def widened(scores, m, x):
    """Fill x[0..m, 0..m] with scores in float64, -inf where there is no arc."""
    for i in range(m + 1):
        for j in range(m + 1):
            x[i, j] = scores[i, j] if i != j and j > 0 else -np.inf


@inline
def shift_all(x, m, first):
    """Shift the scores x[0..m, 0..m]; the sum of all shifts."""
    total = 0.0
    top = x[0]
    for j in range(1, m + 1):
        shift = -np.inf
        for i in range(first, m + 1):
            shift = max(shift, x[i, j])
        if shift > -np.inf:
            total += shift
            for i in range(m + 1):
                x[i, j] -= shift
    if first == 1:
        shift = -np.inf
        for j in range(1, m + 1):
            shift = max(shift, top[j])
        if shift > -np.inf:
            total += shift
            for j in range(1, m + 1):
                top[j] -= shift
    return total


@inline
def swap(c, order, a, b, m):
    """Exchange positions a and b of a square, and of the order of its tokens."""
    if a == b:
        return
    for j in range(m + 1):
        c[a, j], c[b, j] = c[b, j], c[a, j]
    for i in range(m + 1):
        c[i, a], c[i, b] = c[i, b], c[i, a]
    order[a], order[b] = order[b], order[a]
