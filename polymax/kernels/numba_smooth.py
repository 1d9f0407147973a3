"""The smoothed maximum of a few numbers in Numba: its value, its weights, and the Jacobian of the weights.

    value = max over p in the simplex of <a, p> - Omega(p),   Omega = (sum p^alpha - 1) / (alpha (alpha - 1))

alpha = 1 is Shannon, 2 is Gini, inf the hard maximum, whose weight goes to the first maximal entry. -inf entries get
weight 0; where all are -inf the value is -inf and all weights are 0. NaN makes value and weights NaN.
"""

import math

import numpy as np

from polymax.kernels.numba_math import inline

# halvings of an interval of length 1 that reach the resolution of float64
_HALVINGS = 60


@inline
def smooth_max(a, count, alpha, p):
    """Value and threshold tau of a[:count]; the weights go to p[:count]."""
    zero = a.dtype.type(0)
    top = a.dtype.type(-np.inf)
    first = -1
    poisoned = False
    for e in range(count):
        p[e] = zero
        poisoned |= a[e] != a[e]
        if a[e] > top:
            top = a[e]
            first = e
    if poisoned or top == np.inf:
        for e in range(count):
            p[e] = np.nan
        return a.dtype.type(np.nan), a.dtype.type(np.nan)
    if first < 0:
        return top, zero
    if count == 1 or alpha == np.inf:
        p[first] = a.dtype.type(1)
        return top, _single(top, alpha)
    if alpha == 1.0:
        return _shannon(a, count, top, p)
    if alpha == 2.0:
        return _gini(a, count, top, p)
    return _tsallis(a, count, top, alpha, p)


@inline
def weight(a, tau, alpha):
    """The weight of an entry, from the threshold of its maximum; for a finite alpha."""
    if alpha == 1.0:
        return math.exp(a - tau)
    if alpha == 2.0:
        return max(a - tau, type(a)(0))
    base = (alpha - 1) * a - tau
    return base ** (1 / (alpha - 1)) if base > 0 else 0 * base


@inline
def tangent_of_weights(p, da, count, alpha, dp):
    """dp = J da with J = diag(s) - s s^T / sum(s), s = p^(2 - alpha) on the support."""
    total = p.dtype.type(0)
    mean = p.dtype.type(0)
    for e in range(count):
        dp[e] = p.dtype.type(0)
        # an entry without weight may have an infinite tangent
        if p[e] != 0 and alpha != np.inf:
            dp[e] = p[e] if alpha == 1.0 else (p.dtype.type(1) if alpha == 2.0 else p[e] ** (2 - alpha))
            total += dp[e]
            mean += dp[e] * da[e]
    if total > 0:
        mean /= total
    for e in range(count):
        if dp[e] != 0:
            dp[e] *= da[e] - mean


@inline
def _single(top, alpha):
    # the threshold that gives the only entry weight 1
    if alpha == 1.0 or alpha == np.inf:
        return top
    return type(top)((alpha - 1) * top - 1)


@inline
def _shannon(a, count, top, p):
    total = a.dtype.type(0)
    for e in range(count):
        p[e] = math.exp(a[e] - top)
        total += p[e]
    for e in range(count):
        p[e] /= total
    value = top + a.dtype.type(math.log(total))
    return value, value


@inline
def _gini(a, count, top, p):
    # thresholds grow and the support shrinks until both agree (Michelot)
    tau = a.dtype.type(-1)
    size = 0
    while True:
        total = a.dtype.type(0)
        left = 0
        for e in range(count):
            if a[e] - top > tau:
                total += a[e] - top
                left += 1
        if left == size:
            break
        size = left
        tau = (total - a.dtype.type(1)) / a.dtype.type(left)
    value = a.dtype.type(0)
    for e in range(count):
        p[e] = max(a[e] - top - tau, a.dtype.type(0))
        if p[e] > 0:
            value += p[e] * (a[e] - top) - p[e] * p[e] / 2
    return top + value + a.dtype.type(0.5), top + tau


@inline
def _tsallis(a, count, top, alpha, p):
    # sum ((alpha - 1)(a - top) - tau)_+^q = 1 for tau in [-1, 0): Newton where it stays in the bracket, else halve
    q = 1 / (alpha - 1)
    low, high = -1.0, 0.0
    tau = -1.0
    for _ in range(_HALVINGS):
        total = -1.0
        slope = 0.0
        for e in range(count):
            base = (alpha - 1) * np.float64(a[e] - top) - tau
            if base > 0:
                power = base ** (q - 1)
                total += power * base
                slope += q * power
        if total >= 0:
            low = tau
        else:
            high = tau
        step = tau + total / slope if slope > 0 else high
        # at the root Newton stands still, on the edge of the bracket
        if abs(step - tau) <= 1e-15:
            break
        tau = step if low < step < high else (low + high) / 2
    total = 0.0
    for e in range(count):
        base = (alpha - 1) * np.float64(a[e] - top) - tau
        power = base**q if base > 0 else 0.0
        p[e] = power
        total += power
    value = 1 / (alpha * (alpha - 1))
    for e in range(count):
        p[e] /= total
        if p[e] > 0:
            value += p[e] * np.float64(a[e] - top) - np.float64(p[e]) ** alpha / (alpha * (alpha - 1))
    return top + a.dtype.type(value), a.dtype.type(tau + (alpha - 1) * top)
