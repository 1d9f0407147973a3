"""Some nodes of the recursion for some instances, for Triton: arguments, smoothed maxima, and weights.

Tiles are (BN, BB): nodes or edges by instances. `at` is a tuple of arguments shared by all functions: pointers to
scores (B, P), tails, part and node values (B, width); a row of instances and its mask; P and width. Arguments are
recomputed at every pass over the edges of a node.
"""

import triton
import triton.language as tl

from polymax.kernels.local_max.triton_max import MOST, newton_step, power

INF = tl.constexpr(float("inf"))


@triton.jit
def row(p_x, o_n, m_n, o_b, m_b, stride):
    """Return columns o_n of the rows of an array that are instances; 0 outside the mask and at -1."""
    p_cell = p_x + o_b * stride + o_n[:, None]
    return tl.load(p_cell, mask=m_b & (m_n & (o_n >= 0))[:, None], other=0).to(tl.float64)


@triton.jit
def put(p_x, o_n, m_n, b_x, o_b, m_b, stride):
    """Store columns: the inverse of `row`."""
    tl.store(p_x + o_b * stride + o_n[:, None], b_x.to(p_x.dtype.element_ty), mask=m_b & m_n[:, None])


@triton.jit
def total_of(p_scores, p_values, o_e, m_e, at):
    """Return scores of edges plus the values of their tails, from separate arrays."""
    _, p_tails, p_part, _, o_b, m_b, parts, width = at
    o_left = tl.load(p_tails + 2 * o_e, mask=m_e, other=-1)
    o_right = tl.load(p_tails + 2 * o_e + 1, mask=m_e, other=-1)
    o_part = tl.load(p_part + o_e, mask=m_e, other=-1)
    b_s = row(p_scores, o_part, m_e, o_b, m_b, parts)
    b_a = b_s + row(p_values, o_left, m_e, o_b, m_b, width) + row(p_values, o_right, m_e, o_b, m_b, width)
    # a forbidden edge stays forbidden whatever the values of its tails
    return tl.where((b_s == -INF) | ~m_e[:, None], -INF, b_a)


@triton.jit
def finite(b_x):
    """Return finite numbers unchanged, and 0 for NaN and infinities."""
    return tl.where(b_x - b_x == 0, b_x, 0)


@triton.jit
def inverse(b_total):
    return tl.where(b_total == 0, 0, 1 / b_total)


@triton.jit
def base(b_a, b_top, b_tau, ALPHA: tl.constexpr):
    """Return ((alpha - 1)(a - top) - tau)_+, of which the weight is a power; NaN stays."""
    b_base = (ALPHA - 1) * (b_a - finite(b_top)) - b_tau
    return tl.where(b_base < 0, 0, b_base)


@triton.jit
def smooth_max(o_begin, b_count, widest, at, ALPHA: tl.constexpr):
    """Return values of nodes, and the extra input of `weight`: the threshold relative to the value, or the chosen
    edge.
    """
    p_scores, _, _, p_values, o_b, _, _, _ = at
    b_top = tl.full([o_begin.shape[0], o_b.shape[1]], -INF, tl.float64)
    b_extra = tl.full(b_top.shape, -1, tl.float64)
    for i in range(0, widest):
        b_a = total_of(p_scores, p_values, o_begin + i, i < b_count, at)
        m_more = (b_a > b_top) | (b_a != b_a)
        b_top = tl.where(m_more, b_a, b_top)
        if ALPHA == INF:
            b_extra = tl.where(m_more, (o_begin + i)[:, None].to(tl.float64), b_extra)
    if ALPHA == INF:
        b_value = b_top
    elif ALPHA == 1:
        b_total = tl.zeros_like(b_top)
        for i in range(0, widest):
            b_a = total_of(p_scores, p_values, o_begin + i, i < b_count, at)
            b_total += tl.exp(b_a - finite(b_top))
        b_value = b_top + tl.log(b_total)
    else:
        b_tau = threshold(o_begin, b_count, widest, b_top, at, ALPHA)
        b_rise = tsallis(o_begin, b_count, widest, b_top, b_tau, at, ALPHA)
        b_value = b_top + b_rise
        b_extra = b_tau - (ALPHA - 1) * b_rise
    b_value = tl.where(b_count[:, None] == 1, b_top, b_value)
    return tl.where(b_count[:, None] == 0, 0, b_value), b_extra


@triton.jit
def weight(p_first, p_extra, o_e, o_h, m_e, at, ALPHA: tl.constexpr):
    """Return weights of edges o_e, whose heads are o_h."""
    p_scores, _, _, p_values, o_b, m_b, _, width = at
    b_count = tl.load(p_first + o_h + 1, mask=m_e, other=0) - tl.load(p_first + o_h, mask=m_e, other=0)
    b_a = total_of(p_scores, p_values, o_e, m_e, at)
    b_value = row(p_values, o_h, m_e, o_b, m_b, width)
    if ALPHA == 1:
        b_p = tl.exp(b_a - finite(b_value))
    elif ALPHA == INF:
        b_p = tl.where(row(p_extra, o_h, m_e, o_b, m_b, width) == o_e[:, None].to(tl.float64), 1.0, 0.0)
    else:
        b_p = power(base(b_a, b_value, row(p_extra, o_h, m_e, o_b, m_b, width), ALPHA), 1 / (ALPHA - 1))
    b_p = tl.where(b_value != b_value, b_value, b_p)
    b_p = tl.where(b_count[:, None] == 1, tl.where(b_a != b_a, b_a, tl.where(b_a > -INF, 1.0, 0.0)), b_p)
    return tl.where(m_e[:, None], b_p, 0)


@triton.jit
def threshold(o_begin, b_count, widest, b_top, at, ALPHA: tl.constexpr):
    """Return the tau at which the weights sum to 1, relative to the largest argument."""
    p_scores, _, _, p_values, _, _, _, _ = at
    b_tau = tl.full(b_top.shape, -1, tl.float64)
    b_low = b_tau
    # without a finite maximum, or with only one argument, no search is needed
    m_busy = (b_top - b_top == 0) & (b_count > 1)[:, None]
    b_high = tl.zeros_like(b_tau)
    go = 1
    i = 0
    while go > 0:
        b_total = tl.zeros_like(b_tau)
        b_slope = tl.zeros_like(b_tau)
        for k in range(0, widest):
            b_base = base(total_of(p_scores, p_values, o_begin + k, k < b_count, at), b_top, b_tau, ALPHA)
            b_power = power(b_base, 1 / (ALPHA - 1) - 1)
            b_total += b_power * b_base
            b_slope += b_power
        b_next, b_low, b_high, m_far = newton_step(b_tau, b_low, b_high, b_total, b_slope, ALPHA)
        # a finished tau stays, however long its neighbours take
        b_tau = tl.where(m_busy, b_next, b_tau)
        m_busy = m_busy & m_far
        i += 1
        go = tl.max(m_busy.to(tl.int32)) * (i < MOST).to(tl.int32)
    return b_tau


@triton.jit
def tsallis(o_begin, b_count, widest, b_top, b_tau, at, ALPHA: tl.constexpr):
    """Return <p, a> - Omega(p), relative to the largest argument; p^alpha is p times its base.

    For alpha > 2, weights that should be 0 are roots of rounding errors, and their sum is not 1 to the last digit: the
    first two terms of total^-alpha correct this.
    """
    C: tl.constexpr = 1 / (ALPHA * (ALPHA - 1))
    p_scores, _, _, p_values, _, _, _, _ = at
    b_total = tl.zeros_like(b_top)
    b_mean = tl.zeros_like(b_top)
    b_powers = tl.zeros_like(b_top)
    for k in range(0, widest):
        b_a = total_of(p_scores, p_values, o_begin + k, k < b_count, at)
        b_base = base(b_a, b_top, b_tau, ALPHA)
        b_p = power(b_base, 1 / (ALPHA - 1))
        b_total += b_p
        b_mean += tl.where(b_p == 0, 0, b_p * (b_a - finite(b_top)))
        b_powers += b_p * b_base
    return (b_mean - C * b_powers * (1 - (ALPHA - 1) * (b_total - 1))) * inverse(b_total) + C
