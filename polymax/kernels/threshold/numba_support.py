"""Weights of entries that can be in the support, packed to the front of a row, for Numba.

The r-norm of (u - tau)_+ is convex and decreasing in tau, so Newton converges monotonically from the left; a bracket
guards the cases without convexity. Entries that a bound of the threshold rules out are dropped on the way.
"""

import numpy as np

from polymax.backend.numba_math import add, exp2, inline, log2, within
from polymax.kernels.threshold import SQUARED_NORM, TSALLIS
from polymax.kernels.threshold.numba_general import halley, near_root, rough_root, rough_sums, set_powers, sums

# vector loops run over a whole number of blocks, so that they need no scalar tail
BLOCK = 32


@inline
def support_powers(z, index, count, power, alpha, family):
    """Fill power with the unnormalised weights of the entries z = x - max; alpha > 1.

    Entries without weight are dropped from z and index; returns the number of entries left.
    """
    if alpha == 2 and family == TSALLIS:
        return sparsemax_powers(z, index, count, power)
    if alpha == 1.5 and family == TSALLIS:
        return entmax15_powers(z, index, count, power)
    return general_powers(z, index, count, power, alpha, family)


@inline
def _keep_above(z, index, count, lowest):
    kept = 0
    for j in range(count):
        d = z[j]
        z[kept] = d
        index[kept] = index[j]
        kept += d > lowest
    return kept


@inline
def pad(z, count):
    """Fill the last block with -inf; return the number of entries in whole blocks."""
    padded = count + (-count) % BLOCK
    for j in range(count, padded):
        z[j] = -np.inf
    return padded


@inline
def sparsemax_powers(z, index, count, power):
    """Fill power as support_powers does, for sparsemax."""
    # Michelot: the threshold of a superset of the support is a lower bound of tau, so that only entries outside of the
    # support are left out; it is tau as soon as none is left out
    while True:
        total = 0.0
        for j in range(count):
            total = add(total, np.float64(z[j]))
        tau = (total - 1) / count
        kept = _keep_above(z, index, count, tau)
        if kept == count:
            break
        count = kept
    for j in range(count):
        power[j] = z[j] - tau
    return count


@inline
def entmax15_powers(z, index, count, power):
    """Fill power as support_powers does, for entmax with alpha 1.5."""
    # sum (u - tau)_+^2 = 1 with u = z / 2: Newton on its square root until the support is known, then the quadratic
    tau = -1.0
    while True:
        linear = square = 0.0
        for j in range(count):
            u = 0.5 * np.float64(z[j])
            linear = add(linear, u)
            square = add(square, u * u)
        root = (linear - np.sqrt(max(linear * linear - count * (square - 1), 0.0))) / count
        below = 0
        for j in range(count):
            below += 0.5 * np.float64(z[j]) < root
        if below == 0:
            tau = root
            break
        mass = square - 2 * tau * linear + count * tau * tau
        step = (mass - np.sqrt(mass)) / (linear - count * tau)
        if not step > 0:
            break
        tau += step
        count = _keep_above(z, index, count, 2 * tau)
    for j in range(count):
        d = max(0.5 * z[j] - tau, 0.0)
        power[j] = d * d
    return count


@inline
def general_powers(z, index, count, power, alpha, family):
    """Solve S_r = 1, or S_{r-1} S_r^{2/r-1} = 1, for t >= 0, with d = 1 + scale (z - t) and S_k = sum d_+^k."""
    real = z.dtype.type
    scale = alpha - 1 if family == TSALLIS else 1.0
    r = 1 / (alpha - 1) if family == TSALLIS else alpha / (alpha - 1)
    low, high = 0.0, 1 / scale
    # with powers below 1 the slope is unbounded at the edge of the support, where Newton stalls: bisect
    convex = r >= 2 if family == SQUARED_NORM else r >= 1
    tolerance = 4 * np.finfo(z.dtype).eps
    expand = near_root(r, z.itemsize) if family == TSALLIS else 0.0
    padded = pad(z, count)
    t = 0.0
    # a cheap start
    for _ in range(2 if convex and family != SQUARED_NORM else 0):
        lower, total = rough_sums(z[:padded], real(0), real(t), real(scale), real(r))
        t = rough_root(lower, total, t, scale, r)
    for _ in range(100):
        set_powers(z[:padded], real(0), real(t), real(scale), real(r), power)
        lowest, lower, total = sums(z[:padded], real(0), real(t), real(scale), power)
        if family == SQUARED_NORM:
            value = lower * total ** (2 / r - 1)
            slope = value * ((r - 1) * lowest / lower - (r - 2) * lower / total)
            step = (value - 1) / slope
        else:
            value = total
            step = halley(lowest, lower, total, r) / scale
        if value >= 1:
            low = t
        else:
            high = t
        guess = t + step
        if not (convex and low <= guess <= high):
            guess = 0.5 * (low + high)
        change = (guess - t) * scale
        if abs(change) < expand:
            _expand(z, count, power, real(scale), real(t), real(change), real(r))
            return count
        t = guess
        if abs(change) <= tolerance:
            # entries at the edge of the support change with the last step as well
            set_powers(z[:padded], real(0), real(t), real(scale), real(r), power)
            break
        count = _keep_above(z, index, count, low - 1 / scale)
        padded = pad(z, count)
    if family == TSALLIS:
        for j in range(count):
            power[j] *= max(real(1) + real(scale) * (z[j] - real(t)), real(0))
    return count


@inline
def _expand(z, count, power, scale, t, change, r):
    """Write power = (d - change)_+^r from d^(r-1), to second order in the change."""
    one, half, zero = z.dtype.type(1), z.dtype.type(0.5), z.dtype.type(0)
    for j in range(count):
        d = one + scale * (z[j] - t)
        p = power[j]
        inside = d > max(change, zero)
        curve = p / (d if inside else one)
        y = p * (d - r * change) + half * r * (r - one) * change * change * curve
        power[j] = y if inside and y > zero else zero


@within
def response_weights(y, alpha, w):
    """Write w = y^(2 - alpha) on the support, 0 elsewhere; NaN stays."""
    real = y.dtype.type
    if alpha == 2:
        for j in range(y.size):
            w[j] = real(1) if y[j] > 0 else y[j]
    elif alpha == 1.5:
        for j in range(y.size):
            w[j] = np.sqrt(y[j])
    elif alpha == 1:
        for j in range(y.size):
            w[j] = y[j]
    else:
        powered_weights(y, alpha, w)


@within
def powered_weights(y, alpha, w):
    """Write w = y^(2 - alpha) for an alpha without a special case."""
    real = y.dtype.type
    # two loops: in one, the polynomials of both functions do not fit the registers
    for j in range(y.size):
        w[j] = log2(y[j] if y[j] > 0 else real(1)) * real(2 - alpha)
    for j in range(y.size):
        p = exp2(w[j])
        w[j] = p if y[j] > 0 else y[j]
