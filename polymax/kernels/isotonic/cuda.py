"""Isotonic regression by merging neighbouring blocks, doubling their length each time, in registers, for Triton.

Two consecutive non-increasing blocks merge by pooling: entries of the left block below a level t, and entries of the
right block above it, become t; at this t the gain of the left equals the loss of the right. That is one equation for t,
increasing and piecewise linear, and Newton's method in a bracket solves it in a few steps.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend import triton_rows
from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import on_device
from polymax.backend.triton_rows import load_row, offset, store_row, unit


def isotonic(x: Tensor) -> Tensor:
    z = torch.empty_like(x, memory_format=torch.contiguous_format)
    count, n = x.shape[:-1].numel(), x.shape[-1]
    if n > triton_rows.LONGEST:
        raise ValueError(f"x must have rows of at most {triton_rows.LONGEST} entries on CUDA; got {n}")
    if count and n:
        br, bt, be, warps = tile(count, n)
        sizes = {"WIDE": x.dtype == torch.float64, "BR": br, "BT": bt, "BE": be}
        with on_device(x):
            _isotonic[(triton.cdiv(count, br),)](x.contiguous(), z, count, n, **sizes, num_warps=warps)
    return z


def tile(count: int, n: int) -> tuple[int, int, int, int]:
    """Return rows per program, threads to a row, entries to a thread, and warps."""
    return triton_rows.chunks(count, n)


@Entry
@triton.jit
def _isotonic(p_x, p_z, count, n, WIDE: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr):
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    # programs past the last row repeat the last row
    i_r = tl.minimum(tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), count - 1)
    xs = load_row(p_x, i_r, n, float("-inf"), dtype, BT, BE)
    m_good = tl.full([BR, BT], 1, tl.int32)
    b_top = tl.full([BR, BT], float("-inf"), dtype)
    b_low = tl.full([BR, BT], float("inf"), dtype)
    for k in tl.static_range(BE):
        m_finite = tl.abs(xs[k]) < float("inf")
        m_good &= (xs[k] < float("inf")).to(tl.int32)
        b_top = tl.maximum(b_top, tl.where(m_finite, xs[k], float("-inf")))
        b_low = tl.minimum(b_low, tl.where(m_finite, xs[k], float("inf")))
    m_good = tl.min(m_good, 1)[:, None] > 0
    b_top, b_low = tl.max(b_top, 1)[:, None], tl.min(b_low, 1)[:, None]
    b_unit = unit(b_top, b_low)
    b_base = offset(b_top * b_unit, b_low * b_unit)
    ys = ()
    for k in tl.static_range(BE):
        # a NaN would keep the loops from ending: replace it here and put it back at the end
        ys = ys + (tl.where(m_good, xs[k], 0) * b_unit - b_base,)
    zs = non_increasing(ys)
    out = ()
    for k in tl.static_range(BE):
        out = out + (tl.where(m_good, (zs[k] + b_base) * (1 / b_unit), float("nan")),)
    store_row(p_z, i_r, n, out)


@triton.jit
def non_increasing(ys):
    """Return the non-increasing rows nearest to ys, which are -inf past their end."""
    BE: tl.constexpr = len(ys)
    BT: tl.constexpr = ys[0].shape[1]
    for level in tl.static_range(5):
        if 1 << level < BE:
            ys = _merge_entries(ys, 1 << level)
    for level in tl.static_range(12):
        if 1 << level < BT:
            ys = _merge_threads(ys, 1 << level)
    return ys


@triton.jit
def _merge_entries(ys, HALF: tl.constexpr):
    """Merge blocks of HALF entries of a thread."""
    BE: tl.constexpr = len(ys)
    out = ()
    for first in tl.static_range(0, BE, 2 * HALF):
        b_low, b_high = ys[first + HALF - 1], ys[first + HALF]
        m_apart, b_t, b_low, b_high, b_tolerance = _bracket(b_low, b_high)
        if HALF > 1:
            go = tl.max(m_apart.to(tl.int32))
            while go > 0:
                b_excess = tl.zeros_like(b_t)
                b_count = tl.zeros_like(b_t)
                for k in tl.static_range(HALF):
                    b_below = tl.minimum(ys[first + k] - b_t, 0)
                    b_above = tl.maximum(ys[first + HALF + k] - b_t, 0)
                    b_excess += b_below + b_above
                    b_count += tl.where(b_below < 0, 1.0, 0.0) + tl.where(b_above > 0, 1.0, 0.0)
                b_t, b_low, b_high, go = _step(b_t, b_low, b_high, b_excess, b_count, m_apart, b_tolerance)
        for k in tl.static_range(HALF):
            out = out + (tl.maximum(ys[first + k], tl.where(m_apart, b_t, float("-inf"))),)
        for k in tl.static_range(HALF):
            out = out + (tl.minimum(ys[first + HALF + k], tl.where(m_apart, b_t, float("inf"))),)
    return out


@triton.jit
def _merge_threads(ys, HALF: tl.constexpr):
    """Merge blocks of HALF threads."""
    BE: tl.constexpr = len(ys)
    BT: tl.constexpr = ys[0].shape[1]
    m_left = (tl.arange(0, BT) & HALF == 0)[None, :]
    b_low = _spread(tl.min(_pairs(tl.where(m_left, ys[BE - 1], float("inf")), HALF), 2), HALF)
    b_high = _spread(tl.max(_pairs(tl.where(m_left, float("-inf"), ys[0]), HALF), 2), HALF)
    m_apart, b_t, b_low, b_high, b_tolerance = _bracket(b_low, b_high)
    # on the right, entries above the level count, on the left those below it
    b_sign = tl.where(m_left, -1.0, 1.0).to(b_t.dtype) + tl.zeros_like(b_t)
    go = tl.max(m_apart.to(tl.int32))
    while go > 0:
        b_level = b_sign * b_t
        b_excess = tl.zeros_like(b_t)
        b_count = tl.zeros_like(b_t)
        for k in tl.static_range(BE):
            b_d = tl.maximum(b_sign * ys[k] - b_level, 0)
            b_excess += b_d
            b_count += tl.where(b_d > 0, 1.0, 0.0)
        b_excess = _spread(tl.sum(_pairs(b_sign * b_excess, HALF), 2), HALF)
        b_count = _spread(tl.sum(_pairs(b_count, HALF), 2), HALF)
        b_t, b_low, b_high, go = _step(b_t, b_low, b_high, b_excess, b_count, m_apart, b_tolerance)
    b_floor = tl.where(m_apart & m_left, b_t, float("-inf"))
    b_ceiling = tl.where(m_apart & (m_left == 0), b_t, float("inf"))
    out = ()
    for k in tl.static_range(BE):
        out = out + (tl.minimum(tl.maximum(ys[k], b_floor), b_ceiling),)
    return out


@triton.jit
def _bracket(b_low, b_high):
    """Return a mask of block pairs out of order, given the last entry of the left and the first of the right; a
    bracket.
    """
    eps: tl.constexpr = 2.2e-16 if b_low.dtype == tl.float64 else 1.2e-7
    m_apart = b_low < b_high
    b_low, b_high = tl.where(m_apart, b_low, 0), tl.where(m_apart, b_high, 0)
    b_tolerance = 2 * eps * tl.maximum(tl.abs(b_low), tl.abs(b_high))
    return m_apart, 0.5 * (b_low + b_high), b_low, b_high, b_tolerance


@triton.jit
def _step(b_t, b_low, b_high, b_excess, b_count, m_apart, b_tolerance):
    """Return the level after a step of Newton, or of bisection; its bracket; and 1 if any pair is unfinished."""
    b_low = tl.where(b_excess > 0, b_t, b_low)
    b_high = tl.where(b_excess < 0, b_t, b_high)
    b_move = b_excess / tl.maximum(b_count, 1)
    m_close = tl.abs(b_move) <= b_tolerance
    b_next = b_t + b_move
    # strictly inside: a step from one end to the other and back would repeat forever
    m_newton = m_close | ((b_low < b_next) & (b_next < b_high))
    b_half = 0.5 * (b_low + b_high)
    b_next = tl.where(m_newton, b_next, b_half)
    # between neighbouring floats, for example subnormal ones, there is no middle
    m_far = m_apart & (m_close == 0) & (b_high - b_low > b_tolerance) & (b_low < b_half) & (b_half < b_high)
    return tl.where(m_apart, b_next, b_t), b_low, b_high, tl.max(m_far.to(tl.int32))


@triton.jit
def _pairs(b_x, HALF: tl.constexpr):
    """Return threads `(R, T)` by pairs of blocks, `(R, T / (2 HALF), 2 HALF)`."""
    return tl.reshape(b_x, [b_x.shape[0], b_x.shape[1] // (2 * HALF), 2 * HALF])


@triton.jit
def _spread(b_x, HALF: tl.constexpr):
    """Return each pair's number, for all its threads."""
    BR: tl.constexpr = b_x.shape[0]
    PAIRS: tl.constexpr = b_x.shape[1]
    return tl.reshape(tl.broadcast_to(b_x[:, :, None], [BR, PAIRS, 2 * HALF]), [BR, PAIRS * 2 * HALF])
