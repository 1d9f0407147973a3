"""Softmax of a row, for Numba: the maximum, exponentials with their sum, and a division."""

import math

import numpy as np
from numba import types
from numba.extending import overload

from polymax.backend.numba_exponents import exponential
from polymax.backend.numba_math import PART, inline, row_max, row_sum
from polymax.backend.numba_math import _from_bits as from_bits

INT, REAL = np.int32, np.float32
# exponentials of lower numbers are below the normal numbers of float32
_LOWEST = REAL(-87.3)


@inline
def softmax_row(x, y):
    """Fill the row y with the weights of the scores x: NaN if one is NaN or inf, 0 if all are -inf."""
    real = x.dtype.type
    top = row_max(x)
    top = top if top > -np.inf else real(0)
    for j in range(x.size):
        y[j] = exp_below(x[j] - top)
    total = row_sum(y)
    factor = real(1) / total if total != 0 else real(1)
    for j in range(y.size):
        y[j] *= factor


def exp_below(x):
    """Return exp(x) for x <= 0, or NaN; for float32, 0 below the normal numbers."""
    return math.exp(x)


@overload(exp_below, jit_options=PART)
def _exp_below(x):
    if x != types.float32:
        return lambda x: math.exp(x)

    def exp_below_float32(x):
        inside = x > _LOWEST
        factor, power = exponential(x if inside else REAL(0))
        e = factor * from_bits(INT(INT(power + INT(127)) << INT(23)))
        return e if inside else (REAL(0) if x <= _LOWEST else x)

    return exp_below_float32
