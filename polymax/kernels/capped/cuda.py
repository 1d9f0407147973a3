"""Capped simplex by Newton's method for the threshold, guarded by bisection, the row in registers. For Triton.

The algorithm is that of cpu.py, in the precision of the result. A bound may be reached at scores far below the maximum,
at which float32 has no digits left: the threshold is then stored as the difference to a nearby score.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import beside, on_device, tile
from polymax.backend.widen import wide_like

LONGEST = 32768
LOG2_E = tl.constexpr(1.4426950408889634)
LARGEST_32, LARGEST_64 = (tl.constexpr(torch.finfo(dtype).max) for dtype in (torch.float32, torch.float64))
# steps after which every second step halves the bracket
PATIENCE = tl.constexpr(12)
# steps after which the search ends in any case
LAST = tl.constexpr(300)


def capped(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, entropic: bool) -> Tensor:
    y = wide_like(x)
    count, n = _sizes(x)
    if count:
        low, high, totals = beside(lower, x.shape), beside(upper, x.shape), beside(total, x.shape[:-1])
        launch, grid = _forward(count, n, entropic, low.numel() > 1, high.numel() > 1, totals.numel() > 1)
        with on_device(x):
            launch(grid, x.contiguous(), low, high, totals, y, count, n)
    return y


def capped_backward(y: Tensor, v: Tensor, lower: Tensor, upper: Tensor, entropic: bool) -> Tensor:
    direction = v.contiguous()
    out = torch.empty_like(direction)
    count, n = _sizes(y)
    if count:
        low, high = beside(lower, y.shape), beside(upper, y.shape)
        launch, grid = _backward(count, n, entropic, low.numel() > 1, high.numel() > 1)
        with on_device(y):
            launch(grid, y.contiguous(), direction, low, high, out, count, n)
    return out


@lru_cache(maxsize=4096)
def _forward(count, n, entropic, many_low, many_high, many_totals):
    """Return the kernel with its compile-time arguments, and its grid."""
    br, bn, warps = tile(count, n)
    many = {"MANY_LOW": many_low, "MANY_HIGH": many_high, "MANY_TOTALS": many_totals}
    return _capped.prepared(ENTROPIC=entropic, **many, BR=br, BN=bn, num_warps=warps), (triton.cdiv(count, br),)


@lru_cache(maxsize=4096)
def _backward(count, n, entropic, many_low, many_high):
    br, bn, warps = tile(count, n)
    sizes = {"ENTROPIC": entropic, "MANY_LOW": many_low, "MANY_HIGH": many_high, "BR": br, "BN": bn}
    return _capped_backward.prepared(**sizes, num_warps=warps), (triton.cdiv(count, br),)


def _sizes(x: Tensor) -> tuple[int, int]:
    n = x.shape[-1]
    if n > LONGEST:
        raise ValueError(f"x must have at most {LONGEST} entries along dim on the GPU; got {n}")
    return x.numel() // max(n, 1), n


@Entry
@triton.jit
def _capped(
    p_x, p_lower, p_upper, p_total, p_y, count, n, ENTROPIC: tl.constexpr, MANY_LOW: tl.constexpr,
    MANY_HIGH: tl.constexpr, MANY_TOTALS: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = p_y.dtype.element_ty
    WIDE: tl.constexpr = dtype == tl.float64
    # distance of the threshold from its anchor beyond which a nearer score becomes the anchor
    FAR: tl.constexpr = 1e3 if WIDE else 4.0
    # most changes of the anchor: each change reduces the distance by a factor of the precision
    ROUNDS: tl.constexpr = 4 if WIDE else 8
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_n = tl.arange(0, BN)
    m_n = (i_r < count)[:, None] & (o_n < n)[None, :]
    o_x = i_r[:, None] * n + o_n[None, :]
    b_x = tl.load(p_x + o_x, mask=m_n, other=float("-inf")).to(dtype)
    m_keep = b_x > float("-inf")
    b_low = _bound(p_lower, o_x, m_n & m_keep, MANY_LOW)
    b_high = _bound(p_upper, o_x, m_n & m_keep, MANY_HIGH)
    b_size = tl.sum(m_keep.to(tl.int32), 1)[:, None]
    # feasibility of the bounds is checked in float64
    b_least, b_most = _bound_sum(b_low, b_size, MANY_LOW), _bound_sum(b_high, b_size, MANY_HIGH)
    b_sum = tl.load(p_total + (i_r if MANY_TOTALS else i_r * 0), mask=i_r < count, other=1).to(tl.float64)[:, None]
    b_slack = 1e-6 * tl.maximum(b_sum, 1.0)
    # not (a <= b): true for NaN as well
    m_short = ((b_least <= b_sum + b_slack) & (b_most >= b_sum - b_slack) & (b_sum >= 0)) == 0
    m_alive = b_size > 0
    m_bad = tl.max((m_n & ((b_x < float("inf")) == 0)).to(tl.int32), 1)[:, None] > 0
    m_bad = m_bad | (m_alive & m_short)
    m_good = m_alive & (m_bad == 0)
    m_lowest, m_highest = b_sum <= b_least, b_sum >= b_most
    b_low, b_high, b_total = b_low.to(dtype), b_high.to(dtype), b_sum.to(dtype)

    # absent entries are -inf, and so are rows without a threshold
    b_x = tl.where(m_good, b_x, float("-inf"))
    b_anchor = tl.where(m_good, tl.max(b_x, 1)[:, None], 0)
    b_z = _difference(b_x, b_anchor)
    if ENTROPIC:
        # the threshold without bounds
        b_start = tl.log2(tl.sum(tl.exp2(b_z * LOG2_E), 1)[:, None] / b_total) / LOG2_E
    else:
        b_start = tl.zeros_like(b_total) - 1
    m_busy = m_good & (m_lowest == 0) & (m_highest == 0)
    b_tau, b_below, b_above = _threshold(b_z, b_low, b_high, b_total, b_start, m_busy, ENTROPIC)
    turn = 1
    # a threshold above all scores is nearest to the first anchor, the maximum
    m_far = m_busy & (b_tau < -FAR)
    while (tl.max(m_far.to(tl.int32)) > 0) & (turn < ROUNDS):
        b_x = tl.load(p_x + o_x, mask=m_n & m_good, other=float("-inf")).to(dtype)
        m_keep = b_x > float("-inf")
        b_away = tl.where(m_keep, tl.abs(b_z - b_tau), float("inf"))
        m_near = m_keep & (b_away == tl.min(b_away, 1)[:, None])
        # if differences of the largest scores are clipped, halves of them decide
        b_half = tl.where(m_near, tl.abs(b_x / 2 - b_anchor / 2 - b_tau / 2), float("inf"))
        m_near = m_near & (b_half == tl.min(b_half, 1)[:, None])
        b_nearest = tl.max(tl.where(m_near, b_x, float("-inf")), 1)[:, None]
        m_far = m_far & (b_nearest != b_anchor)
        b_nearest = tl.where(m_far, b_nearest, b_anchor)
        b_z = _difference(b_x, b_nearest)
        b_start = b_tau + _difference(b_anchor, b_nearest)
        b_anchor = b_nearest
        b_tau, b_below, b_above = _threshold(b_z, b_low, b_high, b_total, b_start, m_busy, ENTROPIC)
        m_far = m_far & (tl.abs(b_tau) > FAR)
        turn += 1

    b_inner = _unclipped(b_z, b_tau, ENTROPIC)
    m_keep = b_z > float("-inf")
    m_free = (b_inner > b_low) & (b_inner < b_high)
    b_y = tl.where(m_keep, tl.minimum(tl.maximum(b_inner, b_low), b_high), 0)
    # the free entries share the rest of the total
    b_rest = b_total - tl.sum(tl.where(m_free, 0, b_y), 1)[:, None]
    b_free = tl.sum(tl.where(m_free, b_y, 0), 1)[:, None]
    b_count = tl.sum(tl.where(m_free, 1.0, 0.0).to(dtype), 1)[:, None]
    if ENTROPIC:
        b_inner = b_inner * (b_rest / tl.where(b_free > 0, b_free, 1.0))
    else:
        b_inner = b_inner + (b_rest - b_free) / tl.where(b_count > 0, b_count, 1.0)
    b_y = tl.where(m_free, tl.minimum(tl.maximum(b_inner, b_low), b_high), b_y)
    # entries so far from 0 that they pass from one bound to the other between neighbouring thresholds share the rest
    m_stuck = m_busy & (b_count == 0) & (tl.abs(b_rest) > (1e-13 if WIDE else 1e-6) * b_total)
    if tl.max(m_stuck.to(tl.int32)) > 0:
        b_small = tl.minimum(tl.maximum(_unclipped(b_z, b_above, ENTROPIC), b_low), b_high)
        b_large = tl.minimum(tl.maximum(_unclipped(b_z, b_below, ENTROPIC), b_low), b_high)
        b_fixed = tl.sum(tl.where(m_keep, b_small, 0), 1)[:, None]
        b_room = tl.sum(tl.where(m_keep, b_large, 0), 1)[:, None] - b_fixed
        b_share = (b_total - b_fixed) / tl.where(b_room > 0, b_room, 1.0)
        b_y = tl.where(m_stuck & m_keep, b_small + b_share * (b_large - b_small), b_y)
    b_y = tl.where(m_keep & m_lowest, b_low, tl.where(m_keep & m_highest, b_high, b_y))
    tl.store(p_y + o_x, tl.where(m_bad, float("nan"), b_y), mask=m_n)


@Entry
@triton.jit
def _capped_backward(
    p_y, p_v, p_lower, p_upper, p_out, count, n, ENTROPIC: tl.constexpr, MANY_LOW: tl.constexpr,
    MANY_HIGH: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = tl.float64 if p_y.dtype.element_ty == tl.float64 else tl.float32
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_n = tl.arange(0, BN)
    m_n = (i_r < count)[:, None] & (o_n < n)[None, :]
    o_x = i_r[:, None] * n + o_n[None, :]
    b_y = tl.load(p_y + o_x, mask=m_n, other=0).to(dtype)
    b_v = tl.load(p_v + o_x, mask=m_n, other=0).to(dtype)
    # compare with the bound in the precision to which the weights were rounded
    b_low = _bound(p_lower, o_x, m_n, MANY_LOW).to(dtype).to(p_y.dtype.element_ty).to(dtype)
    b_high = _bound(p_upper, o_x, m_n, MANY_HIGH).to(dtype).to(p_y.dtype.element_ty).to(dtype)
    m_fixed = (b_y <= b_low) | (b_y >= b_high)
    # a row of NaN stays NaN
    b_w = tl.where(m_fixed, b_y * 0, b_y if ENTROPIC else b_y * 0 + 1)
    b_mass = tl.sum(b_w, 1)[:, None]
    b_mean = tl.sum(b_w * b_v, 1)[:, None] / tl.where(b_mass == 0, 1, b_mass)
    b_out = tl.where(b_w == 0, 0, b_w * (b_v - b_mean))
    tl.store(p_out + o_x, b_out.to(p_out.dtype.element_ty), mask=m_n)


@triton.jit
def _bound(p_bound, o_x, m_x, MANY: tl.constexpr):
    """Return the bounds of a tile, or the single bound of all entries."""
    if MANY:
        return tl.load(p_bound + o_x, mask=m_x, other=0)
    else:
        return tl.load(p_bound + tl.zeros([1, 1], tl.int32))


@triton.jit
def _bound_sum(b_bound, b_size, MANY: tl.constexpr):
    """Return sums over rows of b_size entries each, in float64."""
    if MANY:
        return tl.sum(b_bound.to(tl.float64), 1)[:, None]
    else:
        return b_bound.to(tl.float64) * b_size.to(tl.float64)


@triton.jit
def _difference(b_x, b_anchor):
    """Return x less the anchor; finite if x is finite."""
    LARGEST: tl.constexpr = LARGEST_64 if b_x.dtype == tl.float64 else LARGEST_32
    b_z = tl.minimum(tl.maximum(b_x - b_anchor, -LARGEST), LARGEST)
    return tl.where(b_x == float("-inf"), b_x, b_z)


@triton.jit
def _unclipped(b_z, b_tau, ENTROPIC: tl.constexpr):
    if ENTROPIC:
        return tl.exp2((b_z - b_tau) * LOG2_E)
    else:
        return b_z - b_tau


@triton.jit
def _threshold(b_z, b_low, b_high, b_total, b_tau, m_busy, ENTROPIC: tl.constexpr):
    """Return the threshold, searched for from b_tau on, and its bracket."""
    WIDE: tl.constexpr = b_z.dtype == tl.float64
    LARGEST: tl.constexpr = LARGEST_64 if WIDE else LARGEST_32
    ROUNDING: tl.constexpr = 4e-16 if WIDE else 2.4e-7
    TOLERANCE: tl.constexpr = 1e-13 if WIDE else 5e-7
    m_keep = b_z > float("-inf")
    if ENTROPIC:
        # an upper or lower bound of 0 is met only at infinity; any threshold beyond the others is as good
        b_below = b_z - tl.log2(b_high) / LOG2_E
        b_above = tl.minimum(b_z - tl.log2(b_low) / LOG2_E, tl.max(b_z, 1)[:, None] + 800)
    else:
        b_below = b_z - b_high
        b_above = b_z - b_low
    b_below = tl.min(tl.where(m_keep, b_below, float("inf")), 1)[:, None]
    b_above = tl.max(tl.where(m_keep, b_above, float("-inf")), 1)[:, None]
    b_below = tl.minimum(tl.maximum(b_below, -LARGEST), LARGEST)
    b_above = tl.minimum(tl.maximum(b_above, -LARGEST), LARGEST)
    b_below = tl.maximum(b_below - ROUNDING * tl.abs(b_below), -LARGEST)
    b_above = tl.minimum(b_above + ROUNDING * tl.abs(b_above), LARGEST)
    b_tau = tl.where(m_busy, tl.minimum(tl.maximum(b_tau, b_below), b_above), 0)
    go = tl.max(m_busy.to(tl.int32))
    i = 0
    while go > 0:
        b_inner = _unclipped(b_z, b_tau, ENTROPIC)
        m_free = (b_inner > b_low) & (b_inner < b_high)
        b_y = tl.where(b_z > float("-inf"), tl.minimum(tl.maximum(b_inner, b_low), b_high), 0)
        b_excess = tl.sum(b_y, 1)[:, None] - b_total
        m_over = b_excess > 0
        b_below = tl.where(m_over, tl.maximum(b_below, b_tau), b_below)
        b_above = tl.where(m_over, b_above, tl.minimum(b_above, b_tau))
        m_busy = m_busy & (tl.abs(b_excess) > TOLERANCE * b_total)
        if ENTROPIC:
            b_free = tl.sum(tl.where(m_free, b_y, 0), 1)[:, None]
            # the part of the total that the entries at a bound leave to the free entries
            b_rest = b_free - b_excess
            m_usable = (b_free > 0) & (b_rest > 0)
            b_newton = b_tau + tl.log2(tl.where(m_usable, b_free / b_rest, 1.0)) / LOG2_E
        else:
            b_count = tl.sum(tl.where(m_free, 1.0, 0.0).to(b_z.dtype), 1)[:, None]
            m_usable = b_count > 0
            b_newton = b_tau + b_excess / tl.where(m_usable, b_count, 1.0)
        m_usable = m_usable & (b_below < b_newton) & (b_newton < b_above) & ((i < PATIENCE) | (i % 2 == 0))
        b_guess = tl.where(m_usable, b_newton, _middle(b_below, b_above))
        m_busy = m_busy & (b_guess != b_tau) & (b_below < b_guess) & (b_guess < b_above)
        b_tau = tl.where(m_busy, b_guess, b_tau)
        i += 1
        go = tl.max(m_busy.to(tl.int32)) * (i < LAST).to(tl.int32)
    return b_tau, b_below, b_above


@triton.jit
def _middle(b_a, b_b):
    """Return the number halfway from a to b in the order of all floats: at most as many halvings as it has bits."""
    WIDE: tl.constexpr = b_a.dtype == tl.float64
    integer: tl.constexpr = tl.int64 if WIDE else tl.int32
    # the bits of negative numbers count down
    MAGNITUDE: tl.constexpr = 0x7FFFFFFFFFFFFFFF if WIDE else 0x7FFFFFFF
    b_p = b_a.to(integer, bitcast=True)
    b_q = b_b.to(integer, bitcast=True)
    b_p = tl.where(b_p >= 0, b_p, b_p ^ MAGNITUDE)
    b_q = tl.where(b_q >= 0, b_q, b_q ^ MAGNITUDE)
    b_m = (b_p >> 1) + (b_q >> 1)
    return tl.where(b_m >= 0, b_m, b_m ^ MAGNITUDE).to(b_a.dtype, bitcast=True)
