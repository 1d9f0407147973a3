"""The backward pass over a strip of rows, for Numba: expected visits of its cells and of their choices."""

import numpy as np

from polymax.backend.numba_math import inline
from polymax.kernels.gapped import STRIP
from polymax.kernels.gapped.numba_strip import BLOCK


@inline
def walk_back(weights, m, tail, given, gives, flow, found):
    """Process one strip from its end: write expected pairs, opened and extended gaps to `found`.

    `given` are the expectations of M, X and P of row `tail`, by column; `gives` become those of the row above the
    strip.
    """
    gives[:] = 0
    flow[:] = 0
    zero = flow.dtype.type(0)
    for t in range(m + STRIP - 1, -1, -1):
        j = t - tail
        chosen = weights[8 * t * STRIP : 8 * (t + 1) * STRIP]
        line = found[3 * t * STRIP : 3 * (t + 1) * STRIP]
        if 0 <= j <= m:
            _split(flow, given[0, j], given[1, j], given[2, j], tail, chosen, line)
        else:
            _split(flow, zero, zero, zero, tail, chosen, line)
        if t <= m:
            # for the first lane, whose numbers are last
            gives[0, t], gives[1, t] = flow[3 * STRIP - 1], flow[4 * STRIP - 1]
            if t > 0:
                gives[2, t - 1] = flow[5 * STRIP - 1]


@inline
def _split(flow, m_given, x_given, p_given, tail, weights, line):
    """Write the expectations of a line, with those given to its lane `tail`, and split them over the choices of each
    cell.

    flow, from the last lane to the first: expectations to the left for Q and Y; for M and X of the row above; of the
    pairs, for P of the row above; and of the pairs of the row below, one step later.
    """
    zero = type(p_given)(0)
    m_last, x_last, p_last = zero, zero, zero
    for k in range(STRIP):
        r = STRIP - 1 - k
        q, y, late = flow[k], flow[STRIP + k], flow[5 * STRIP + k]
        m_up, x_up, p_up = flow[2 * STRIP + k], flow[3 * STRIP + k], flow[4 * STRIP + k]
        m_below, x_below, p_below = m_last, x_last, p_last
        # passed from lane to lane: the expectations from the row below
        m_last, x_last, p_last = m_up, x_up, p_up
        here = r == tail
        p = late + (p_given if here else zero)
        q += p * weights[r]
        y += p * weights[STRIP + r]
        m = m_below + (m_given if here else zero) + q * weights[2 * STRIP + r]
        x = x_below + (x_given if here else zero) + q * weights[3 * STRIP + r]
        flow[5 * STRIP + k] = p_below
        up_m, up_x = x * weights[4 * STRIP + r], x * weights[5 * STRIP + r]
        to_q, to_y = y * weights[6 * STRIP + r], y * weights[7 * STRIP + r]
        flow[k], flow[STRIP + k] = to_q, to_y
        flow[2 * STRIP + k], flow[3 * STRIP + k], flow[4 * STRIP + k] = up_m, up_x, m
        line[r] = m
        line[STRIP + r] = up_m + to_q
        line[2 * STRIP + r] = up_x + to_y


@inline
def collect(found, top, lanes, m, d_pairs, d_open, d_extend):
    """Write the results of a strip in the order of rows and columns; sums, if a gap score is shared by all cells."""
    for left in range(0, m, BLOCK):
        for r in range(lanes):
            row = d_pairs[top + r, left : min(left + BLOCK, m)]
            lane = found[3 * (left + 1 + r) * STRIP + r :]
            for j in range(row.size):
                row[j] = lane[3 * j * STRIP]
    for kind in range(1, 3):
        matrix = d_open if kind == 1 else d_extend
        if matrix.shape[0] == 1 and matrix.shape[1] == 1:
            matrix[0, 0] += _total(found, m + STRIP, kind * STRIP)
        else:
            for r in range(lanes):
                for j in range(m + 1):
                    matrix[top + r, max(j - 1, 0)] += found[(3 * (j + r) + kind) * STRIP + r]


@inline
def _total(found, count, at):
    """Return the sum over all lines and lanes; entries without a cell are 0."""
    sums = np.zeros(STRIP, found.dtype)
    for t in range(count):
        line = found[3 * t * STRIP + at : 3 * t * STRIP + at + STRIP]
        for r in range(STRIP):
            sums[r] += line[r]
    total = 0.0
    for r in range(STRIP):
        total += sums[r]
    return total


@inline
def collect_border(given, m, d_open, d_extend):
    """Add insertions before the first row: alignments that pass column j also pass all columns before it."""
    total = 0.0
    for j in range(m, 0, -1):
        total += given[j]
        if j == 1:
            d_open[0, 0] += total
        else:
            d_extend[0, j - 1 if d_extend.shape[1] > 1 else 0] += total
