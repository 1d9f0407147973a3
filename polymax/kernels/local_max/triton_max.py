"""The smoothed maximum of the rows or columns of a tile in Triton: thresholds, values, weights, and their changes.

Absent entries are -inf. A row of -inf has the value -inf and weights 0; NaN or inf make their row NaN.
"""

import math

import numpy as np
import triton
import triton.language as tl

from polymax.kernels.local_max import CLOSE, ROUNDS

SHANNON, GINI, TSALLIS, HARD = (tl.constexpr(k) for k in range(4))
MOST = tl.constexpr(ROUNDS)
NEAR, NEAR_WIDE = (tl.constexpr(CLOSE[np.dtype(x)]) for x in (np.float32, np.float64))


@triton.jit
def power(b_x, K: tl.constexpr):
    """Return x ** K for x >= 0; 0 at 0."""
    if K == 0:
        return tl.where(b_x == 0, 0, b_x * 0 + 1)
    elif K == 1:
        return b_x
    elif K == 2:
        return b_x * b_x
    elif K == 0.5:
        return tl.sqrt(b_x)
    else:
        m_in = b_x > 0
        return tl.where(m_in, tl.exp2(K * tl.log2(tl.where(m_in, b_x, 1))), b_x)


@triton.jit
def threshold(b_z, ALPHA: tl.constexpr, KIND: tl.constexpr, AXIS: tl.constexpr):
    """Return tau in [-1, 0) at which the weights along an axis, whose maximum is 0, sum to 1; -1 if all entries are
    -inf.
    """
    b_tau = tl.zeros_like(tl.max(b_z, AXIS)) - 1
    b_low = b_tau
    b_high = tl.zeros_like(b_tau)
    i_round = 0
    go = 1
    while go > 0:
        b_base = (ALPHA - 1) * b_z - tl.expand_dims(b_tau, AXIS)
        m_in = b_base > 0
        b_base = tl.where(m_in, b_base, 1)
        b_rise = m_in.to(b_z.dtype)
        if KIND != GINI:
            b_rise = tl.where(m_in, power(b_base, 1 / (ALPHA - 1) - 1), 0)
        b_total = tl.sum(tl.where(m_in, b_rise * b_base, 0), AXIS)
        b_slope = tl.sum(b_rise, AXIS)
        b_tau, b_low, b_high, m_far = newton_step(b_tau, b_low, b_high, b_total, b_slope, ALPHA)
        i_round += 1
        go = tl.max(m_far.to(tl.int32)) * (i_round < MOST).to(tl.int32)
    return b_tau


@triton.jit
def newton_step(b_tau, b_low, b_high, b_total, b_slope, ALPHA: tl.constexpr):
    """Return the next threshold and its bracket, from the sums of weights and of their powers, and a mask of unfinished
    rows.

    It takes Newton's step on the norm of the bases, or halves the bracket if the step would leave it.
    """
    WIDE: tl.constexpr = b_tau.dtype == tl.float64
    b_low = tl.where(b_total > 1, b_tau, b_low)
    b_high = tl.where(b_total > 1, b_high, b_tau)
    b_one = b_total * 0 + 1
    if ALPHA != 2:
        b_one = power(b_total, 2 - ALPHA)
    b_newton = tl.where(b_slope > 0, b_tau + (b_total - b_one) / tl.where(b_slope > 0, b_slope, 1), b_tau)
    # at the root a Newton step is 0 and lies on the end of the bracket
    m_far = tl.abs(b_newton - b_tau) > (NEAR_WIDE if WIDE else NEAR)
    m_inside = (b_low < b_newton) & (b_newton < b_high)
    return tl.where(m_far & (m_inside == 0), 0.5 * (b_low + b_high), b_newton), b_low, b_high, m_far


@triton.jit
def bases(b_z, b_tau, ALPHA: tl.constexpr, KIND: tl.constexpr, AXIS: tl.constexpr):
    """Return ((alpha - 1) z - tau)_+, of which a weight is a power; NaN stays."""
    b_base = (b_z if KIND == GINI else (ALPHA - 1) * b_z) - tl.expand_dims(b_tau, AXIS)
    return tl.where(b_base <= 0, 0, b_base)


@triton.jit
def slopes(b_p, ALPHA: tl.constexpr, KIND: tl.constexpr):
    """Return p^(2 - alpha) on the support: the diagonal of the Jacobian of weights, before its mean is subtracted."""
    if KIND == SHANNON:
        return b_p
    elif KIND == GINI:
        return tl.where(b_p == 0, 0.0, 1.0).to(b_p.dtype)
    elif KIND == HARD:
        return b_p * 0
    else:
        return tl.where(b_p > 0, power(b_p, 2 - ALPHA), b_p)


@triton.jit
def gain(b_p, b_z, ALPHA: tl.constexpr, AXIS: tl.constexpr):
    """Return <p, z> - Omega(p) of weights that sum to 1 along an axis."""
    b_cost = (power(b_p, ALPHA) - b_p) / (ALPHA * (ALPHA - 1))
    return tl.sum(tl.where(b_p > 0, b_p * b_z - b_cost, 0), AXIS)


def kind_of(alpha: float) -> int:
    """Return the member of the Tsallis family."""
    return {1.0: SHANNON, 2.0: GINI, math.inf: HARD}.get(alpha, TSALLIS).value


def smoothing(alpha: float) -> dict[str, float]:
    """Return the constants a kernel is compiled for."""
    kind = kind_of(alpha)
    # an unused alpha must not cause another compilation
    return {"KIND": kind, "ALPHA": float(alpha) if kind == TSALLIS.value else 2.0}


@triton.jit
def _smooth_rows(b_a, KIND: tl.constexpr, ALPHA: tl.constexpr):
    """Return values (R,) and weights (R, C) of the rows of a tile."""
    m_bad = tl.max(((b_a != b_a) | (b_a == float("inf"))).to(tl.int32), 1) > 0
    b_top = tl.max(b_a, 1)
    m_none = b_top == float("-inf")
    b_top = tl.where(m_bad | m_none, 0, b_top)
    # a NaN would keep the loops from ending: replace it here and put it back at the end
    b_z = tl.where(m_bad[:, None], 0, b_a - b_top[:, None])
    if KIND == SHANNON:
        b_p = tl.exp(b_z)
        b_sum = tl.where(m_none, 1, tl.sum(b_p, 1))
        b_value = tl.log(b_sum)
        b_p = b_p / b_sum[:, None]
    elif KIND != HARD:
        b_tau = threshold(b_z, ALPHA, KIND, 1)
        b_p = power(bases(b_z, b_tau, ALPHA, KIND, 1), 1 / (ALPHA - 1))
        b_sum = tl.sum(b_p, 1)
        b_p = b_p / tl.where(b_sum == 0, 1, b_sum)[:, None]
        b_value = gain(b_p, b_z, ALPHA, 1)
    else:
        COUNT: tl.constexpr = b_a.shape[1]
        o_c = tl.arange(0, COUNT)[None, :]
        b_first = tl.min(tl.where(b_z == 0, o_c, COUNT), 1)
        b_p = tl.where(o_c == b_first[:, None], 1.0, 0.0).to(b_z.dtype)
        b_value = tl.zeros_like(b_top)
    b_value = tl.where(m_bad, float("nan"), tl.where(m_none, float("-inf"), b_top + b_value))
    return b_value, tl.where(m_bad[:, None], float("nan"), b_p)


@triton.jit
def value_rows(b_a, KIND: tl.constexpr, ALPHA: tl.constexpr):
    """Return values (R,) of the rows of a tile."""
    b_value, _ = _smooth_rows(b_a, KIND, ALPHA)
    return b_value


@triton.jit
def weight_rows(b_a, KIND: tl.constexpr, ALPHA: tl.constexpr):
    """Return weights (R, C) of the rows of a tile."""
    _, b_p = _smooth_rows(b_a, KIND, ALPHA)
    return b_p


@triton.jit
def mean_rows(b_p, b_da):
    """Return the derivatives of the values of rows with weights p."""
    # an entry without weight may have an infinite tangent
    return tl.sum(b_p * tl.where(b_p != 0, b_da, 0), 1)


@triton.jit
def tangent_rows(b_p, b_da, KIND: tl.constexpr, ALPHA: tl.constexpr):
    """Return dp = J da with J = diag(s) - s s^T / sum(s), s = p^(2 - alpha) on the support."""
    if KIND == HARD:
        return tl.zeros_like(b_p)
    m_on = b_p != 0
    b_s = slopes(b_p, ALPHA, KIND)
    b_sum = tl.sum(b_s, 1)
    b_da = tl.where(m_on, b_da, 0)
    b_mean = tl.sum(b_s * b_da, 1) / tl.where(b_sum == 0, 1, b_sum)
    return b_s * (b_da - b_mean[:, None])
