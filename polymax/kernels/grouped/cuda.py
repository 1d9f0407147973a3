"""Group lasso on the simplex for Triton: a row is a tile of groups and their entries, in float64.

With prices near the norms, weights are small differences: float32 would leave them few digits. The algorithm is that of
cpu.py. Torch computes rows whose groups are so uneven that the tile is mostly empty, or too large.
"""

import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import beside, ceil_power, on_device
from polymax.backend.widen import wide_like
from polymax.kernels.grouped import reference

# numbers in the largest tile
LARGEST = 8192
PATIENCE, MOST = tl.constexpr(12), tl.constexpr(200)


def grouped(x: Tensor, strength: Tensor, entries: Tensor, first: Tensor, lone: int, widest: int) -> Tensor:
    bg, bw, warps = tile(first, widest)
    if bg * bw > LARGEST:
        return reference.grouped(x, strength, entries, first, lone, widest)
    y = wide_like(x)
    count, n = x.shape[:-1].numel(), x.shape[-1]
    if count and n:
        args = x.contiguous(), beside(strength, x.shape[:-1]), *_groups(entries, first), y, n, first.shape[-1] - 1, lone
        with on_device(x):
            _grouped[(count,)](*args, MANY=strength.numel() > 1, BG=bg, BW=bw, num_warps=warps)
    return y


def grouped_backward(
    x: Tensor, y: Tensor, v: Tensor, strength: Tensor, entries: Tensor, first: Tensor, lone: int, widest: int
) -> Tensor:
    bg, bw, warps = tile(first, widest)
    if bg * bw > LARGEST:
        return reference.grouped_backward(x, y, v, strength, entries, first, lone, widest)
    out = wide_like(v)
    count, n = x.shape[:-1].numel(), x.shape[-1]
    if count and n:
        tensors = x.contiguous(), y.contiguous(), v.contiguous(), beside(strength, x.shape[:-1])
        args = *tensors, *_groups(entries, first), out, n, first.shape[-1] - 1, lone
        with on_device(x):
            _grouped_backward[(count,)](*args, MANY=strength.numel() > 1, BG=bg, BW=bw, num_warps=warps)
    return out.to(v.dtype)


def tile(first: Tensor, widest: int) -> tuple[int, int, int]:
    """Return the number of groups in a tile, the number of entries of each, and the number of warps."""
    bg, bw = ceil_power(first.shape[-1] - 1), ceil_power(widest)
    return bg, bw, min(max(bg * bw // 256, 1), 8)


def _groups(entries: Tensor, first: Tensor) -> tuple[Tensor, ...]:
    return tuple(t[(0,) * (t.dim() - 1)].contiguous() for t in (entries, first))


@triton.jit
def _entries(p_entries, p_first, groups, BG: tl.constexpr, BW: tl.constexpr):
    """Return the entries of each group (BG, BW), and their mask."""
    o_g = tl.arange(0, BG)
    b_first = tl.load(p_first + o_g, mask=o_g < groups, other=0)
    b_end = tl.load(p_first + o_g + 1, mask=o_g < groups, other=0)
    o_k = b_first[:, None] + tl.arange(0, BW)[None, :]
    m_k = o_k < b_end[:, None]
    return tl.load(p_entries + o_k, mask=m_k, other=0), m_k


@triton.jit
def _prices(b_x, strength, groups, lone, BG: tl.constexpr):
    b_size = tl.sum((b_x != float("-inf")).to(tl.float64), 1)
    return tl.where(tl.arange(0, BG) < groups - lone, strength * tl.sqrt(b_size), 0.0)


@triton.jit
def _sums(b_z, tau, b_price):
    """Return the sum of each group's weights at a threshold, the rate at which it falls, and the remaining share of
    q.
    """
    m_on = b_z > tau
    b_q = tl.where(m_on, b_z - tau, 0.0)
    b_norm = tl.sqrt(tl.sum(b_q * b_q, 1))
    b_total = tl.sum(b_q, 1)
    m_alive = b_norm > b_price
    b_safe = tl.where(m_alive, b_norm, 1.0)
    b_share = tl.where(m_alive, 1 - b_price / b_safe, 0.0)
    b_along = b_total / b_safe
    b_fall = b_share * tl.sum(m_on.to(tl.float64), 1) + b_price * b_along * b_along / b_safe
    return b_total * b_share, tl.where(m_alive, b_fall, 0.0), b_share


@Entry
@triton.jit
def _grouped(
    p_x,
    p_strength,
    p_entries,
    p_first,
    p_y,
    n,
    groups,
    lone,
    MANY: tl.constexpr,
    BG: tl.constexpr,
    BW: tl.constexpr,
):
    i_r = tl.program_id(0).to(tl.int64)
    b_at, m_k = _entries(p_entries, p_first, groups, BG, BW)
    b_x = tl.load(p_x + i_r * n + b_at, mask=m_k, other=float("-inf")).to(tl.float64)
    strength = tl.load(p_strength + (i_r if MANY else i_r * 0)).to(tl.float64)
    bad = (tl.max((b_x < float("inf")).to(tl.int32) ^ 1) > 0) | (strength < 0) | (strength != strength)
    # whether a maximum skips NaN depends on the device: replace NaN here and fill such rows at the end
    b_x = tl.where(b_x < float("inf"), b_x, float("-inf"))
    strength = tl.where(bad, 0.0, strength)
    top = tl.max(b_x)
    b_price = _prices(b_x, strength, groups, lone, BG)
    # in a row of -inf no entry is above any threshold
    b_z = tl.where(b_x > float("-inf"), b_x - tl.where(top > float("-inf"), top, 0.0), float("-inf"))
    above = tl.zeros([], tl.float64)
    below = -1 - tl.max(b_price)
    tau = below / 2
    iteration = 0
    going = (top > float("-inf")).to(tl.int32)
    while going > 0:
        b_sum, b_fall, _ = _sums(b_z, tau, b_price)
        value = tl.sum(b_sum)
        slope = tl.sum(b_fall)
        below = tl.where(value > 1, tau, below)
        above = tl.where(value > 1, above, tau)
        middle = (below + above) / 2
        newton = tau + (value - 1) / tl.where(slope > 0, slope, 1.0)
        asked = (slope > 0) & ((iteration < PATIENCE) | (iteration % 2 == 0))
        close = asked & (tl.abs(newton - tau) <= 1e-15 * (1 + tl.abs(tau)))
        guess = tl.where(asked & (newton > below) & (newton < above), newton, middle)
        iteration += 1
        more = (guess > below) & (guess < above) & (iteration < MOST) & (close ^ True)
        tau = tl.where(more, guess, tau)
        going = more.to(tl.int32)
    b_sum, _, b_share = _sums(b_z, tau, b_price)
    total = tl.sum(b_sum)
    # for large prices weights are small differences with a common relative error, so normalise them
    b_y = tl.where(b_z > tau, (b_z - tau) * b_share[:, None] / tl.where(total > 0, total, 1.0), 0.0)
    tl.store(p_y + i_r * n + b_at, tl.where(bad, float("nan"), b_y).to(p_y.dtype.element_ty), mask=m_k)


@Entry
@triton.jit
def _grouped_backward(
    p_x,
    p_y,
    p_v,
    p_strength,
    p_entries,
    p_first,
    p_out,
    n,
    groups,
    lone,
    MANY: tl.constexpr,
    BG: tl.constexpr,
    BW: tl.constexpr,
):
    i_r = tl.program_id(0).to(tl.int64)
    b_at, m_k = _entries(p_entries, p_first, groups, BG, BW)
    b_x = tl.load(p_x + i_r * n + b_at, mask=m_k, other=float("-inf")).to(tl.float64)
    b_y = tl.load(p_y + i_r * n + b_at, mask=m_k, other=0.0).to(tl.float64)
    b_v = tl.load(p_v + i_r * n + b_at, mask=m_k, other=0.0).to(tl.float64)
    strength = tl.load(p_strength + (i_r if MANY else i_r * 0)).to(tl.float64)
    b_price = _prices(b_x, strength, groups, lone, BG)
    # a NaN is counted, and fills its row
    m_on = b_y != 0
    b_v = tl.where(m_on, b_v, 0.0)
    b_squares = tl.sum(b_y * b_y, 1)
    m_alive = b_squares != 0
    b_safe = tl.where(m_alive, b_squares, 1.0)
    b_rate = tl.where(m_alive & (b_price > 0), b_price / (tl.sqrt(b_safe) + b_price), 0.0)
    b_weight = tl.sum(b_y, 1)
    # factors of an entry's weight in the contributions of <u, v> and <u, 1>
    b_pulled = b_rate * tl.sum(b_y * b_v, 1) / b_safe
    b_ones = b_rate * b_weight / b_safe
    total = tl.sum((1 - b_rate) * tl.sum(b_v, 1) + b_pulled * b_weight)
    whole = tl.sum((1 - b_rate) * tl.sum(m_on.to(tl.float64), 1) + b_ones * b_weight)
    # a row of NaN has the sum of weights NaN
    shift = tl.where(whole != 0, total / tl.where(whole != 0, whole, 1.0), 0.0) + tl.sum(b_weight) * 0
    b_out = (1 - b_rate)[:, None] * (b_v - shift) + b_y * (b_pulled - shift * b_ones)[:, None]
    b_out = tl.where(m_on, b_out, 0.0).to(p_out.dtype.element_ty)
    tl.store(p_out + i_r * n + b_at, b_out, mask=m_k)
