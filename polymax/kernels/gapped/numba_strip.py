"""One strip of rows forwards, for Numba: its cells in the order of anti-diagonals, its rows in vector lanes.

A number is m 2^e with 1 <= m < 2 and an integer e, or 0: sums need shifts of exponents in place of logarithms. Integers
lie in the bits of float32, so that a step reads and writes few arrays.
"""

import numpy as np

from polymax.kernels.gapped import STRIP
from polymax.kernels.numba_math import _bits, _fma, _from_bits, inline

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
LOWEST = _INT(-(1 << 30))
WIDEST, LARGEST = float(1 << 28), float(1 << 20)
# columns that are brought into lanes together
BLOCK = 16


@inline
def border(opened, extended, m, above):
    """The cells above the first row: nothing before them, and insertions; the largest score without sign."""
    above[0::2] = 0
    above[1::2] = _from_bits(LOWEST)
    above[0, 0], above[1, 0], above[4, 0], above[5, 0] = 1, _from_bits(_INT(0)), 1, _from_bits(_INT(0))
    number, power = _ONE, _INT(0)
    most = 0.0
    for j in range(m):
        score = opened[0, 0] if j == 0 else extended[0, j if extended.shape[1] > 1 else 0]
        factor, shift = _exponential(score)
        product = number * factor
        number, power = _normal(product, _INT(power + shift))
        above[4, j + 1], above[5, j + 1] = number, _from_bits(power)
        size = _size(score)
        most = size if size > most or size != size else most
    return most


@inline
def _size(score):
    return 0.0 if score == _FORBIDDEN else abs(np.float64(score))


@inline
def exponentials(pairs, opened, extended, top, n, m, lines, fresh):
    """exp of all scores of a strip, in the order of its steps; the largest score without sign.

    Line t, lane r is row top + r, column t - r of 0, ..., m: what scores column j of a matrix is at j + 1, and column 0
    has gap scores as column 1. There are six of each: mantissa and exponent of a pair, of open and of extend. A number
    for all cells is written where the lines are `fresh` ones of an instance.
    """
    lanes = min(STRIP, n - top)
    for t in range(m + STRIP + 1):
        lines[6 * t * STRIP : (6 * t + 1) * STRIP] = -np.inf
    _spread(pairs, top, lanes, m, 1, lines)
    most = _transformed(lines, m, 0)
    for kind in range(1, 3):
        matrix = opened if kind == 1 else extended
        if matrix.shape[0] > 1 or matrix.shape[1] > 1 or n == 1 or m == 1:
            for t in range(m + STRIP + 1):
                lines[(6 * t + 2 * kind) * STRIP : (6 * t + 2 * kind + 1) * STRIP] = 0
            if matrix.shape[0] == 1 and matrix.shape[1] == 1:
                for t in range(m + STRIP + 1):
                    lines[(6 * t + 2 * kind) * STRIP : (6 * t + 2 * kind + 1) * STRIP] = matrix[0, 0]
            else:
                _spread(matrix, top, lanes, m, 1, lines[2 * kind * STRIP :])
                for r in range(lanes):
                    lines[(6 * r + 2 * kind) * STRIP + r] = matrix[top + r, 0]
            size = _transformed(lines, m, 2 * kind * STRIP)
            most = size if size > most or size != size else most
        elif fresh:
            factor, shift = _exponential(matrix[0, 0])
            for t in range(m + STRIP + 1):
                at = (6 * t + 2 * kind) * STRIP
                lines[at : at + STRIP] = factor
                lines[at + STRIP : at + 2 * STRIP] = _from_bits(shift)
            size = _size(matrix[0, 0])
            most = size if size > most or size != size else most
    return most


@inline
def _spread(matrix, top, lanes, m, right, lines):
    """Rows of a matrix, each in its lane, a block of columns at a time: the lines they touch stay in the cache."""
    for left in range(0, m, BLOCK):
        for r in range(lanes):
            row = matrix[top + r, left : min(left + BLOCK, m)]
            lane = lines[6 * (left + right + r) * STRIP + r :]
            for j in range(row.size):
                lane[6 * j * STRIP] = row[j]


@inline
def _transformed(lines, m, at):
    """Scores of all lines become mantissas and exponents; the largest score without sign."""
    most = _ZERO
    bad = _INT(0)
    for t in range(m + STRIP + 1):
        line = lines[6 * t * STRIP + at : 6 * t * STRIP + at + 2 * STRIP]
        for r in range(STRIP):
            score = line[r]
            size = _ZERO if score == _FORBIDDEN else abs(score)
            bad |= _INT(size != size)
            most = size if size > most else most
            line[r], power = _exponential(score)
            line[STRIP + r] = _from_bits(power)
    return np.nan if bad > 0 else np.float64(most)


@inline
def _exponential(score):
    """exp(score) as a factor between 2^-0.5 and 2^0.5, or 0, and an exponent."""
    x = _ZERO if score == _FORBIDDEN else score
    k = x * _LOG2_E + _ROUND
    f = _fma(x, _LOG2_E_REST, _fma(x, _LOG2_E, -(k - _ROUND)))
    series = _fma(f, _REAL(1.5353362e-4), _REAL(1.3398875e-3))
    series = _fma(f, series, _REAL(9.6184369e-3))
    series = _fma(f, series, _REAL(5.5503324e-2))
    series = _fma(f, series, _REAL(2.4022648e-1))
    series = _fma(f, series, _REAL(6.9314718e-1))
    series = _fma(f, series, _ONE)
    return _ZERO if score == _FORBIDDEN else series, _INT(_bits(k) - _ROUND_BITS)


@inline
def _normal(number, power):
    """number 2^power with a mantissa between 1 and 2."""
    bits = _bits(number)
    exponent = _INT(_INT(_INT(bits >> _INT(23)) - _INT(127)) + power)
    exists = number > _ZERO
    return (
        _from_bits(_INT(_INT(bits & _MANTISSA) | _ONE_BITS)) if exists else _ZERO,
        exponent if exists else LOWEST,
    )


@inline
def _shifted(number, power, top):
    """number 2^(power - top), 0 where it is below the normal numbers."""
    shift = _INT(power - top)
    shift = shift if shift > _INT(-127) else _INT(-127)
    return number * _from_bits(_INT(_INT(shift + _INT(127)) << _INT(23)))


@inline
def walk(lines, m, tail, above, below, state, weights, keep):
    """One strip: from the row above it to that below, its row `tail`; with `keep` the weights of all its choices."""
    for half in range(0, 10, 2):
        state[half * STRIP : (half + 1) * STRIP] = 0
        state[(half + 1) * STRIP : (half + 2) * STRIP] = _from_bits(LOWEST)
    none = _from_bits(LOWEST)
    for t in range(m + STRIP):
        line = lines[6 * t * STRIP : 6 * (t + 1) * STRIP]
        chosen = weights[8 * t * STRIP : 8 * (t + 1) * STRIP] if keep else weights
        if t <= m:
            _step(state, above[0, t], above[1, t], above[2, t], above[3, t], above[4, t], above[5, t], line, chosen)
        else:
            _step(state, _ZERO, none, _ZERO, none, _ZERO, none, line, chosen)
        j = t - tail
        if not keep and 0 <= j <= m:
            below[0, j], below[1, j] = state[tail], state[STRIP + tail]
            below[2, j], below[3, j] = state[2 * STRIP + tail], state[3 * STRIP + tail]
            below[4, j], below[5, j] = state[6 * STRIP + tail], state[7 * STRIP + tail]


@inline
def _step(state, m_above, m_power, x_above, x_power, p_above, p_power, line, weights):
    """The next anti-diagonal. state: M, X, Y and P of the last one, and P diagonally before; weights of P, X and Y."""
    # carried from lane to lane, not read from the neighbour's place: a vector that spans two stores waits for both
    m_before, x_before, p_before = m_above, x_above, p_above
    m_last, x_last, p_last = _bits(m_power), _bits(x_power), _bits(p_power)
    for r in range(STRIP):
        m_left, m_left_power = state[r], _bits(state[STRIP + r])
        x_left, x_left_power = state[2 * STRIP + r], _bits(state[3 * STRIP + r])
        y_left, y_left_power = state[4 * STRIP + r], _bits(state[5 * STRIP + r])
        p_left, p_left_power = state[6 * STRIP + r], _bits(state[7 * STRIP + r])
        diagonal, diagonal_power = state[8 * STRIP + r], _bits(state[9 * STRIP + r])
        m_up, m_up_power, x_up, x_up_power = m_before, m_last, x_before, x_last
        state[8 * STRIP + r], state[9 * STRIP + r] = p_before, _from_bits(p_last)
        m_before, m_last, x_before, x_last = m_left, m_left_power, x_left, x_left_power
        p_before, p_last = p_left, p_left_power
        opens, opens_power = line[2 * STRIP + r], _bits(line[3 * STRIP + r])
        extends, extends_power = line[4 * STRIP + r], _bits(line[5 * STRIP + r])
        # a pair
        m, m_power_new = _normal(diagonal * line[r], _INT(diagonal_power + _bits(line[STRIP + r])))
        # a deletion
        a_power, b_power = _INT(m_up_power + opens_power), _INT(x_up_power + extends_power)
        top = a_power if a_power > b_power else b_power
        a, b = _shifted(m_up * opens, a_power, top), _shifted(x_up * extends, b_power, top)
        total = a + b
        scale = _ONE / (total if total > _ZERO else _ONE)
        weights[3 * STRIP + r], weights[4 * STRIP + r] = a * scale, b * scale
        x, x_power_new = _normal(total, top)
        # an insertion
        a_power, b_power = _INT(m_left_power + opens_power), _INT(x_left_power + opens_power)
        c_power = _INT(y_left_power + extends_power)
        top = a_power if a_power > b_power else b_power
        top = top if top > c_power else c_power
        a, b = _shifted(m_left * opens, a_power, top), _shifted(x_left * opens, b_power, top)
        c = _shifted(y_left * extends, c_power, top)
        total = a + b + c
        scale = _ONE / (total if total > _ZERO else _ONE)
        weights[5 * STRIP + r], weights[6 * STRIP + r], weights[7 * STRIP + r] = a * scale, b * scale, c * scale
        y, y_power_new = _normal(total, top)
        # any of them
        top = m_power_new if m_power_new > x_power_new else x_power_new
        top = top if top > y_power_new else y_power_new
        a, b = _shifted(m, m_power_new, top), _shifted(x, x_power_new, top)
        c = _shifted(y, y_power_new, top)
        total = a + b + c
        scale = _ONE / (total if total > _ZERO else _ONE)
        weights[r], weights[STRIP + r], weights[2 * STRIP + r] = a * scale, b * scale, c * scale
        p, p_power_new = _normal(total, top)
        state[r], state[STRIP + r] = m, _from_bits(m_power_new)
        state[2 * STRIP + r], state[3 * STRIP + r] = x, _from_bits(x_power_new)
        state[4 * STRIP + r], state[5 * STRIP + r] = y, _from_bits(y_power_new)
        state[6 * STRIP + r], state[7 * STRIP + r] = p, _from_bits(p_power_new)
