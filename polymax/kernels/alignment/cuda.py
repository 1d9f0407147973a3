"""Alignment by one wavefront per instance, for Triton.

The lanes of a program are rows; at step t lane r is at column t - r, so that all lanes are on one anti-diagonal. A lane
gets the values of the row above from its neighbour. Problems of more than LANES rows are processed in strips, which
pass on their last row through global memory. Values are float64, because they grow with the path; only differences of
neighbours are exponentiated, for which float32 is enough.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.alignment.cuda_local import smooth
from polymax.kernels.alignment.cuda_outside import outside
from polymax.kernels.alignment.cuda_steps import clear, from_above, skewed
from polymax.kernels.alignment.cuda_tangent import tangent
from polymax.kernels.local_max.triton_max import kind_of

# one row in each thread of the largest program
LANES = 1024


def alignment_inside(scores: Tensor, rows: Tensor, columns: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    # powers below 1 amplify rounding near the edge of the support, so alpha > 2 is computed in float64
    exact = scores.double() if 2 < alpha < math.inf else scores
    count, n, m = scores.shape
    value = exact.new_empty(count)
    chart = exact.new_empty(count, 1, m, 3, n)
    above = exact.new_empty(count, m, dtype=torch.float64)
    with on_device(scores):
        if count:
            args = exact.contiguous(), rows.contiguous(), columns.contiguous(), value, chart, above, n, m
            _inside[(count,)](*args, KIND=kind_of(alpha), ALPHA=alpha, **_tile(exact))
    return value.to(scores.dtype), chart.to(scores.dtype)


def alignment_outside(scores: Tensor, rows: Tensor, columns: Tensor, chart: Tensor, g: Tensor, alpha: float) -> Tensor:
    return _expectation(scores, rows, columns, chart, g, None)


def alignment_tangent(
    scores: Tensor, rows: Tensor, columns: Tensor, chart: Tensor, g: Tensor, d: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    if alpha == math.inf:
        # the hard maximum has one path, which does not change
        y = _expectation(scores, rows, columns, chart, torch.ones_like(g), None)
        return torch.where(y == 0, 0, y * d).sum((1, 2), dtype=torch.float64).to(d.dtype), torch.zeros_like(y)
    count, n, m = scores.shape
    value = scores.new_empty(count)
    change = torch.empty_like(chart, memory_format=torch.contiguous_format)
    above = scores.new_empty(count, m, dtype=torch.float64)
    with on_device(scores):
        if count:
            args = d.contiguous(), rows.contiguous(), columns.contiguous(), chart.contiguous(), change, value, above
            tangent[(count,)](*args, n, m, KIND=kind_of(alpha), ALPHA=alpha, **_tile(scores))
    return value, _expectation(scores, rows, columns, chart, g, change)


def _expectation(scores, rows, columns, chart, g, change):
    """Return the expectations or, given a change of the chart, their change."""
    count, n, m = scores.shape
    out = torch.empty_like(scores, memory_format=torch.contiguous_format)
    chart = chart.contiguous()
    below = scores.new_empty(count, 2, m)
    with on_device(scores):
        if count:
            args = rows.contiguous(), columns.contiguous(), chart, chart if change is None else change, g.contiguous()
            outside[(count,)](*args, out, below, n, m, MOVED=change is not None, **_tile(scores))
    return out


def _tile(scores):
    # as many rows as threads, which in float64 have registers for half as many numbers
    most = LANES if scores.dtype == torch.float32 else LANES // 2
    lanes = min(max(ceil_power(scores.shape[1]), 16), most)
    return {"BR": lanes, "num_warps": max(lanes // 32, 1)}


@Entry
@triton.jit
def _inside(
    p_s,
    p_rows,
    p_columns,
    p_value,
    p_chart,
    p_above,
    N,
    M,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    BR: tl.constexpr,
):
    dtype = p_s.dtype.element_ty
    WIDE: tl.constexpr = p_s.dtype.element_ty == tl.float64
    low = float("-inf")
    i_b = tl.program_id(0).to(tl.int64)
    p_s += i_b * N * M
    p_chart += i_b * M * 3 * N
    p_above += i_b * M
    m = tl.load(p_columns + i_b).to(tl.int32)
    n = tl.where(m > 0, tl.load(p_rows + i_b).to(tl.int32), 0)
    clear(p_chart, 3 * M, N, 3 * m, n, BR)
    o_r = tl.arange(0, BR)
    b_v = tl.zeros([BR], tl.float64)
    b_bad = tl.zeros([BR], tl.int32)
    for top in range(0, n, BR):
        o_row = top + o_r
        m_row = o_row < n
        p_entry = p_s + (o_row.to(tl.int64) * M - o_r)
        b_v = tl.full([BR], low, tl.float64)
        # the cell diagonally before the first cell has value 0
        b_diagonal = tl.where((o_r == 0) & (top == 0), 0.0, b_v)
        # scores, and the values of the row above, are loaded some steps ahead of their use
        b_s0 = skewed(p_entry, 0, o_r, m, m_row)
        b_s1 = skewed(p_entry, 1, o_r, m, m_row)
        b_s2 = skewed(p_entry, 2, o_r, m, m_row)
        b_s3 = skewed(p_entry, 3, o_r, m, m_row)
        m_first = (o_r == 0) & (top > 0)
        b_up0 = tl.load(p_above + o_r, mask=m_first, other=low)
        b_up1 = tl.load(p_above + o_r + 1, mask=m_first & (m > 1), other=low)
        i_line = top % m
        for t in range(0, m + tl.minimum(BR, n - top) - 1):
            b_s, b_s0, b_s1, b_s2 = b_s0, b_s1, b_s2, b_s3
            b_s3 = skewed(p_entry, t + 4, o_r, m, m_row)
            b_down = from_above(b_v, b_up0, o_r, BR)
            b_up0 = b_up1
            b_up1 = tl.load(p_above + o_r + t + 2, mask=m_first & (t + 2 < m), other=low)
            b_top = tl.maximum(tl.maximum(b_diagonal, b_down), b_v)
            b_safe = tl.where(b_top > low, b_top, 0)
            b_a = (b_diagonal - b_safe).to(dtype)
            b_b = (b_down - b_safe).to(dtype)
            b_c = (b_v - b_safe).to(dtype)
            b_p, b_q, b_w, b_more = smooth(b_a, b_b, b_c, KIND, ALPHA, WIDE)
            o_j = t - o_r
            m_in = (o_j >= 0) & (o_j < m) & m_row
            p_line = p_chart + i_line.to(tl.int64) * 3 * N + o_row
            tl.store(p_line, b_p, mask=m_in)
            tl.store(p_line + N, b_q, mask=m_in)
            tl.store(p_line + 2 * N, b_w, mask=m_in)
            i_line = tl.where(i_line + 1 < m, i_line + 1, 0)
            b_bad |= (m_in & ((b_s < float("inf")) == 0)).to(tl.int32)
            b_diagonal = b_down
            b_v = tl.where(m_in, b_top + (b_s.to(tl.float64) + b_more.to(tl.float64)), low)
            tl.store(p_above + o_j, b_v, mask=(o_r == BR - 1) & m_in & (top + BR < n))
        # the next strip reads values that other threads have written
        tl.debug_barrier()
    value = tl.sum(tl.where(o_r == (n + BR - 1) % BR, b_v, 0))
    exists = tl.where(value > low, 1.0, 0.0)
    bad = tl.max(b_bad) > 0
    tl.store(p_value + i_b, tl.where(bad, float("nan"), value))
    tl.store(p_chart, tl.where(bad, float("nan"), exists), mask=n > 0)
