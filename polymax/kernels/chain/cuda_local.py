"""Functions shared by chain kernels: local maxima of columns, weights from their thresholds, rows of the chart. For
Triton.

A tile is `(BI, BJ)`: all previous states, some next states. The threshold theta of a next state gives the weight of
each transition into it from its score alone. For Shannon's entropy theta is the maximum, without smoothing the best
previous state; else (alpha - 1) a - theta is the base of a power.
"""

import triton
import triton.language as tl

from polymax.kernels.local_max.triton_max import HARD, SHANNON, bases, gain, power, threshold


@triton.jit
def load_matrix(p_w, p_top, i_w, o_j, s, BI: tl.constexpr):
    """Return columns o_j of transition matrix i_w less its maximum, and that maximum."""
    o_i = tl.arange(0, BI)
    b_w = load_tile(p_w, i_w, o_j, s, float("-inf"), BI)
    top = tl.load(p_top + i_w)
    # an infinite maximum would turn differences into NaN
    top = tl.where(tl.abs(top) < float("inf"), top, 0)
    return tl.where((o_i < s)[:, None] & (o_j < s)[None, :], b_w - top, float("-inf")), top


@triton.jit
def load_tile(p_x, i_x, o_j, s, other, BI: tl.constexpr):
    """Return columns o_j of matrix i_x."""
    o_i = tl.arange(0, BI)
    m_x = (o_i < s)[:, None] & (o_j < s)[None, :]
    return tl.load(p_x + i_x * s * s + (o_i[:, None] * s + o_j[None, :]), mask=m_x, other=other)


@triton.jit
def load_states(p_v, s, BI: tl.constexpr):
    """Return v of one step less its maximum, and that maximum."""
    o_i = tl.arange(0, BI)
    b_v = tl.load(p_v + o_i, mask=o_i < s, other=float("-inf"))
    top = finite_max(b_v)
    return b_v - top, top


@triton.jit
def finite_max(b_x):
    """Return the maximum of a vector, or 0 if it is not finite."""
    top = tl.max(b_x, 0)
    return tl.where(tl.abs(top) < float("inf"), top, 0)


@triton.jit
def column_max(b_a, ALPHA: tl.constexpr, KIND: tl.constexpr):
    """Return the smoothed maximum of each column of a tile, and its threshold."""
    b_top = tl.max(b_a, 0)
    b_safe = tl.where(tl.abs(b_top) < float("inf"), b_top, 0)
    b_z = b_a - b_safe[None, :]
    if KIND == SHANNON:
        b_m = b_safe + tl.log(tl.sum(tl.exp(b_z), 0))
        b_theta = b_m
    else:
        if KIND == HARD:
            o_i = tl.arange(0, b_a.shape[0])
            b_m = b_top
            b_first = tl.min(tl.where(b_a == b_top[None, :], o_i[:, None], b_a.shape[0]), 0)
            b_theta = tl.where(b_first < b_a.shape[0], b_first, 0).to(b_a.dtype)
        else:
            b_tau = threshold(b_z, ALPHA, KIND, 0)
            b_p = weights(b_z, b_tau, ALPHA, KIND)
            b_sum = tl.sum(b_p, 0)
            b_m = b_safe + gain(b_p / tl.where(b_sum > 0, b_sum, 1)[None, :], b_z, ALPHA, 0)
            b_m = tl.where(b_top == float("-inf"), b_top, b_m)
            b_theta = b_tau + (ALPHA - 1) * b_safe
        # comparisons skip a NaN
        m_poisoned = tl.max((b_a != b_a).to(tl.int32), 0) > 0
        b_m = tl.where(m_poisoned, float("nan"), b_m)
        if KIND != HARD:
            b_theta = tl.where(m_poisoned, float("nan"), b_theta)
    return b_m, b_theta


@triton.jit
def weights(b_a, b_theta, ALPHA: tl.constexpr, KIND: tl.constexpr):
    """Return the weights of a tile of transitions, from the thresholds of its columns."""
    if KIND == SHANNON:
        return tl.where(b_a == float("-inf"), 0, tl.exp(b_a - b_theta[None, :]))
    elif KIND == HARD:
        o_i = tl.arange(0, b_a.shape[0])
        return tl.where((b_a > float("-inf")) & (o_i[:, None] == b_theta[None, :]), 1.0, 0.0).to(b_a.dtype)
    else:
        return power(bases(b_a, b_theta, ALPHA, KIND, 0), 1 / (ALPHA - 1))
