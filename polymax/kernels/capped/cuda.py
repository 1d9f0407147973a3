"""Capped simplex by Newton's method for the threshold, guarded by bisection, the row in registers. For Triton.

The algorithm is that of cpu.py. In float64: a bound may be reached at scores far below the maximum, where float32 has
no digits left.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.triton_launch import Entry
from polymax.kernels.triton_math import beside, on_device, tile

LONGEST = 32768
LOG2_E = tl.constexpr(1.4426950408889634)
LARGEST = tl.constexpr(torch.finfo(torch.float64).max)
# a threshold further than this from the score that it is counted from is counted from a nearer one
FAR = tl.constexpr(1e3)
# how often that may happen
ROUNDS = tl.constexpr(4)
FREE, LOW, HIGH = (tl.constexpr(i) for i in range(3))


def capped(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, entropic: bool) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    count, n = _sizes(x)
    if count and n:
        br, bn, warps = tile(count, n)
        low, high, totals = beside(lower, x.shape), beside(upper, x.shape), beside(total, x.shape[:-1])
        many = {"MANY_LOW": low.numel() > 1, "MANY_HIGH": high.numel() > 1, "MANY_TOTALS": totals.numel() > 1}
        with on_device(x):
            _capped[(triton.cdiv(count, br),)](
                x.contiguous(), low, high, totals, y, count, n, ENTROPIC=entropic, BR=br, BN=bn, **many, num_warps=warps
            )
    return y


def capped_backward(y: Tensor, v: Tensor, lower: Tensor, upper: Tensor, entropic: bool) -> Tensor:
    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    count, n = _sizes(y)
    if count and n:
        br, bn, warps = tile(count, n)
        low, high = beside(lower, y.shape), beside(upper, y.shape)
        many = {"MANY_LOW": low.numel() > 1, "MANY_HIGH": high.numel() > 1}
        with on_device(y):
            _capped_backward[(triton.cdiv(count, br),)](
                y.contiguous(), v.contiguous(), low, high, out, count, n, ENTROPIC=entropic, BR=br, BN=bn, **many,
                num_warps=warps,
            )  # fmt: skip
    return out


def _sizes(x: Tensor) -> tuple[int, int]:
    n = x.shape[-1]
    if n > LONGEST:
        raise ValueError(f"x must have at most {LONGEST} entries along dim on the GPU; got {n}")
    return x.shape[:-1].numel(), n


@triton.jit
def _sums(b_x, b_low, b_high, b_tau, b_keep, ENTROPIC: tl.constexpr):
    """Sum of the entries at a bound, sum and number of the free ones, the unclipped weights, and who is where."""
    if ENTROPIC:
        b_inner = tl.exp2((b_x - b_tau) * LOG2_E)
    else:
        b_inner = b_x - b_tau
    b_state = tl.where(b_inner <= b_low, LOW, tl.where(b_inner >= b_high, HIGH, FREE))
    b_free = b_keep & (b_state == FREE)
    b_fixed = tl.where(b_free, 0.0, tl.where(b_state == HIGH, b_high, b_low))
    b_count = tl.sum(tl.where(b_free, 1.0, 0.0).to(tl.float64), 1)[:, None]
    return tl.sum(b_fixed, 1)[:, None], tl.sum(tl.where(b_free, b_inner, 0.0), 1)[:, None], b_count, b_inner, b_state


@triton.jit
def _clipped(b_x, b_low, b_high, b_tau, b_keep, ENTROPIC: tl.constexpr):
    if ENTROPIC:
        b_inner = tl.exp2((b_x - b_tau) * LOG2_E)
    else:
        b_inner = b_x - b_tau
    return tl.where(b_keep, tl.minimum(tl.maximum(b_inner, b_low), b_high), 0.0)


@triton.jit
def _middle(b_a, b_b):
    """The number halfway from a to b in the order of all float64 numbers: 64 halvings end any search."""
    # the bits of a negative number count down
    b_p = b_a.to(tl.int64, bitcast=True)
    b_q = b_b.to(tl.int64, bitcast=True)
    b_p = tl.where(b_p >= 0, b_p, b_p ^ 0x7FFFFFFFFFFFFFFF)
    b_q = tl.where(b_q >= 0, b_q, b_q ^ 0x7FFFFFFFFFFFFFFF)
    b_m = (b_p >> 1) + (b_q >> 1)
    return tl.where(b_m >= 0, b_m, b_m ^ 0x7FFFFFFFFFFFFFFF).to(tl.float64, bitcast=True)


@triton.jit
def _threshold(b_x, b_low, b_high, b_total, b_keep, b_busy, ENTROPIC: tl.constexpr):
    """The threshold, and the numbers between which it lies."""
    b_top = tl.max(tl.where(b_keep, b_x, -LARGEST), 1)[:, None]
    if ENTROPIC:
        b_below = b_x - tl.log2(b_high) / LOG2_E
        b_above = tl.minimum(b_x - tl.log2(b_low) / LOG2_E, b_top + 800)
    else:
        b_below = b_x - b_high
        b_above = b_x - b_low
    b_below = tl.min(tl.where(b_keep, b_below, float("inf")), 1)[:, None]
    b_above = tl.max(tl.where(b_keep, b_above, float("-inf")), 1)[:, None]
    b_below = tl.minimum(tl.maximum(b_below, -LARGEST), LARGEST)
    b_above = tl.minimum(tl.maximum(b_above, -LARGEST), LARGEST)
    # beyond rounding
    b_below = tl.maximum(b_below - 4e-16 * tl.abs(b_below), -LARGEST)
    b_above = tl.minimum(b_above + 4e-16 * tl.abs(b_above), LARGEST)
    b_tau = tl.minimum(tl.maximum(b_top - (0 if ENTROPIC else 1), b_below), b_above)
    go = 1
    i = 0
    while go > 0:
        b_fixed, b_free, b_count, _, _ = _sums(b_x, b_low, b_high, b_tau, b_keep, ENTROPIC)
        b_value = b_fixed + b_free
        b_over = b_value > b_total
        b_below = tl.where(b_over, tl.maximum(b_below, b_tau), b_below)
        b_above = tl.where(b_over, b_above, tl.minimum(b_above, b_tau))
        b_busy = b_busy & (tl.abs(b_value - b_total) > 1e-13 * b_total)
        b_guess = _middle(b_below, b_above)
        if ENTROPIC:
            b_rest = b_total - b_fixed
            b_usable = (b_count > 0) & (b_rest > 0)
            b_newton = b_tau + tl.log2(tl.where(b_usable, b_free / b_rest, 1.0)) / LOG2_E
        else:
            b_usable = b_count > 0
            b_newton = b_tau + (b_value - b_total) / tl.where(b_usable, b_count, 1.0)
        # every third step halves the bracket, whatever Newton says
        b_usable = b_usable & (b_below < b_newton) & (b_newton < b_above) & (i % 3 < 2)
        b_guess = tl.where(b_usable, b_newton, b_guess)
        b_busy = b_busy & (b_guess != b_tau) & (b_below < b_guess) & (b_guess < b_above)
        b_tau = tl.where(b_busy, b_guess, b_tau)
        i += 1
        go = tl.max(b_busy.to(tl.int32)) * (i < 300).to(tl.int32)
    return b_tau, b_below, b_above


@triton.jit
def _bound(p_bound, o_x, m_n, MANY: tl.constexpr):
    """The bounds of a tile in float64, from one for each entry or from one for all."""
    return tl.load(p_bound + (o_x if MANY else o_x * 0), mask=m_n, other=0).to(tl.float64)


@Entry
@triton.jit
def _capped_backward(
    p_y, p_v, p_lower, p_upper, p_out, count, n, ENTROPIC: tl.constexpr, MANY_LOW: tl.constexpr,
    MANY_HIGH: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_n = tl.arange(0, BN)
    m_n = (i_r < count)[:, None] & (o_n < n)[None, :]
    o_x = i_r[:, None] * n + o_n[None, :]
    dtype = tl.float64 if p_y.dtype.element_ty == tl.float64 else tl.float32
    b_y = tl.load(p_y + o_x, mask=m_n, other=0).to(dtype)
    b_v = tl.load(p_v + o_x, mask=m_n, other=0).to(dtype)
    # a bound as the weights have been rounded to it
    b_low = _bound(p_lower, o_x, m_n, MANY_LOW).to(dtype).to(p_y.dtype.element_ty).to(dtype)
    b_high = _bound(p_upper, o_x, m_n, MANY_HIGH).to(dtype).to(p_y.dtype.element_ty).to(dtype)
    m_fixed = (b_y <= b_low) | (b_y >= b_high)
    # a row of NaN stays one
    b_w = tl.where(m_fixed, b_y * 0, b_y if ENTROPIC else b_y * 0 + 1)
    b_mass = tl.sum(b_w, 1)[:, None]
    b_mean = tl.sum(b_w * b_v, 1)[:, None] / tl.where(b_mass == 0, 1, b_mass)
    b_out = tl.where(b_w == 0, 0, b_w * (b_v - b_mean))
    tl.store(p_out + o_x, b_out.to(p_out.dtype.element_ty), mask=m_n)


@Entry
@triton.jit
def _capped(
    p_x, p_lower, p_upper, p_total, p_y, count, n, ENTROPIC: tl.constexpr, MANY_LOW: tl.constexpr,
    MANY_HIGH: tl.constexpr, MANY_TOTALS: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_n = tl.arange(0, BN)
    m_n = (i_r < count)[:, None] & (o_n < n)[None, :]
    o_x = i_r[:, None] * n + o_n[None, :]
    b_scores = tl.load(p_x + o_x, mask=m_n, other=float("-inf")).to(tl.float64)
    b_low = _bound(p_lower, o_x, m_n, MANY_LOW)
    b_high = _bound(p_upper, o_x, m_n, MANY_HIGH)
    b_total = tl.load(p_total + (i_r if MANY_TOTALS else i_r * 0), mask=i_r < count, other=1).to(tl.float64)[:, None]
    b_keep = b_scores > float("-inf")
    b_bad = tl.max((m_n & ((b_scores != b_scores) | (b_scores == float("inf")))).to(tl.int32), 1)[:, None] > 0
    b_low = tl.where(b_keep, b_low, 0)
    b_high = tl.where(b_keep, b_high, 0)
    b_least, b_most = tl.sum(b_low, 1)[:, None], tl.sum(b_high, 1)[:, None]
    b_slack = 1e-6 * tl.maximum(b_total, 1.0)
    # not (a <= b): a NaN is short of everything
    b_short = ((b_least <= b_total + b_slack) & (b_most >= b_total - b_slack) & (b_total >= 0)) == 0
    b_alive = tl.max(b_keep.to(tl.int32), 1)[:, None] > 0
    b_bad = b_bad | (b_alive & b_short)
    b_keep = b_keep & (b_bad == 0)
    b_good = b_alive & (b_bad == 0)
    b_anchor = tl.max(tl.where(b_keep, b_scores, float("-inf")), 1)[:, None]
    b_anchor = tl.where(b_good, b_anchor, 0)
    b_x = tl.minimum(tl.maximum(tl.where(b_keep, b_scores, b_anchor) - b_anchor, -LARGEST), LARGEST)
    b_tau, b_below, b_above = _threshold(b_x, b_low, b_high, b_total, b_keep, b_good, ENTROPIC)
    turn = 1
    far = tl.max((b_good & (tl.abs(b_tau) > FAR)).to(tl.int32))
    while far > 0:
        b_far = b_good & (tl.abs(b_tau) > FAR)
        b_away = tl.where(b_keep, tl.abs(b_x - b_tau), float("inf"))
        b_near = b_keep & (b_away == tl.min(b_away, 1)[:, None])
        # where differences of the largest scores are clipped, halves of them decide
        b_half = tl.where(b_near, tl.abs(b_scores / 2 - b_anchor / 2 - b_tau / 2), float("inf"))
        b_near = b_near & (b_half == tl.min(b_half, 1)[:, None])
        b_nearest = tl.max(tl.where(b_near, b_scores, float("-inf")), 1)[:, None]
        b_anchor = tl.where(b_far, b_nearest, b_anchor)
        b_x = tl.minimum(tl.maximum(tl.where(b_keep, b_scores, b_anchor) - b_anchor, -LARGEST), LARGEST)
        b_tau, b_below, b_above = _threshold(b_x, b_low, b_high, b_total, b_keep, b_good, ENTROPIC)
        turn += 1
        far = tl.max((b_good & (tl.abs(b_tau) > FAR)).to(tl.int32)) * (turn < ROUNDS).to(tl.int32)
    b_fixed, b_free, b_count, b_inner, b_state = _sums(b_x, b_low, b_high, b_tau, b_keep, ENTROPIC)
    # what is left of the total goes to the free entries
    b_rest = b_total - b_fixed
    if ENTROPIC:
        b_inner = b_inner * (b_rest / tl.where(b_free > 0, b_free, 1.0))
    else:
        b_inner = b_inner + (b_rest - b_free) / tl.where(b_count > 0, b_count, 1.0)
    b_inner = tl.minimum(tl.maximum(b_inner, b_low), b_high)
    b_y = tl.where(b_state == FREE, b_inner, tl.where(b_state == HIGH, b_high, b_low))
    # entries so far from 0 that they pass from one bound to the other between neighbouring thresholds share the rest
    b_stuck = (b_count == 0) & (tl.abs(b_rest) > 1e-13 * b_total) & b_good
    if tl.max(b_stuck.to(tl.int32)) > 0:
        b_small = _clipped(b_x, b_low, b_high, b_above, b_keep, ENTROPIC)
        b_large = _clipped(b_x, b_low, b_high, b_below, b_keep, ENTROPIC)
        b_sum = tl.sum(b_small, 1)[:, None]
        b_room = tl.sum(b_large, 1)[:, None] - b_sum
        b_share = (b_total - b_sum) / tl.where(b_room > 0, b_room, 1.0)
        b_y = tl.where(b_stuck, b_small + b_share * (b_large - b_small), b_y)
    b_y = tl.where(b_total <= b_least, b_low, tl.where(b_total >= b_most, b_high, b_y))
    b_y = tl.where(b_keep, b_y, 0)
    b_y = tl.where(b_bad, float("nan"), b_y)
    if p_y.dtype.element_ty != tl.float64:
        b_y = b_y.to(tl.float32)
    tl.store(p_y + o_x, b_y.to(p_y.dtype.element_ty), mask=m_n)
