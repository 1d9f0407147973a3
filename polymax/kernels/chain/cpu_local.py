"""Chains for any entropy, in logarithms and float64: local maxima, expectations, and their tangent, for Numba.

The chart keeps v_t less its maximum as two numbers of the scores' dtype, whose sum has almost the digits of float64.
Its first step says what it is: chart[0, 1] is 0 here and positive in the linear domain; chart[0, 0] is all -inf where
the value is, and NaN where the value is.
"""

import numpy as np

from polymax.kernels.chain.cpu_columns import local_weights, maxima
from polymax.kernels.numba_math import add, inline, row_max
from polymax.kernels.numba_smooth import smooth_max, tangent_of_weights


@inline
def values(chart, t, v):
    """v_t up to a constant."""
    linear = chart[0, 1, 0] > 0
    for j in range(v.size):
        v[j] = (
            np.log(np.float64(chart[t, 0, j]))
            if linear
            else np.float64(chart[t, 0, j]) + (chart[t, 1, j] if t > 0 else 0.0)
        )


@inline
def local_inside(unary, transition, length, alpha, flat, p, v, m, rows, chart):
    """The value; v_t goes to the chart."""
    real = unary.dtype.type
    value = 0.0
    for t in range(length):
        if t == 0:
            for j in range(v.size):
                v[j] = unary[0, j]
        else:
            step = transition[min(t, transition.shape[0]) - 1]
            if alpha == np.inf:
                maxima(v, step, m)
            else:
                local_weights(v, step, alpha, flat, p, m, rows)
            for j in range(v.size):
                v[j] = m[j] + unary[t, j]
            high = row_max(v)
            if -np.inf < high < np.inf:
                value += high
                for j in range(v.size):
                    v[j] -= high
        for j in range(v.size):
            chart[t, 0, j] = v[j]
            rest = v[j] - np.float64(chart[t, 0, j])
            chart[t, 1, j] = rest if abs(v[j]) < np.inf and t > 0 else 0.0
            # what comes later reads v from here: the same digits give the same maxima
            v[j] = chart[t, 0, j] + np.float64(chart[t, 1, j])
    root, _ = smooth_max(v, v.size, alpha, rows[0])
    value += root
    if not abs(value) < np.inf:
        for j in range(v.size):
            chart[0, 0, j] = real(value)
    return value


@inline
def hopeless(chart):
    """Whether the value is -inf or NaN, so that there is nothing to expect."""
    high = -np.inf
    for j in range(chart.shape[2]):
        if chart[0, 0, j] != chart[0, 0, j]:
            return True
        high = max(high, np.float64(chart[0, 0, j]))
    return high == -np.inf


@inline
def fill_hopeless(chart, length, unary, transition, sums):
    """Expectations of a value of -inf are 0, those of NaN are NaN."""
    nan = chart[0, 0, 0] != chart[0, 0, 0]
    fill = chart[0, 0, 0] if nan else chart.dtype.type(0)
    s = unary.shape[1]
    for t in range(length):
        for i in range(s):
            unary[t, i] = fill
            for j in range(s):
                if t > 0 and transition.shape[0] > 1:
                    transition[t - 1, i, j] += fill
                elif t > 0:
                    sums[i, j] += fill


@inline
def local_outside(chart, transition, length, g, alpha, flat, p, v, m, r, rows, sums, mu_unary, mu_transition):
    """Expectations times g; those of shared transitions are added to sums."""
    s = v.size
    column = rows[0]
    values(chart, length - 1, v)
    smooth_max(v, s, alpha, r)
    for t in range(length - 1, -1, -1):
        for j in range(s):
            r[j] *= g if t == length - 1 else 1.0
            mu_unary[t, j] = r[j]
        if t == 0:
            break
        values(chart, t - 1, v)
        local_weights(v, transition[min(t, transition.shape[0]) - 1], alpha, flat, p, m, rows)
        for i in range(s):
            total = 0.0
            for j in range(s):
                p[i, j] *= r[j]
                total = add(total, p[i, j])
            column[i] = total
        for i in range(s):
            r[i] = column[i]
        add_to(mu_transition, sums, t, p)


@inline
def add_to(out, sums, t, q):
    """Add the edges q into step t to their output, or to the sums where all steps share it."""
    s = q.shape[0]
    if out.shape[0] > 1:
        for i in range(s):
            for j in range(s):
                out[t - 1, i, j] += q[i, j]
    else:
        for i in range(s):
            for j in range(s):
                sums[i, j] += q[i, j]


@inline
def backtrack(chart, transition, length, g, v, sums, mu_unary, mu_transition):
    """The best sequence, g at its states and transitions."""
    for t in range(length):
        for j in range(v.size):
            mu_unary[t, j] = 0
    values(chart, length - 1, v)
    state = np.argmax(v)
    for t in range(length - 1, -1, -1):
        mu_unary[t, state] = g
        if t == 0:
            break
        values(chart, t - 1, v)
        step = min(t, transition.shape[0]) - 1
        for i in range(v.size):
            v[i] += transition[step, i, state]
        before = np.argmax(v)
        if mu_transition.shape[0] > 1:
            mu_transition[t - 1, before, state] += g
        else:
            sums[before, state] += g
        state = before


@inline
def local_tangent(
    chart, transition, d_unary, d_transition, length, g, alpha, flat, p, dp, dv, work, sums, h_unary, h_transition
):
    """<mu, d>, and g H d: one pass up for dv, the derivative of v along d, and one down for that of the weights."""
    s = d_unary.shape[1]
    v, m, r, dr = work[0], work[1], work[2], work[3]
    rows, column, tangents = work[4:], work[4], work[5]
    for t in range(length):
        for j in range(s):
            dv[t, j] = d_unary[t, j]
        if t > 0:
            values(chart, t - 1, v)
            local_weights(v, transition[min(t, transition.shape[0]) - 1], alpha, flat, p, m, rows)
            step = min(t, d_transition.shape[0]) - 1
            for i in range(s):
                for j in range(s):
                    change = d_transition[step, i, j] + dv[t - 1, i]
                    # a transition without weight may have an infinite tangent
                    dv[t, j] += p[i, j] * change if p[i, j] != 0 else 0.0
    values(chart, length - 1, v)
    smooth_max(v, s, alpha, r)
    tangent_of_weights(r, dv[length - 1], s, alpha, dr)
    value = 0.0
    for j in range(s):
        value += r[j] * dv[length - 1, j] if r[j] != 0 else 0.0
        r[j] *= g
        dr[j] *= g
    for t in range(length - 1, -1, -1):
        for j in range(s):
            h_unary[t, j] = dr[j]
        if t == 0:
            break
        values(chart, t - 1, v)
        local_weights(v, transition[min(t, transition.shape[0]) - 1], alpha, flat, p, m, rows)
        step = min(t, d_transition.shape[0]) - 1
        for i in range(s):
            for j in range(s):
                dp[i, j] = d_transition[step, i, j] + dv[t - 1, i]
        _tangents_of_columns(p, dp, alpha, column, tangents)
        for i in range(s):
            total = d_total = 0.0
            for j in range(s):
                dp[i, j] = dp[i, j] * r[j] + p[i, j] * dr[j]
                total = add(total, p[i, j] * r[j])
                d_total = add(d_total, dp[i, j])
            column[i] = total
            tangents[i] = d_total
        for i in range(s):
            r[i] = column[i]
            dr[i] = tangents[i]
        add_to(h_transition, sums, t, dp)
    return value


@inline
def _tangents_of_columns(p, d, alpha, total, mean):
    """Replace each column of d by J d, as `tangent_of_weights` does."""
    s = p.shape[0]
    for j in range(s):
        total[j] = 0
        mean[j] = 0
    for i in range(s):
        for j in range(s):
            slope = _slope(p[i, j], alpha)
            total[j] += slope
            mean[j] += slope * d[i, j] if slope != 0 else 0.0
    for j in range(s):
        mean[j] = mean[j] / total[j] if total[j] > 0 else 0.0
    for i in range(s):
        for j in range(s):
            slope = _slope(p[i, j], alpha)
            d[i, j] = slope * (d[i, j] - mean[j]) if slope != 0 else 0.0


@inline
def _slope(p, alpha):
    if p == 0 or alpha == np.inf:
        return 0.0
    if alpha == 1.0:
        return p
    return 1.0 if alpha == 2.0 else p ** (2 - alpha)
