"""Threshold by Newton's method on the few entries that can be in the support, for Numba.

Only entries within 1/scale of the maximum can get weight: they are gathered first, and everything after runs on
them alone: see numba_support.py.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import REALS, SMALL, plain, run
from polymax.kernels.numba_math import add, exp2, inline, kernel, log2_1p, row_dot, row_max, row_sum, rows_at
from polymax.kernels.numba_memory import array_at, give_back, lean_kernel, taken_as_is
from polymax.kernels.numba_pack import pack_above
from polymax.kernels.numba_peaks import PEAKS
from polymax.kernels.threshold import NORM, TSALLIS
from polymax.kernels.threshold.numba_general import LONGEST, NEAREST, TOGETHER, general_bytes, general_rows
from polymax.kernels.threshold.numba_packed import looks_full, packed_response, packed_row, respond
from polymax.kernels.threshold.numba_short import SHORT, entmax15_rows, room, sparsemax_rows
from polymax.kernels.threshold.numba_softmax import softmax_row
from polymax.kernels.threshold.numba_support import (
    BLOCK,
    entmax15_powers,
    general_powers,
    response_weights,
    sparsemax_powers,
    support_powers,
)

# entries that are passed over together where none of them can be in the support
PASSED = 64


def threshold(x: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    if x.dtype != torch.float64 and (alpha > 2 if alphas is None else bool((alphas > 2).any())):
        return _above_2(threshold, (x,), alpha, family, alphas)
    scores = x if x.dtype in REALS and x.is_contiguous() else plain(x)
    y, n = torch.empty_like(scores), x.shape[-1]
    each = None if alphas is None else alphas.detach().to(torch.float64).contiguous()
    count, cost = x.numel() // max(n, 1), n * (_PASSES.get(alpha, 12) if alphas is None else 12)
    if alphas is not None:
        kernel = _each
    elif family == TSALLIS:
        kernel = (_SHORT if n <= SHORT else _LONG).get(alpha) or _other(alpha, n)
    else:
        kernel = _general
    args = (
        n, scores.data_ptr(), y.data_ptr(), REALS[y.dtype], float(alpha), 0 if each is None else each.data_ptr(), family
    )  # fmt: skip
    if count * cost < SMALL:
        kernel(0, count, *args)
    else:
        run(kernel, count, cost, *args)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def threshold_backward(y: Tensor, v: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    if y.dtype != torch.float64 and (alpha > 2 if alphas is None else bool((alphas > 2).any())):
        return _above_2(threshold_backward, (y, v), alpha, family, alphas)
    weights = y if y.dtype in REALS and y.is_contiguous() else plain(y)
    direction = v if v.dtype == weights.dtype and v.is_contiguous() else v.to(weights.dtype).contiguous()
    out, n = torch.empty_like(weights), y.shape[-1]
    each = None if alphas is None else alphas.detach().to(torch.float64).contiguous()
    count = y.numel() // max(n, 1)
    cost = n
    if family != TSALLIS:
        kernel = _threshold_backward
    elif alphas is None:
        kernel = _BACKWARD.get(alpha) or (_between_backward if 1 < alpha < 2 else _tsallis_backward)
        cost = n if alpha in _BACKWARD else 3 * n
    else:
        kernel = _tsallis_backward
    args = (
        n, weights.data_ptr(), direction.data_ptr(), out.data_ptr(), REALS[out.dtype], float(alpha),
        0 if each is None else each.data_ptr(), family,
    )  # fmt: skip
    if count * cost < SMALL:
        kernel(0, count, *args)
    else:
        run(kernel, count, cost, *args)
    return out if out.dtype == y.dtype else out.to(y.dtype)


def _other(alpha, n):
    """The kernel of a Tsallis entropy without one of its own."""
    if alpha < 1:
        return _below_1
    if alpha > 2:
        return _general
    return _between_short if n <= LONGEST else _between_long


def _above_2(function, tensors, alpha, family, alphas):
    """In float64, where an alpha is above 2: powers below 1 amplify rounding near the edge of the support."""
    wide = [t.double() for t in tensors]
    if alphas is None:
        return function(*wide, alpha, family).to(tensors[0].dtype)
    steep = alphas > 2
    found = function(*tensors, alpha, family, torch.where(steep, 2, alphas))
    found[steep] = function(*(t[steep] for t in wide), alpha, family, alphas[steep]).to(found.dtype)
    return found


# A kernel for each way, so that a first call compiles no more than it needs.


@kernel
def _sparsemax_short(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    sparsemax_rows(x[start:stop], y[start:stop], room(x.dtype))


@kernel
def _entmax15_short(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    entmax15_rows(x[start:stop], y[start:stop], room(x.dtype))


@kernel
def _sparsemax_long(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    z, power, index = np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, np.int32)
    for i in range(start, stop):
        count = _gather_few(x[i], x.dtype.type(-1), z, index)
        _spread(y[i], power, index, sparsemax_powers(z, index, count, power) if count > 0 else count)


@kernel
def _entmax15_long(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    z, power, index = np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, np.int32)
    for i in range(start, stop):
        count = _gather(x[i], x.dtype.type(-2), z, index)
        _spread(y[i], power, index, entmax15_powers(z, index, count, power) if count > 0 else count)


@kernel
def _softmax_rows(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    for i in range(start, stop):
        softmax_row(x[i], y[i])


@lean_kernel
def _between_short(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    """Tsallis entropies with alpha between 1 and 2, of rows too short to pack from."""
    x, y = array_at(x_at, (stop, n), real), array_at(y_at, (stop, n), real)
    memory = taken_as_is(8 * (stop - start) + general_bytes(n))
    rows, none = array_at(memory, (stop - start,), np.int64(0)), array_at(memory, (0,), 0.0)
    for i in range(start, stop):
        rows[i - start] = i
    general_rows(x, y, rows, stop - start, none, alpha, memory + 8 * (stop - start))
    give_back(memory)


@lean_kernel
def _between_long(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    """Tsallis entropies with alpha between 1 and 2."""
    x, y = array_at(x_at, (stop, n), real), array_at(y_at, (stop, n), real)
    room = n + BLOCK
    memory = taken_as_is(8 * (3 * room + PEAKS + 2 * TOGETHER) + general_bytes(n))
    z, power = array_at(memory, (room,), real), array_at(memory + 8 * room, (room,), real)
    index, rest = array_at(memory + 16 * room, (room,), np.int32(0)), memory + 24 * room
    peaks = array_at(rest, (PEAKS,), real)
    # rows that are taken as a whole, some together
    whole, starts = array_at(rest + 8 * PEAKS, (TOGETHER,), np.int64(0)), array_at(rest + 8 * (PEAKS + TOGETHER), (TOGETHER,), 0.0)
    count = 0
    for i in range(start, stop):
        whole[count], starts[count] = i, packed_row(x[i], y[i], alpha, z, power, index, peaks)
        count += starts[count] >= 0
        if count == TOGETHER or i == stop - 1:
            general_rows(x, y, whole, count, starts, alpha, rest + 8 * (PEAKS + 2 * TOGETHER))
            count = 0
    give_back(memory)


@kernel
def _general(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    """Any family, and any alpha above 1 but those of Tsallis entropies that have ways of their own."""
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    z, power, index = np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, np.int32)
    for i in range(start, stop):
        count = _gather(x[i], x.dtype.type(-1 / (alpha - 1) if family == TSALLIS else -1.0), z, index)
        if count > 0:
            count = general_powers(z, index, count, power, alpha, family, 0.0)[0]
        _spread(y[i], power, index, count)


@kernel
def _below_1(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    """Tsallis entropies with alpha below 1."""
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    z, power, index = np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, np.int32)
    for i in range(start, stop):
        count = _gather(x[i], x.dtype.type(-np.inf), z, index)
        if count > 0:
            _dense(z[:count], power, 1 - alpha)
        _spread(y[i], power, index, count)


@kernel
def _each(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    """Rows with an alpha of their own."""
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    alphas = rows_at(alphas_at, 1, stop, 0.0)[0]
    z, power, index = np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, np.int32)
    space = room(x.dtype)
    for i in range(start, stop):
        a = alphas[i]
        if family == TSALLIS and a == 2 and n <= SHORT:
            sparsemax_rows(x[i : i + 1], y[i : i + 1], space)
        elif family == TSALLIS and a == 1.5 and n <= SHORT:
            entmax15_rows(x[i : i + 1], y[i : i + 1], space)
        elif family == TSALLIS and a == 1:
            softmax_row(x[i], y[i])
        else:
            _weigh_in_general(x[i], y[i], z, power, index, a, family)


# the Tsallis entropies whose powers cost nothing
_SHORT = {1: _softmax_rows, 1.5: _entmax15_short, 2: _sparsemax_short}
_LONG = {1: _softmax_rows, 1.5: _entmax15_long, 2: _sparsemax_long}
# about how many passes over a row their time is that of
_PASSES = {1: 2, 1.5: 4, 2: 2}


@inline
def _weigh_in_general(x, row, z, power, index, alpha, family):
    """Fill a row with the weights of the scores x."""
    lowest = -1.0
    if family == TSALLIS:
        lowest = -1 / (alpha - 1) if alpha > 1 else -np.inf
    count = _gather(x, x.dtype.type(lowest), z, index)
    if count > 0:
        if alpha < 1:
            _dense(z[:count], power, 1 - alpha)
        else:
            count = support_powers(z, index, count, power, alpha, family)
    _spread(row, power, index, count)


@inline
def _spread(row, power, index, count):
    """Fill a row with `count` weights, normalised, at their places; all NaN where the count is -1."""
    row[:] = 0 if count >= 0 else np.nan
    if count > 0:
        factor = 1 / row_sum(power[:count])
        for j in range(count):
            row[index[j]] = power[j] * factor


@inline
def _gather(x, lowest, z, index):
    """Pack entries with x - max > lowest to the front of z, with their index; their count, or -1 with a NaN."""
    top = _top(x)
    count = 0
    for j in range(x.size):
        d = x[j] - top
        z[count] = d
        index[count] = j
        # a NaN is not below anything, and so is found among the few
        count += not d <= lowest
    return _checked(z, count)


@inline
def _gather_few(x, lowest, z, index):
    """The same where few entries are packed: the others are passed over many at a time."""
    top = _top(x)
    count = 0
    whole = x.size - x.size % PASSED
    for start in range(0, whole, PASSED):
        some = False
        for k in range(PASSED):
            some = some | (not x[start + k] - top <= lowest)
        if some:
            count = _pack(x, start, start + PASSED, top, lowest, z, index, count)
    return _checked(z, _pack(x, whole, x.size, top, lowest, z, index, count))


@inline
def _pack(x, start, stop, top, lowest, z, index, count):
    for j in range(start, stop):
        d = x[j] - top
        z[count] = d
        index[count] = j
        count += not d <= lowest
    return count


@inline
def _top(x):
    top = row_max(x)
    # -inf if all entries are -inf or NaN
    return top if top > -np.inf else x.dtype.type(0)


@inline
def _checked(z, count):
    bad = 0
    for j in range(count):
        bad += z[j] != z[j]
    return -1 if bad > 0 else count


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
        for j in range(z.size):
            power[j] = exp2(power[j])
        lower = total = zero
        for j in range(z.size):
            total = add(total, power[j])
            lower = add(lower, power[j] / (one + real(b) * (real(t) - z[j])))
        step = np.expm1(b * np.log(np.float64(total))) * total / (b * lower)
        if not step > tolerance * (1 + t):
            break
        t += step


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


# of a row without an alpha of its own
_BACKWARD = {1: _softmax_backward, 1.5: _entmax15_backward, 2: _sparsemax_backward}


@kernel
def _tsallis_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    y, v, out = rows_at(y_at, stop, n, real), rows_at(v_at, stop, n, real), rows_at(out_at, stop, n, real)
    alphas = rows_at(alphas_at, 1, stop if alphas_at else 0, 0.0)[0]
    w = np.empty(n, y.dtype)
    for i in range(start, stop):
        response_weights(y[i], alphas[i] if alphas_at else alpha, w)
        total = mean = y.dtype.type(0)
        for j in range(n):
            total = add(total, w[j])
            mean = add(mean, w[j] * v[i, j])
        mean = mean / total if total != 0 else total
        for j in range(n):
            d = w[j] * (v[i, j] - mean)
            out[i, j] = 0 if w[j] == 0 else d


@lean_kernel
def _between_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    """The same for one alpha between 1 and 2: powers of several short rows together, of long rows those of the support."""
    y, v, out = array_at(y_at, (stop, n), real), array_at(v_at, (stop, n), real), array_at(out_at, (stop, n), real)
    together = max(NEAREST // max(n, 1), 1) if n <= LONGEST else 1
    room = together * n + BLOCK
    memory = taken_as_is(20 * room)
    w, values = array_at(memory, (room,), real), array_at(memory + 8 * room, (room,), real)
    index = array_at(memory + 16 * room, (room,), np.int32(0))
    for first in range(start, stop, together):
        full = n <= LONGEST or looks_full(y[first], real, real)
        count = n if full else pack_above(y[first], real, real, index)
        if 4 * count <= n:
            packed_response(y[first], v[first], alpha, index, count, w, values, out[first])
            continue
        last = min(first + together, stop)
        flat = array_at(y_at + first * n * y.itemsize, ((last - first) * n,), real)
        response_weights(flat, alpha, w)
        for i in range(first, last):
            respond(w[(i - first) * n : (i - first + 1) * n], v[i], out[i])
    give_back(memory)


@kernel
def _threshold_backward(start, stop, n, y_at, v_at, out_at, real, alpha, alphas_at, family):
    """The other families."""
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
    """a, b, c of J v = w (a v + b) + c y."""
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
