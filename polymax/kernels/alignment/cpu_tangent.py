"""The derivative of alignment expectations along a direction, for Numba: one more walk each way.

    dv = d + sum_e p_e dv_e        dp = J (dv_e)        dq_e = dp_e E + p_e dE

The weights p are those of the chart; dp is stored for one instance at a time.
"""

import numpy as np

from polymax.backend.numba_math import exp2, inline, kernel, log2
from polymax.kernels.alignment import STRIP
from polymax.kernels.alignment.strips import SIDE, clear_padding, receive, send, skew, unskew


@kernel
def tangent(start, stop, rows, columns, chart, g, d, value, out, alpha):
    lines = np.empty((d.shape[2] + STRIP) * STRIP, d.dtype)
    moved = np.empty((chart.shape[1], chart.shape[2]), d.dtype)
    # derivatives of the values of the row above the strip, by column + 1
    above = np.empty(d.shape[2] + 1, np.float64)
    wide = np.empty(2 * STRIP, np.float64)
    line = np.empty(3 * STRIP, d.dtype)
    given = np.empty((2, d.shape[2]), d.dtype)
    flow = np.empty((2, 3 * SIDE), d.dtype)
    for b in range(start, stop):
        n, m = rows[b], columns[b]
        n = n if m > 0 else 0
        strips = (n + STRIP - 1) // STRIP
        clear_padding(out[b], n, m)
        value[b] = 0
        if n == 0:
            continue
        above[:] = 0
        for k in range(strips):
            skew(d[b], k * STRIP, n, m, 0, lines)
            _walk(lines, m, min(STRIP, n - k * STRIP) - 1, above, wide, line, chart[b, k], moved[k], alpha)
        exists = chart[b, 0, 0]
        value[b] = above[m] * exists if exists != 0 else 0
        given[:] = 0
        given[0, m - 1] = g[b] * exists
        for k in range(strips - 1, -1, -1):
            tail = min(STRIP, n - k * STRIP) - 1
            _walk_back(chart[b, k], moved[k], m, tail, given, flow, line[:STRIP], lines)
            unskew(lines, k * STRIP, tail + 1, m, out[b])


@inline
def _walk(lines, m, tail, above, wide, line, chart, moved, alpha):
    """Compute one strip: write the derivatives of its weights, and of the values of its row `tail` in place of the row
    above.
    """
    wide[:] = 0
    for t in range(m + STRIP - 1):
        start = 3 * t * STRIP
        weights = chart[start : start + 3 * STRIP]
        _mean(wide, above[t + 1] if t < m else 0.0, weights, lines[t * STRIP : (t + 1) * STRIP], line)
        if alpha == 1:
            for e in range(3 * STRIP):
                line[e] *= weights[e]
        else:
            _jacobian(line, weights, alpha)
        for e in range(3 * STRIP):
            moved[start + e] = line[e]
        if 0 <= t - tail < m:
            above[t - tail + 1] = wide[tail]


@inline
def _mean(wide, above, weights, d, line):
    """Write dv of a line of cells; line = the predecessors' dv less their mean, 0 for those without weight."""
    real = line.dtype.type
    before = above
    for r in range(STRIP):
        p, q, s = weights[r], weights[STRIP + r], weights[2 * STRIP + r]
        last = wide[r]
        # a predecessor without weight may have any derivative
        diagonal = wide[STRIP + r] if p > real(0) else 0.0
        down = before if q > real(0) else 0.0
        right = last if s > real(0) else 0.0
        mean = np.float64(p) * diagonal + np.float64(q) * down + np.float64(s) * right
        line[r] = diagonal - mean if p > real(0) else 0.0
        line[STRIP + r] = down - mean if q > real(0) else 0.0
        line[2 * STRIP + r] = right - mean if s > real(0) else 0.0
        wide[r] = mean + np.float64(d[r])
        wide[STRIP + r] = before
        before = last


@inline
def _jacobian(line, weights, alpha):
    """Replace line by J line, J = diag(s) - s s^T / sum(s), s = p^(2 - alpha) on the support."""
    real = line.dtype.type
    k, zero = real(2 - alpha), real(0)
    for r in range(STRIP):
        s = _slope(weights[r], k)
        u = _slope(weights[STRIP + r], k)
        w = _slope(weights[2 * STRIP + r], k)
        a, b, c = line[r], line[STRIP + r], line[2 * STRIP + r]
        total = s + u + w
        mean = (s * a + u * b + w * c) / (total if total > zero else real(1))
        line[r] = s * (a - mean)
        line[STRIP + r] = u * (b - mean)
        line[2 * STRIP + r] = w * (c - mean)


@inline
def _slope(p, k):
    one, zero = type(p)(1), type(p)(0)
    s = exp2(log2(p if p > zero else one) * k)
    return s if p > zero else zero


@inline
def _walk_back(chart, moved, m, tail, given, flow, expectation, lines):
    """Process one strip from its end: write the derivatives of the expectations to lines."""
    flow[:] = 0
    zero = lines.dtype.type(0)
    for t in range(m + STRIP - 2, -1, -1):
        j = t - tail
        inside = 0 <= j < m
        line = lines[t * STRIP : (t + 1) * STRIP]
        start = 3 * t * STRIP
        weights = chart[start : start + 3 * STRIP]
        receive(flow[0], given[0, j] if inside else zero, tail, expectation)
        receive(flow[1], given[1, j] if inside else zero, tail, line)
        send(flow[0], expectation, weights)
        send(flow[1], line, weights)
        _send_moved(flow[1], expectation, moved[start : start + 3 * STRIP])
        if t < m:
            given[0, t] = flow[0, SIDE]
            given[1, t] = flow[1, SIDE]


@inline
def _send_moved(flow, expectation, moved):
    for r in range(STRIP):
        flow[r] += expectation[r] * moved[2 * STRIP + r]
        flow[SIDE + r] += expectation[r] * moved[STRIP + r]
        flow[2 * SIDE + r] += expectation[r] * moved[r]
