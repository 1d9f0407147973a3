"""Smoothed maxima of three numbers, in the lanes of a strip, for Numba.

line[STRIP:] holds, for each lane, the three arguments less their maximum, in float64. The weights are written to
`weights`, and the differences of the smoothed maximum to the maximum to line[:STRIP]. A lane whose arguments are all
-inf gets weights 0.
"""

import numpy as np

from polymax.backend.numba_math import inline
from polymax.kernels.alignment import STRIP
from polymax.kernels.local_max.numba_lanes import LANES, load, select, store
from polymax.kernels.local_max.numba_max import by_smoothing, max_and_weights


@inline
def _any(line, lanes, weights, space, omega):
    """Compute any smoothing; `lanes` is a view of `line` in rows of LANES; `space` is room for arguments and
    weights.
    """
    blocks = STRIP // LANES
    a, p = space[0], space[1]
    for k in range(blocks):
        for c in range(3):
            store(a, c, load(lanes, (c + 1) * blocks + k))
        value = max_and_weights(a, 3, p, omega)
        store(lanes, k, select(value == -np.inf, 0.0, value))
        for c in range(3):
            for l in range(LANES):
                weights[c * STRIP + k * LANES + l] = p[c, l]


@inline
def _gini(line, lanes, weights, space, omega):
    # in float64: weights that sum to 1 only to float32 precision would let the expectation drift along a path
    for r in range(STRIP):
        a, b, c = line[STRIP + r], line[2 * STRIP + r], line[3 * STRIP + r]
        high = a if a > b else b
        side = b if a > b else a
        low = side if side < c else c
        other = c if c < high else high
        middle = side if side > other else other
        # tau by the size of the support: the largest is 0
        pair = 0.5 * (middle - 1)
        triple = (middle + low - 1) * (1 / 3)
        tau = pair if middle > -1 else -1.0
        tau = triple if low > tau else tau
        # an argument outside the support counts as tau: its weight is 0, and it may be -inf
        a = a if a > tau else tau
        b = b if b > tau else tau
        c = c if c > tau else tau
        p, q, s = a - tau, b - tau, c - tau
        weights[r] = p
        weights[STRIP + r] = q
        weights[2 * STRIP + r] = s
        line[r] = 0.5 + p * (a - 0.5 * p) + q * (b - 0.5 * q) + s * (c - 0.5 * s)


@inline
def _hard(line, lanes, weights, space, omega):
    one, zero = line.dtype.type(1), line.dtype.type(0)
    for r in range(STRIP):
        a = one if line[STRIP + r] == zero else zero
        b = one - a if line[2 * STRIP + r] == zero else zero
        c = one - a - b if line[3 * STRIP + r] == zero else zero
        weights[r] = a
        weights[STRIP + r] = b
        weights[2 * STRIP + r] = c
        line[r] = zero


# the smoothed maximum in every lane; simple cases of three numbers have their own functions
smooth_lanes = by_smoothing(_any, _gini, _any, _hard)
