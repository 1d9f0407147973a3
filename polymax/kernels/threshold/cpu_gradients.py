"""The gradient of a threshold for Numba: J v, with a kernel for each method, so that a first call compiles one only.

For a Tsallis entropy J v = w (v - mean of v by w), w = y^(2 - alpha) on the support; other families add two terms.
"""

import numpy as np

from polymax.backend.numba_math import add, inline, kernel, row_dot, row_sum, rows_at, within
from polymax.backend.numba_memory import array_at, give_back, lean_kernel, taken_as_is
from polymax.backend.numba_pack import pack_above
from polymax.kernels.threshold import NORM, TSALLIS
from polymax.kernels.threshold.numba_general import LONGEST, NEAREST
from polymax.kernels.threshold.numba_packed import looks_full
from polymax.kernels.threshold.numba_support import BLOCK, powered_weights, response_weights


def gradient_kernel(alpha, family, n, each):
    """Return the kernel for rows of n, and the cost of a row; if `each`, rows have their own alphas."""
    if family != TSALLIS:
        return _threshold_backward, n
    if each:
        return _tsallis_backward, n
    if alpha in _BACKWARD:
        return _BACKWARD[alpha], n
    if not 1 < alpha < 2:
        return _tsallis_backward, 3 * n
    return _between_short_backward if n <= LONGEST else _between_long_backward, 3 * n


@kernel
def _softmax_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    y, v, out = rows_at(y_at, stop, n, real), rows_at(v_at, stop, n, real), rows_at(out_at, stop, n, real)
    for i in range(start, stop):
        total = mean = y.dtype.type(0)
        for j in range(n):
            total = add(total, y[i, j])
            mean = add(mean, y[i, j] * v[i, j])
        mean = mean / total if total != 0 else total
        for j in range(n):
            d = y[i, j] * (v[i, j] - mean)
            out[i, j] = 0 if y[i, j] == 0 else d


@kernel
def _sparsemax_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    y, v, out = rows_at(y_at, stop, n, real), rows_at(v_at, stop, n, real), rows_at(out_at, stop, n, real)
    for i in range(start, stop):
        total = mean = y.dtype.type(0)
        for j in range(n):
            w = y.dtype.type(1) if y[i, j] > 0 else y[i, j]
            total = add(total, w)
            mean = add(mean, w * v[i, j])
        mean = mean / total if total != 0 else total
        for j in range(n):
            d = (y.dtype.type(1) if y[i, j] > 0 else y[i, j]) * (v[i, j] - mean)
            out[i, j] = 0 if y[i, j] == 0 else d


@kernel
def _entmax15_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    y, v, out = rows_at(y_at, stop, n, real), rows_at(v_at, stop, n, real), rows_at(out_at, stop, n, real)
    for i in range(start, stop):
        total = mean = y.dtype.type(0)
        for j in range(n):
            out[i, j] = np.sqrt(y[i, j])
        for j in range(n):
            total = add(total, out[i, j])
            mean = add(mean, out[i, j] * v[i, j])
        mean = mean / total if total != 0 else total
        for j in range(n):
            d = out[i, j] * (v[i, j] - mean)
            out[i, j] = 0 if out[i, j] == 0 else d


@kernel
def _tsallis_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    y, v, out = rows_at(y_at, stop, n, real), rows_at(v_at, stop, n, real), rows_at(out_at, stop, n, real)
    alphas = rows_at(alphas_at, 1, stop if alphas_at else 0, 0.0)[0]
    w = np.empty(n, y.dtype)
    for i in range(start, stop):
        response_weights(y[i], alphas[i] if alphas_at else alpha, w)
        _respond(w, v[i], _weighted_mean(w, v[i]), out[i])


@lean_kernel
def _between_short_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    """Write J v for one alpha between 1 and 2 and short rows, with the powers of several rows together."""
    v, out = array_at(v_at, (stop, n), real), array_at(out_at, (stop, n), real)
    together = max(NEAREST // max(n, 1), 1)
    memory = taken_as_is(8 * together * n)
    w = array_at(memory, (together, n), real)
    for first in range(start, stop, together):
        size = min(together, stop - first) * n
        flat = array_at(y_at + first * n * w.itemsize, (size,), real)
        powered_weights(flat, alpha, array_at(memory, (size,), real))
        for i in range(first, min(first + together, stop)):
            _respond(w[i - first], v[i], _weighted_mean(w[i - first], v[i]), out[i])
    give_back(memory)


@lean_kernel
def _between_long_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    """Write J v for one alpha between 1 and 2 and long rows, on the packed support if it is small."""
    y, v, out = array_at(y_at, (stop, n), real), array_at(v_at, (stop, n), real), array_at(out_at, (stop, n), real)
    room = n + BLOCK
    memory = taken_as_is(20 * room)
    weights, values = array_at(memory, (room,), real), array_at(memory + 8 * room, (room,), real)
    index = array_at(memory + 16 * room, (room,), np.int32(0))
    for i in range(start, stop):
        count = n if looks_full(y[i], real, real) else pack_above(y[i], real, real, index)
        packed = 4 * count <= n
        count = count if packed else n
        if packed:
            for k in range(count):
                values[k] = y[i, index[k]]
        w = weights[:count]
        powered_weights(values[:count] if packed else y[i], alpha, w)
        if packed:
            for k in range(count):
                values[k] = v[i, index[k]]
        mean = _weighted_mean(w, values[:count] if packed else v[i])
        if packed:
            bad = 0
            for j in range(n):
                out[i, j] = 0
                # NaN or inf outside the support has weight 0 but must still turn the row's gradient into NaN
                bad += v[i, j] - v[i, j] != 0
            mean = mean if bad == 0 else mean * np.nan
            for k in range(count):
                out[i, index[k]] = w[k] * (values[k] - mean)
        else:
            _respond(w, v[i], mean, out[i])
    give_back(memory)


@within
def _respond(w, v, mean, out):
    """Write w (v - mean), 0 if w is 0."""
    for j in range(w.size):
        d = w[j] * (v[j] - mean)
        out[j] = 0 if w[j] == 0 else d


@within
def _weighted_mean(w, v):
    """Return the mean of v by weights w; 0 if all weights are 0."""
    total = mean = w.dtype.type(0)
    for j in range(w.size):
        total = add(total, w[j])
        mean = add(mean, w[j] * v[j])
    return mean / total if total != 0 else total


@kernel
def _threshold_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    """Write J v for the other families, and for Tsallis entropies with an alpha per row."""
    y, v, out = rows_at(y_at, stop, n, real), rows_at(v_at, stop, n, real), rows_at(out_at, stop, n, real)
    alphas = rows_at(alphas_at, 1, stop if alphas_at else 0, 0.0)[0]
    w = np.empty(n, y.dtype)
    for i in range(start, stop):
        each = alphas[i] if alphas_at else alpha
        response_weights(y[i], each, w)
        a, b, c = _coefficients(y[i], v[i], w, each, family)
        for j in range(n):
            d = w[j] * (a * v[i, j] + b) + c * y[i, j]
            out[i, j] = 0 if w[j] == 0 else d


@inline
def _coefficients(y, v, w, alpha, family):
    """Return a, b, c of J v = w (a v + b) + c y."""
    real = y.dtype.type
    total = row_sum(w)
    if total == 0:
        return real(0), real(0), real(0)
    wv = row_dot(w, v)
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


# by alpha, for rows that share it
_BACKWARD = {1: _softmax_backward, 1.5: _entmax15_backward, 2: _sparsemax_backward}
