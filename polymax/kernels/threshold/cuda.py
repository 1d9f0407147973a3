"""Threshold with the row in registers: one read, one write, every Newton step on chip. For Triton.

For rows too long for the registers, the kernels of cuda_long.py read the row again at each step.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Bound, Entry
from polymax.backend.triton_math import fast_log2, here, on_device, tile
from polymax.kernels.threshold import SQUARED_NORM, TSALLIS
from polymax.kernels.threshold.cuda_long import long_backward, long_forward
from polymax.kernels.threshold.cuda_steps import (
    ABOVE_2,
    ALL_ROWS,
    ENTMAX15,
    GENERAL,
    IS_SQUARED,
    IS_TSALLIS,
    LOG2_E,
    POWER,
    SOFTMAX,
    SPARSEMAX,
    UP_TO_2,
    coefficients,
    exponents,
    highest,
    log2_distance,
    rows_of_part,
    step,
    weights,
)

# the longest rows that fit into the registers: one row forward, two backward
LONGEST = 32768
LONGEST_BACKWARD = 8192
CHUNK = 8192


def threshold(x: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    if alphas is None and x.is_contiguous() and here(x):
        # the most frequent call, kept short, since its host code takes microseconds
        launch = _forward_bound(x.shape, x.dtype, alpha, family)
        if launch is not None:
            y = torch.empty_like(x)
            launch(x, y, y)
            return y
    if family == SQUARED_NORM and alpha == 2:
        # for half the squared Euclidean norm there is a finite method
        family = TSALLIS
    scores = _precise(x, alpha, alphas).contiguous()
    y, n = torch.empty_like(scores), scores.shape[-1]
    count = scores.numel() // max(n, 1)
    if count:
        alphas = _exact(scores, alpha, family, alphas)
        args = (scores, y, y if alphas is None else alphas.contiguous(), count, n, alpha)
        with on_device(scores):
            for launch, grid in _forward_launches(count, n, scores.dtype, alpha, family, alphas is not None):
                launch(grid, *args)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def threshold_backward(y: Tensor, v: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    if alphas is None and y.is_contiguous() and v.is_contiguous() and v.dtype == y.dtype and here(y):
        launch = _backward_bound(y.shape, y.dtype, alpha, family)
        if launch is not None:
            out = torch.empty_like(y)
            launch(y, v, out, out)
            return out
    point = _precise(y, alpha, alphas).contiguous()
    out, n = torch.empty_like(point), point.shape[-1]
    count = point.numel() // max(n, 1)
    if count:
        alphas = _exact(point, alpha, family, alphas)
        direction = v.contiguous() if v.dtype == point.dtype else v.to(point.dtype).contiguous()
        args = (point, direction, out, out if alphas is None else alphas.contiguous(), count, n, alpha)
        with on_device(point):
            for launch, grid in _backward_launches(count, n, point.dtype, alpha, family, alphas is not None):
                launch(grid, *args)
    return out if out.dtype == y.dtype else out.to(y.dtype)


@lru_cache(maxsize=4096)
def _forward_bound(shape, dtype, alpha, family):
    """Return the single launch for scores of this kind; None if the call needs more than one launch."""
    if family == SQUARED_NORM and alpha == 2:
        family = TSALLIS
    return _bound(_forward_launches, shape, dtype, alpha, family)


@lru_cache(maxsize=4096)
def _backward_bound(shape, dtype, alpha, family):
    return _bound(_backward_launches, shape, dtype, alpha, family)


def _bound(launches, shape, dtype, alpha, family):
    count, n = shape[:-1].numel(), shape[-1]
    # cases that `_precise` and `_exact` change
    general = _method(alpha, family, False) == GENERAL.value
    if count * n == 0 or alpha > 2 or (general and (dtype == torch.float64 or abs(alpha - 1) < 1e-7)):
        return None
    ((launch, grid),) = launches(count, n, dtype, alpha, family, False)
    return Bound(launch, grid, count, n, alpha)


@lru_cache(maxsize=4096)
def _forward_launches(count, n, dtype, alpha, family, per_row):
    """Return kernels with their compile-time arguments, and their grids, for rows of this kind."""
    found = []
    for part, wide in _parts(dtype, per_row):
        options = {"FAMILY": family, "PER_ROW": per_row, "PART": part, "WIDE": wide}
        if n > LONGEST:
            found.append((long_forward.prepared(**options, BN=CHUNK, num_warps=16), (count,)))
            continue
        br, bn, warps = tile(count, n)
        options["METHOD"] = _forward_method(wide, alpha, family, per_row)
        options["STEEP"] = alpha < (1.5 if family == TSALLIS else 2)
        found.append((_short.prepared(**options, BR=br, BN=bn, num_warps=warps), (triton.cdiv(count, br),)))
    return tuple(found)


@lru_cache(maxsize=4096)
def _backward_launches(count, n, dtype, alpha, family, per_row):
    found = []
    for part, wide in _parts(dtype, per_row):
        options = {"FAMILY": family, "PER_ROW": per_row, "PART": part, "WIDE": wide}
        options["METHOD"] = _method(alpha, TSALLIS, per_row)
        if n > LONGEST_BACKWARD:
            found.append((long_backward.prepared(**options, BN=CHUNK, num_warps=16), (count,)))
            continue
        br, bn, warps = tile(count, n)
        found.append((_short_backward.prepared(**options, BR=br, BN=bn, num_warps=warps), (triton.cdiv(count, br),)))
    return tuple(found)


def _parts(dtype, per_row):
    """Return (rows, float64) of each launch: alphas stay on the device, so that each launch selects its rows by
    alpha.
    """
    wide = dtype == torch.float64
    if wide or not per_row:
        return [(ALL_ROWS.value, wide)]
    return [(UP_TO_2.value, False), (ABOVE_2.value, True)]


def _precise(x, alpha, alphas):
    # powers below 1 amplify rounding near the edge of the support, so alpha > 2 is computed in float64
    return x.double() if alpha > 2 and alphas is None else x


def _exact(x, alpha, family, alphas):
    # Triton passes a Python float in float32, too coarse for a float64 row and for an alpha that would round to 1: pass
    # a tensor with one alpha per row
    coarse = x.dtype == torch.float64 or abs(alpha - 1) < 1e-7
    if coarse and alphas is None and _method(alpha, family, False) == GENERAL.value:
        return torch.full(x.shape[:-1], alpha, dtype=torch.float64, device=x.device)
    return alphas


def _forward_method(wide, alpha, family, per_row):
    method = _method(alpha, family, per_row)
    # close to 1 the exponent 1 / (alpha - 1) multiplies the error of the hardware's logarithm; above 2 the r-norm is
    # not convex
    guarded = wide or per_row or not 1.02 <= alpha <= 2
    return POWER.value if method == GENERAL.value and not guarded else method


def _method(alpha, family, per_row):
    if per_row or family != TSALLIS:
        return GENERAL.value
    return {1.0: SOFTMAX, 2.0: SPARSEMAX, 1.5: ENTMAX15}.get(alpha, GENERAL).value


@triton.jit
def _power(b_z, b_t, alpha, FAMILY: tl.constexpr, STEEP: tl.constexpr, HALF: tl.constexpr):
    """Return the weights, up to their sum, for 1 < alpha <= 2 in float32: unguarded Newton or Halley steps from the
    left.

    A distance of 0 has the logarithm -inf and the power 0, so no entry needs a mask. STEEP means r > 2: only then does
    the second derivative exist.
    """
    if FAMILY == IS_TSALLIS:
        scale = alpha - 1
        r = 1 / (alpha - 1)
        k = r
    else:
        scale = alpha * 0 + 1
        r = alpha / (alpha - 1)
        k = r - 1
    go = 1
    i = 0
    while go > 0:
        b_d = tl.maximum(scale * b_z + (1 - scale * b_t), 0)
        b_p = tl.exp2(fast_log2(b_d) * (r - 2 if STEEP else r - 1))
        b_first = tl.sum(b_p, 1)[:, None]
        b_second = tl.sum(b_p * b_d, 1)[:, None]
        if STEEP:
            b_total = tl.sum(b_p * b_d * b_d, 1)[:, None]
            b_total = tl.where(b_total > 0, b_total, 1)
            b_lower = tl.where(b_second > 0, b_second, 1)
            b_ratio = b_lower / b_total
            b_curve = (r - 1) * b_first / b_lower
            if FAMILY == IS_SQUARED:
                b_log = fast_log2(b_lower) + (2 / r - 1) * fast_log2(b_total)
                b_slope = b_curve - (r - 2) * b_ratio
                b_change = (1 - tl.exp2(-b_log)) / tl.where(b_slope > 0, b_slope, b_ratio)
            else:
                b_newton = (1 - tl.exp2(-fast_log2(b_total) / r)) / b_ratio
                b_damp = 1 - 0.5 * b_newton * (b_curve - (r - 1) * b_ratio)
                b_change = b_newton / tl.where(b_damp > 0.5, b_damp, 1)
            # convergence is cubic, quadratic for SQUARED_NORM
            if FAMILY == IS_SQUARED:
                tolerance = 2e-3 if HALF else 1e-4
            else:
                tolerance = 2e-2 if HALF else 1e-3
        else:
            b_total = tl.where(b_second > 0, b_second, 1)
            b_change = (1 - tl.exp2(-fast_log2(b_total) / r)) * b_total / tl.where(b_first > 0, b_first, 1)
            # the slope is only Hoelder continuous, and convergence slower than quadratic
            tolerance = 1e-5 if HALF else 1e-6
        b_t += b_change / scale
        i += 1
        go = (tl.max(tl.abs(b_change)) > tolerance).to(tl.int32) * (i < 40).to(tl.int32)
    return tl.exp2(fast_log2(tl.maximum(scale * b_z + (1 - scale * b_t), 0)) * k)


@Entry
@triton.jit
def _short(
    p_x,
    p_y,
    p_alpha,
    count,
    n,
    alpha,
    FAMILY: tl.constexpr,
    PER_ROW: tl.constexpr,
    WIDE: tl.constexpr,
    METHOD: tl.constexpr,
    STEEP: tl.constexpr,
    PART: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
):
    dtype = tl.float64 if WIDE else tl.float32
    HALF: tl.constexpr = p_x.dtype.element_ty.primitive_bitwidth == 16
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_n = tl.arange(0, BN)
    m_r = rows_of_part(p_alpha, i_r, i_r < count, PART)
    m_n = m_r[:, None] & (o_n < n)[None, :]
    o_x = i_r[:, None] * n + o_n[None, :]
    b_x = tl.load(p_x + o_x, mask=m_n, other=float("-inf")).to(dtype)
    b_top = tl.max(b_x, 1)[:, None]
    m_dead = b_top == float("-inf")
    b_z = b_x - tl.where(m_dead, b_top * 0, b_top)
    b_z = tl.where(m_dead & (b_x == float("-inf")), b_x, b_z)
    m_bad = tl.max((b_z != b_z).to(tl.int32), 1)[:, None] > 0
    b_tau = tl.where(m_dead, 0, 0 * b_top) - 1
    # a NaN would keep the loops from ending: replace it here and put it back at the end
    b_tau = tl.where(b_tau != b_tau, -1, b_tau)
    b_z = tl.where(m_bad, -1, b_z)
    if METHOD == SOFTMAX:
        b_y = tl.exp2(b_z * LOG2_E)
    elif METHOD == SPARSEMAX:
        # Michelot: the threshold of a superset of the support is a lower bound of tau; it is tau when the count of
        # entries above it falls no further
        b_before = tl.zeros([BR, 1], dtype) + (BN + 1)
        go = 1
        while go > 0:
            # two steps for each check that all rows are done
            for _ in tl.static_range(2):
                m_in = b_z > b_tau
                b_count = tl.sum(tl.where(m_in, 1.0, 0.0).to(dtype), 1)[:, None]
                b_sum = tl.sum(tl.where(m_in, b_z, 0), 1)[:, None]
                m_fell = (b_count < b_before) & (b_count > 0)
                b_tau = tl.where(m_fell, (b_sum - 1) / tl.where(b_count > 0, b_count, 1), b_tau)
                b_before = tl.where(m_fell, b_count, b_before)
            go = tl.max(m_fell.to(tl.int32))
        b_y = tl.maximum(b_z - b_tau, 0)
    elif METHOD == ENTMAX15:
        # sum (u - tau)_+^2 = 1 with u = z / 2: Newton on its square root, from the left
        b_u = 0.5 * b_z
        go = 1
        i = 0
        while go > 0:
            b_d = tl.maximum(b_u - b_tau, 0)
            b_square = tl.sum(b_d * b_d, 1)[:, None]
            b_linear = tl.sum(b_d, 1)[:, None]
            b_step = (b_square - tl.sqrt(b_square)) / tl.where(b_linear > 0, b_linear, 1)
            b_tau += b_step
            i += 1
            # quadratic convergence: the step after this one is below rounding
            tolerance = 1e-8 if WIDE else (2e-3 if HALF else 1e-4)
            go = (tl.max(b_step) > tolerance).to(tl.int32) * (i < 60).to(tl.int32)
        b_d = tl.maximum(b_u - b_tau, 0)
        b_y = b_d * b_d
    elif METHOD == POWER:
        b_y = _power(b_z, b_tau * 0, alpha, FAMILY, STEEP, HALF)
    else:
        m_entropic, b_scale, b_r = exponents(p_alpha, i_r, m_r, alpha, FAMILY, PER_ROW, b_tau * 0)
        b_low = b_tau * 0
        b_high = highest(b_scale, n)
        b_t = b_low
        go = 1
        i = 0
        while go > 0:
            m_in, b_d, b_log = log2_distance(b_z, b_t, b_scale, WIDE)
            b_p = tl.where(m_in, tl.exp2(b_log * (b_r - 2)), 0)
            b_lowest = tl.sum(b_p, 1)[:, None]
            b_lower = tl.sum(b_p * b_d, 1)[:, None]
            b_total = tl.sum(b_p * b_d * b_d, 1)[:, None]
            b_guess, b_low, b_high, m_convex = step(
                b_t, b_low, b_high, b_lowest, b_lower, b_total, b_scale, b_r, FAMILY
            )
            b_change = tl.abs((b_guess - b_t) * b_scale)
            b_t = b_guess
            i += 1
            # convergence is at least quadratic, cubic with Halley: after a step this small, t is exact to rounding;
            # a bisection must close its bracket
            m_cubic = (b_r >= 2) & (FAMILY != IS_SQUARED)
            if WIDE:
                b_tol = tl.where(m_convex, tl.where(m_cubic, 1e-6, 1e-8), 1e-16)
            else:
                b_tol = tl.where(m_convex, tl.where(m_cubic, 1e-3, 1e-4), 1e-7)
            go = tl.max((b_change > b_tol).to(tl.int32)) * (i < 70).to(tl.int32)
        m_in, b_d, b_log = log2_distance(b_z, b_t, b_scale, WIDE)
        b_k = b_r if FAMILY == IS_TSALLIS else b_r - 1
        b_y = tl.where(m_in, tl.exp2(b_log * b_k), 0)
        if PER_ROW:
            b_y = tl.where(m_entropic, tl.exp2(b_z * LOG2_E), b_y)
    b_sum = tl.sum(b_y, 1)[:, None]
    b_y = b_y * (1 / tl.where(m_dead, 1, b_sum))
    b_y = tl.where(m_dead, 0, b_y)
    b_y = tl.where(m_bad, float("nan"), b_y)
    if p_y.dtype.element_ty != tl.float64:
        b_y = b_y.to(tl.float32)
    tl.store(p_y + o_x, b_y.to(p_y.dtype.element_ty), mask=m_n)


@Entry
@triton.jit
def _short_backward(
    p_y,
    p_v,
    p_out,
    p_alpha,
    count,
    n,
    alpha,
    FAMILY: tl.constexpr,
    PER_ROW: tl.constexpr,
    WIDE: tl.constexpr,
    METHOD: tl.constexpr,
    PART: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
):
    dtype = tl.float64 if WIDE else tl.float32
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_n = tl.arange(0, BN)
    m_r = rows_of_part(p_alpha, i_r, i_r < count, PART)
    m_n = m_r[:, None] & (o_n < n)[None, :]
    o_x = i_r[:, None] * n + o_n[None, :]
    b_y = tl.load(p_y + o_x, mask=m_n, other=0).to(dtype)
    b_v = tl.load(p_v + o_x, mask=m_n, other=0).to(dtype)
    b_alpha = tl.zeros([BR, 1], dtype) + alpha
    if PER_ROW:
        b_alpha = tl.load(p_alpha + i_r, mask=m_r, other=2.0).to(dtype)[:, None]
    b_w = weights(b_y, b_alpha, METHOD, WIDE)
    b_total = tl.sum(b_w, 1)[:, None]
    b_wv = tl.sum(b_w * b_v, 1)[:, None]
    b_yv = b_total * 0
    b_norm = b_total * 0 + 1
    if FAMILY != IS_TSALLIS:
        b_yv = tl.sum(b_y * b_v, 1)[:, None]
        # y^alpha = y^2 / w
        b_norm = tl.sum(tl.where(b_w > 0, b_y * b_y / tl.where(b_w > 0, b_w, 1), 0), 1)[:, None]
    b_a, b_b, b_c = coefficients(b_total, b_wv, b_yv, b_norm, b_alpha, FAMILY)
    b_out = tl.where(b_w == 0, 0, b_w * (b_a * b_v + b_b) + b_c * b_y)
    if p_out.dtype.element_ty != tl.float64:
        b_out = b_out.to(tl.float32)
    tl.store(p_out + o_x, b_out.to(p_out.dtype.element_ty), mask=m_n)
