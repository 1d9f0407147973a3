"""Threshold by Newton's method on the few entries that can be in the support, for Numba.

Only entries within 1/scale of the maximum can get weight: they are gathered first, and all later steps use only them:
see numba_support.py.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_rows import REALS, SMALL, plain, run
from polymax.backend.numba_math import (
    add,
    exp2,
    inline,
    kernel,
    log2_1p,
    row_max,
    row_sum,
    rows_at,
)
from polymax.backend.numba_memory import array_at, give_back, lean_kernel, taken_as_is
from polymax.backend.numba_peaks import PEAKS
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold.cpu_gradients import gradient_kernel
from polymax.kernels.threshold.numba_general import LONGEST, NEAREST, TOGETHER, general_rows
from polymax.kernels.threshold.numba_packed import pack_row
from polymax.kernels.threshold.numba_short import SHORT, entmax15_rows, room, sparsemax_rows
from polymax.kernels.threshold.numba_softmax import softmax_row
from polymax.kernels.threshold.numba_support import (
    BLOCK,
    entmax15_powers,
    general_powers,
    sparsemax_powers,
    support_powers,
)

# entries that are skipped together if none of them can be in the support
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
    kernel, cost = gradient_kernel(alpha, family, n, alphas is not None)
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
    """Return the kernel of a Tsallis entropy that has no special kernel."""
    if alpha < 1:
        return _below_1
    if alpha > 2:
        return _general
    return _between_short if n <= LONGEST else _between_long


def _above_2(function, tensors, alpha, family, alphas):
    """Return function's result, computed in float64 for alpha > 2: powers below 1 amplify rounding near the support's
    edge.
    """
    wide = [t.double() for t in tensors]
    if alphas is None:
        return function(*wide, alpha, family).to(tensors[0].dtype)
    steep = alphas > 2
    found = function(*tensors, alpha, family, torch.where(steep, 2, alphas))
    found[steep] = function(*(t[steep] for t in wide), alpha, family, alphas[steep]).to(found.dtype)
    return found


# A kernel for each method, so that a first call compiles no more than it needs.


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
    space = long_room(n, x.dtype)
    for i in range(start, stop):
        sparsemax_row(x[i], y[i], space)


@inline
def long_room(n, real):
    """Return memory for `sparsemax_row`: the entries that can have weight, their weights and indices."""
    return np.empty(n + BLOCK, real), np.empty(n + BLOCK, real), np.empty(n + BLOCK, np.int32)


@inline
def sparsemax_row(x, y, space):
    """Fill a long row with its weights."""
    z, power, index = space
    count = _gather_few(x, x.dtype.type(-1), z, index)
    _spread(y, power, index, sparsemax_powers(z, index, count, power) if count > 0 else count)


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
    """Write the weights of Tsallis entropies with alpha between 1 and 2, for rows too short for packing."""
    together, line = min(TOGETHER, max(NEAREST // max(n, 1), 1)), n * array_at(x_at, (0,), real).itemsize
    memory = taken_as_is(8 * (13 * TOGETHER + NEAREST + n))
    jobs, numbers = array_at(memory, (4, TOGETHER), np.int64(0)), array_at(memory + 32 * TOGETHER, (4, TOGETHER), 0.0)
    sizes, marks = (
        array_at(memory + 64 * TOGETHER, (4, TOGETHER), real),
        array_at(memory + 96 * TOGETHER, (2, TOGETHER), np.int32(0)),
    )
    powers = array_at(memory + 104 * TOGETHER, (NEAREST + n,), real)
    for first in range(start, stop, together):
        count = min(together, stop - first)
        for k in range(count):
            jobs[0, k], jobs[2, k] = x_at + (first + k) * line, y_at + (first + k) * line
            jobs[1, k], jobs[3, k] = n, k * n
        general_rows(jobs, count, alpha, True, numbers, sizes, marks, powers)
    give_back(memory)


@lean_kernel
def _between_long(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    """Write the weights of Tsallis entropies with alpha between 1 and 2: several rows together, packed."""
    x, y = array_at(x_at, (stop, n), real), array_at(y_at, (stop, n), real)
    # a small allocation lies in pages that are already mapped
    item, most = x.itemsize, NEAREST + n + BLOCK
    memory = taken_as_is(8 * (17 * TOGETHER + PEAKS) + (3 * item + 4) * most)
    jobs, numbers = array_at(memory, (4, TOGETHER), np.int64(0)), array_at(memory + 32 * TOGETHER, (4, TOGETHER), 0.0)
    sizes, marks = (
        array_at(memory + 64 * TOGETHER, (4, TOGETHER), real),
        array_at(memory + 96 * TOGETHER, (2, TOGETHER), np.int32(0)),
    )
    rest = memory + 104 * TOGETHER
    rows, again = array_at(rest, (2, TOGETHER), np.int64(0)), array_at(rest + 16 * TOGETHER, (TOGETHER,), np.int64(0))
    bounds, rest = array_at(rest + 24 * TOGETHER, (TOGETHER,), 0.0), rest + 32 * TOGETHER
    peaks, rest = array_at(rest, (PEAKS,), real), rest + 8 * PEAKS
    z, z_at, weights_at = array_at(rest, (most,), real), rest, rest + item * most
    weights, powers = array_at(weights_at, (most,), real), array_at(rest + 2 * item * most, (most,), real)
    index = array_at(rest + 3 * item * most, (most,), np.int32(0))
    following, count, used, left = start, 0, 0, 0
    while following < stop or left > 0 or count > 0:
        if following < stop or left > 0:
            # rows whose bound was too high are repeated as a whole before other rows
            whole = left > 0
            left -= whole
            i = again[left] if whole else following
            following += not whole
            packed, t = pack_row(x[i], y[i], alpha, whole, z[used:], index[used:], peaks)
            width = n if packed < 0 else packed + (-packed) % BLOCK
            rows[0, count], rows[1, count] = i, packed
            jobs[0, count] = z_at + used * item if packed > 0 else x_at + i * n * item
            jobs[2, count] = weights_at + used * item if packed > 0 else y_at + i * n * item
            jobs[1, count], jobs[3, count], numbers[0, count], bounds[count] = width, used, t, t
            count += width > 0
            used += width
            if count < TOGETHER and used + n + BLOCK <= most and (following < stop or left > 0):
                continue
        general_rows(jobs, count, alpha, None, numbers, sizes, marks, powers)
        for k in range(count):
            i, first = rows[0, k], jobs[3, k]
            if rows[1, k] > 0 and not numbers[0, k] >= bounds[k]:
                again[left] = i
                left += 1
                continue
            for q in range(first, first + rows[1, k]):
                y[i, index[q]] = weights[q]
        count, used = 0, 0
    give_back(memory)


@kernel
def _general(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    """Write the weights for any family and alpha > 1, except the Tsallis entropies with special kernels."""
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    z, power, index = np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, np.int32)
    for i in range(start, stop):
        count = _gather(x[i], x.dtype.type(-1 / (alpha - 1) if family == TSALLIS else -1.0), z, index)
        if count > 0:
            count = general_powers(z, index, count, power, alpha, family)
        _spread(y[i], power, index, count)


@kernel
def _below_1(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    """Write the weights of Tsallis entropies with alpha below 1."""
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    z, power, index = np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, x.dtype), np.empty(n + BLOCK, np.int32)
    for i in range(start, stop):
        count = _gather(x[i], x.dtype.type(-np.inf), z, index)
        if count > 0:
            _dense(z[:count], power, 1 - alpha)
        _spread(y[i], power, index, count)


@kernel
def _each(start, stop, n, x_at, y_at, real, alpha, alphas_at, family):
    """Write the weights of rows that each have their own alpha."""
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


# special kernels of the Tsallis entropies whose powers cost nothing
_SHORT = {1: _softmax_rows, 1.5: _entmax15_short, 2: _sparsemax_short}
_LONG = {1: _softmax_rows, 1.5: _entmax15_long, 2: _sparsemax_long}
# their time in units of about a pass over a row
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
    """Fill a row with `count` normalised weights at their indices; with NaN if the count is -1."""
    row[:] = 0 if count >= 0 else np.nan
    if count > 0:
        factor = 1 / row_sum(power[:count])
        for j in range(count):
            row[index[j]] = power[j] * factor


@inline
def _gather(x, lowest, z, index):
    """Pack entries with x - max > lowest to the front of z, with their indices; return their count, or -1 for a NaN."""
    top = _top(x)
    count = 0
    for j in range(x.size):
        d = x[j] - top
        z[count] = d
        index[count] = j
        # comparisons with NaN are False, so that a NaN is packed
        count += not d <= lowest
    return _checked(z, count)


@inline
def _gather_few(x, lowest, z, index):
    """Pack as `_gather` does, faster if few entries are packed: the others are skipped many at a time."""
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
    """Write power = d^(-1/b) with d = 1 + b (t - z) >= 1 and b = 1 - alpha: the positive weights for alpha < 1.

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
