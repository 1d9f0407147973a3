"""Span trees under Shannon entropy as sums of products in float64, for Numba: no exponential of a split is taken.

A chart is a flat symmetric square, W[i, j] = W[j, i] = exp(T(i, j) - shift): then the splits of a span lie along two
rows, and a split sum is a dot product. Every tree over w leaves has w leaves and w - 1 inner parts, so a shift that is
linear in w cancels. The shift follows the values while the chart grows. Instances whose scores spread too far for that
are reported, and computed by the recursion on values.

Spans are visited by their right end, then from the short to the long: entries that lie past the end of a row of
splits are still 0, so rows are read to the next multiple of four.
"""

import numpy as np
from numba.extending import register_jitable

from polymax.backend.numba_math import PART, inline

# a call with arrays costs more than the few products it computes
_unrolled = register_jitable(**PART, forceinline=True)

# products of two numbers in TINY .. HUGE, times the number of splits, neither overflow nor lose digits
TINY, HUGE = 1e-140, 1e140
# limits at which the shift is moved, long before the range ends
_LOW, _HIGH = 1e-30, 1e30
# growth of the number of trees over w leaves, about 4^w
_GROWTH = np.log(4.0)


@_unrolled
def dot(x, i, y, j, count):
    """Sum of x[i + k] y[j + k] over k < count, rounded up to a multiple of four."""
    # unsigned: a check for negative indices, which count from the end, costs more than the sum
    p, q = np.uint64(i), np.uint64(j)
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    s0 = s1 = s2 = s3 = 0.0
    for k in range(np.uint64(0), np.uint64(count), np.uint64(4)):
        s0 += x[p + k] * y[q + k]
        s1 += x[p + k + one] * y[q + k + one]
        s2 += x[p + k + two] * y[q + k + two]
        s3 += x[p + k + three] * y[q + k + three]
    return (s0 + s1) + (s2 + s3)


@_unrolled
def add_scaled(y, i, scale, x, j, count):
    """Compute y[i + k] += scale x[j + k] over k < count, rounded up to a multiple of four."""
    p, q = np.uint64(i), np.uint64(j)
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    for k in range(np.uint64(0), np.uint64(count), np.uint64(4)):
        # all four are read before one is written, so that x and y may overlap
        y0 = y[p + k] + scale * x[q + k]
        y1 = y[p + k + one] + scale * x[q + k + one]
        y2 = y[p + k + two] + scale * x[q + k + two]
        y3 = y[p + k + three] + scale * x[q + k + three]
        y[p + k], y[p + k + one], y[p + k + two], y[p + k + three] = y0, y1, y2, y3


@_unrolled
def push(x, i, y, j, count, here, ox, oy):
    """Add the gradient `here` of a sum of products x[i + k] y[j + k] to the gradients of its factors."""
    add_scaled(ox, i, here, y, j, count)
    add_scaled(oy, j, here, x, i, count)


@_unrolled
def dual_dot(x, dx, i, y, dy, j, count):
    """Return the derivative of dot."""
    p, q = np.uint64(i), np.uint64(j)
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    s0 = s1 = s2 = s3 = 0.0
    for k in range(np.uint64(0), np.uint64(count), np.uint64(4)):
        s0 += dx[p + k] * y[q + k] + x[p + k] * dy[q + k]
        s1 += dx[p + k + one] * y[q + k + one] + x[p + k + one] * dy[q + k + one]
        s2 += dx[p + k + two] * y[q + k + two] + x[p + k + two] * dy[q + k + two]
        s3 += dx[p + k + three] * y[q + k + three] + x[p + k + three] * dy[q + k + three]
    return (s0 + s1) + (s2 + s3)


@_unrolled
def _add_dual(y, i, scale, x, dscale, dx, j, count):
    p, q = np.uint64(i), np.uint64(j)
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    for k in range(np.uint64(0), np.uint64(count), np.uint64(4)):
        y0 = y[p + k] + (dscale * x[q + k] + scale * dx[q + k])
        y1 = y[p + k + one] + (dscale * x[q + k + one] + scale * dx[q + k + one])
        y2 = y[p + k + two] + (dscale * x[q + k + two] + scale * dx[q + k + two])
        y3 = y[p + k + three] + (dscale * x[q + k + three] + scale * dx[q + k + three])
        y[p + k], y[p + k + one], y[p + k + two], y[p + k + three] = y0, y1, y2, y3


@_unrolled
def dual_push(x, dx, i, y, dy, j, count, here, dhere, dox, doy):
    """Add the derivative of push."""
    _add_dual(dox, i, here, y, dhere, dy, j, count)
    _add_dual(doy, j, here, x, dhere, dx, i, count)


@inline
def product(weight, d):
    # a part without weight may have an infinite tangent
    return weight * d if weight != 0 else 0.0


@inline
def lost(factor, weight, score):
    """Return True if factor * weight, with weight the exponential of a shifted score, left the safe range of
    numbers.
    """
    product = factor * weight
    return not product <= HUGE or (min(product, weight) < TINY and factor > 0 and score > -np.inf)


@inline
def inside(lam, m, s, w, a, omega):
    """Fill the chart w of m leaves, with rows of s entries, from lam; return its value, and the shift of inner parts or
    inf.
    """
    w[: m * s] = 0
    shift = _centre(lam, m, s)
    leaf = shift + _GROWTH
    fine = True
    for j in range(m):
        weight = np.exp(lam[j * s + j] - leaf)
        fine &= not lost(1.0, weight, lam[j * s + j])
        w[j * s + j] = weight
        for i in range(j - 1, -1, -1):
            splits = dot(w, i * s + i, w, j * s + i + 1, j - i)
            weight = np.exp(lam[i * s + j] - shift)
            fine &= not lost(splits, weight, lam[i * s + j])
            w[i * s + j] = w[j * s + i] = splits * weight
        top = w[j]
        if fine and top > 0 and not _LOW < top < _HIGH:
            leaf += np.log(top) / (j + 1)
            fine = _move(w, j + 1, s, np.log(top) / (j + 1))
        if not fine:
            break
    return np.log(w[m - 1]) + m * leaf + (m - 1) * shift, shift if fine else np.inf


@inline
def _centre(lam, m, s):
    total = 0.0
    count = 0
    for i in range(m):
        for j in range(i, m):
            if lam[i * s + j] != -np.inf:
                total += lam[i * s + j]
                count += 1
    return total / max(count, 1)


@inline
def _move(w, m, s, step):
    """Subtract `step` for each leaf from the shifted values of the chart; return True if all stay in range."""
    fine = True
    for i in range(m):
        for j in range(i, m):
            old = w[i * s + j]
            w[i * s + j] = w[j * s + i] = old * np.exp(-step * (j - i + 1))
            fine &= w[i * s + j] <= HUGE and (w[i * s + j] >= TINY or old == 0)
    return fine


@inline
def forward(lam, dlam, m, s, w, shift, dw, a, p, omega):
    """Fill dw with the derivative of the chart along dlam; return the derivative of the value."""
    dw[: m * s] = 0
    for j in range(m):
        dw[j * s + j] = product(w[j * s + j], dlam[j * s + j])
        for i in range(j - 1, -1, -1):
            splits = dual_dot(w, dw, i * s + i, w, dw, j * s + i + 1, j - i)
            moved = splits * np.exp(lam[i * s + j] - shift) + product(w[i * s + j], dlam[i * s + j])
            dw[i * s + j] = dw[j * s + i] = moved
    return dw[m - 1] / w[m - 1] if w[m - 1] > 0 else 0.0


@inline
def outside(lam, m, s, w, shift, g, o, e, a, p, dlam, dw, do, de, da, dp, omega):
    """Fill e with g times the expected parts; o is workspace.

    o[i, k] is the gradient that span (i, k) receives as a left child, o[k, i] as a right child: derivatives by W.
    Unless dw is None, also fill de with the derivative of e, by dual numbers.
    """
    o[: m * s] = 0
    o[m - 1] = g / w[m - 1] if w[m - 1] > 0 else 0.0
    if dw is not None:
        do[: m * s] = 0
        do[m - 1] = -o[m - 1] * dw[m - 1] / w[m - 1] if w[m - 1] > 0 else 0.0
    for j in range(m - 1, -1, -1):
        for i in range(j):
            here = o[i * s + j] + o[j * s + i]
            e[i * s + j] = here * w[i * s + j]
            weight = np.exp(lam[i * s + j] - shift)
            # values added past the end of a row go to spans that are finished
            left, right = i * s + i, j * s + i + 1
            push(w, left, w, right, j - i, here * weight, o, o)
            if dw is not None:
                dhere = do[i * s + j] + do[j * s + i]
                de[i * s + j] = dhere * w[i * s + j] + here * dw[i * s + j]
                dhere = dhere * weight + here * product(weight, dlam[i * s + j])
                dual_push(w, dw, left, w, dw, right, j - i, here * weight, dhere, do, do)
        e[j * s + j] = o[j * s + j] * w[j * s + j]
        if dw is not None:
            de[j * s + j] = do[j * s + j] * w[j * s + j] + o[j * s + j] * dw[j * s + j]
