"""Chains for any entropy, in logarithms and float64: local maxima, expectations, and their tangent, for Numba.

A matrix of transitions is stored in blocks of LANES columns, the next states: row k s + i has the transitions from
state i into the states of block k, so that their maxima are taken lane by lane. The chart stores v_t less its maximum
as two numbers of the scores' dtype, whose sum has almost the digits of float64. Its first step shows the kind of chart:
chart[0, 1] is 0 here and positive in the linear domain. chart[0, 0] is all -inf if the value is -inf, and NaN if the
value is NaN.
"""

import numpy as np

from polymax.backend.numba_math import inline, kernel
from polymax.kernels.chain.numba_units import clear, shared_index, span
from polymax.kernels.local_max.numba_lanes import LANES, fill, load, select, store
from polymax.kernels.local_max.numba_max import (
    by_smoothing,
    remaining,
    slope_mean,
    smooth,
    smooth_max,
    weight_change,
    weights,
)


@kernel
def inside(start, stop, group, cuts, size, unary, transitions, lengths, value, chart, omega):
    s = unary.shape[2]
    blocks = -(-s // LANES)
    w, a, m, v = np.empty((blocks * s, LANES)), np.empty((s, LANES)), np.empty(blocks * LANES), np.empty(s)
    lanes = m.reshape((blocks, LANES))
    for unit in range(start, stop):
        first, last = span(unit, group, cuts, size)
        if first == last:
            continue
        transition = transitions[shared_index(first, unary.shape[0], transitions.shape[0])]
        if transition.shape[0] == 1 and smooth(omega):
            _spread(transition[0], -np.inf, w)
        for b in range(first, last):
            length = lengths[b]
            if remaining(omega) and (length == 0 or chart[b, 0, 1, 0] > 0):
                continue
            for t in range(length, unary.shape[1]):
                clear(chart[b, t])
            value[b] = _steps(unary[b], transition, length, w, a, m, lanes, v, chart[b], omega) if length > 0 else 0.0


@inline
def _steps(unary, transition, length, w, a, m, lanes, v, chart, omega):
    """Write v_t to the chart; return the value."""
    s = v.size
    value = 0.0
    for t in range(length):
        if t > 0:
            _best_states(transition, t, w, v, a, m, lanes, omega)
        high = -np.inf
        for j in range(s):
            v[j] = unary[t, j] + (m[j] if t > 0 else 0.0)
            high = v[j] if v[j] > high else high
        if t == 0 or not -np.inf < high < np.inf:
            high = 0.0
        value += high
        for j in range(s):
            v[j] -= high
            chart[t, 0, j] = v[j]
            rest = v[j] - np.float64(chart[t, 0, j])
            chart[t, 1, j] = rest if abs(v[j]) < np.inf and t > 0 else 0.0
            # read v back from the chart, so that later passes compute the same maxima from the same digits
            v[j] = chart[t, 0, j] + np.float64(chart[t, 1, j])
    _arguments(None, 0, v, a)
    store(lanes, 0, smooth_max(a, s, omega))
    value += m[0]
    if not abs(value) < np.inf:
        for j in range(s):
            chart[0, 0, j] = value
    return value


@inline
def _spread(matrix, padding, w):
    """Write a matrix in blocks of columns."""
    s = matrix.shape[0]
    for k in range(w.shape[0] // s):
        for i in range(s):
            for l in range(LANES):
                j = k * LANES + l
                w[k * s + i, l] = matrix[i, j] if j < s else padding


@inline
def _arguments(w, row, v, a):
    """Write v plus the transitions into a block of states that begins in a row of w, or v in all lanes if w is None."""
    for i in range(v.size):
        if w is not None:
            store(a, i, load(w, row + i) + v[i])
        else:
            store(a, i, fill(a, v[i]))


@inline
def _smooth_states(transition, t, w, v, a, m, lanes, omega):
    """Write m_t, also in lanes; w holds the transitions, unless each step has its own."""
    if transition.shape[0] > 1:
        _spread(transition[t - 1], -np.inf, w)
    for k in range(lanes.shape[0]):
        _arguments(w, k * v.size, v, a)
        store(lanes, k, smooth_max(a, v.size, omega))


@inline
def _hard_states(transition, t, w, v, a, m, lanes, omega):
    """Write m_t without smoothing, directly from the transitions; one NaN makes all of m_t NaN."""
    step = transition[min(t, transition.shape[0]) - 1]
    poisoned = 0
    for j in range(v.size):
        m[j] = -np.inf
    for i in range(v.size):
        for j in range(v.size):
            x = v[i] + step[i, j]
            poisoned += x != x
            m[j] = x if x > m[j] else m[j]
    for j in range(v.size if poisoned > 0 else 0):
        m[j] = np.nan


_best_states = by_smoothing(_smooth_states, _smooth_states, _smooth_states, _hard_states)


@inline
def _values(chart, t, v):
    """Write v_t up to a constant."""
    for j in range(v.size):
        v[j] = np.float64(chart[t, 0, j]) + chart[t, 1, j]


@inline
def _hopeless(chart):
    """Return True if the value is -inf or NaN, so that there are no expectations."""
    high = -np.inf
    for j in range(chart.shape[2]):
        x = np.float64(chart[0, 0, j])
        high = x if x > high or x != x else high
    return not high > -np.inf


@inline
def _fill_hopeless(chart, length, unary, transition):
    """Fill in the expectations of a value of -inf, which are 0, or of NaN, which are NaN; return the filler."""
    nan = chart[0, 0, 0] != chart[0, 0, 0]
    x = chart[0, 0, 0] if nan else chart.dtype.type(0)
    s = unary.shape[1]
    for t in range(length):
        for i in range(s):
            unary[t, i] = x
            for j in range(s if t > 0 else 0):
                transition[min(t, transition.shape[0]) - 1, i, j] += x
    return x


@kernel
def best_sequences(start, stop, group, cuts, size, transitions, lengths, chart, g, mu_unary, mu_transition, omega):
    """Write g at the states and transitions of the best sequences."""
    v = np.empty(mu_unary.shape[2])
    for unit in range(start, stop):
        first, last = span(unit, group, cuts, size)
        for b in range(first, last):
            length, mu, out = lengths[b], mu_unary[b], mu_transition[unit]
            transition = transitions[shared_index(first, mu_unary.shape[0], transitions.shape[0])]
            clear(mu)
            if length == 0:
                continue
            if _hopeless(chart[b]):
                _fill_hopeless(chart[b], length, mu, out)
                continue
            _values(chart[b], length - 1, v)
            state = np.argmax(v)
            mu[length - 1, state] = g[b]
            for t in range(length - 1, 0, -1):
                _values(chart[b], t - 1, v)
                step = min(t, transition.shape[0]) - 1
                for i in range(v.size):
                    v[i] += transition[step, i, state]
                before = np.argmax(v)
                out[min(t, out.shape[0]) - 1, before, state] += g[b]
                mu[t - 1, before] = g[b]
                state = before


@kernel
def outside(
    start,
    stop,
    group,
    cuts,
    size,
    transitions,
    lengths,
    chart,
    g,
    out_unary,
    out_transition,
    omega,
    d_unary=None,
    d_transitions=None,
    value=None,
):
    """Write expectations times g or, unless d_unary is None, their derivative along d, and the derivative of the
    value.
    """
    n, s = out_unary.shape[1:]
    blocks = -(-s // LANES)
    w, sums, q = np.empty((blocks * s, LANES)), np.empty((blocks * s, LANES)), np.empty((blocks * s, LANES))
    # used only with a direction
    dw, dv = np.empty((blocks * s, LANES)), np.empty((n, s))
    # arguments or weights of one block, their derivatives, and contributions to the previous states, with derivatives
    space = np.empty((4, s, LANES))
    r, v = np.empty((3, blocks, LANES)), np.empty(s)
    one = out_transition.shape[1] == 1
    for unit in range(start, stop):
        first, last = span(unit, group, cuts, size)
        if first == last:
            continue
        transition = transitions[shared_index(first, out_unary.shape[0], transitions.shape[0])]
        if transition.shape[0] == 1:
            _spread(transition[0], -np.inf, w)
        if d_unary is not None and d_transitions.shape[1] == 1:
            _spread(d_transitions[shared_index(first, out_unary.shape[0], d_transitions.shape[0])][0], 0.0, dw)
        clear(sums)
        for b in range(first, last):
            length = lengths[b]
            if remaining(omega) and (length == 0 or chart[b, 0, 1, 0] > 0):
                continue
            clear(out_unary[b, length:])
            if length == 0:
                continue
            if _hopeless(chart[b]):
                x = _fill_hopeless(chart[b], length, out_unary[b], out_transition[unit])
                if d_unary is not None:
                    value[b] = x
                continue
            if d_unary is not None:
                d_transition = d_transitions[shared_index(first, out_unary.shape[0], d_transitions.shape[0])]
                _forward(chart[b], transition, d_unary[b], d_transition, length, w, dw, dv, space, r[0], v, omega)
            slope = _root(chart[b], length, g[b], dv, space, r, v, d_unary, omega)
            if d_unary is not None:
                value[b] = slope
            out = q, sums, out_unary[b], out_transition[unit], d_transitions
            _steps_back(chart[b], transition, first, out_unary.shape[0], length, w, dw, dv, space, r, v, *out, omega)
        for i in range(s if one else 0):
            for j in range(s):
                out_transition[unit, 0, i, j] += sums[j // LANES * s + i, j % LANES]


@inline
def _forward(chart, transition, d_unary, d_transition, length, w, dw, dv, space, m, v, omega):
    """Write dv, the derivative of v along d."""
    s = v.size
    a = space[0]
    for t in range(length):
        if t > 0:
            _values(chart, t - 1, v)
            if transition.shape[0] > 1:
                _spread(transition[t - 1], -np.inf, w)
            if d_transition.shape[0] > 1:
                _spread(d_transition[t - 1], 0.0, dw)
            for k in range(m.shape[0]):
                _arguments(w, k * s, v, a)
                weights(a, s, a, omega)
                total = fill(a, 0.0)
                for i in range(s):
                    p = load(a, i)
                    # a transition without weight may have an infinite tangent
                    total += select(p == 0.0, 0.0, p * (load(dw, k * s + i) + dv[t - 1, i]))
                store(m, k, total)
        for j in range(s):
            dv[t, j] = d_unary[t, j] + (m[j // LANES, j % LANES] if t > 0 else 0.0)


@inline
def _root(chart, length, g, dv, space, r, v, d, omega):
    """Write expectations of the last states to r[0] and, unless d is None, their derivative to r[1]; return the value's
    derivative.
    """
    a, da = space[0], space[1]
    s = v.size
    _values(chart, length - 1, v)
    _arguments(None, 0, v, a)
    weights(a, s, a, omega)
    r[:] = 0.0
    slope = 0.0
    for i in range(s):
        r[0, i // LANES, i % LANES] = a[i, 0] * g
        if d is not None:
            store(da, i, fill(a, dv[length - 1, i]))
            slope += a[i, 0] * dv[length - 1, i] if a[i, 0] != 0 else 0.0
    if d is not None:
        store(r[2], 0, slope_mean(a, 1.0, da, s, omega))
        mean = r[2, 0, 0]
        for i in range(s):
            store(da, i, weight_change(load(a, i), load(da, i), mean, omega))
            r[1, i // LANES, i % LANES] = da[i, 0] * g
    return slope


@inline
def _steps_back(
    chart, transition, first, batch, length, w, dw, dv, space, r, v, q, sums, out_unary, out_transition, d, omega
):
    """Write expectations of all states and transitions, or their derivatives; add those of shared transitions to
    sums.
    """
    s = v.size
    a, da, before, d_before = space[0], space[1], space[2], space[3]
    mass, d_mass = r[0], r[1]
    one = out_transition.shape[0] == 1
    for t in range(length - 1, -1, -1):
        for j in range(s):
            if d is not None:
                out_unary[t, j] = d_mass[j // LANES, j % LANES]
            else:
                out_unary[t, j] = mass[j // LANES, j % LANES]
        if t == 0:
            break
        _values(chart, t - 1, v)
        if transition.shape[0] > 1:
            _spread(transition[t - 1], -np.inf, w)
        if d is not None and d.shape[1] > 1:
            _spread(d[shared_index(first, batch, d.shape[0])][t - 1], 0.0, dw)
        before[:] = 0.0
        d_before[:] = 0.0
        for k in range(mass.shape[0]):
            here, d_here = load(mass, k), load(d_mass, k)
            _arguments(w, k * s, v, a)
            weights(a, s, a, omega)
            if d is not None:
                for i in range(s):
                    store(da, i, load(dw, k * s + i) + dv[t - 1, i])
                mean = slope_mean(a, 1.0, da, s, omega)
            for i in range(s):
                p = load(a, i)
                x = p * here
                store(before, i, load(before, i) + x)
                if d is not None:
                    x = weight_change(p, load(da, i), mean, omega) * here + p * d_here
                    store(d_before, i, load(d_before, i) + x)
                if one:
                    x += load(sums, k * s + i)
                    store(sums, k * s + i, x)
                else:
                    store(q, k * s + i, x)
        for i in range(s):
            mass[i // LANES, i % LANES] = _lane_sum(before, i)
            if d is not None:
                d_mass[i // LANES, i % LANES] = _lane_sum(d_before, i)
            for j in range(0 if one else s):
                out_transition[t - 1, i, j] += q[j // LANES * s + i, j % LANES]


@inline
def _lane_sum(x, i):
    total = 0.0
    for l in range(LANES):
        total += x[i, l]
    return total
