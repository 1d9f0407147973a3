"""Chains with Shannon's entropy in the linear domain: forward-backward with probabilities, no logarithm per state.

    x_t[j] = c_t[j] w_t[j] / z_t,   c_t[j] = sum over i of x_{t-1}[i] E[i, j],   w_t = exp(unary[t] + top - its maximum)

with E = exp(transition - top), top the maximum of each column, and z_t the sum that makes x_t a distribution. The
logarithms of z_t and the maxima add up to the value. Invariant: x_t[j] is 0 only if v_t[j] is -inf. If scores differ by
more than the dtype can hold, the invariant would break: then the steps stop, and the instance is marked odd.
"""

import numpy as np

from polymax.backend.numba_math import add, exp2, inline
from polymax.backend.numba_memory import array_at, give_back, lean_kernel, taken
from polymax.kernels.chain.cpu_product import padded, product
from polymax.kernels.chain.numba_units import clear, shared_index, span

LOG2_E = np.log2(np.e)
# weights below this are too close to underflow, in float32 and in float64
SMALLEST, SMALLEST_WIDE = 1e-30, 1e-280
# elements in which a flat loop of exponentials runs, so that it needs no scalar tail
BLOCK = 32
# steps whose outer products are summed before they are added to float64 sums
STEPS = 32


@inline
def exponentials(transition, flat, e, top):
    """Write e = exp(transition - top of its column), padded, and top less its maximum; return that maximum."""
    s = transition.shape[0]
    real = flat.dtype.type
    for j in range(s):
        top[j] = -np.inf
    for i in range(s):
        for j in range(s):
            top[j] = transition[i, j] if transition[i, j] > top[j] else top[j]
    best = real(-np.inf)
    for j in range(s):
        best = max(best, top[j])
    for i in range(s):
        for j in range(s):
            # a column of -inf, the column of a state that cannot be entered, becomes 0
            base = top[j] if top[j] > -np.inf else real(0)
            flat[i * s + j] = (transition[i, j] - base) * real(LOG2_E)
    exponentiate(flat)
    for i in range(s):
        for j in range(s):
            e[i, j] = flat[i * s + j]
    for j in range(s):
        top[j] = top[j] - best if best > -np.inf else real(-np.inf)
    return best


@inline
def transpose(e, e_t):
    """Write the transpose of the square part of a padded matrix."""
    for i in range(e.shape[0]):
        for j in range(e.shape[0]):
            e_t[j, i] = e[i, j]


@inline
def exponentiate(x):
    """Replace x by 2 ** x; NaN stays."""
    for k in range(x.size):
        x[k] = exp2(x[k]) if x[k] == x[k] else x[k]


@inline
def _steps(unary, transition, length, e, top, best, flat, x, w, c, chart):
    """Write x_t and c_t to the chart; return True if the linear domain was enough, and the value."""
    s = unary.shape[1]
    real = unary.dtype.type
    smallest = real(SMALLEST if unary.itemsize == 4 else SMALLEST_WIDE)
    value, scale = 0.0, 1.0
    top_of_step = real(0)
    for t in range(length):
        row = unary[t]
        high = real(-np.inf)
        for j in range(s):
            high = max(high, row[j])
        if t > 0:
            if transition.shape[0] > 1:
                best = exponentials(transition[t - 1], flat, e, top)
            top_of_step = best
        if not (-np.inf < high < np.inf and -np.inf < top_of_step < np.inf):
            return False, value
        for j in range(s):
            w[j] = (row[j] - high + (top[j] if t > 0 else real(0))) * real(LOG2_E)
        for j in range(s, w.size):
            w[j] = -np.inf
        exponentiate(w)
        if t > 0:
            product(x, e, s, c)
        else:
            for j in range(w.size):
                c[j] = 1
        z = real(0)
        for j in range(w.size):
            z = add(z, c[j] * w[j])
        if not (z > smallest):
            return False, value
        inverse = real(1) / z
        few = 0
        for j in range(w.size):
            x[j] = c[j] * w[j] * inverse
            few += (x[j] < smallest) | (c[j] < smallest)
        if few > w.size - s and not _zeros_are_forbidden(row, transition, t, x, c, chart, smallest):
            return False, value
        for j in range(s):
            chart[t, 0, j] = x[j]
            chart[t, 1, j] = c[j]
        value += np.float64(high) + np.float64(top_of_step)
        scale *= z
        if scale < 1e-20 or scale > 1e20:
            value += np.log(scale)
            scale = 1.0
    return True, value + np.log(scale)


@inline
def _zeros_are_forbidden(row, transition, t, x, c, chart, smallest):
    """Return True if every small weight is an exact zero of an impossible state; set its sum to 1, a safe divisor."""
    for j in range(row.size):
        if c[j] == 0:
            step = min(t, transition.shape[0]) - 1
            for i in range(row.size):
                if chart[t - 1, 0, i] > 0 and transition[step, i, j] > -np.inf:
                    return False
            c[j] = 1
        elif c[j] < smallest or (x[j] < smallest and row[j] > -np.inf):
            return False
    return True


@inline
def _steps_back(chart, transition, length, g, e, e_t, top, flat, a, b, r, sums, mu_unary, mu_transition):
    """Write expectations times g of the states, and of the transitions or, if these are shared, sums of a_i b_j.

    With b_j = mu_t[j] / c_t[j], the expectation of a transition is x_{t-1}[i] E[i, j] b_j.
    """
    s = chart.shape[2]
    real = chart.dtype.type
    one = mu_transition.shape[0] == 1
    weight = real(g)
    k = 0
    for j in range(s):
        r[j] = chart[length - 1, 0, j]
    for t in range(length - 1, 0, -1):
        if transition.shape[0] > 1:
            exponentials(transition[t - 1], flat, e, top)
            transpose(e, e_t)
        for j in range(s):
            a[k, j] = chart[t - 1, 0, j]
            b[k, j] = r[j] / chart[t, 1, j]
            mu_unary[t, j] = r[j] * weight
        product(b[k], e_t, s, r)
        total = real(0)
        for i in range(r.size):
            r[i] *= a[k, i]
            total = add(total, r[i])
        # rescale the expectations of a step to the sum 1, so that rounding does not accumulate over the steps
        inverse = real(1) / total
        for i in range(r.size):
            r[i] *= inverse
        if one:
            k += 1
            if k == STEPS:
                outer_products(a, b, k, g, flat, sums)
                k = 0
        else:
            for i in range(s):
                left = a[0, i] * weight
                for j in range(s):
                    mu_transition[t - 1, i, j] += left * e[i, j] * b[0, j]
    for j in range(s):
        mu_unary[0, j] = r[j] * weight
    outer_products(a, b, k, g, flat, sums)


@inline
def outer_products(a, b, count, g, row, sums):
    """Add g times the sum of a_t[i] b_t[j] over count steps to the float64 sums."""
    for i in range(sums.shape[0]):
        product(a[:, i], b, count, row)
        for j in range(sums.shape[1]):
            sums[i, j] += g * np.float64(row[j])


@lean_kernel
def inside(
    start, stop, group, cuts, size, batch, n, s, distinct, steps, unary_at, transition_at, lengths_at, value_at,
    chart_at, odd_at, real,
):  # fmt: skip
    unary, transitions = array_at(unary_at, (batch, n, s), real), array_at(transition_at, (distinct, steps, s, s), real)
    value, chart = array_at(value_at, (batch,), real), array_at(chart_at, (batch, n, 2, s), real)
    lengths, odd = array_at(lengths_at, (batch,), np.int64(0)), array_at(odd_at, (1,), np.int64(0))
    width, entries = padded(s), -(-s * s // BLOCK) * BLOCK
    row = width * unary.itemsize
    memory = taken(entries * unary.itemsize + (s + 4) * row)
    flat, e = array_at(memory + (s + 4) * row, (entries,), real), array_at(memory, (s, width), real)
    top, x = array_at(memory + s * row, (width,), real), array_at(memory + (s + 1) * row, (width,), real)
    w, c = array_at(memory + (s + 2) * row, (width,), real), array_at(memory + (s + 3) * row, (width,), real)
    for unit in range(start, stop):
        first, last = span(unit, group, cuts, size)
        if first == last:
            continue
        transition = transitions[shared_index(first, unary.shape[0], transitions.shape[0])]
        best = unary.dtype.type(0)
        if transition.shape[0] == 1:
            best = exponentials(transition[0], flat, e, top)
        for b in range(first, last):
            length = lengths[b]
            for t in range(length, unary.shape[1]):
                clear(chart[b, t])
            value[b] = 0
            if length > 0:
                fine, total = _steps(unary[b], transition, length, e, top, best, flat, x, w, c, chart[b])
                value[b] = total
                if not fine:
                    chart[b, 0, 1, 0] = 0
                    odd[0] = 1
    give_back(memory)


@lean_kernel
def outside(
    start, stop, group, cuts, size, batch, n, s, distinct, steps, transition_at, lengths_at, chart_at, g_at, mu_at,
    sums_at, units, sum_steps, odd_at, real,
):  # fmt: skip
    transitions, g = array_at(transition_at, (distinct, steps, s, s), real), array_at(g_at, (batch,), real)
    chart, mu_unary = array_at(chart_at, (batch, n, 2, s), real), array_at(mu_at, (batch, n, s), real)
    mu_transition = array_at(sums_at, (units, sum_steps, s, s), real)
    lengths, odd = array_at(lengths_at, (batch,), np.int64(0)), array_at(odd_at, (1,), np.int64(0))
    width, entries = padded(s), -(-s * s // BLOCK) * BLOCK
    row = width * chart.itemsize
    memory = taken(8 * s * width + entries * chart.itemsize + (2 * s + 2 * STEPS + 2) * row)
    products, rest = array_at(memory, (s, width), 0.0), memory + 8 * s * width
    top, r = array_at(rest, (width,), real), array_at(rest + row, (width,), real)
    e, e_t = array_at(rest + 2 * row, (s, width), real), array_at(rest + (2 + s) * row, (s, width), real)
    rest += (2 + 2 * s) * row
    a, b = array_at(rest, (STEPS, width), real), array_at(rest + STEPS * row, (STEPS, width), real)
    flat = array_at(rest + 2 * STEPS * row, (entries,), real)
    for unit in range(start, stop):
        # cleared here, the sums of a unit are still in the cache when terms are added
        clear(mu_transition[unit])
        first, last = span(unit, group, cuts, size)
        if first == last:
            continue
        transition = transitions[shared_index(first, mu_unary.shape[0], transitions.shape[0])]
        if transition.shape[0] == 1:
            exponentials(transition[0], flat, e, top)
            transpose(e, e_t)
        clear(products)
        for k in range(first, last):
            length = lengths[k]
            clear(mu_unary[k, length:])
            if length > 0 and chart[k, 0, 1, 0] > 0:
                args = mu_unary[k], mu_transition[unit]
                _steps_back(chart[k], transition, length, g[k], e, e_t, top, flat, a, b, r, products, *args)
            elif length > 0:
                odd[0] = 1
        if mu_transition.shape[1] == 1:
            for i in range(s):
                for j in range(s):
                    mu_transition[unit, 0, i, j] = products[i, j] * e[i, j]
    give_back(memory)
