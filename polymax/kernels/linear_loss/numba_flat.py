"""Weights of rows in which most words have weight, in the place of their scores, for Numba.

Nothing is gathered: each step of Newton's method reads the whole row, which stays in a cache.
"""

import numpy as np

from polymax.backend.numba_math import add, inline, kernel, row_max

# 1 / (alpha - 1) for which there are sums
POWERS = 2, 4
# terms of a sum whose rounding is that of one number
BLOCK = 256
# most steps
STEPS = 40


@kernel
def solve_rows(start, stop, x, power, parts):
    """Write weights in the place of scores x, then the largest score, the smoothed maximum and the threshold of rows.

    w = ((alpha - 1) (x - top) - t)_+ ^ power, where alpha - 1 = 1 / power
    """
    tops, values, taus = parts
    real, a = x.dtype.type, 1 / power
    small = 2 * np.finfo(x.dtype).eps
    for i in range(start, stop):
        row, top = x[i], row_max(x[i])
        tops[i] = top if np.isfinite(top) else real(0)
        for j in range(row.size):
            row[j] = (row[j] - tops[i]) * real(a)
        bad = 0
        for j in range(row.size):
            bad += row[j] != row[j]
        if bad > 0 or top == -np.inf:
            row[:] = np.nan if bad > 0 else 0
            values[i], taus[i] = np.nan if bad > 0 else -np.inf, np.nan if bad > 0 else 0
            continue
        t, total, upper = -1.0, 0.0, 0.0
        for _ in range(STEPS):
            lower, total, upper = _sums(row, real(t), power)
            # on the norm of the excess over t, which is convex: from the left no step passes the root
            step = (total - total ** (1 - a)) / lower
            if not step > small:
                break
            t += step
        _set_weights(row, real(t), power, real(1 / total))
        taus[i] = t / total**a
        values[i] = (upper / total + t) / (1 + a) + (taus[i] + 1) / ((1 + a) * a)


@inline
def _sums(row, t, power):
    """Return the sums of w^(power-1), w^power and w^(power+1), with w = (row - t)_+."""
    zero, lower, total, upper = row.dtype.type(0), 0.0, 0.0, 0.0
    for first in range(0, row.size, BLOCK):
        part = row[first : first + BLOCK]
        below = here = above = zero
        if power == 2:
            for j in range(part.size):
                w = part[j] - t
                w = zero if w < zero else w
                square = w * w
                below, here, above = add(below, w), add(here, square), add(above, square * w)
        else:
            for j in range(part.size):
                w = part[j] - t
                w = zero if w < zero else w
                square = w * w
                fourth = square * square
                below, here, above = add(below, square * w), add(here, fourth), add(above, fourth * w)
        lower += below
        total += here
        upper += above
    return lower, total, upper


@inline
def _set_weights(row, t, power, unit):
    zero = row.dtype.type(0)
    for j in range(row.size):
        w = row[j] - t
        # a NaN stays
        w = zero if w < zero else w
        square = w * w
        row[j] = unit * (square if power == 2 else square * square)
