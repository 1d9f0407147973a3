"""One strip of rows backwards, for Numba: how often alignments pass its cells, and what they do there."""

from polymax.kernels.gapped import STRIP
from polymax.kernels.numba_math import inline


@inline
def walk_back(weights, m, tail, given, gives, flow, found):
    """One strip from its end: expected pairs, opened and extended gaps go to `found`.

    What its row `tail` is given, for M, X and P of each column, becomes what the strip gives to the row above it.
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
            # of the first lane, whose numbers are last
            gives[0, t], gives[1, t] = flow[4 * STRIP - 1], flow[5 * STRIP - 1]
            if t > 0:
                gives[2, t - 1] = flow[6 * STRIP - 1]


@inline
def _split(flow, m_given, x_given, p_given, tail, weights, line):
    """Expectations of a line, those given to its lane `tail` included, split over the choices of each cell.

    flow, from the last lane to the first: what goes left to M, X and Y; to M and X of the row above; the pairs, which
    go to P of the row above; and those of the row below, one step later.
    """
    zero = type(p_given)(0)
    m_below, x_below, p_below = zero, zero, zero
    for q in range(STRIP):
        r = STRIP - 1 - q
        here = r == tail
        p = flow[6 * STRIP + q] + (p_given if here else zero)
        m = flow[q] + m_below + (m_given if here else zero) + p * weights[r]
        x = flow[STRIP + q] + x_below + (x_given if here else zero) + p * weights[STRIP + r]
        y = flow[2 * STRIP + q] + p * weights[2 * STRIP + r]
        flow[6 * STRIP + q] = p_below
        m_below, x_below, p_below = flow[3 * STRIP + q], flow[4 * STRIP + q], flow[5 * STRIP + q]
        to_m, to_x = y * weights[5 * STRIP + r], y * weights[6 * STRIP + r]
        to_y = y * weights[7 * STRIP + r]
        up_m, up_x = x * weights[3 * STRIP + r], x * weights[4 * STRIP + r]
        flow[q], flow[STRIP + q], flow[2 * STRIP + q] = to_m, to_x, to_y
        flow[3 * STRIP + q], flow[4 * STRIP + q], flow[5 * STRIP + q] = up_m, up_x, m
        line[r] = m
        line[STRIP + r] = up_m + to_m + to_x
        line[2 * STRIP + r] = up_x + to_y


@inline
def collect(found, top, lanes, m, d_pairs, d_open, d_extend):
    """What was found of a strip, in the order of rows and columns; sums, where a gap score is that of all cells."""
    number = d_open.shape[0] == 1 and d_open.shape[1] == 1
    single = d_extend.shape[0] == 1 and d_extend.shape[1] == 1
    opens, extends = 0.0, 0.0
    for r in range(lanes):
        row = d_pairs[top + r]
        for j in range(m):
            row[j] = found[(j + 1 + r) * 3 * STRIP + r]
        if number:
            for j in range(m + 1):
                opens += found[(j + r) * 3 * STRIP + STRIP + r]
        else:
            for j in range(m + 1):
                d_open[top + r, max(j - 1, 0)] += found[(j + r) * 3 * STRIP + STRIP + r]
        if single:
            for j in range(m + 1):
                extends += found[(j + r) * 3 * STRIP + 2 * STRIP + r]
        else:
            for j in range(m + 1):
                d_extend[top + r, max(j - 1, 0)] += found[(j + r) * 3 * STRIP + 2 * STRIP + r]
    if number:
        d_open[0, 0] += opens
    if single:
        d_extend[0, 0] += extends


@inline
def collect_border(given, m, d_open, d_extend):
    """Insertions before the first row: those who pass column j also pass all before it."""
    total = 0.0
    for j in range(m, 0, -1):
        total += given[j]
        if j == 1:
            d_open[0, 0] += total
        else:
            d_extend[0, j - 1 if d_extend.shape[1] > 1 else 0] += total
