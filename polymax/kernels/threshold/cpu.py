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


def threshold(x: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    scores = _precise(x, alpha, alphas)
    out = wide_like(scores)
    weight = 1 if alphas is None and alpha in (1, 1.5, 2) else 3
    parallel(_threshold, x.shape, weight, rows(scores), rows(out), _alphas(alpha, alphas), family)
    return out.to(x.dtype)


def threshold_backward(
    y: Tensor, v: Tensor, alpha: float, family: int, alphas: Tensor | None = None
) -> Tensor:
    point, direction = _precise(y, alpha, alphas), v.to(_precise(y, alpha, alphas).dtype)
    out = wide_like(point)
    args = rows(point), rows(direction), rows(out), _alphas(alpha, alphas), family
    parallel(_threshold_backward, y.shape, 1, *args)
    return out.to(y.dtype)


def _precise(x, alpha, alphas):
    # powers below 1 amplify rounding near the edge of the support, so alpha > 2 is computed in float64
    return x.double() if alpha > 2 and alphas is None else x


def _alphas(alpha, alphas):
    if alphas is None:
        return np.full(1, alpha)
    return alphas.detach().to(torch.float64).reshape(-1).numpy()


@kernel
def _threshold(start, stop, x, y, alphas, family):
    n = x.shape[1]
    real = x.dtype.type
    z = np.empty(n + BLOCK, x.dtype)
    power = np.empty(n + BLOCK, x.dtype)
    delta = np.empty(n + BLOCK, x.dtype)
    index = np.empty(n + BLOCK, np.int32)
    for i in range(start, stop):
        alpha = alphas[i] if alphas.size > 1 else alphas[0]
        lowest = -1 / (alpha - 1) if family == TSALLIS else -1.0
        count = _gather(x[i], real(lowest), z, index)
        row = y[i]
        row[:] = 0 if count >= 0 else np.nan
        if count <= 0:
            continue
        if alpha == 1:
            for j in range(_pad(z, count)):
                power[j] = exp2(z[j] * real(LOG2_E))
        elif alpha == 2 and family == TSALLIS:
            count = _sparsemax(z, index, count, power)
        elif alpha == 1.5 and family == TSALLIS:
            count = _entmax15(z, index, count, power)
        else:
            count = _general(z, index, count, power, delta, alpha, family)
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
def _general(z, index, count, power, delta, alpha, family):
    """d = 1 + scale (z - t), S_k = sum d_+^k: solve S_r = 1, or S_{r-1} S_r^{2/r-1} = 1, for t >= 0."""
    real = z.dtype.type
    scale = alpha - 1 if family == TSALLIS else 1.0
    r = 1 / (alpha - 1) if family == TSALLIS else alpha / (alpha - 1)
    low, high = 0.0, 1 / scale
    # with powers below 1 the slope is unbounded at the edge of the support, where Newton stalls: bisect
    convex = r >= 2 if family == SQUARED_NORM else r >= 1
    tolerance = 4 * np.finfo(z.dtype).eps
    # once a step is this small, its first-order effect on y leaves an error below float32's
    linear = 1e-4 / r if family == TSALLIS and r >= 2 and z.itemsize == 4 else 0.0
    t = _rough_root(z, count, power, delta, scale, r) if family != SQUARED_NORM and convex else 0.0
    for _ in range(100):
        for j in range(_pad(z, count)):
            s = real(scale) * (z[j] - real(t))
            inside = s > real(-1)
            s = s if inside else real(-1)
            p = exp2(log2_1p(s) * real(r - 1))
            power[j] = p if inside else real(0)
            delta[j] = real(1) + s
        lower = row_sum(power[:count])
        total = row_dot(power[:count], delta[:count])
        if family == SQUARED_NORM:
            lowest = 0.0
            for j in range(count):
                lowest += power[j] / delta[j] if power[j] > 0 else real(0)
            value = lower * total ** (2 / r - 1)
            slope = value * ((r - 1) * lowest / lower - (r - 2) * lower / total)
            step = (value - 1) / slope
        else:
            value = total
            step = -total * np.expm1(-np.log(total) / r) / (scale * lower)
        if value >= 1:
            low = t
        else:
            high = t
        if abs(step) * scale <= linear:
            for j in range(count):
                delta[j] = max(delta[j] - real(r * scale * step), real(0))
            break
        guess = t + step
        if not (convex and low <= guess <= high):
            guess = 0.5 * (low + high)
        if abs(guess - t) * scale <= tolerance:
            break
        t = guess
        count = _keep_above(z, index, count, low - 1 / scale)
    if family == TSALLIS:
        for j in range(count):
            power[j] *= delta[j]
    return count


@inline
def _rough_root(z, count, power, delta, scale, r):
    """A cheap start for t, a little to the left of the root: Newton with powers good to a few per cent."""
    real = z.dtype.type
    t = 0.0
    for _ in range(4):
        for j in range(_pad(z, count)):
            s = real(scale) * (z[j] - real(t))
            s = s if s > real(-1) else real(-1)
            power[j] = rough_power_1p(s, real(r - 1))
            delta[j] = real(1) + s
        total = row_dot(power[:count], delta[:count])
        lower = row_sum(power[:count])
        if not (total > 0 and lower > 0):
            break
        t += -total * np.expm1(-np.log(total) / r) / (scale * lower)
    t -= 0.02 / scale
    return min(max(t, 0.0), 1 / scale)


@kernel
def _threshold_backward(start, stop, y, v, out, alphas, family):
    n = y.shape[1]
    real = y.dtype.type
    w = np.empty(n + BLOCK, y.dtype)
    for i in range(start, stop):
        alpha = alphas[i] if alphas.size > 1 else alphas[0]
        point, direction, row = y[i], v[i], out[i]
        _weights(point, alpha, w)
        total = row_sum(w[:n])
        if total == 0:
            row[:] = 0
            continue
        wv = row_dot(w[:n], direction)
        if family == TSALLIS:
            scale, shift, back = 1.0, -wv / total, 0.0
        else:
            yv = row_dot(point, direction)
            # y^alpha = y^2 / w
            norm = 0.0
            for j in range(n):
                norm += point[j] * point[j] / w[j] if w[j] > 0 else real(0)
            norm = norm ** (1 / alpha)
            if family == NORM:
                scale = norm ** (alpha - 1) / (alpha - 1)
                shift = -scale * yv
                back = -scale * (wv - total * yv)
            else:
                weight, kappa = norm ** (alpha - 2), (2 - alpha) / norm**2
                mean = (weight * wv - kappa * yv) / (weight * total - kappa)
                scale = weight / (alpha - 1)
                shift = -scale * mean
                back = kappa * (mean - yv) / (alpha - 1)
        a, b, c = real(scale), real(shift), real(back)
        for j in range(n):
            d = w[j] * (a * direction[j] + b) + c * point[j]
            row[j] = real(0) if w[j] == 0 else d


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
