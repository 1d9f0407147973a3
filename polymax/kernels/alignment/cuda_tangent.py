"""The derivative of the weights of an alignment along a direction, for Triton: one more walk of the wavefront.

dv = d + sum_e p_e dv_e        dp = J (dv_e)
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.alignment.cuda_steps import from_above, skewed
from polymax.kernels.local_max.triton_max import SHANNON, slopes


@Entry
@triton.jit
def tangent(
    p_d,
    p_rows,
    p_columns,
    p_chart,
    p_change,
    p_value,
    p_above,
    N,
    M,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    BR: tl.constexpr,
):
    dtype = p_d.dtype.element_ty
    i_b = tl.program_id(0).to(tl.int64)
    p_d += i_b * N * M
    p_chart += i_b * M * 3 * N
    p_change += i_b * M * 3 * N
    p_above += i_b * M
    m = tl.load(p_columns + i_b).to(tl.int32)
    n = tl.where(m > 0, tl.load(p_rows + i_b).to(tl.int32), 0)
    o_r = tl.arange(0, BR)
    b_v = tl.zeros([BR], tl.float64)
    for top in range(0, n, BR):
        o_row = top + o_r
        m_row = o_row < n
        p_entry = p_d + (o_row.to(tl.int64) * M - o_r)
        b_v = tl.zeros([BR], tl.float64)
        b_diagonal = b_v
        m_first = (o_r == 0) & (top > 0)
        for t in range(0, m + tl.minimum(BR, n - top) - 1):
            o_j = t - o_r
            m_in = (o_j >= 0) & (o_j < m) & m_row
            o_line = ((top + t) % m).to(tl.int64) * 3 * N + o_row
            b_p = tl.load(p_chart + o_line, mask=m_in, other=0)
            b_q = tl.load(p_chart + o_line + N, mask=m_in, other=0)
            b_w = tl.load(p_chart + o_line + 2 * N, mask=m_in, other=0)
            b_d = skewed(p_entry, t, o_r, m, m_row)
            b_up = tl.load(p_above + o_r + t, mask=m_first & (t < m), other=0)
            b_down = from_above(b_v, b_up, o_r, BR)
            # a predecessor without weight may have any derivative
            b_a = tl.where(b_p > 0, b_diagonal, 0)
            b_b = tl.where(b_q > 0, b_down, 0)
            b_c = tl.where(b_w > 0, b_v, 0)
            b_mean = b_p.to(tl.float64) * b_a + b_q.to(tl.float64) * b_b + b_w.to(tl.float64) * b_c
            b_a = (b_a - b_mean).to(dtype)
            b_b = (b_b - b_mean).to(dtype)
            b_c = (b_c - b_mean).to(dtype)
            b_sp = b_p
            b_sq = b_q
            b_sw = b_w
            if KIND != SHANNON:
                b_sp = slopes(b_p, ALPHA, KIND)
                b_sq = slopes(b_q, ALPHA, KIND)
                b_sw = slopes(b_w, ALPHA, KIND)
                b_total = b_sp + b_sq + b_sw
                b_shift = (b_sp * b_a + b_sq * b_b + b_sw * b_c) / tl.where(b_total > 0, b_total, 1)
                b_a -= b_shift
                b_b -= b_shift
                b_c -= b_shift
            tl.store(p_change + o_line, tl.where(b_p > 0, b_sp * b_a, 0), mask=m_in)
            tl.store(p_change + o_line + N, tl.where(b_q > 0, b_sq * b_b, 0), mask=m_in)
            tl.store(p_change + o_line + 2 * N, tl.where(b_w > 0, b_sw * b_c, 0), mask=m_in)
            b_diagonal = b_down
            b_v = tl.where(m_in, b_mean + b_d.to(tl.float64), 0)
            tl.store(p_above + o_j, b_v, mask=(o_r == BR - 1) & m_in & (top + BR < n))
        # the next strip reads values that other threads have written
        tl.debug_barrier()
    exists = tl.load(p_chart, mask=n > 0, other=0)
    value = tl.sum(tl.where(o_r == (n + BR - 1) % BR, b_v, 0))
    tl.store(p_value + i_b, tl.where(exists == 0, 0, value * exists))
