"""Smoothed maxima of three numbers, in the lanes of a strip, for Numba.

line[STRIP:] holds, for each lane, the three arguments less their maximum. The weights go to `weights`, and what the
smoothed maximum adds to the maximum to line[:STRIP]. A lane whose arguments are all -inf gets weights 0.
"""

import math

import numpy as np
from numba import types
from numba.extending import overload

from polymax.kernels.alignment import STRIP
from polymax.kernels.numba_math import _bits, _fma, _from_bits, exp2, inline, kernel, log2_1p
from polymax.kernels.numba_smooth import smooth_max

_LOG2_E = np.float32(np.log2(np.e))
# 1.5 * 2^23: adding it rounds to an integer, which is then in the last bits
_ROUND = np.float32(12582912)
_NEWTON = 20


def _exp(x):
    """exp(x) for x <= 0; exactly 0 at -inf."""
    return math.exp(x)


def _log_1p(t):
    """log(1 + t) for 0 <= t <= 2."""
    return math.log1p(t)


@overload(_exp)
def _exp_lane(x):
    if x != types.float32:
        return lambda x: math.exp(x)

    def exp_float32(x):
        # 2^z = 2^k 2^f with |f| <= 1/2, the second factor by a minimax polynomial; at -127 the bits of 2^z are 0
        z = x * _LOG2_E
        z = z if z > np.float32(-127) else np.float32(-127)
        k = z + _ROUND
        f = z - (k - _ROUND)
        series = _fma(f, np.float32(1.3264724e-3), np.float32(9.6715129e-3))
        series = _fma(f, series, np.float32(5.5507338e-2))
        series = _fma(f, series, np.float32(2.4022242e-1))
        series = _fma(f, series, np.float32(6.9314698e-1))
        series = _fma(f, series, np.float32(1))
        return _from_bits(np.int32(_bits(series) + np.int32(_bits(k) << np.int32(23))))

    return exp_float32


@overload(_log_1p)
def _log_1p_lane(t):
    if t != types.float32:
        return lambda t: math.log1p(t)

    def log_1p_float32(t):
        # 2 atanh(s), by a minimax polynomial in s^2
        s = t / (t + np.float32(2))
        q = s * s
        series = _fma(q, np.float32(0.18173994), np.float32(0.082437103))
        series = _fma(q, series, np.float32(0.14669142))
        series = _fma(q, series, np.float32(0.19978217))
        series = _fma(q, series, np.float32(0.33333730))
        series = _fma(q, series, np.float32(1))
        return np.float32(2) * s * series

    return log_1p_float32


@inline
def smooth_lanes(line, weights, alpha, work):
    """The smoothed maximum in every lane; `work` holds 2 * STRIP numbers."""
    if alpha == 1:
        _shannon(line, weights)
    elif alpha == 2:
        _gini(line, weights)
    elif alpha == np.inf:
        _hard(line, weights)
    elif alpha < 2:
        _tsallis(line, weights, alpha, work)
    else:
        _steep(line, weights, alpha)


@inline
def _shannon(line, weights):
    one, zero = line.dtype.type(1), line.dtype.type(0)
    for r in range(STRIP):
        a = _exp(line[STRIP + r])
        b = _exp(line[2 * STRIP + r])
        c = _exp(line[3 * STRIP + r])
        total = a + b + c
        # 0 where all are -inf
        total = total if total > zero else one
        scale = one / total
        weights[r] = a * scale
        weights[STRIP + r] = b * scale
        weights[2 * STRIP + r] = c * scale
        line[r] = _log_1p(total - one)


@inline
def _gini(line, weights):
    # in float64: weights that sum to 1 only within float32 would let the expectation drift along a path
    for r in range(STRIP):
        a, b, c = np.float64(line[STRIP + r]), np.float64(line[2 * STRIP + r]), np.float64(line[3 * STRIP + r])
        high = a if a > b else b
        side = b if a > b else a
        low = side if side < c else c
        other = c if c < high else high
        middle = side if side > other else other
        # tau by the size of the support: the largest is 0
        pair = 0.5 * (middle - 1)
        triple = (middle + low - 1) * (1 / 3)
        tau = pair if middle > -1 else -1.0
        tau = triple if low > tau else tau
        # an argument outside the support counts as tau: its weight is 0, and it may be -inf
        a = a if a > tau else tau
        b = b if b > tau else tau
        c = c if c > tau else tau
        p, q, s = a - tau, b - tau, c - tau
        weights[r] = p
        weights[STRIP + r] = q
        weights[2 * STRIP + r] = s
        line[r] = 0.5 + p * (a - 0.5 * p) + q * (b - 0.5 * q) + s * (c - 0.5 * s)


@inline
def _hard(line, weights):
    one, zero = line.dtype.type(1), line.dtype.type(0)
    for r in range(STRIP):
        a = one if line[STRIP + r] == zero else zero
        b = one - a if line[2 * STRIP + r] == zero else zero
        c = one - a - b if line[3 * STRIP + r] == zero else zero
        weights[r] = a
        weights[STRIP + r] = b
        weights[2 * STRIP + r] = c
        line[r] = zero


@kernel
def _tsallis(line, weights, alpha, work):
    """p = (1 + scale (a - t))_+^q with scale = alpha - 1 and q = 1 / scale >= 1: Newton on the q-norm, for t."""
    real = line.dtype.type
    one, zero = real(1), real(0)
    scale, q, part = real(alpha - 1), real(1 / (alpha - 1)), real(1 / alpha)
    tolerance = real(1e-14 if line.itemsize == 8 else 2e-7)
    # work: t, and the step to come
    work[:] = 0
    for _ in range(_NEWTON):
        moving = 0
        for r in range(STRIP):
            t = work[r] + work[STRIP + r]
            p, lower_p = _power(scale * (line[STRIP + r] - t), q)
            u, lower_u = _power(scale * (line[2 * STRIP + r] - t), q)
            w, lower_w = _power(scale * (line[3 * STRIP + r] - t), q)
            weights[r] = p
            weights[STRIP + r] = u
            weights[2 * STRIP + r] = w
            total = p + u + w
            # monotone from the left, where the total is at least 1
            mass = total if total > one else one
            x = scale * _log_1p(mass - one)
            rise = one - _exp(-x) if x > real(0.01) else x * (one - x * (real(0.5) - x * real(1 / 6)))
            step = rise * q * mass / (lower_p + lower_u + lower_w + (zero if total > zero else one))
            work[r] = t
            work[STRIP + r] = step
            moving += step > tolerance
        if moving == 0:
            break
    for r in range(STRIP):
        p, u, w = np.float64(weights[r]), np.float64(weights[STRIP + r]), np.float64(weights[2 * STRIP + r])
        # in float64: weights that sum to 1 only within float32 would let the expectation drift along a path
        total = p + u + w
        factor = 1 / (total if total > 0 else 1.0)
        p, u, w = p * factor, u * factor, w * factor
        weights[r] = p
        weights[STRIP + r] = u
        weights[2 * STRIP + r] = w
        mean = p * line[STRIP + r] if p > 0 else 0.0
        mean += u * line[2 * STRIP + r] if u > 0 else 0.0
        mean += w * line[3 * STRIP + r] if w > 0 else 0.0
        # <p, a> - Omega(p), where Omega is linear in t on the support; total - 1 is the error that t has left
        apart = mean - work[r]
        value = mean + part * ((total - 1) * (1 + scale * apart) - apart)
        line[r] = value if total > 0 else 0.0


@inline
def _power(s, q):
    """(1 + s)_+^q and (1 + s)_+^(q - 1)."""
    one, zero = type(s)(1), type(s)(0)
    inside = s > -one
    s = s if inside else -one
    lower = exp2(log2_1p(s) * (q - one))
    lower = lower if inside else zero
    return lower * (one + s), lower


@kernel
def _steep(line, weights, alpha):
    a = np.empty(3, np.float64)
    p = np.empty(3, np.float64)
    for r in range(STRIP):
        for c in range(3):
            a[c] = line[(c + 1) * STRIP + r]
        value, _ = smooth_max(a, 3, alpha, p)
        line[r] = value if value > -np.inf else 0.0
        for c in range(3):
            weights[c * STRIP + r] = p[c]
