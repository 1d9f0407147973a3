"""Sums over trees by their weights in float64, for Numba.

A chart c is two squares over positions 0..m with a row below each: c[0] has the eliminated weights and the pivots, c[1]
the initial weights and the token at each position.

The total weight of a token's heads never grows in a step. Underflow therefore loses at most the smallest float64 for
each entry, beside a product of these sums; the value shows if this loss matters.
"""

import numpy as np

from polymax.backend.numba_math import add, inline
from polymax.kernels.spanning_tree.numba_scale import exp, shift_all, swap

# _LEAST: least log of the sum over trees that is trusted, if the heads of each token weigh 1 together
# _LEAST_PIVOT: least pivot that is trusted
_LEAST, _LEAST_PIVOT = -300.0, 1e-130

_SMALL = 0.1


@inline
def inside(m, first, c, omega):
    """Fill the chart whose c[0] has the scores; return its value, and 1 for success."""
    x, w = c[0], c[1]
    pivots, order = x[x.shape[0] - 1], w[w.shape[0] - 1]
    total = shift_all(x, m, first)
    sums = np.zeros(m + 1)
    for i in range(m + 1):
        order[i] = i
        row, begun = x[i], w[i]
        for j in range(m + 1):
            row[j] = exp(row[j])
        for j in range(m + 1):
            begun[j] = row[j]
        if i >= first:
            for j in range(m + 1):
                sums[j] += row[j]
    spread = 0.0
    for j in range(1, m + 1):
        if sums[j] > 0:
            spread += np.log(sums[j])
    value = 0.0
    least = np.inf
    for k in range(m, 0, -1):
        best = 1
        for j in range(2, k + 1):
            if sums[j] > sums[best]:
                best = j
        # only small pivots are worth an exchange
        if sums[k] < _SMALL * sums[best]:
            swap(x, order, best, k, m)
            sums[best] = sums[k]
        # heads of the last token: the root symbol alone
        p = x[0, 1] if k == 1 else _column(x, k, first)
        pivots[k] = p
        value += np.log(p)
        least = min(least, p)
        if not p > 0:
            break
        _eliminate(x, k, first, p, sums)
    return value + total, least > _LEAST_PIVOT and value < np.inf and value - spread > _LEAST


@inline
def _column(x, k, first):
    p = 0.0
    for i in range(first, k):
        p += x[i, k]
    return p


@inline
def _eliminate(x, k, first, p, sums):
    """Pass the arcs through k on to its heads; return the sums of the remaining columns."""
    sums[:k] = 0
    last = x[k]
    for i in range(k):
        row = x[i]
        q = row[k] / p
        for j in range(1, k):
            row[j] += q * last[j]
        row[i] = 0
        if i >= first:
            for j in range(1, k):
                sums[j] += row[j]


@inline
def outside(m, first, c, g, o, mu, omega):
    """Fill mu with g times the probabilities of arcs; o is workspace for the derivatives by weights.

    The derivatives of row k are means of the rows above, over the heads of k. Those of column k are sums over the
    children of k, plus a term with the pivot that gives k exactly one head. This term may be negative, but at most the
    number of children in size.
    """
    x, w = c[0], c[1]
    pivots, order = x[x.shape[0] - 1], w[w.shape[0] - 1]
    o[1, 1] = 0
    o[0, 1] = 1 / pivots[1]
    for k in range(2, m + 1):
        p = pivots[k]
        last, new = x[k], o[k]
        new[: k + 1] = 0
        rest = 1.0
        for i in range(k):
            row = o[i]
            q = x[i, k] / p
            through = 0.0
            for j in range(1, k):
                through = add(through, row[j] * last[j])
                new[j] += q * row[j]
            row[k] = through / p
            rest -= q * through
        for i in range(first, k):
            # a probability that is lost in rounding is 0
            o[i, k] = max(o[i, k] + rest / p, 0.0)
    for i in range(m + 1):
        u = int(order[i])
        for j in range(1, m + 1):
            v = int(order[j])
            if i != j:
                mu[u, v] = g * (w[u, v] * o[i, j])


@inline
def tangent(d, m, first, c, g, space, dmu, omega):
    """Differentiate both passes along d: fill dmu, return the derivative of the value. The workspace is four
    squares.
    """
    x, w = c[0], c[1]
    dx, o, do = space[0], space[1], space[2]
    pivots, order = x[x.shape[0] - 1], w[w.shape[0] - 1]
    dp = np.empty(m + 1)
    for i in range(m + 1):
        u = int(order[i])
        dx[i, 0] = 0
        for j in range(1, m + 1):
            v = int(order[j])
            # a forbidden arc stays forbidden, whatever its d
            dx[i, j] = w[u, v] * d[u, v] if w[u, v] > 0 else 0.0
    dvalue = 0.0
    for k in range(m, 0, -1):
        p = pivots[k]
        dp[k] = dx[0, 1] if k == 1 else _column(dx, k, first)
        dvalue += dp[k] / p
        last, dlast = x[k], dx[k]
        for i in range(k):
            row = dx[i]
            q = x[i, k] / p
            dq = (row[k] - q * dp[k]) / p
            for j in range(1, k):
                row[j] += dq * last[j] + q * dlast[j]
            row[i] = 0
    o[1, 1] = do[1, 1] = 0
    o[0, 1] = 1 / pivots[1]
    do[0, 1] = -dp[1] / pivots[1] / pivots[1]
    for k in range(2, m + 1):
        p = pivots[k]
        last, dlast, new, dnew = x[k], dx[k], o[k], do[k]
        new[: k + 1] = 0
        dnew[: k + 1] = 0
        rest, drest = 1.0, 0.0
        for i in range(k):
            row, drow = o[i], do[i]
            q = x[i, k] / p
            dq = (dx[i, k] - q * dp[k]) / p
            through = dthrough = 0.0
            for j in range(1, k):
                through = add(through, row[j] * last[j])
                dthrough = add(dthrough, drow[j] * last[j] + row[j] * dlast[j])
                new[j] += q * row[j]
                dnew[j] += dq * row[j] + q * drow[j]
            row[k] = through / p
            drow[k] = (dthrough - row[k] * dp[k]) / p
            rest -= q * through
            drest -= dq * through + q * dthrough
        rest /= p
        drest = (drest - rest * dp[k]) / p
        for i in range(first, k):
            o[i, k] = max(o[i, k] + rest, 0.0)
            do[i, k] += drest
    for i in range(m + 1):
        u = int(order[i])
        for j in range(1, m + 1):
            v = int(order[j])
            if i != j:
                dmu[u, v] = g * (w[u, v] * (do[i, j] + o[i, j] * d[u, v])) if w[u, v] > 0 else 0.0
    return dvalue
