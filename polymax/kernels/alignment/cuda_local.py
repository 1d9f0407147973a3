"""Smoothed maxima of three numbers, lane by lane, for Triton.

The arguments are given less their maximum, so that the largest is 0. Each function returns the three weights, and the
difference of the smoothed maximum to the maximum; if all arguments are -inf the weights are 0.
"""

import math

import triton
import triton.language as tl

from polymax.backend.triton_math import log2_1p
from polymax.kernels.local_max.triton_max import GINI, SHANNON, TSALLIS

LN_2 = tl.constexpr(math.log(2))


@triton.jit
def smooth(b_a, b_b, b_c, KIND: tl.constexpr, ALPHA: tl.constexpr, WIDE: tl.constexpr):
    """Return weights and value, by the kind of smoothing."""
    if KIND == SHANNON:
        b_p, b_q, b_s, b_value = _shannon(b_a, b_b, b_c, WIDE)
    elif KIND == GINI:
        b_p, b_q, b_s, b_value = _gini(b_a, b_b, b_c)
    elif KIND == TSALLIS:
        b_p, b_q, b_s, b_value = _tsallis(b_a, b_b, b_c, ALPHA, WIDE)
    else:
        b_p = (b_a == 0).to(b_a.dtype)
        b_q = tl.where(b_b == 0, 1 - b_p, 0)
        b_s = tl.where(b_c == 0, 1 - b_p - b_q, 0)
        b_value = b_p * 0
    return b_p, b_q, b_s, b_value


@triton.jit
def _shannon(b_a, b_b, b_c, WIDE: tl.constexpr):
    b_a = tl.exp(b_a)
    b_b = tl.exp(b_b)
    b_c = tl.exp(b_c)
    b_total = b_a + b_b + b_c
    b_total = tl.where(b_total > 0, b_total, 1)
    if WIDE:
        b_scale = 1 / b_total
        b_value = tl.log(b_total)
    else:
        # rounded to nearest: a bias of the sum of weights would let the expectation drift along a path
        b_scale = tl.div_rn(b_total * 0 + 1, b_total)
        # log(1 + t) = 2 atanh(t / (t + 2)), by a minimax polynomial for 0 <= t <= 2
        b_s = (b_total - 1) / (b_total + 1)
        b_q = b_s * b_s
        b_series = 0.33333730 + b_q * (0.19978217 + b_q * (0.14669142 + b_q * (0.082437103 + b_q * 0.18173994)))
        b_value = 2 * b_s * (1 + b_q * b_series)
    return b_a * b_scale, b_b * b_scale, b_c * b_scale, b_value


@triton.jit
def _gini(b_a, b_b, b_c):
    dtype = b_a.dtype
    # in float64, for weights that sum to 1
    b_a = b_a.to(tl.float64)
    b_b = b_b.to(tl.float64)
    b_c = b_c.to(tl.float64)
    b_side = tl.minimum(b_a, b_b)
    b_low = tl.minimum(b_side, b_c)
    b_middle = tl.maximum(b_side, tl.minimum(tl.maximum(b_a, b_b), b_c))
    # tau by the size of the support: the largest is 0
    b_tau = tl.where(b_middle > -1, 0.5 * (b_middle - 1), -1)
    b_tau = tl.where(b_low > b_tau, (b_middle + b_low - 1) / 3, b_tau)
    # an argument outside the support counts as tau: its weight is 0, and it may be -inf
    b_a = tl.maximum(b_a, b_tau)
    b_b = tl.maximum(b_b, b_tau)
    b_c = tl.maximum(b_c, b_tau)
    b_p = b_a - b_tau
    b_q = b_b - b_tau
    b_s = b_c - b_tau
    b_value = 0.5 + b_p * (b_a - 0.5 * b_p) + b_q * (b_b - 0.5 * b_q) + b_s * (b_c - 0.5 * b_s)
    return b_p.to(dtype), b_q.to(dtype), b_s.to(dtype), b_value.to(dtype)


@triton.jit
def _tsallis(b_a, b_b, b_c, ALPHA: tl.constexpr, WIDE: tl.constexpr):
    """Return p = (1 + scale (a - t))_+^q with scale = alpha - 1 and q = 1 / scale, for t in [0, 1 / scale]."""
    dtype = b_a.dtype
    SCALE: tl.constexpr = ALPHA - 1
    Q: tl.constexpr = 1 / (ALPHA - 1)
    b_t = b_a * 0
    b_t = tl.where(b_t == b_t, b_t, 0)
    if ALPHA < 2:
        # Newton on the q-norm, monotone from the left
        for _ in range(20 if WIDE else 12):
            b_low_p, b_p = _power(b_a, b_t, SCALE, Q, WIDE)
            b_low_q, b_q = _power(b_b, b_t, SCALE, Q, WIDE)
            b_low_s, b_s = _power(b_c, b_t, SCALE, Q, WIDE)
            b_total = tl.maximum(b_p + b_q + b_s, 1)
            b_lower = b_low_p + b_low_q + b_low_s
            b_x = SCALE * LN_2 * log2_1p(b_total - 1, WIDE)
            b_near = b_x * (1 - b_x * (0.5 - b_x / 6))
            b_rise = tl.where(b_x > (1e-5 if WIDE else 1e-2), 1 - tl.exp(-b_x), b_near)
            b_t += b_rise * Q * b_total / tl.where(b_lower > 0, b_lower, 1)
    else:
        # with powers below 1 the slope is unbounded at the edge of the support: halve the interval
        b_width = b_t + Q
        for _ in range(60 if WIDE else 30):
            b_width = 0.5 * b_width
            b_low_p, b_p = _power(b_a, b_t + b_width, SCALE, Q, WIDE)
            b_low_q, b_q = _power(b_b, b_t + b_width, SCALE, Q, WIDE)
            b_low_s, b_s = _power(b_c, b_t + b_width, SCALE, Q, WIDE)
            b_t += tl.where(b_p + b_q + b_s >= 1, b_width, 0)
    b_low_p, b_p = _power(b_a, b_t, SCALE, Q, WIDE)
    b_low_q, b_q = _power(b_b, b_t, SCALE, Q, WIDE)
    b_low_s, b_s = _power(b_c, b_t, SCALE, Q, WIDE)
    # in float64, for weights that sum to 1
    b_p = b_p.to(tl.float64)
    b_q = b_q.to(tl.float64)
    b_s = b_s.to(tl.float64)
    b_total = b_p + b_q + b_s
    b_factor = 1 / tl.where(b_total > 0, b_total, 1)
    b_mean = tl.where(b_p > 0, b_p * b_a, 0) + tl.where(b_q > 0, b_q * b_b, 0) + tl.where(b_s > 0, b_s * b_c, 0)
    b_mean *= b_factor
    # <p, a> - Omega(p); Omega is linear in t on the support, and total - 1 is the remaining error of t
    b_apart = b_mean - b_t
    b_value = b_mean + ((b_total - 1) * (1 + SCALE * b_apart) - b_apart) / ALPHA
    b_value = tl.where(b_total > 0, b_value, 0)
    return (b_p * b_factor).to(dtype), (b_q * b_factor).to(dtype), (b_s * b_factor).to(dtype), b_value.to(dtype)


@triton.jit
def _power(b_a, b_t, SCALE: tl.constexpr, Q: tl.constexpr, WIDE: tl.constexpr):
    """Return (1 + s)_+^(q - 1) and (1 + s)_+^q for s = scale (a - t)."""
    b_s = SCALE * (b_a - b_t)
    m_in = b_s > -1
    b_s = tl.where(m_in, b_s, 0)
    b_lower = tl.where(m_in, tl.exp2(log2_1p(b_s, WIDE) * (Q - 1)), 0)
    return b_lower, b_lower * (1 + b_s)
