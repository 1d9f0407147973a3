"""The inside pass of soft-DTW in float32, for Numba: sums of exponentials, each a mantissa with its own exponent.

    z[i, j] = exp(scores[i, j]) (z[i-1, j-1] + z[i-1, j] + z[i, j-1])        value = log z[rows-1, columns-1]

A number is m 2^e with 1 <= m < 2 and an integer e, or 0. Sums need shifts of exponents instead of exponentials and a
logarithm; exp(scores) does not depend on other cells. An instance with NaN, or with a score outside the range of the
exponents, is marked odd, and the pass for all entropies computes it.
"""

import math

import numpy as np

from polymax.backend.numba_exponents import (
    FORBIDDEN,
    INT,
    LARGEST,
    LOWEST,
    ONE,
    WIDEST,
    ZERO,
    bits,
    exponential,
    from_bits,
    normal,
    shifted,
)
from polymax.backend.numba_math import inline, kernel, within
from polymax.kernels.alignment import STRIP
from polymax.kernels.alignment.strips import skew


@kernel
def inside_shannon(start, stop, scores, rows, columns, value, chart, odd):
    lines = np.empty((scores.shape[2] + STRIP) * STRIP, np.float32)
    # the row above the strip, by column + 1: mantissas and exponents
    above = np.empty(scores.shape[2] + 1, np.float32)
    powers = np.empty(scores.shape[2] + 1, np.int32)
    # mantissas and exponents at the last step, those diagonally before, and the largest absolute score
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
        powers[:] = LOWEST
        # the cell diagonally before the first cell is 1
        above[0], powers[0] = 1, 0
        state[4 * STRIP :] = 0
        for k in range(strips):
            skew(scores[b], k * STRIP, n, m, -np.inf, lines)
            _walk(lines, m, min(STRIP, n - k * STRIP) - 1, above, powers, state, chart[b, k])
            chart[b, k, (m + STRIP - 1) * 3 * STRIP :] = 0
            above[0], powers[0] = 0, LOWEST
        exists = above[m] > 0
        value[b] = math.log(np.float64(above[m])) + powers[m] * math.log(2) if exists else -np.inf
        chart[b, 0, 0] = 1 if exists else 0
        most = min(LARGEST, WIDEST / (n + m))
        for size in state[4 * STRIP :]:
            odd[b] |= not size <= most


@inline
def _walk(lines, m, tail, above, powers, state, chart):
    """Compute one strip: write its weights to the chart, and replace the numbers of the row above by those of its row
    `tail`.
    """
    for half in range(0, 4, 2):
        state[half * STRIP : (half + 1) * STRIP] = 0
        state[(half + 1) * STRIP : (half + 2) * STRIP] = from_bits(LOWEST)
    state[2 * STRIP], state[3 * STRIP] = above[0], from_bits(powers[0])
    for t in range(m + STRIP - 1):
        number, power = (above[t + 1], powers[t + 1]) if t < m else (ZERO, LOWEST)
        _step(state, number, power, lines[t * STRIP : (t + 1) * STRIP], chart[3 * t * STRIP : 3 * (t + 1) * STRIP])
        if 0 <= t - tail < m:
            above[t - tail + 1], powers[t - tail + 1] = state[tail], bits(state[STRIP + tail])


@within
def _step(state, number, power, scores, weights):
    # passed from lane to lane in registers: a load that spans two recent vector stores would stall
    before, before_power = number, power
    for r in range(STRIP):
        diagonal, diagonal_power = state[2 * STRIP + r], bits(state[3 * STRIP + r])
        down, down_power = before, before_power
        right, right_power = state[r], bits(state[STRIP + r])
        before, before_power = right, right_power
        state[2 * STRIP + r], state[3 * STRIP + r] = down, from_bits(down_power)
        top = diagonal_power if diagonal_power > down_power else down_power
        top = top if top > right_power else right_power
        a = shifted(diagonal, INT(diagonal_power - top))
        b = shifted(down, INT(down_power - top))
        c = shifted(right, INT(right_power - top))
        total = a + b + c
        scale = ONE / (total if total > ZERO else ONE)
        weights[r] = a * scale
        weights[STRIP + r] = b * scale
        weights[2 * STRIP + r] = c * scale
        factor, shift = exponential(scores[r])
        state[r], exponent = normal(total * factor, INT(top + shift))
        state[STRIP + r] = from_bits(exponent)
        # a NaN stays: comparisons with it are False
        size, largest = ZERO if scores[r] == FORBIDDEN else abs(scores[r]), state[4 * STRIP + r]
        state[4 * STRIP + r] = largest if largest >= size or largest != largest else size
