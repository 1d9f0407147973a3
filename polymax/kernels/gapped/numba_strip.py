"""The forward pass over a strip of rows, for Numba: its cells in the order of anti-diagonals, its rows in vector lanes.

Integers are stored in the bits of float32, so that a step reads and writes few arrays.
"""

import numpy as np

from polymax.backend.numba_exponents import (
    FORBIDDEN,
    INT,
    LOWEST,
    ONE,
    ZERO,
    bits,
    exponential,
    from_bits,
    normal,
    shifted,
)
from polymax.backend.numba_math import inline
from polymax.kernels.gapped import STRIP

_UNSIGNED = INT(0x7FFFFFFF)
# columns that are brought into lanes together
BLOCK = 16


@inline
def border(opened, extended, m, above):
    """Write the cells above the first row, which are reached only by insertions; return the largest absolute score."""
    above[0::2] = 0
    above[1::2] = from_bits(LOWEST)
    above[0, 0], above[1, 0], above[4, 0], above[5, 0] = 1, from_bits(INT(0)), 1, from_bits(INT(0))
    number, power = ONE, INT(0)
    most = 0.0
    for j in range(m):
        score = opened[0, 0] if j == 0 else extended[0, j if extended.shape[1] > 1 else 0]
        factor, shift = exponential(score)
        product = number * factor
        number, power = normal(product, INT(power + shift))
        above[4, j + 1], above[5, j + 1] = number, from_bits(power)
        size = _size(score)
        most = size if size > most or size != size else most
    return most


@inline
def _size(score):
    return 0.0 if score == FORBIDDEN else abs(np.float64(score))


@inline
def exponentials(pairs, opened, extended, top, n, m, lines, gaps, fresh):
    """Write exp of all scores of a strip, in the order of its steps; return the largest absolute score.

    Line t, lane r is row top + r, column t - r of 0, ..., m: the score of column j of a matrix is at j + 1, and column
    0 has the gap scores of column 1. `lines` have mantissas and exponents of pairs, `gaps` those of open and of extend.
    If both gap scores are one number for all cells, there is one line of gaps, written if they are `fresh` for an
    instance.
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
    """Return True if both gap scores are one number for all cells."""
    return opened.shape[0] == opened.shape[1] == extended.shape[0] == extended.shape[1] == 1


@inline
def _gap_line(matrix, alone, top, lanes, m, at, gaps):
    """Write exp of the gap scores of one kind, in all lines or in the single line; return the largest absolute
    score.
    """
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
    """Write rows of a matrix, each to its lane, a block of columns at a time, so that the lines stay in the cache."""
    for left in range(0, m, BLOCK):
        for r in range(lanes):
            row = matrix[top + r, left : min(left + BLOCK, m)]
            lane = lines[width * (left + 1 + r) * STRIP + r :]
            for j in range(row.size):
                lane[width * j * STRIP] = row[j]


@inline
def _transformed(lines, count, width, at):
    """Replace scores of lines by mantissas and exponents; return the largest absolute score."""
    # absolute values have the order of their bits, with NaN above all
    most = INT(0)
    for t in range(count):
        line = lines[width * t * STRIP + at : width * t * STRIP + at + 2 * STRIP]
        for r in range(STRIP):
            score = line[r]
            size = INT(0) if score == FORBIDDEN else INT(bits(score) & _UNSIGNED)
            most = size if size > most else most
            line[r], power = exponential(score)
            line[STRIP + r] = from_bits(power)
    return np.float64(from_bits(most))


@inline
def _sum(a, a_power, b, b_power):
    """Return a 2^a_power + b 2^b_power: its number, its exponent, and both terms with this exponent.

    The exponent is the larger one; a term that is then below the normal numbers is 0.
    """
    top = a_power if a_power > b_power else b_power
    a, b = shifted(a, INT(a_power - top)), shifted(b, INT(b_power - top))
    return a + b, top, a, b


def _walk(keep):
    """Return the walk that keeps the row below a strip or, if `keep`, the weights of all choices."""

    @inline
    def walk(lines, gaps, stride, m, tail, above, kept, state):
        """Compute one strip from the row above it; lines of gaps are `stride` apart.

        `kept` gets the row below the strip, which is its row `tail`, or all weights.
        """
        for half in range(0, 12, 2):
            state[half * STRIP : (half + 1) * STRIP] = 0
            state[(half + 1) * STRIP : (half + 2) * STRIP] = from_bits(LOWEST)
        none = from_bits(LOWEST)
        for t in range(m + STRIP):
            line, gap = lines[2 * t * STRIP : 2 * (t + 1) * STRIP], gaps[t * stride : t * stride + 4 * STRIP]
            chosen = kept[8 * t * STRIP : 8 * (t + 1) * STRIP] if keep else lines
            if t <= m:
                above_t = above[0, t], above[1, t], above[2, t], above[3, t], above[4, t], above[5, t]
                step(state, *above_t, line, gap, chosen)
            else:
                step(state, ZERO, none, ZERO, none, ZERO, none, line, gap, chosen)
            j = t - tail
            if not keep and 0 <= j <= m:
                kept[0, j], kept[1, j] = state[tail], state[STRIP + tail]
                kept[2, j], kept[3, j] = state[2 * STRIP + tail], state[3 * STRIP + tail]
                kept[4, j], kept[5, j] = state[8 * STRIP + tail], state[9 * STRIP + tail]

    @inline
    def step(state, m_above, m_power, x_above, x_power, p_above, p_power, line, gap, weights):
        """Compute the next anti-diagonal. state: M, X, Y, Q = M + X and P of the last one, and P diagonally before.

        Weights are the shares of Q and Y in P, of M and X in Q, of M and X in X, and of Q and Y in Y.
        """
        # passed from lane to lane in registers: a load that spans two recent vector stores would stall
        m_before, x_before, p_before = m_above, x_above, p_above
        m_last, x_last, p_last = bits(m_power), bits(x_power), bits(p_power)
        for r in range(STRIP):
            m_left, m_left_power = state[r], bits(state[STRIP + r])
            x_left, x_left_power = state[2 * STRIP + r], bits(state[3 * STRIP + r])
            y_left, y_left_power = state[4 * STRIP + r], bits(state[5 * STRIP + r])
            q_left, q_left_power = state[6 * STRIP + r], bits(state[7 * STRIP + r])
            p_left, p_left_power = state[8 * STRIP + r], bits(state[9 * STRIP + r])
            diagonal, diagonal_power = state[10 * STRIP + r], bits(state[11 * STRIP + r])
            m_up, m_up_power, x_up, x_up_power = m_before, m_last, x_before, x_last
            state[10 * STRIP + r], state[11 * STRIP + r] = p_before, from_bits(p_last)
            m_before, m_last, x_before, x_last = m_left, m_left_power, x_left, x_left_power
            p_before, p_last = p_left, p_left_power
            opens, opens_power = gap[r], bits(gap[STRIP + r])
            extends, extends_power = gap[2 * STRIP + r], bits(gap[3 * STRIP + r])
            # a pair; its mantissa stays near 1, as that of P does
            m = diagonal * line[r]
            m_power_new = INT(diagonal_power + bits(line[STRIP + r])) if m > ZERO else LOWEST
            # a deletion
            x, x_power_new, a, b = _sum(
                m_up * opens, INT(m_up_power + opens_power), x_up * extends, INT(x_up_power + extends_power)
            )
            if keep:
                scale = ONE / (x if x > ZERO else ONE)
                weights[4 * STRIP + r], weights[5 * STRIP + r] = a * scale, b * scale
            x, x_power_new = normal(x, x_power_new)
            # an insertion
            y, y_power_new, a, b = _sum(
                q_left * opens, INT(q_left_power + opens_power), y_left * extends, INT(y_left_power + extends_power)
            )
            if keep:
                scale = ONE / (y if y > ZERO else ONE)
                weights[6 * STRIP + r], weights[7 * STRIP + r] = a * scale, b * scale
            y, y_power_new = normal(y, y_power_new)
            # either of the first two, and any of the three
            q, q_power_new, a, b = _sum(m, m_power_new, x, x_power_new)
            if keep:
                scale = ONE / (q if q > ZERO else ONE)
                weights[2 * STRIP + r], weights[3 * STRIP + r] = a * scale, b * scale
            p, p_power_new, a, b = _sum(q, q_power_new, y, y_power_new)
            if keep:
                scale = ONE / (p if p > ZERO else ONE)
                weights[r], weights[STRIP + r] = a * scale, b * scale
            p, p_power_new = normal(p, p_power_new)
            state[r], state[STRIP + r] = m, from_bits(m_power_new)
            state[2 * STRIP + r], state[3 * STRIP + r] = x, from_bits(x_power_new)
            state[4 * STRIP + r], state[5 * STRIP + r] = y, from_bits(y_power_new)
            state[6 * STRIP + r], state[7 * STRIP + r] = q, from_bits(q_power_new)
            state[8 * STRIP + r], state[9 * STRIP + r] = p, from_bits(p_power_new)

    return walk


walk, walk_with_weights = _walk(keep=False), _walk(keep=True)
