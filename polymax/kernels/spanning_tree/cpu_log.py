"""Sums over trees by logarithms, for Numba: slower than by weights, for scores of any size.

The passes are those of cpu_linear.py. Derivatives along d are those of logarithms, relative to the weight.
"""

import numpy as np

from polymax.backend.numba_math import inline
from polymax.kernels.spanning_tree.numba_scale import shift_all, swap

# the share of a probability that rounding may leave instead of 0: the precision of logs of scores
_LOST = 1e-11


@inline
def inside(m, first, c, omega):
    """Fill the chart whose c[0] has the scores; return its value, and 1 for success."""
    x, w = c[0], c[1]
    pivots, order = x[x.shape[0] - 1], w[w.shape[0] - 1]
    value = shift_all(x, m, first)
    for i in range(m + 1):
        order[i] = i
        for j in range(m + 1):
            w[i, j] = x[i, j]
    for k in range(m, 0, -1):
        swap(x, order, _pivot(x, k, first), k, m)
        pivots[k] = _log_of_column(x, k, first)
        value += pivots[k]
        if not pivots[k] > -np.inf:
            break
        for i in range(k):
            for j in range(1, k):
                if i != j:
                    x[i, j] = _log_add(x[i, j], x[i, k] + (x[k, j] - pivots[k]))
    return value, True


@inline
def _pivot(x, k, first):
    best = 1
    top = -np.inf
    for i in range(first, k + 1):
        for j in range(1, k + 1):
            if i != j and x[i, j] > top:
                top = x[i, j]
                best = j
    return best if k > 1 else 1


@inline
def _log_of_column(x, k, first):
    if k == 1:
        return x[0, 1]
    top = -np.inf
    for i in range(first, k):
        top = max(top, x[i, k])
    total = 0.0
    if not top > -np.inf:
        # an empty sum is -inf, a sum with NaN is NaN
        for i in range(first, k):
            total += x[i, k]
        return total
    for i in range(first, k):
        total += np.exp(x[i, k] - top)
    return top + np.log(total)


@inline
def _log_add(a, b):
    top, low = (a, b) if a > b else (b, a)
    return top if low == -np.inf else top + np.log1p(np.exp(low - top))


@inline
def _log_subtract(a, b):
    """Return log(exp(a) - exp(b)); -inf if b >= a, by rounding."""
    return a if b == -np.inf else (a + np.log1p(-np.exp(b - a)) if b < a else -np.inf)


@inline
def outside(m, first, c, g, o, mu, omega):
    """Fill mu with g times the probabilities of arcs; o is workspace for logs of derivatives by weights."""
    x, w = c[0], c[1]
    pivots, order = x[x.shape[0] - 1], w[w.shape[0] - 1]
    o[1, 1] = -np.inf
    o[0, 1] = -pivots[1]
    for k in range(2, m + 1):
        p = pivots[k]
        _means(x, o, k, p)
        rest = 1.0
        for i in range(k):
            o[i, k] = _passed_on(x, o, i, k) - p
            rest -= np.exp(x[i, k] + o[i, k])
        size = np.log(abs(rest)) - p if abs(rest) > _LOST else -np.inf
        for i in range(first, k):
            o[i, k] = _log_add(o[i, k], size) if rest > 0 else _log_subtract(o[i, k], size)
    for i in range(m + 1):
        u = int(order[i])
        for j in range(1, m + 1):
            v = int(order[j])
            if i != j:
                mu[u, v] = g * np.exp(w[u, v] + o[i, j])


@inline
def _means(x, o, k, p):
    """Write row k of o: means of the rows above, over the heads of k."""
    o[k, k] = -np.inf
    for j in range(1, k):
        top = -np.inf
        for i in range(k):
            if i != j:
                top = max(top, x[i, k] + o[i, j])
        total = 0.0
        if top > -np.inf:
            for i in range(k):
                if i != j:
                    total += np.exp(x[i, k] + o[i, j] - top)
        o[k, j] = top - p + np.log(total) if total > 0 else -np.inf


@inline
def _passed_on(x, o, i, k):
    """Return the log of the sum over the children of k that goes to a head i."""
    top = -np.inf
    for j in range(1, k):
        if i != j:
            top = max(top, o[i, j] + x[k, j])
    if top == -np.inf:
        return -np.inf
    total = 0.0
    for j in range(1, k):
        if i != j:
            total += np.exp(o[i, j] + x[k, j] - top)
    return top + np.log(total)


@inline
def tangent(d, m, first, c, g, space, dmu, omega):
    """Differentiate both passes along d: fill dmu, return the derivative of the value. The workspace is four
    squares.
    """
    w = c[1]
    pivots, order = c[0, c.shape[1] - 1], w[w.shape[0] - 1]
    x, dx, o, do = space[0], space[1], space[2], space[3]
    dp = np.empty(m + 1)
    for i in range(m + 1):
        u = int(order[i])
        for j in range(1, m + 1):
            v = int(order[j])
            x[i, j] = w[u, v]
            dx[i, j] = d[u, v] if w[u, v] > -np.inf else 0.0
    dvalue = 0.0
    for k in range(m, 0, -1):
        p = pivots[k]
        dp[k] = 0.0
        for i in range(0 if k == 1 else first, k):
            dp[k] += np.exp(x[i, k] - p) * dx[i, k]
        dvalue += dp[k]
        for i in range(k):
            for j in range(1, k):
                if i != j and x[i, k] > -np.inf and x[k, j] > -np.inf:
                    through = x[i, k] + (x[k, j] - p)
                    total = _log_add(x[i, j], through)
                    part = np.exp(through - total)
                    dx[i, j] += part * (dx[i, k] + (dx[k, j] - dp[k]) - dx[i, j])
                    x[i, j] = total
    o[1, 1] = -np.inf
    o[0, 1] = -pivots[1]
    do[0, 1] = -dp[1]
    do[1, 1] = 0.0
    for k in range(2, m + 1):
        p = pivots[k]
        _means(x, o, k, p)
        do[k, k] = 0.0
        for j in range(1, k):
            do[k, j] = 0.0
            if o[k, j] > -np.inf:
                for i in range(k):
                    if i != j:
                        do[k, j] += np.exp(x[i, k] + o[i, j] - p - o[k, j]) * (dx[i, k] - dp[k] + do[i, j])
        rest, drest = 1.0, 0.0
        for i in range(k):
            passed = _passed_on(x, o, i, k)
            dpassed = 0.0
            if passed > -np.inf:
                for j in range(1, k):
                    if i != j:
                        dpassed += np.exp(o[i, j] + x[k, j] - passed) * (do[i, j] + dx[k, j])
            o[i, k], do[i, k] = passed - p, dpassed - dp[k]
            share = np.exp(x[i, k] + o[i, k])
            rest -= share
            drest -= share * (dx[i, k] + do[i, k])
        size = np.log(abs(rest)) - p if abs(rest) > _LOST else -np.inf
        drest -= rest * dp[k]
        for i in range(first, k):
            total = _log_add(o[i, k], size) if rest > 0 else _log_subtract(o[i, k], size)
            # relative to the total, whose derivative is 0 if nothing is left
            if total == -np.inf:
                do[i, k] = 0.0
            elif size > -np.inf:
                do[i, k] = np.exp(o[i, k] - total) * do[i, k] + np.exp(-p - total) * drest
            o[i, k] = total
    for i in range(m + 1):
        u = int(order[i])
        for j in range(1, m + 1):
            v = int(order[j])
            if i != j:
                dmu[u, v] = g * (np.exp(w[u, v] + o[i, j]) * (d[u, v] + do[i, j])) if w[u, v] > -np.inf else 0.0
    return dvalue
