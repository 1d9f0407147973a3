"""Threshold by Newton's method on the few entries that can be in the support, for Numba.

Only entries within 1/scale of the maximum can get weight: they are gathered first, and everything after runs on
them alone: see numba_support.py.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import REALS, SMALL, plain, run
from polymax.kernels.numba_math import add, exp2, inline, kernel, log2_1p, row_dot, row_max, row_sum, rows_at
from polymax.kernels.threshold import NORM, TSALLIS
from polymax.kernels.threshold.numba_support import BLOCK, pad, response_weights, support_powers

LOG2_E = np.log2(np.e)
# longest row on which the threshold is found without gathering
SHORT = 1024
# the alphas whose powers cost nothing
_QUICK = (1, 1.5, 2)


def threshold(x: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    scores = x if x.dtype in REALS and x.is_contiguous() else plain(x)
    y, n = torch.empty_like(scores), x.shape[-1]
    each = None if alphas is None else alphas.detach().to(torch.float64).contiguous()
    count, cost = x.numel() // max(n, 1), n if alphas is None and alpha in _QUICK else 3 * n
    args = (
        n, scores.data_ptr(), y.data_ptr(), REALS[y.dtype], float(alpha), 0 if each is None else each.data_ptr(), family
    )  # fmt: skip
    if count * cost < SMALL:
        _threshold(0, count, *args)
    else:
        run(_threshold, count, cost, *args)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def threshold_backward(y: Tensor, v: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    weights = y if y.dtype in REALS and y.is_contiguous() else plain(y)
    direction = v if v.dtype == weights.dtype and v.is_contiguous() else v.to(weights.dtype).contiguous()
    out, n = torch.empty_like(weights), y.shape[-1]
    each = None if alphas is None else alphas.detach().to(torch.float64).contiguous()
    count = y.numel() // max(n, 1)
    args = (
        n, weights.data_ptr(), direction.data_ptr(), out.data_ptr(), REALS[out.dtype], float(alpha),
        0 if each is None else each.data_ptr(), family,
    )  # fmt: skip
    if count * n < SMALL:
        _threshold_backward(0, count, *args)
    else:
        run(_threshold_backward, count, n, *args)
    return out if out.dtype == y.dtype else out.to(y.dtype)


@kernel
def _threshold(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    """Weigh rows `start` to `stop` of x; each has an alpha of its own where they have an address."""
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    alphas = rows_at(alphas_at, stop if alphas_at else 0, 1, 0.0)
    index = np.empty(n + BLOCK, np.int32)
    z, power = np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, x.dtype)
    # powers below 1 amplify rounding near the edge of the support, so that alpha > 2 is computed in float64
    largest = alpha
    for i in range(start, alphas.size):
        largest = max(largest, alphas[i, 0])
    exact = np.empty((4, n + BLOCK if largest > 2 else 0))
    for i in range(start, stop):
        alpha = alphas[i, 0] if alphas_at else alpha
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
        for j in range(pad(z, count)):
            power[j] = exp2(z[j] * real(LOG2_E))
    elif alpha < 1:
        _dense(z[:count], power, 1 - alpha)
    else:
        count = support_powers(z, index, count, power, alpha, family)
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


@kernel
def _threshold_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    y, v, out = rows_at(y_at, stop, n, real), rows_at(v_at, stop, n, real), rows_at(out_at, stop, n, real)
    alphas = rows_at(alphas_at, stop if alphas_at else 0, 1, 0.0)
    w = np.empty(n, y.dtype)
    exact = np.empty((4, n))
    for i in range(start, stop):
        alpha = alphas[i, 0] if alphas_at else alpha
        if alpha > 2:
            exact[0], exact[1] = y[i], v[i]
            _respond(exact[0], exact[1], exact[2], exact[3], alpha, family)
            out[i] = exact[2]
        else:
            _respond(y[i], v[i], out[i], w, alpha, family)


@inline
def _respond(y, v, out, w, alpha, family):
    """Fill out with J v at the weights y."""
    response_weights(y, alpha, w)
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
