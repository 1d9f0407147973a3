"""The recursion in registers, one program to an instance and all its tokens in lanes, for Triton.

Eight frames are loaded while the eight before them are processed. A byte for each token and eight frames has a bit for
each frame at which the best path came from the token before; the path is read off these bytes, from the last frame
backwards.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device

LARGEST = 8192
# the cells that a program writes: ROWS: frames WIDEST: most tokens
ROWS, WIDEST = 16, 1024


def monotonic_search(x: Tensor, frames: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    batch, n, m = x.shape
    if m > LARGEST:
        raise ValueError(f"scores must have at most {LARGEST} tokens on CUDA; got {m}")
    path = x.new_full((batch, n), -1, dtype=torch.long)
    value = torch.where((frames == 0) & (tokens == 0), 0.0, x.new_full((batch,), -torch.inf, dtype=torch.float64))
    if x.numel():
        moves = x.new_empty(batch, (n + 7) // 8, m, dtype=torch.uint8)
        size = ceil_power(m)
        args = x.contiguous(), frames.contiguous(), tokens.contiguous(), path, value, moves, n, m
        with on_device(x):
            _search[(batch,)](*args, WIDE=x.dtype == torch.float64, BM=size, num_warps=max(1, size // 1024))
    return path, value


def monotonic_cells(x: Tensor, path: Tensor, value: Tensor, frames: Tensor, tokens: Tensor) -> Tensor:
    batch, n, m = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        args = path.contiguous(), value.contiguous(), frames.contiguous(), tokens.contiguous(), y, n, m
        size = min(ceil_power(m), WIDEST)
        grid = batch * triton.cdiv(n, ROWS), triton.cdiv(m, size)
        with on_device(x):
            _cells[grid](*args, BT=ROWS, BM=size, num_warps=4)
    return y


@Entry
@triton.jit
def _cells(p_path, p_value, p_frames, p_tokens, p_y, n, m, BT: tl.constexpr, BM: tl.constexpr):
    blocks = tl.cdiv(n, BT)
    i_b = (tl.program_id(0) // blocks).to(tl.int64)
    o_t = (tl.program_id(0) % blocks) * BT + tl.arange(0, BT)
    o_j = tl.program_id(1) * BM + tl.arange(0, BM)
    rows = tl.load(p_frames + i_b).to(tl.int32)
    columns = tl.load(p_tokens + i_b).to(tl.int32)
    value = tl.load(p_value + i_b)
    b_path = tl.load(p_path + i_b * n + o_t, mask=o_t < n, other=-1)
    b_y = tl.where(b_path[:, None] == o_j[None, :], 1.0, 0.0)
    if value != value:
        b_ends = ((o_t < rows) & (columns <= rows))[:, None] & (o_j < columns)[None, :]
        b_low = o_j[None, :] >= (columns - rows + o_t)[:, None]
        b_y = tl.where(b_ends & b_low & (o_j[None, :] <= o_t[:, None]), float("nan"), 0.0)
    m_y = (o_t < n)[:, None] & (o_j < m)[None, :]
    p_cell = p_y + (i_b * n + o_t)[:, None] * m + o_j[None, :]
    tl.store(p_cell, b_y.to(p_y.dtype.element_ty), mask=m_y)


@Entry
@triton.jit
def _search(p_x, p_frames, p_tokens, p_path, p_value, p_moves, n, m, WIDE: tl.constexpr, BM: tl.constexpr):
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    i_b = tl.program_id(0).to(tl.int64)
    rows = tl.load(p_frames + i_b).to(tl.int32)
    columns = tl.load(p_tokens + i_b).to(tl.int32)
    p_x += i_b * n * m
    p_path += i_b * n
    p_moves += i_b * ((n + 7) // 8) * m
    o_j = tl.arange(0, BM)
    if (columns > 0) & (columns <= rows):
        b_v = tl.full([BM], float("-inf"), dtype)
        b_bad = tl.zeros([BM], tl.int32)
        xs = _eight(p_x, 0, rows, columns, m, o_j, dtype)
        for first in range(0, rows, 8):
            after = _eight(p_x, first + 8, rows, columns, m, o_j, dtype)
            b_bits = tl.zeros([BM], tl.int32)
            for k in tl.static_range(8):
                b_before = tl.gather(b_v, (o_j + (BM - 1)) % BM, 0)
                b_before = tl.where(o_j > 0, b_before, tl.where(first + k == 0, 0.0, float("-inf")).to(dtype))
                b_moved = b_before > b_v
                b_bits |= b_moved.to(tl.int32) << k
                b_bad |= (xs[k] != xs[k]).to(tl.int32)
                b_v = tl.where(first + k < rows, xs[k] + tl.where(b_moved, b_before, b_v), b_v)
            tl.store(p_moves + (first // 8) * m + o_j, b_bits.to(tl.uint8), mask=o_j < m)
            xs = after
        bad = tl.max(b_bad, 0) > 0
        best = tl.max(tl.where(o_j == columns - 1, b_v, float("-inf")), 0).to(tl.float64)
        tl.store(p_value + i_b, tl.where(bad, float("nan"), best))
        # other threads have written the bytes that are read below
        tl.debug_barrier()
        i_j = columns - 1
        for back in range(tl.where((best > float("-inf")) & (bad == 0), rows, 0)):
            t = rows - 1 - back
            tl.store(p_path + t, i_j.to(tl.int64))
            bits = tl.load(p_moves + (t // 8) * m + tl.maximum(i_j, 0)).to(tl.int32)
            i_j -= (bits >> (t % 8)) & 1


@triton.jit
def _eight(p_x, first, rows, columns, m, o_j, dtype: tl.constexpr):
    """Return the scores of eight frames; -inf at cells that are on no path from the first cell to the last."""
    xs = ()
    for k in tl.static_range(8):
        t = first + k
        b_on = (o_j <= t) & (o_j < columns) & (o_j >= columns - rows + t) & (t < rows)
        xs = xs + (tl.load(p_x + t.to(tl.int64) * m + o_j, mask=b_on, other=float("-inf")).to(dtype),)
    return xs
