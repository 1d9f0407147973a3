"""The smoothed maximum of the rows of a tile in Triton, in float64: values, weights, Jacobian of the weights.

Entries that are absent are -inf. A row of -inf has the value -inf and weights 0; NaN or inf make their row NaN.
"""

import math

import triton
import triton.language as tl

SHANNON, GINI, TSALLIS, HARD = (tl.constexpr(k) for k in range(4))


def smoothing(alpha: float) -> dict[str, float]:
    """The constants a kernel is compiled for."""
    kinds = {1.0: SHANNON, 2.0: GINI, math.inf: HARD}
    kind = kinds.get(alpha, TSALLIS).value
    # an alpha that is not used must not make another kernel
    return {"KIND": kind, "ALPHA": float(alpha) if kind == TSALLIS.value else 2.0}


@triton.jit
def _smooth_rows(b_a, KIND: tl.constexpr, ALPHA: tl.constexpr):
    """Values (R,) and weights (R, C) of the rows of a tile."""
    m_bad = tl.max(((b_a != b_a) | (b_a == float("inf"))).to(tl.int32), 1) > 0
    b_top = tl.max(b_a, 1)
    m_none = b_top == float("-inf")
    b_top = tl.where(m_bad | m_none, 0, b_top)
    # a NaN would keep the loops from ending: it is put back at the end
    b_z = tl.where(m_bad[:, None], 0, b_a - b_top[:, None])
    if KIND == SHANNON:
        b_p = tl.exp(b_z)
        b_sum = tl.where(m_none, 1, tl.sum(b_p, 1))
        b_value = tl.log(b_sum)
        b_p = b_p / b_sum[:, None]
    elif KIND == GINI:
        b_p, b_value = _gini(b_z)
    elif KIND == TSALLIS:
        b_p, b_value = _tsallis(b_z, m_none, ALPHA)
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
    """Values (R,) of the rows of a tile."""
    b_value, _ = _smooth_rows(b_a, KIND, ALPHA)
    return b_value


@triton.jit
def weight_rows(b_a, KIND: tl.constexpr, ALPHA: tl.constexpr):
    """Weights (R, C) of the rows of a tile."""
    _, b_p = _smooth_rows(b_a, KIND, ALPHA)
    return b_p


@triton.jit
def mean_rows(b_p, b_da):
    """The derivatives of the values of rows with weights p."""
    # an entry without weight may have an infinite tangent
    return tl.sum(b_p * tl.where(b_p != 0, b_da, 0), 1)


@triton.jit
def tangent_rows(b_p, b_da, KIND: tl.constexpr, ALPHA: tl.constexpr):
    """dp = J da with J = diag(s) - s s^T / sum(s), s = p^(2 - alpha) on the support."""
    if KIND == HARD:
        return tl.zeros_like(b_p)
    m_on = b_p != 0
    if KIND == SHANNON:
        b_s = b_p
    elif KIND == GINI:
        b_s = tl.where(m_on, 1.0, 0.0).to(b_p.dtype)
    else:
        b_s = tl.where(m_on, _power(tl.where(m_on, b_p, 1), 2 - ALPHA), 0)
    b_sum = tl.sum(b_s, 1)
    b_da = tl.where(m_on, b_da, 0)
    b_mean = tl.sum(b_s * b_da, 1) / tl.where(b_sum == 0, 1, b_sum)
    return b_s * (b_da - b_mean[:, None])


@triton.jit
def _gini(b_z):
    # thresholds grow and the support shrinks until both agree (Michelot); the cap ends what rounding might keep going
    COUNT: tl.constexpr = b_z.shape[1]
    b_tau = tl.zeros_like(tl.max(b_z, 1)) - 1
    b_size = tl.zeros_like(b_tau)
    step = 0
    go = 1
    while go > 0:
        m_on = b_z > b_tau[:, None]
        b_left = tl.sum(tl.where(m_on, 1.0, 0.0).to(b_z.dtype), 1)
        b_sum = tl.sum(tl.where(m_on, b_z, 0), 1)
        b_tau = (b_sum - 1) / tl.maximum(b_left, 1)
        step += 1
        go = tl.max((b_left != b_size).to(tl.int32)) * (step < COUNT).to(tl.int32)
        b_size = b_left
    b_p = tl.maximum(b_z - b_tau[:, None], 0)
    return b_p, tl.sum(b_p * (tl.where(b_p > 0, b_z, 0) - 0.5 * b_p), 1) + 0.5


@triton.jit
def _tsallis(b_z, m_none, ALPHA: tl.constexpr):
    # sum ((alpha - 1) z - tau)_+^q = 1 for tau in [-1, 0): Newton where it stays in the bracket, else halve
    Q: tl.constexpr = 1 / (ALPHA - 1)
    b_tau = tl.zeros_like(tl.max(b_z, 1)) - 1
    b_low = b_tau
    b_high = tl.zeros_like(b_tau)
    step = 0
    go = 1
    while go > 0:
        b_base = (ALPHA - 1) * b_z - b_tau[:, None]
        m_on = b_base > 0
        b_base = tl.where(m_on, b_base, 1)
        b_power = tl.where(m_on, _power(b_base, Q - 1), 0)
        b_sum = tl.sum(b_power * b_base, 1) - 1
        b_slope = Q * tl.sum(b_power, 1)
        b_low = tl.where(b_sum >= 0, b_tau, b_low)
        b_high = tl.where(b_sum >= 0, b_high, b_tau)
        b_next = b_tau + b_sum / tl.where(b_slope > 0, b_slope, 1)
        # a few roundings of a number below 1: halving what is left would start over
        m_close = m_none | (tl.abs(b_next - b_tau) <= 1e-15)
        m_inside = m_close | ((b_low < b_next) & (b_next < b_high))
        b_next = tl.where(m_inside, b_next, 0.5 * (b_low + b_high))
        b_tau = b_next
        step += 1
        go = tl.max((m_close == 0).to(tl.int32)) * (step < 60).to(tl.int32)
    b_base = (ALPHA - 1) * b_z - b_tau[:, None]
    m_on = b_base > 0
    b_p = tl.where(m_on, _power(tl.where(m_on, b_base, 1), Q), 0)
    b_sum = tl.sum(b_p, 1)
    b_p = b_p / tl.where(b_sum == 0, 1, b_sum)[:, None]
    m_on = b_p > 0
    b_omega = tl.where(m_on, _power(tl.where(m_on, b_p, 1), ALPHA), 0) / (ALPHA * (ALPHA - 1))
    return b_p, tl.sum(b_p * tl.where(m_on, b_z, 0) - b_omega, 1) + 1 / (ALPHA * (ALPHA - 1))


@triton.jit
def _power(b_x, K: tl.constexpr):
    """x ** K for x > 0."""
    if K == 1:
        return b_x
    if K == 2:
        return b_x * b_x
    if K == 0.5:
        return tl.sqrt(b_x)
    return tl.exp2(K * tl.log2(b_x))
