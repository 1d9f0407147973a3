"""Span trees under any smoothed maximum, on values in float64, for Numba.

A chart is a flat symmetric square, w[i, j] = w[j, i] = T(i, j): the splits of a span lie along two rows.
Spans are visited by their right end, then from the short to the long. In the backward pass spans without a gradient are
skipped, so the hard maximum visits only its best tree.
"""

import numpy as np

from polymax.backend.numba_math import inline
from polymax.kernels.local_max.numba_max import smooth_max, weight_changes, weights


@inline
def best(x, i, y, j, count, a, omega):
    """Return the smoothed maximum of x[i + k] + y[j + k] over k < count."""
    for k in range(count):
        a[k] = x[i + k] + y[j + k]
    return smooth_max(a, count, omega)


@inline
def shares(x, i, y, j, count, a, p, omega):
    """Write the weights of the maximum of `best` to p."""
    for k in range(count):
        a[k] = x[i + k] + y[j + k]
    weights(a, count, p, omega)


@inline
def mean(dx, i, dy, j, count, p):
    """Return the derivative of the smoothed maximum."""
    total = 0.0
    for k in range(count):
        # a split without weight may have an infinite tangent
        if p[k] != 0:
            total += p[k] * (dx[i + k] + dy[j + k])
    return total


@inline
def push(ox, i, oy, j, count, here, p):
    """Add the gradient `here` of the maximum to the gradients of its arguments."""
    for k in range(count):
        ox[i + k] += p[k] * here
        oy[j + k] += p[k] * here


@inline
def push_change(dx, i, dy, j, count, here, dhere, p, da, dp, dox, doy, omega):
    """Add the derivative of `push`."""
    for k in range(count):
        da[k] = dx[i + k] + dy[j + k]
    weight_changes(p, da, count, dp, omega)
    for k in range(count):
        moved = dp[k] * here + p[k] * dhere
        dox[i + k] += moved
        doy[j + k] += moved


@inline
def inside(lam, m, s, w, a, omega):
    """Fill the chart w of m leaves from lam, both with rows of s entries; return the value of the whole, and inf."""
    for j in range(m):
        w[j * s + j] = lam[j * s + j]
        for i in range(j - 1, -1, -1):
            splits = best(w, i * s + i, w, j * s + i + 1, j - i, a, omega)
            w[i * s + j] = w[j * s + i] = splits + lam[i * s + j]
    return w[m - 1], np.inf


@inline
def forward(lam, dlam, m, s, w, shift, dw, a, p, omega):
    """Fill dw with the derivative of the chart along dlam; return the derivative of the value."""
    for j in range(m):
        dw[j * s + j] = dlam[j * s + j]
        for i in range(j - 1, -1, -1):
            left, right = i * s + i, j * s + i + 1
            shares(w, left, w, right, j - i, a, p, omega)
            dw[i * s + j] = dw[j * s + i] = mean(dw, left, dw, right, j - i, p) + dlam[i * s + j]
    return dw[m - 1] if w[m - 1] != -np.inf else 0.0


@inline
def outside(lam, m, s, w, shift, g, o, e, a, p, dlam, dw, do, de, da, dp, omega):
    """Fill e with g times the expected parts; o is workspace: o[i, k] for left children, o[k, i] for right children.

    Unless dw, the derivative of the chart along a direction, is None, fill de with the derivative of e.
    """
    o[: m * s] = 0
    o[m - 1] = g if w[m - 1] != -np.inf else 0.0
    if dw is not None:
        do[: m * s] = 0
    for j in range(m - 1, -1, -1):
        for i in range(j):
            here = o[i * s + j] + o[j * s + i]
            e[i * s + j] = here
            go = here != 0
            if dw is not None:
                dhere = do[i * s + j] + do[j * s + i]
                de[i * s + j] = dhere
                go |= dhere != 0
            if go:
                left, right = i * s + i, j * s + i + 1
                shares(w, left, w, right, j - i, a, p, omega)
                push(o, left, o, right, j - i, here, p)
                if dw is not None:
                    push_change(dw, left, dw, right, j - i, here, dhere, p, da, dp, do, do, omega)
        e[j * s + j] = o[j * s + j]
        if dw is not None:
            de[j * s + j] = do[j * s + j]
