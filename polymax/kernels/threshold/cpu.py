"""Threshold by Newton's method on the few entries that can be in the support, for Numba.

Only entries within 1/scale of the maximum can get weight: they are gathered first, and everything after runs on
them alone. The r-norm of (u - tau)_+ is convex and decreasing in tau, so Newton converges monotonically from the
left; a bracket guards the cases where convexity is not given.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import parallel, rows, wide_like
from polymax.kernels.numba_math import (
    add,
    exp2,
    inline,
    kernel,
    log2,
    log2_1p,
    rough_power_1p,
    row_dot,
    row_max,
    row_sum,
)
from polymax.kernels.threshold import NORM, SQUARED_NORM, TSALLIS

LOG2_E = np.log2(np.e)
# vector loops run over a whole number of blocks, so that they need no scalar tail
BLOCK = 32
# longest row on which the threshold is found without gathering
SHORT = 1024


def threshold(x: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    out = wide_like(x)
    weight = 1 if alphas is None and alpha in (1, 1.5, 2) else 3
    parallel(_threshold, x.shape, weight, rows(x), rows(out), _alphas(alpha, alphas), family)
    return out.to(x.dtype)


def threshold_backward(y: Tensor, v: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    out = wide_like(y)
    args = rows(y), rows(v.to(y.dtype)), rows(out), _alphas(alpha, alphas), family
    parallel(_threshold_backward, y.shape, 1, *args)
    return out.to(y.dtype)


def _alphas(alpha, alphas):
    if alphas is None:
        return np.full(1, alpha)
    return alphas.detach().to(torch.float64).reshape(-1).numpy()


@kernel
def _threshold(start, stop, x, y, alphas, family):
    n = x.shape[1]
    index = np.empty(n + BLOCK, np.int32)
    z, power = np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, x.dtype)
    # powers below 1 amplify rounding near the edge of the support, so that alpha > 2 is computed in float64
    width = n + BLOCK if alphas.max() > 2 else 0
    exact = np.empty((4, width))
    for i in range(start, stop):
        alpha = alphas[i] if alphas.size > 1 else alphas[0]
        if alpha > 2:
            exact[2, :n] = x[i]
            _weigh(exact[2, :n], exact[3, :n], exact[0], exact[1], index, alpha, family)
            y[i] = exact[3, :n]
        else:
            _weigh(x[i], y[i], z, power, index, alpha, family)


@inline
def _weigh(x, row, z, power, index, alpha, family):
    """Fill a row with the weights of the scores x."""
    real = x.dtype.type
    if x.size <= SHORT and family == TSALLIS and (alpha == 2 or alpha == 1.5):
        _short(x, z[: x.size], row, alpha == 1.5)
        return
    lowest = -1.0
    if family == TSALLIS:
        lowest = -1 / (alpha - 1) if alpha > 1 else -np.inf
    count = _gather(x, real(lowest), z, index)
    row[:] = 0 if count >= 0 else np.nan
    if count <= 0:
        return
    if alpha == 1:
        for j in range(_pad(z, count)):
            power[j] = exp2(z[j] * real(LOG2_E))
    elif alpha == 2 and family == TSALLIS:
        count = _sparsemax(z, index, count, power)
    elif alpha == 1.5 and family == TSALLIS:
        count = _entmax15(z, index, count, power)
    elif alpha < 1:
        _dense(z[:count], power, 1 - alpha)
    else:
        count = _general(z, index, count, power, alpha, family)
    factor = 1 / row_sum(power[:count])
    for j in range(count):
        row[index[j]] = power[j] * factor


@inline
def _gather(x, lowest, z, index):
    """Pack entries with x - max > lowest to the front of z, with their index; their count, or -1 with a NaN."""
    top = row_max(x)
    if top == -np.inf:
        # all entries are -inf or NaN
        top = x.dtype.type(0)
    count = 0
    for j in range(x.size):
        d = x[j] - top
        z[count] = d
        index[count] = j
        # a NaN is not below anything, and so is found among the few
        count += not (d <= lowest)
    bad = 0
    for j in range(count):
        bad += z[j] != z[j]
    return -1 if bad > 0 else count


@inline
def _short(x, z, y, squared):
    """Sparsemax, or entmax with alpha 1.5, without gathering: passes over a short row are cheaper than packing it."""
    real = x.dtype.type
    top = row_max(x)
    top = top if top > -np.inf else real(0)
    bad = 0
    for j in range(x.size):
        z[j] = (x[j] - top) * real(0.5 if squared else 1.0)
        bad += z[j] != z[j]
    tau = -1.0
    before = x.size + 1
    while bad == 0:
        count = 0
        linear = square = 0.0
        for j in range(z.size):
            u = np.float64(z[j] if z[j] > tau else real(0))
            count += z[j] > tau
            linear = add(linear, u)
            square = add(square, u * u)
        if count == 0:
            break
        if squared:
            root = (linear - np.sqrt(max(linear * linear - count * (square - 1), 0.0))) / count
            tight = 0
            for j in range(z.size):
                tight += z[j] > root
            mass = square - 2 * tau * linear + count * tau * tau
            step = (mass - np.sqrt(mass)) / (linear - count * tau)
            if tight == count:
                tau = root
            if tight == count or not step > 0:
                break
            tau += step
        else:
            # Michelot: the threshold of a superset of the support is a lower bound of tau. A count that does not
            # fall any more ends it, whatever rounding does to an entry at the threshold
            if count >= before:
                break
            before = count
            tau = (linear - 1) / count
    for j in range(z.size):
        d = z[j] - real(tau)
        d = d if z[j] > tau else real(0)
        z[j] = d * d if squared else d
    total = row_sum(z)
    factor = real(1) / total if total > 0 else real(0)
    for j in range(z.size):
        y[j] = z[j] * factor if bad == 0 else real(np.nan)


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
def _pad(z, count):
    """Fill up the last block with -inf; the number of entries in whole blocks."""
    padded = count + (-count) % BLOCK
    for j in range(count, padded):
        z[j] = -np.inf
    return padded


@inline
def _sparsemax(z, index, count, power):
    # Michelot: the threshold of a superset of the support is a lower bound of tau; finite
    while True:
        total = 0.0
        for j in range(count):
            total += z[j]
        tau = (total - 1) / count
        kept = _keep_above(z, index, count, tau)
        if kept == count:
            break
        count = kept
    for j in range(count):
        power[j] = z[j] - tau
    return count


@inline
def _entmax15(z, index, count, power):
    # sum (u - tau)_+^2 = 1 with u = z / 2: Newton on its square root until the support is known, then the quadratic
    tau = -1.0
    while True:
        linear = 0.0
        square = 0.0
        smallest = 0.0
        for j in range(count):
            u = 0.5 * z[j]
            linear += u
            square += u * u
            smallest = min(smallest, u)
        root = (linear - np.sqrt(max(linear * linear - count * (square - 1), 0.0))) / count
        if root <= smallest:
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
def _general(z, index, count, power, alpha, family):
    """d = 1 + scale (z - t), S_k = sum d_+^k: solve S_r = 1, or S_{r-1} S_r^{2/r-1} = 1, for t >= 0."""
    real = z.dtype.type
    scale = alpha - 1 if family == TSALLIS else 1.0
    r = 1 / (alpha - 1) if family == TSALLIS else alpha / (alpha - 1)
    low, high = 0.0, 1 / scale
    # with powers below 1 the slope is unbounded at the edge of the support, where Newton stalls: bisect
    convex = r >= 2 if family == SQUARED_NORM else r >= 1
    tolerance = 4 * np.finfo(z.dtype).eps
    # a step this small changes y as its second-order expansion does, to the precision of float32
    expand = min(6e-3 / r, 1e-7 ** (1 / r)) if family == TSALLIS and r >= 2 and z.itemsize == 4 else 0.0
    padded = _pad(z, count)
    t = _rough_root(z[:padded], scale, r) if convex and family != SQUARED_NORM else 0.0
    for _ in range(100):
        lowest, lower, total = _power_sums(z[:padded], real(scale), real(t), real(r - 1), power)
        if family == SQUARED_NORM:
            value = lower * total ** (2 / r - 1)
            slope = value * ((r - 1) * lowest / lower - (r - 2) * lower / total)
            step = (value - 1) / slope
        else:
            # Halley on the r-norm, in units of 1 / scale
            value = total
            newton = (1 - exp2(-log2(total) / real(r))) * total / lower
            bend = (r - 1) * (lowest * total / (lower * lower) - 1) * lower / total
            step = newton / (1 - 0.5 * newton * bend) / scale
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
        if abs(change) <= tolerance:
            break
        t = guess
        count = _keep_above(z, index, count, low - 1 / scale)
        padded = _pad(z, count)
    if family == TSALLIS:
        for j in range(count):
            power[j] *= max(real(1) + real(scale) * (z[j] - real(t)), real(0))
    return count


@inline
def _dense(z, power, b):
    """power = d^(-1/b), d = 1 + b (t - z) >= 1: the weights below alpha = 1, all of them positive; b = 1 - alpha.

    The norm of d with the exponent -1/b is concave and increasing in t: Newton from t = 0 converges from the left.
    """
    real = z.dtype.type
    one, zero = real(1), real(0)
    tolerance = 4 * np.finfo(z.dtype).eps
    t = 0.0
    for _ in range(100):
        for j in range(z.size):
            power[j] = log2_1p(real(b) * (real(t) - z[j])) * real(-1 / b)
        lower = total = zero
        for j in range(z.size):
            p = exp2(power[j])
            power[j] = p
            total = add(total, p)
            lower = add(lower, p / (one + real(b) * (real(t) - z[j])))
        step = np.expm1(b * np.log(np.float64(total))) * total / (b * lower)
        if not step > tolerance * (1 + t):
            break
        t += step


@inline
def _power_sums(z, scale, t, k, power):
    """power = d_+^k, and S_{k-1}, S_k, S_{k+1}."""
    one, zero = z.dtype.type(1), z.dtype.type(0)
    # two loops: in one, the polynomials of both functions do not fit the registers
    for j in range(z.size):
        s = scale * (z[j] - t)
        power[j] = log2_1p(s if s > -one else -one) * k
    lowest = lower = total = zero
    for j in range(z.size):
        d = one + scale * (z[j] - t)
        inside = d > zero
        p = exp2(power[j])
        p = p if inside else zero
        power[j] = p
        lowest = add(lowest, p / (d if inside else one))
        lower = add(lower, p)
        total = add(total, p * d if inside else zero)
    return lowest, lower, total


@inline
def _expand(z, count, power, scale, t, change, r):
    """power = (d - change)_+^r from d^(r-1), to second order in the change."""
    one, half, zero = z.dtype.type(1), z.dtype.type(0.5), z.dtype.type(0)
    for j in range(count):
        d = one + scale * (z[j] - t)
        p = power[j]
        inside = d > max(change, zero)
        curve = p / (d if inside else one)
        y = p * (d - r * change) + half * r * (r - one) * change * change * curve
        power[j] = y if inside and y > zero else zero


@inline
def _rough_root(z, scale, r):
    """A cheap start for t: two Newton steps with powers good to about one per cent."""
    real = z.dtype.type
    one, zero = real(1), real(0)
    t = 0.0
    for _ in range(2):
        lower = total = zero
        for j in range(z.size):
            s = real(scale) * (z[j] - real(t))
            s = s if s > -one else -one
            p = rough_power_1p(s, real(r - 1))
            lower = add(lower, p)
            total = add(total, p * (one + s))
        if not (total > 0 and lower > 0):
            break
        t += (1 - exp2(-log2(total) / real(r))) * total / (scale * lower)
    return min(max(t, 0.0), 1 / scale)


@kernel
def _threshold_backward(start, stop, y, v, out, alphas, family):
    n = y.shape[1]
    w = np.empty(n, y.dtype)
    exact = np.empty((4, n if alphas.max() > 2 else 0))
    for i in range(start, stop):
        alpha = alphas[i] if alphas.size > 1 else alphas[0]
        if alpha > 2:
            exact[0], exact[1] = y[i], v[i]
            _respond(exact[0], exact[1], exact[2], exact[3], alpha, family)
            out[i] = exact[2]
        else:
            _respond(y[i], v[i], out[i], w, alpha, family)


@inline
def _respond(y, v, out, w, alpha, family):
    """Fill out with J v at the weights y."""
    _weights(y, alpha, w)
    a, b, c = _coefficients(y, v, w, alpha, family)
    for j in range(w.size):
        d = w[j] * (a * v[j] + b) + c * y[j]
        out[j] = 0 if w[j] == 0 else d


@inline
def _coefficients(y, v, w, alpha, family):
    """a, b, c of J v = w (a v + b) + c y."""
    real = y.dtype.type
    total = row_sum(w)
    if total == 0:
        return real(0), real(0), real(0)
    wv = row_dot(w, v)
    if family == TSALLIS:
        return real(1), real(-wv / total), real(0)
    yv = row_dot(y, v)
    # y^alpha = y^2 / w
    norm = 0.0
    for j in range(y.size):
        norm += y[j] * y[j] / w[j] if w[j] > 0 else real(0)
    norm = norm ** (1 / alpha)
    if family == NORM:
        scale = norm ** (alpha - 1) / (alpha - 1)
        return real(scale), real(-scale * yv), real(-scale * (wv - total * yv))
    weight, kappa = norm ** (alpha - 2), (2 - alpha) / norm**2
    mean = (weight * wv - kappa * yv) / (weight * total - kappa)
    scale = weight / (alpha - 1)
    return real(scale), real(-scale * mean), real(kappa * (mean - yv) / (alpha - 1))


@inline
def _weights(y, alpha, w):
    """y^(2 - alpha) on the support, 0 elsewhere; NaN stays."""
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
        for j in range(y.size):
            inside = y[j] > 0
            p = exp2(log2(y[j] if inside else real(1)) * real(2 - alpha))
            w[j] = p if inside else y[j]
