"""The inside pass of soft-DTW in float32, for Numba: sums of exponentials, each a mantissa and an exponent of its own.

    z[i, j] = exp(scores[i, j]) (z[i-1, j-1] + z[i-1, j] + z[i, j-1])        value = log z[rows-1, columns-1]

A number is m 2^e with 1 <= m < 2 and an integer e, or 0. Sums need shifts of exponents in place of exponentials and
a logarithm; exp(scores) waits for no other cell. An instance with a score beyond what exponents can hold, or NaN, is
marked odd, and left to the pass for all entropies.
"""

import math

import numpy as np

from polymax.kernels.alignment import STRIP
from polymax.kernels.alignment.strips import skew
from polymax.kernels.numba_math import _bits, _fma, _from_bits, inline, kernel

_INT, _REAL = np.int32, np.float32
_ZERO, _ONE, _FORBIDDEN = _REAL(0), _REAL(1), _REAL(-np.inf)
# log2(e) in two parts: the first times a score less an integer is exact but for one rounding
_LOG2_E = _REAL(np.log2(np.e))
_LOG2_E_REST = _REAL(np.log2(np.e) - float(_LOG2_E))
# 1.5 * 2^23: adding it rounds to an integer, which is then in the last bits
_ROUND = _REAL(12582912)
_ROUND_BITS = _INT(0x4B400000)
_ONE_BITS, _MANTISSA = _INT(0x3F800000), _INT(0x007FFFFF)
# the exponent of 0, below that of any number; sums of scores stay within a quarter of it
_LOWEST = _INT(-(1 << 30))
_WIDEST, _LARGEST = float(1 << 28), float(1 << 20)


@kernel
def inside_shannon(start, stop, scores, rows, columns, value, chart, odd):
    lines = np.empty((scores.shape[2] + STRIP) * STRIP, np.float32)
    # the row above the strip, by column + 1: mantissas and exponents
    above = np.empty(scores.shape[2] + 1, np.float32)
    powers = np.empty(scores.shape[2] + 1, np.int32)
    # mantissas and exponents at the last step, the same diagonally before, and the largest score without sign
    state = np.empty(5 * STRIP, np.float32)
    for b in range(start, stop):
        n, m = rows[b], columns[b]
        value[b] = 0
        odd[b] = False
        strips = (n + STRIP - 1) // STRIP if m > 0 else 0
        chart[b, strips:] = 0
        if strips == 0:
            continue
        above[:] = 0
        powers[:] = _LOWEST
        # what stands diagonally before the first cell is 1
        above[0], powers[0] = 1, 0
        state[4 * STRIP :] = 0
        for k in range(strips):
            skew(scores[b], k * STRIP, n, m, -np.inf, lines)
            _walk(lines, m, min(STRIP, n - k * STRIP) - 1, above, powers, state, chart[b, k])
            chart[b, k, (m + STRIP - 1) * 3 * STRIP :] = 0
            above[0], powers[0] = 0, _LOWEST
        exists = above[m] > 0
        value[b] = math.log(np.float64(above[m])) + powers[m] * math.log(2) if exists else -np.inf
        chart[b, 0, 0] = 1 if exists else 0
        most = min(_LARGEST, _WIDEST / (n + m))
        for size in state[4 * STRIP :]:
            odd[b] |= not size <= most


@inline
def _walk(lines, m, tail, above, powers, state, chart):
    """One strip: its weights go to the chart, and the numbers of its row `tail` replace those of the row above."""
    for half in range(0, 4, 2):
        state[half * STRIP : (half + 1) * STRIP] = 0
        state[(half + 1) * STRIP : (half + 2) * STRIP] = _from_bits(_LOWEST)
    state[2 * STRIP], state[3 * STRIP] = above[0], _from_bits(powers[0])
    for t in range(m + STRIP - 1):
        number, power = (above[t + 1], powers[t + 1]) if t < m else (_ZERO, _LOWEST)
        _step(state, number, power, lines[t * STRIP : (t + 1) * STRIP], chart[3 * t * STRIP : 3 * (t + 1) * STRIP])
        if 0 <= t - tail < m:
            above[t - tail + 1], powers[t - tail + 1] = state[tail], _bits(state[STRIP + tail])


@inline
def _step(state, number, power, scores, weights):
    # carried from lane to lane, not read from the neighbour's place: a vector that spans two stores waits for both
    before, before_power = number, power
    for r in range(STRIP):
        diagonal, diagonal_power = state[2 * STRIP + r], _bits(state[3 * STRIP + r])
        down, down_power = before, before_power
        right, right_power = state[r], _bits(state[STRIP + r])
        before, before_power = right, right_power
        state[2 * STRIP + r], state[3 * STRIP + r] = down, _from_bits(down_power)
        top = diagonal_power if diagonal_power > down_power else down_power
        top = top if top > right_power else right_power
        a = _shifted(diagonal, diagonal_power, top)
        b = _shifted(down, down_power, top)
        c = _shifted(right, right_power, top)
        total = a + b + c
        scale = _ONE / (total if total > _ZERO else _ONE)
        weights[r] = a * scale
        weights[STRIP + r] = b * scale
        weights[2 * STRIP + r] = c * scale
        # 2^k 2^f with |f| <= 1/2, the second factor by a minimax polynomial
        score = scores[r]
        x = _ZERO if score == _FORBIDDEN else score
        k = x * _LOG2_E + _ROUND
        f = _fma(x, _LOG2_E_REST, _fma(x, _LOG2_E, -(k - _ROUND)))
        series = _fma(f, _REAL(1.5353362e-4), _REAL(1.3398875e-3))
        series = _fma(f, series, _REAL(9.6184369e-3))
        series = _fma(f, series, _REAL(5.5503324e-2))
        series = _fma(f, series, _REAL(2.4022648e-1))
        series = _fma(f, series, _REAL(6.9314718e-1))
        series = _fma(f, series, _ONE)
        product = total * (_ZERO if score == _FORBIDDEN else series)
        bits = _bits(product)
        exponent = _INT(_INT(bits >> _INT(23)) - _INT(127)) + _INT(_bits(k) - _ROUND_BITS)
        exists = product > _ZERO
        state[r] = _from_bits(_INT(_INT(bits & _MANTISSA) | _ONE_BITS)) if exists else _ZERO
        state[STRIP + r] = _from_bits(_INT(top + _INT(exponent)) if exists else _LOWEST)
        # a NaN stays: nothing is at least as large
        size, largest = abs(x), state[4 * STRIP + r]
        state[4 * STRIP + r] = largest if largest >= size or largest != largest else size


@inline
def _shifted(number, power, top):
    """number 2^(power - top), 0 where it is below the normal numbers."""
    shift = _INT(power - top)
    shift = shift if shift > _INT(-127) else _INT(-127)
    return number * _from_bits(_INT(_INT(shift + _INT(127)) << _INT(23)))
