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
_ONE_BITS, _MANTISSA, _UNSIGNED = _INT(0x3F800000), _INT(0x007FFFFF), _INT(0x7FFFFFFF)
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
def exponentials(pairs, opened, extended, top, n, m, lines, gaps, fresh):
    """exp of all scores of a strip, in the order of its steps; the largest score without sign.

    Line t, lane r is row top + r, column t - r of 0, ..., m: what scores column j of a matrix is at j + 1, and column 0
    has gap scores as column 1. `lines` have mantissas and exponents of pairs, `gaps` those of open and of extend. Where
    both are one number for all cells, there is one line of gaps, written where these are `fresh` ones of an instance.
    """
    lanes = min(STRIP, n - top)
    for t in range(m + STRIP + 1):
        if t <= STRIP or t >= m or lanes < STRIP:
            lines[2 * t * STRIP : (2 * t + 1) * STRIP] = -np.inf
    _spread(pairs, top, lanes, m, 2, lines)
    most = _transformed(lines, m + STRIP + 1, 2, 0)
    if fresh or not single(opened, extended):
        for kind in range(2):
            matrix = opened if kind == 0 else extended
            size = _gap_line(matrix, single(opened, extended), top, lanes, m, 2 * kind * STRIP, gaps)
            most = size if size > most or size != size else most
    return most


@inline
def single(opened, extended):
    """True where both gap scores are one number for all cells."""
    return opened.shape[0] == opened.shape[1] == extended.shape[0] == extended.shape[1] == 1


@inline
def _gap_line(matrix, alone, top, lanes, m, at, gaps):
    """exp of the gap scores of one kind, in all lines or in the one."""
    count = 1 if alone else m + STRIP + 1
    number = matrix.shape[0] == 1 and matrix.shape[1] == 1
    for t in range(count):
        gaps[4 * t * STRIP + at : (4 * t + 1) * STRIP + at] = matrix[0, 0] if number else 0
    if not number:
        _spread(matrix, top, lanes, m, 4, gaps[at:])
        for r in range(lanes):
            gaps[4 * r * STRIP + at + r] = matrix[top + r, 0]
    return _transformed(gaps, count, 4, at)


@inline
def _spread(matrix, top, lanes, m, width, lines):
    """Rows of a matrix, each in its lane, a block of columns at a time: the lines they touch stay in the cache."""
    for left in range(0, m, BLOCK):
        for r in range(lanes):
            row = matrix[top + r, left : min(left + BLOCK, m)]
            lane = lines[width * (left + 1 + r) * STRIP + r :]
            for j in range(row.size):
                lane[width * j * STRIP] = row[j]


@inline
def _transformed(lines, count, width, at):
    """Scores of lines become mantissas and exponents; the largest score without sign."""
    # numbers without sign have the order of their bits, NaN above all of them
    most = _INT(0)
    for t in range(count):
        line = lines[width * t * STRIP + at : width * t * STRIP + at + 2 * STRIP]
        for r in range(STRIP):
            score = line[r]
            size = _INT(0) if score == _FORBIDDEN else _INT(_bits(score) & _UNSIGNED)
            most = size if size > most else most
            line[r], power = _exponential(score)
            line[STRIP + r] = _from_bits(power)
    return np.float64(_from_bits(most))


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
def _sum(a, a_power, b, b_power):
    """a 2^a_power + b 2^b_power: its number, its exponent, and both terms with this exponent.

    The exponent is the larger one, and what is then below the normal numbers is 0.
    """
    top = a_power if a_power > b_power else b_power
    a, b = _shifted(a, _INT(a_power - top)), _shifted(b, _INT(b_power - top))
    return a + b, top, a, b


@inline
def _shifted(number, shift):
    """number 2^shift, where the shift is not positive."""
    shift = shift if shift > _INT(-127) else _INT(-127)
    return number * _from_bits(_INT(_INT(shift + _INT(127)) << _INT(23)))


def _walk(keep):
    """The walk that keeps the row below a strip, or that which keeps the weights of all choices."""

    @inline
    def walk(lines, gaps, stride, m, tail, above, kept, state):
        """One strip from the row above it; lines of gaps are `stride` apart.

        Kept is the row below it, which is its row `tail`, or all weights.
        """
        for half in range(0, 12, 2):
            state[half * STRIP : (half + 1) * STRIP] = 0
            state[(half + 1) * STRIP : (half + 2) * STRIP] = _from_bits(LOWEST)
        none = _from_bits(LOWEST)
        for t in range(m + STRIP):
            line, gap = lines[2 * t * STRIP : 2 * (t + 1) * STRIP], gaps[t * stride : t * stride + 4 * STRIP]
            chosen = kept[8 * t * STRIP : 8 * (t + 1) * STRIP] if keep else lines
            if t <= m:
                above_t = above[0, t], above[1, t], above[2, t], above[3, t], above[4, t], above[5, t]
                step(state, *above_t, line, gap, chosen)
            else:
                step(state, _ZERO, none, _ZERO, none, _ZERO, none, line, gap, chosen)
            j = t - tail
            if not keep and 0 <= j <= m:
                kept[0, j], kept[1, j] = state[tail], state[STRIP + tail]
                kept[2, j], kept[3, j] = state[2 * STRIP + tail], state[3 * STRIP + tail]
                kept[4, j], kept[5, j] = state[8 * STRIP + tail], state[9 * STRIP + tail]

    @inline
    def step(state, m_above, m_power, x_above, x_power, p_above, p_power, line, gap, weights):
        """The next anti-diagonal. state: M, X, Y, Q = M + X and P of the last one, and P diagonally before.

        Weights are those of Q and Y in P, of M and X in Q, of M and X in X, and of Q and Y in Y.
        """
        # carried from lane to lane, not read from the neighbour's place: a vector that spans two stores waits for both
        m_before, x_before, p_before = m_above, x_above, p_above
        m_last, x_last, p_last = _bits(m_power), _bits(x_power), _bits(p_power)
        for r in range(STRIP):
            m_left, m_left_power = state[r], _bits(state[STRIP + r])
            x_left, x_left_power = state[2 * STRIP + r], _bits(state[3 * STRIP + r])
            y_left, y_left_power = state[4 * STRIP + r], _bits(state[5 * STRIP + r])
            q_left, q_left_power = state[6 * STRIP + r], _bits(state[7 * STRIP + r])
            p_left, p_left_power = state[8 * STRIP + r], _bits(state[9 * STRIP + r])
            diagonal, diagonal_power = state[10 * STRIP + r], _bits(state[11 * STRIP + r])
            m_up, m_up_power, x_up, x_up_power = m_before, m_last, x_before, x_last
            state[10 * STRIP + r], state[11 * STRIP + r] = p_before, _from_bits(p_last)
            m_before, m_last, x_before, x_last = m_left, m_left_power, x_left, x_left_power
            p_before, p_last = p_left, p_left_power
            opens, opens_power = gap[r], _bits(gap[STRIP + r])
            extends, extends_power = gap[2 * STRIP + r], _bits(gap[3 * STRIP + r])
            # a pair; its mantissa stays near 1, as that of P does
            m = diagonal * line[r]
            m_power_new = _INT(diagonal_power + _bits(line[STRIP + r])) if m > _ZERO else LOWEST
            # a deletion
            x, x_power_new, a, b = _sum(
                m_up * opens, _INT(m_up_power + opens_power), x_up * extends, _INT(x_up_power + extends_power)
            )
            if keep:
                scale = _ONE / (x if x > _ZERO else _ONE)
                weights[4 * STRIP + r], weights[5 * STRIP + r] = a * scale, b * scale
            x, x_power_new = _normal(x, x_power_new)
            # an insertion
            y, y_power_new, a, b = _sum(
                q_left * opens, _INT(q_left_power + opens_power), y_left * extends, _INT(y_left_power + extends_power)
            )
            if keep:
                scale = _ONE / (y if y > _ZERO else _ONE)
                weights[6 * STRIP + r], weights[7 * STRIP + r] = a * scale, b * scale
            y, y_power_new = _normal(y, y_power_new)
            # either of the first two, and any of the three
            q, q_power_new, a, b = _sum(m, m_power_new, x, x_power_new)
            if keep:
                scale = _ONE / (q if q > _ZERO else _ONE)
                weights[2 * STRIP + r], weights[3 * STRIP + r] = a * scale, b * scale
            p, p_power_new, a, b = _sum(q, q_power_new, y, y_power_new)
            if keep:
                scale = _ONE / (p if p > _ZERO else _ONE)
                weights[r], weights[STRIP + r] = a * scale, b * scale
            p, p_power_new = _normal(p, p_power_new)
            state[r], state[STRIP + r] = m, _from_bits(m_power_new)
            state[2 * STRIP + r], state[3 * STRIP + r] = x, _from_bits(x_power_new)
            state[4 * STRIP + r], state[5 * STRIP + r] = y, _from_bits(y_power_new)
            state[6 * STRIP + r], state[7 * STRIP + r] = q, _from_bits(q_power_new)
            state[8 * STRIP + r], state[9 * STRIP + r] = p, _from_bits(p_power_new)

    return walk


walk, walk_with_weights = _walk(keep=False), _walk(keep=True)
