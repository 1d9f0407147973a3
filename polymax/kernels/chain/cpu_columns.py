"""Local maxima of a chain: all transitions into each state, the columns of a matrix, in float64, for Numba."""

import numpy as np

from polymax.kernels.chain.cpu_linear import LOG2_E, exponentiate
from polymax.kernels.numba_math import inline
from polymax.kernels.numba_smooth import smooth_max

# Newton's steps, of which a few are enough
ROUNDS = 60


@inline
def maxima(v, transition, m):
    """m_t without smoothing; a NaN makes all of it NaN."""
    poisoned = 0
    for j in range(v.size):
        m[j] = -np.inf
    for i in range(v.size):
        for j in range(v.size):
            score = v[i] + transition[i, j]
            poisoned += score != score
            m[j] = score if score > m[j] else m[j]
    for j in range(v.size):
        m[j] = m[j] if poisoned == 0 else np.nan


@inline
def local_weights(v, transition, alpha, flat, p, m, rows):
    """m_t, and the weights p[i, j] of transitions into each state; three rows are room to work in."""
    column, weights = rows[0], rows[1]
    s = v.size
    if alpha == 1.0:
        _shannon_weights(v, transition, flat, p, m, column)
        return
    if alpha == 2.0 or alpha == 1.5:
        _sparse_weights(v, transition, alpha, p, m, rows[0], rows[1], rows[2])
        return
    for j in range(s):
        for i in range(s):
            column[i] = v[i] + transition[i, j]
        m[j], _ = smooth_max(column, s, alpha, weights)
        for i in range(s):
            p[i, j] = weights[i]


@inline
def _shannon_weights(v, transition, flat, p, m, total):
    s = v.size
    real = flat.dtype.type
    for j in range(s):
        m[j] = -np.inf
        total[j] = 0
    for i in range(s):
        for j in range(s):
            score = v[i] + transition[i, j]
            m[j] = score if score > m[j] else m[j]
    for i in range(s):
        for j in range(s):
            base = m[j] if m[j] > -np.inf else 0.0
            flat[i * s + j] = real(v[i] + transition[i, j] - base) * real(LOG2_E)
    exponentiate(flat)
    for i in range(s):
        for j in range(s):
            p[i, j] = flat[i * s + j]
            total[j] += p[i, j]
    for j in range(s):
        # no state can come before this one: 0 divided by 1
        m[j] = m[j] + np.log(total[j]) if total[j] != 0 else m[j]
        total[j] = total[j] if total[j] != 0 else 1.0
    for i in range(s):
        for j in range(s):
            p[i, j] /= total[j]


@inline
def _sparse_weights(v, transition, alpha, p, m, tau, total, slope):
    """Gini's entropy, and Tsallis' with alpha 1.5: p is d or d^2, d = ((alpha - 1) (score - m) - tau)_+.

    The norm of d that must be 1 is convex in tau: Newton's method from the left, tau = -1, never goes too far.
    """
    s = v.size
    squared = alpha == 1.5
    maxima(v, transition, m)
    for j in range(s):
        tau[j] = -1
    for i in range(s):
        for j in range(s):
            p[i, j] = (alpha - 1) * (v[i] + transition[i, j] - (m[j] if m[j] > -np.inf else 0.0))
    for _ in range(ROUNDS):
        if not _newton(p, squared, tau, total, slope) > 1e-15:
            break
    _sparse_values(p, squared, m, tau, total)


@inline
def _newton(z, squared, tau, total, slope):
    """One step of tau in every column, and the longest of them."""
    s = tau.size
    for j in range(s):
        total[j] = 0
        slope[j] = 0
    for i in range(s):
        for j in range(s):
            d = z[i, j] - tau[j]
            d = d if d > 0 else 0.0
            total[j] += d * d if squared else d
            slope[j] += d if squared else (1.0 if d > 0 else 0.0)
    farthest = 0.0
    for j in range(s):
        excess = total[j] - (np.sqrt(total[j]) if squared else 1.0)
        # a column of -inf has no slope
        step = excess / slope[j] if slope[j] > 0 else 0.0
        tau[j] += step
        farthest = max(farthest, abs(step))
    return farthest


@inline
def _sparse_values(p, squared, m, tau, total):
    """Scaled scores p become weights, and m the smoothed maximum: <p, score> - Omega(p)."""
    s = m.size
    for j in range(s):
        total[j] = 0
    for i in range(s):
        for j in range(s):
            d = p[i, j] - tau[j]
            d = d if d > 0 else 0.0
            score = p[i, j] if d > 0 else 0.0
            p[i, j] = d * d if squared else d
            # p^alpha / (alpha (alpha - 1)), with the score in units of alpha - 1
            total[j] += p[i, j] * (2 * score - d * (4 / 3)) if squared else d * (score - d / 2)
    for j in range(s):
        m[j] += total[j] + (4 / 3 if squared else 0.5)
