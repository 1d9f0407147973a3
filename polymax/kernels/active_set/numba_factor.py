"""Cholesky's factor of gram + 1 as structures are added and removed, in Numba.

With L L^T = gram + 1, the rows of `half` hold L^-1 b, L^-1 1 and 1 / diag L. They are updated with the factor, so that
weights take only one triangular system.
"""

import numpy as np

from polymax.backend.numba_math import inline, row_dot


@inline
def grow(k, gram, b, factor, half):
    """Write row k of the factor; return the squared distance of structure k to the affine span of the structures before
    it.
    """
    row = factor[k]
    left = gram[k, k] + 1
    for i in range(k):
        row[i] = (gram[k, i] + 1 - dot(row, factor[i], i)) * half[2, i]
        left -= row[i] * row[i]
    row[k] = np.sqrt(max(left, 0.0))
    half[2, k] = 1 / row[k]
    half[0, k] = (b[k] - dot(row, half[0], k)) * half[2, k]
    half[1, k] = (1 - dot(row, half[1], k)) * half[2, k]
    return left


@inline
def shrink(r, count, factor, half, rotations):
    """Remove structure r from the factor: rows close up, and rotations of columns make it triangular again.

    Shapes: rotations (2, k), room for cosines and sines
    """
    cos, sin = rotations[0], rotations[1]
    for i in range(r, count - 1):
        row, below = factor[i], factor[i + 1]
        for c in range(i + 2):
            row[c] = below[c]
        # apply the rotations of the rows before; each passes a value on to the next column
        kept = row[r]
        for c in range(r, i):
            x, y = kept, row[c + 1]
            row[c] = cos[c] * x + sin[c] * y
            kept = cos[c] * y - sin[c] * x
        length = np.sqrt(kept * kept + row[i + 1] * row[i + 1])
        cos[i], sin[i] = kept / length, row[i + 1] / length
        row[i] = length
        half[2, i] = 1 / length
    for k in range(2):
        part = half[k]
        for c in range(r, count - 1):
            x, y = part[c], part[c + 1]
            part[c] = cos[c] * x + sin[c] * y
            part[c + 1] = cos[c] * y - sin[c] * x


@inline
def solve_above(count, factor, half, x):
    """Solve L^T y = x for y, in place of x."""
    for i in range(count - 1, -1, -1):
        x[i] *= half[2, i]
        for j in range(i):
            x[j] -= factor[i, j] * x[i]


@inline
def dot(x, y, count):
    """Return the inner product of the first `count` entries."""
    return row_dot(x[:count], y[:count])
