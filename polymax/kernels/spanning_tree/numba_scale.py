"""Scores of one sentence for elimination, for Numba: shifted so that the best head of each token has the score 0.

A tree has one arc into each token, so that a shift of all these arcs changes the score of every tree equally. With a
single root it has one arc from the root symbol too, and these arcs have their own shift.
"""

import math

import numpy as np
from numba import types
from numba.extending import intrinsic

from polymax.backend.numba_math import inline

# adding it to a number leaves the nearest integer in the last bits
_ROUND = 1.5 * 2.0**52
# log(2) in two parts: the product of the first with an exponent is exact
_LOG_2, _LOG_2_REST = 0.693145751953125, 1.4286068203094173e-06
_TAYLOR = tuple(1 / math.factorial(i) for i in range(14))


@inline
def widened(scores, m, x):
    """Fill x[0..m, 0..m] with scores in float64, -inf if there is no arc."""
    for i in range(m + 1):
        for j in range(m + 1):
            x[i, j] = scores[i, j] if i != j and j > 0 else -np.inf


@inline
def shift_all(x, m, first):
    """Shift the scores x[0..m, 0..m]; return the sum of all shifts."""
    shift = np.full(m + 1, -np.inf)
    for i in range(first, m + 1):
        row = x[i]
        for j in range(1, m + 1):
            shift[j] = row[j] if row[j] > shift[j] else shift[j]
    total = 0.0
    for j in range(m + 1):
        # a token without heads has no shift
        shift[j] = shift[j] if shift[j] > -np.inf else 0.0
        total += shift[j]
    for i in range(m + 1):
        row = x[i]
        for j in range(1, m + 1):
            row[j] -= shift[j]
    if first == 1:
        top = -np.inf
        for j in range(1, m + 1):
            top = max(top, x[0, j])
        if top > -np.inf:
            total += top
            for j in range(1, m + 1):
                x[0, j] -= top
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


@inline
def exp(x):
    """Return exp(x) for x <= 0, 0 below 1e-300; a loop over it vectorises, unlike calls into libm."""
    low = -690.0
    clipped = low if x < low else x
    t = clipped * (1 / math.log(2)) + _ROUND
    k = t - _ROUND
    f = clipped - k * _LOG_2 - k * _LOG_2_REST
    series = _fma(f, _TAYLOR[13], _TAYLOR[12])
    series = _fma(f, series, _TAYLOR[11])
    series = _fma(f, series, _TAYLOR[10])
    series = _fma(f, series, _TAYLOR[9])
    series = _fma(f, series, _TAYLOR[8])
    series = _fma(f, series, _TAYLOR[7])
    series = _fma(f, series, _TAYLOR[6])
    series = _fma(f, series, _TAYLOR[5])
    series = _fma(f, series, _TAYLOR[4])
    series = _fma(f, series, _TAYLOR[3])
    series = _fma(f, series, _TAYLOR[2])
    series = _fma(f, series, 1.0)
    series = _fma(f, series, 1.0)
    return 0.0 if x < low else series * _power_of_two(t)


@intrinsic
def _fma(typing_context, a, b, c):
    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), codegen


@intrinsic
def _power_of_two(typing_context, t):
    """Return 2^k from k + _ROUND, whose last bits are those of k: shift them into the exponent."""

    def codegen(context, builder, signature, args):
        whole = context.get_value_type(types.int64)
        bits = builder.shl(builder.bitcast(args[0], whole), whole(52))
        return builder.bitcast(builder.add(bits, whole(1023 << 52)), context.get_value_type(types.float64))

    return types.float64(types.float64), codegen
