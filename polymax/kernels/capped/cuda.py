"""Capped simplex by variable fixing (Bitran and Hax 1981), the row in registers. For Triton.

Solve without bounds over the free entries; of the two kinds of bound, one is violated by more in total, and all its
violators are at that bound in the solution: fix them and repeat. In float64: a bound may be reached at scores far
below the maximum, where float32 has no digits left.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.triton_math import on_device, tile

LONGEST = 32768
LOG2_E = tl.constexpr(1.4426950408889634)
FREE, LOW, HIGH = (tl.constexpr(i) for i in range(3))


def capped(x: Tensor, lower: Tensor, upper: Tensor, total: float, entropic: bool) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    count, n = x.shape[:-1].numel(), x.shape[-1]
    if n > LONGEST:
        raise ValueError(f"x must have at most {LONGEST} entries along dim on the GPU; got {n}")
    if count and n:
        br, bn, warps = tile(count, n)
        tensors = (x.contiguous(), lower.contiguous(), upper.contiguous(), y)
        with on_device(x):
            _capped[(triton.cdiv(count, br),)](
                *tensors, count, n, total, ENTROPIC=entropic, BR=br, BN=bn, num_warps=warps
            )
    return y


@triton.jit
def _capped(p_x, p_lower, p_upper, p_y, count, n, total, ENTROPIC: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr):
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_n = tl.arange(0, BN)
    m_n = (i_r < count)[:, None] & (o_n < n)[None, :]
    o_x = i_r[:, None] * n + o_n[None, :]
    b_x = tl.load(p_x + o_x, mask=m_n, other=float("-inf")).to(tl.float64)
    b_low = tl.load(p_lower + o_x, mask=m_n, other=0).to(tl.float64)
    b_high = tl.load(p_upper + o_x, mask=m_n, other=0).to(tl.float64)
    b_keep = b_x > float("-inf")
    b_bad = tl.max((m_n & ((b_x != b_x) | (b_x == float("inf")))).to(tl.int32), 1)[:, None] > 0
    b_low = tl.where(b_keep, b_low, 0)
    b_high = tl.where(b_keep, b_high, 0)
    slack = 1e-6 * tl.maximum(total, 1.0)
    b_short = (tl.sum(b_low, 1)[:, None] > total + slack) | (tl.sum(b_high, 1)[:, None] < total - slack)
    b_alive = tl.max(b_keep.to(tl.int32), 1)[:, None] > 0
    b_bad = b_bad | (b_alive & b_short)
    b_x = tl.where(b_keep & ~b_bad, b_x, 0)
    b_state = tl.where(b_keep & ~b_bad, FREE, LOW)
    b_inner = b_x
    b_rest = tl.zeros([BR, 1], tl.float64) + total
    go = 1
    while go > 0:
        b_free = b_state == FREE
        b_count = tl.sum(b_free.to(tl.float64), 1)[:, None]
        b_fixed = tl.where(b_free, 0, tl.where(b_state == HIGH, b_high, b_low))
        b_rest = total - tl.sum(b_fixed, 1)[:, None]
        if ENTROPIC:
            b_top = tl.max(tl.where(b_free, b_x, float("-inf")), 1)[:, None]
            b_inner = tl.where(b_free, tl.exp2((b_x - b_top) * LOG2_E), 0)
            b_mass = tl.sum(b_inner, 1)[:, None]
            b_inner = b_inner * (tl.maximum(b_rest, 0) / tl.where(b_mass > 0, b_mass, 1))
        else:
            b_sum = tl.sum(tl.where(b_free, b_x, 0), 1)[:, None]
            b_inner = b_x - (b_sum - b_rest) / tl.where(b_count > 0, b_count, 1)
        b_over = tl.where(b_free, tl.maximum(b_inner - b_high, 0), 0)
        b_under = tl.where(b_free, tl.maximum(b_low - b_inner, 0), 0)
        b_more = tl.sum(b_over, 1)[:, None]
        b_less = tl.sum(b_under, 1)[:, None]
        b_state = tl.where((b_over > 0) & (b_more >= b_less), HIGH, b_state)
        b_state = tl.where((b_under > 0) & (b_less >= b_more), LOW, b_state)
        go = (tl.max(b_more + b_less) > 0).to(tl.int32)
    b_y = tl.where(b_state == FREE, b_inner, tl.where(b_state == HIGH, b_high, b_low))
    b_y = tl.where(b_keep, b_y, 0)
    b_y = tl.where(b_bad, float("nan"), b_y)
    if p_y.dtype.element_ty != tl.float64:
        b_y = b_y.to(tl.float32)
    tl.store(p_y + o_x, b_y.to(p_y.dtype.element_ty), mask=m_n)
