"""The tangent of a chain with Shannon's entropy in the linear domain, for Numba.

With F = E d (entry by entry), dv_t the derivative of v_t along d less its mean under x_t, and m_t the derivative of the
sums c_t,

    m_t[j]    = sum over i of x_{t-1}[i] (F[i, j] + dv_{t-1}[i] E[i, j]) / c_t[j]
    dmu_{t-1} = x_{t-1} (F b + E h) + dv_{t-1} mu_{t-1},   b = mu_t / c_t,   h = (dmu_t - m_t mu_t) / c_t

and the derivative of the expectation of a transition is x_{t-1}[i] (F[i, j] b_j + E[i, j] (dv_{t-1}[i] b_j + h_j)).
"""

import numpy as np

from polymax.backend.numba_math import add, inline
from polymax.backend.numba_memory import array_at, give_back, lean_kernel, taken
from polymax.kernels.chain.cpu_linear import BLOCK, STEPS, exponentials, outer_products, transpose
from polymax.kernels.chain.cpu_product import padded, product
from polymax.kernels.chain.numba_units import clear, shared_index, span


@inline
def _tilted(d_transition, e, f, f_t):
    """Write F of one step, and its transpose."""
    s = d_transition.shape[0]
    for i in range(s):
        for j in range(s):
            # a transition without weight may have an infinite tangent
            f[i, j] = e[i, j] * d_transition[i, j] if e[i, j] != 0 else e[i, j]
            f_t[j, i] = f[i, j]


@inline
def _steps(
    chart,
    transition,
    d_unary,
    d_transition,
    length,
    g,
    matrices,
    top,
    flat,
    changes,
    blocks,
    lanes,
    sums,
    alone,
    tilts,
    h,
    h_transition,
):
    """Return <mu, d>; write g H d to h and h_transition or, if the transitions are shared, its products to the sums.

    If d differs between steps or instances that share a transition, the products with F are added to `alone`, and those
    with E to the sums. Without `tilts` F is 0, and its products are skipped.
    """
    e, e_t, f, f_t = matrices
    dv, dm = changes[0], changes[1]
    s = d_unary.shape[1]
    real = chart.dtype.type
    one = h_transition.shape[0] == 1
    x, y, r, dr, from_f, from_e = lanes[0], lanes[1], lanes[2], lanes[3], lanes[4], lanes[5]
    value = 0.0
    for t in range(length):
        if t > 0:
            _step_of(transition, d_transition, t, flat, e, e_t, f, f_t, top)
            if tilts:
                product(x, f, s, from_f)
            product(y, e, s, from_e)
        mean = 0.0
        for j in range(s):
            x[j] = chart[t, 0, j]
            dm[t, j] = (from_f[j] + from_e[j]) / chart[t, 1, j] if t > 0 else real(0)
            dv[t, j] = dm[t, j] + d_unary[t, j] if x[j] > 0 else real(0)
            mean += x[j] * dv[t, j]
        for j in range(s):
            dv[t, j] -= real(mean)
            y[j] = x[j] * dv[t, j]
        value += mean
    for j in range(s):
        r[j] = x[j]
        dr[j] = y[j]
    left, right = blocks[0], blocks[1]
    left_dv, right_h = blocks[2], blocks[3]
    weight = real(g)
    k = 0
    for t in range(length - 1, 0, -1):
        _step_of(transition, d_transition, t, flat, e, e_t, f, f_t, top)
        for j in range(s):
            h[t, j] = dr[j] * weight
            left[k, j] = chart[t - 1, 0, j]
            left_dv[k, j] = chart[t - 1, 0, j] * dv[t - 1, j]
            right[k, j] = r[j] / chart[t, 1, j]
            right_h[k, j] = (dr[j] - dm[t, j] * r[j]) / chart[t, 1, j]
        product(right[k], e_t, s, r)
        if tilts:
            product(right[k], f_t, s, from_f)
        product(right_h[k], e_t, s, from_e)
        total = excess = real(0)
        for i in range(r.size):
            dr[i] = left[k, i] * (from_f[i] + from_e[i]) + left_dv[k, i] * r[i]
            r[i] *= left[k, i]
            total = add(total, r[i])
            excess = add(excess, dr[i])
        # expectations sum to 1 and their derivatives to 0: rescale, so that rounding does not accumulate over the steps
        inverse = real(1) / total
        for i in range(r.size):
            r[i] *= inverse
            dr[i] -= excess * r[i]
        if one:
            if tilts and alone:
                for i in range(s):
                    for j in range(s):
                        sums[0, i, j] += g * np.float64(left[k, i] * f[i, j] * right[k, j])
            k += 1
            if k == STEPS:
                _sum_products(blocks, k, g, flat, sums, tilts and not alone)
                k = 0
        else:
            for i in range(s):
                for j in range(s):
                    term = left[0, i] * (f[i, j] * right[0, j] + e[i, j] * right_h[0, j])
                    term += left_dv[0, i] * e[i, j] * right[0, j]
                    h_transition[t - 1, i, j] += weight * term
    for j in range(s):
        h[0, j] = dr[j] * weight
    _sum_products(blocks, k, g, flat, sums, tilts and not alone)
    return value


@inline
def _step_of(transition, d_transition, t, flat, e, e_t, f, f_t, top):
    """Write E and F of step t, and their transposes, unless all steps share them."""
    if transition.shape[0] > 1:
        exponentials(transition[t - 1], flat, e, top)
        transpose(e, e_t)
    if transition.shape[0] > 1 or d_transition.shape[0] > 1:
        _tilted(d_transition[min(t, d_transition.shape[0]) - 1], e, f, f_t)


@inline
def _sum_products(blocks, count, g, flat, sums, tilted):
    """Add the products that F multiplies to sums[0], if they are needed, and those that E multiplies to sums[1]."""
    if tilted:
        outer_products(blocks[0], blocks[1], count, g, flat, sums[0])
    outer_products(blocks[2], blocks[1], count, g, flat, sums[1])
    outer_products(blocks[0], blocks[3], count, g, flat, sums[1])


@lean_kernel
def tangent(
    start, stop, group, cuts, size, batch, n, s, distinct, steps, transition_at, lengths_at, chart_at, g_at, h_at,
    sums_at, units, sum_steps, odd_at, real, d_unary_at, d_transition_at, d_distinct, d_steps, value_at,
):  # fmt: skip
    transitions, g = array_at(transition_at, (distinct, steps, s, s), real), array_at(g_at, (batch,), real)
    chart, h = array_at(chart_at, (batch, n, 2, s), real), array_at(h_at, (batch, n, s), real)
    h_sums, value = array_at(sums_at, (units, sum_steps, s, s), real), array_at(value_at, (batch,), real)
    lengths, odd = array_at(lengths_at, (batch,), np.int64(0)), array_at(odd_at, (1,), np.int64(0))
    d_unary = array_at(d_unary_at, (batch, n, s), real)
    d_transitions = array_at(d_transition_at, (d_distinct, d_steps, s, s), real)
    width, entries = padded(s), -(-s * s // BLOCK) * BLOCK
    row = width * chart.itemsize
    memory = taken(16 * s * width + (entries + 2 * n * s) * chart.itemsize + (7 + 4 * s + 4 * STEPS) * row)
    products, rest = array_at(memory, (2, s, width), 0.0), memory + 16 * s * width
    top, lanes = array_at(rest, (width,), real), array_at(rest + row, (6, width), real)
    e, e_t = array_at(rest + 7 * row, (s, width), real), array_at(rest + (7 + s) * row, (s, width), real)
    f, f_t = array_at(rest + (7 + 2 * s) * row, (s, width), real), array_at(rest + (7 + 3 * s) * row, (s, width), real)
    rest += (7 + 4 * s) * row
    blocks = array_at(rest, (4, STEPS, width), real)
    rest += 4 * STEPS * row
    flat, changes = array_at(rest, (entries,), real), array_at(rest + entries * chart.itemsize, (2, n, s), real)
    matrices = e, e_t, f, f_t
    # instances or steps that share a transition may have different tangents
    alone = h_sums.shape[1] == 1 and (d_transitions.shape[1] > 1 or d_transitions.shape[0] > transitions.shape[0])
    # often only the expectations of states are differentiated
    tilts = False
    for x in d_transitions.flat:
        tilts |= x != 0
    for unit in range(start, stop):
        first, last = span(unit, group, cuts, size)
        if first == last:
            continue
        transition = transitions[shared_index(first, h.shape[0], transitions.shape[0])]
        if transition.shape[0] == 1:
            exponentials(transition[0], flat, e, top)
            transpose(e, e_t)
        clear(products[0])
        clear(products[1])
        for k in range(first, last):
            length = lengths[k]
            d_transition = d_transitions[shared_index(k, h.shape[0], d_transitions.shape[0])]
            if transition.shape[0] == 1 and d_transition.shape[0] == 1 and (k == first or alone):
                _tilted(d_transition[0], e, f, f_t)
            clear(h[k, length:])
            if length > 0 and chart[k, 0, 1, 0] > 0:
                scores = chart[k], transition, d_unary[k], d_transition, length, g[k]
                space = matrices, top, flat, changes, blocks, lanes, products, alone, tilts
                value[k] = _steps(*scores, *space, h[k], h_sums[unit])
            elif length > 0:
                odd[0] = 1
        if h_sums.shape[1] == 1:
            for i in range(s):
                for j in range(s):
                    tilt = 1.0 if alone else np.float64(f[i, j])
                    h_sums[unit, 0, i, j] = products[0, i, j] * tilt + products[1, i, j] * e[i, j]
    give_back(memory)
