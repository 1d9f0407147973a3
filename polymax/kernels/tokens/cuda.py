"""Tokens first, by a program for each instance and part of its positions, for Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.tokens import reference

# the most positions that one program orders, and the entries of a tile
LONGEST, TILE = 16384, 4096


def token_order(kept: Tensor) -> tuple[Tensor, Tensor]:
    batch, n = kept.shape
    if not 0 < n <= LONGEST:
        return reference.token_order(kept)
    order = torch.empty(batch, n, dtype=torch.long, device=kept.device)
    lengths = torch.empty(batch, dtype=torch.long, device=kept.device)
    if batch:
        with on_device(kept):
            _order[(batch,)](kept.contiguous(), order, lengths, n, BN=ceil_power(n))
    return order, lengths


def tokens_first(x: Tensor, start: Tensor, end: Tensor, order: Tensor | None, lengths: Tensor) -> Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch(x, y, *_rows(start), *_rows(end), order, lengths, False)
    return y


def tokens_back(g: Tensor, order: Tensor | None, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.empty_like(g, memory_format=torch.contiguous_format)
    ends = g.shape[0], g.shape[2]
    # the kernel writes all rows that there are
    start, end = (g.new_empty(ends) if g.numel() else g.new_zeros(ends) for _ in range(2))
    _launch(g, x, start, g.shape[2], end, g.shape[2], order, lengths, True)
    return x, start, end


def _rows(x: Tensor) -> tuple[Tensor, int]:
    """Return rows that are each contiguous, and the stride between them: 0 if they are one row."""
    x = x if x.stride(1) == 1 else x.contiguous()
    return x, x.stride(0)


def _launch(source, target, start, stride_start, end, stride_end, order, lengths, back):
    batch, n, s = source.shape
    if not source.numel():
        return
    states = min(ceil_power(s), TILE)
    positions = min(ceil_power(n), TILE // states)
    grid = batch, triton.cdiv(n, positions), triton.cdiv(s, states)
    sizes = lengths.contiguous()
    places = sizes if order is None else order.contiguous()
    args = source.contiguous(), target, start, end, places, sizes, stride_start, stride_end, n, s
    with on_device(source):
        _move[grid](*args, ORDERED=order is not None, BACK=back, BP=positions, BS=states)


@Entry
@triton.jit
def _order(p_kept, p_order, p_lengths, n, BN: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BN)
    b_kept = tl.load(p_kept + i_b * n + o_n, mask=o_n < n, other=0).to(tl.int32)
    b_rank = tl.cumsum(b_kept, 0)
    total = tl.sum(b_kept, 0)
    b_place = tl.where(b_kept > 0, b_rank - 1, total + o_n - b_rank)
    tl.store(p_order + i_b * n + b_place, o_n.to(tl.int64), mask=o_n < n)
    tl.store(p_lengths + i_b, total.to(tl.int64))


@Entry
@triton.jit
def _move(
    p_source,
    p_target,
    p_start,
    p_end,
    p_order,
    p_lengths,
    stride_start,
    stride_end,
    n,
    s,
    ORDERED: tl.constexpr,
    BACK: tl.constexpr,
    BP: tl.constexpr,
    BS: tl.constexpr,
):
    """Write the rows of the tokens, plus the rows of start and end; with BACK, the transpose of this."""
    i_b = tl.program_id(0).to(tl.int64)
    o_p = tl.program_id(1) * BP + tl.arange(0, BP)
    o_s = tl.program_id(2) * BS + tl.arange(0, BS)
    m_p, m_s = o_p < n, o_s < s
    m_x = m_p[:, None] & m_s[None, :]
    length = tl.load(p_lengths + i_b)
    b_place = o_p.to(tl.int64)
    if ORDERED:
        b_place = tl.load(p_order + i_b * n + o_p, mask=m_p, other=0)
    p_first = (i_b * n + o_p)[:, None] * s + o_s[None, :]
    p_given = (i_b * n + b_place)[:, None] * s + o_s[None, :]
    m_start = (o_p == 0)[:, None] & m_x
    m_end = (o_p == tl.maximum(length - 1, 0))[:, None] & m_x
    p_start += i_b * stride_start + tl.zeros_like(o_p)[:, None] + o_s[None, :]
    p_end += i_b * stride_end + tl.zeros_like(o_p)[:, None] + o_s[None, :]
    if BACK:
        b_x = tl.load(p_source + p_first, mask=m_x, other=0)
        tl.store(p_target + p_given, b_x, mask=m_x)
        tl.store(p_start, b_x, mask=m_start)
        tl.store(p_end, tl.where(length > 0, b_x, 0), mask=m_end)
    else:
        b_x = tl.load(p_source + p_given, mask=m_x, other=0)
        b_x += tl.load(p_start, mask=m_start, other=0)
        b_x += tl.load(p_end, mask=m_end & (length > 0), other=0)
        tl.store(p_target + p_first, b_x, mask=m_x)
