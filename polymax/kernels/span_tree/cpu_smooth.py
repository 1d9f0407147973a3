"""Span trees under any smoothed maximum, on values in float64, for Numba.

A chart is a flat symmetric square, w[i, j] = w[j, i] = T(i, j): the splits of a span lie along two rows.
Spans are visited by their right end, then from the short to the long; backwards, a span that is not reached costs
nothing, so the hard maximum follows its one best tree.
"""

import numpy as np

from polymax.kernels.numba_math import inline, kernel
from polymax.kernels.numba_smooth import smooth_max, tangent_of_weights


@kernel
def smooth(a, count, alpha, p):
    """Value of the smoothed maximum of a[:count]; its weights go to p."""
    return smooth_max(a, count, alpha, p)[0]


@inline
def best(x, i, y, j, count, alpha, a, p):
    """Smoothed maximum of x[i + k] + y[j + k] over k < count; its weights go to p."""
    for k in range(count):
        a[k] = x[i + k] + y[j + k]
    return smooth(a, count, alpha, p)


@inline
def mean(dx, i, dy, j, count, p):
    """The derivative of that maximum."""
    total = 0.0
    for k in range(count):
        # a split without weight may have an infinite tangent
        if p[k] != 0:
            total += p[k] * (dx[i + k] + dy[j + k])
    return total


@inline
def push(ox, i, oy, j, count, here, p):
    """Hand what the maximum hears on to its arguments."""
    for k in range(count):
        ox[i + k] += p[k] * here
        oy[j + k] += p[k] * here


@inline
def push_tangent(dx, i, dy, j, count, alpha, here, dhere, p, da, dp, dox, doy):
    """The derivative of what is handed on."""
    for k in range(count):
        da[k] = dx[i + k] + dy[j + k]
    tangent_of_weights(p, da, count, alpha, dp)
    for k in range(count):
        moved = dp[k] * here + p[k] * dhere
        dox[i + k] += moved
        doy[j + k] += moved


@kernel
def inside(lam, m, s, w, alpha):
    """Fill the chart w of m leaves, with rows of s entries, from lam; its value."""
    a, p = np.empty(m), np.empty(m)
    for j in range(m):
        w[j * s + j] = lam[j * s + j]
        for i in range(j - 1, -1, -1):
            splits = best(w, i * s + i, w, j * s + i + 1, j - i, alpha, a, p)
            w[i * s + j] = w[j * s + i] = splits + lam[i * s + j]
    return w[m - 1]


@kernel
def outside(m, s, w, g, alpha, o, e):
    """Fill e with g times the expected parts; o is work space: o[i, k] is for left children, o[k, i] for right ones."""
    a, p = np.empty(m), np.empty(m)
    o[: m * s] = 0
    o[m - 1] = g if w[m - 1] != -np.inf else 0.0
    for j in range(m - 1, -1, -1):
        for i in range(j):
            here = o[i * s + j] + o[j * s + i]
            e[i * s + j] = here
            if here != 0:
                left, right = i * s + i, j * s + i + 1
                best(w, left, w, right, j - i, alpha, a, p)
                push(o, left, o, right, j - i, here, p)
        e[j * s + j] = o[j * s + j]


@kernel
def tangent(dlam, m, s, w, g, alpha, dw, o, do, e, de):
    """Fill e, and de with its derivative along dlam; the derivative of the value."""
    a, p, da, dp = np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    for j in range(m):
        dw[j * s + j] = dlam[j * s + j]
        for i in range(j - 1, -1, -1):
            left, right = i * s + i, j * s + i + 1
            best(w, left, w, right, j - i, alpha, a, p)
            dw[i * s + j] = dw[j * s + i] = mean(dw, left, dw, right, j - i, p) + dlam[i * s + j]
    o[: m * s] = 0
    do[: m * s] = 0
    reached = w[m - 1] != -np.inf
    o[m - 1] = g if reached else 0.0
    for j in range(m - 1, -1, -1):
        for i in range(j):
            here, dhere = o[i * s + j] + o[j * s + i], do[i * s + j] + do[j * s + i]
            e[i * s + j], de[i * s + j] = here, dhere
            if here != 0 or dhere != 0:
                left, right = i * s + i, j * s + i + 1
                best(w, left, w, right, j - i, alpha, a, p)
                push(o, left, o, right, j - i, here, p)
                push_tangent(dw, left, dw, right, j - i, alpha, here, dhere, p, da, dp, do, do)
        e[j * s + j], de[j * s + j] = o[j * s + j], do[j * s + j]
    return dw[m - 1] if reached else 0.0
