"""Expectations of an alignment, and their derivatives along a direction, for Triton: the wavefront from its end.

E = sum over successors of p E        dE = sum over successors of dp E + p dE
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.alignment.cuda_steps import clear, from_below


@Entry
@triton.jit
def outside(
    p_rows,
    p_columns,
    p_chart,
    p_change,
    p_g,
    p_out,
    p_below,
    N,
    M,
    MOVED: tl.constexpr,
    BR: tl.constexpr,
):
    """Write dE if the chart changes by `change`, else E."""
    dtype = p_out.dtype.element_ty
    i_b = tl.program_id(0).to(tl.int64)
    p_chart += i_b * M * 3 * N
    p_change += i_b * M * 3 * N
    p_out += i_b * N * M
    p_below += i_b * 2 * M
    m = tl.load(p_columns + i_b).to(tl.int32)
    n = tl.where(m > 0, tl.load(p_rows + i_b).to(tl.int32), 0)
    clear(p_out, N, M, n, m, BR)
    root = tl.load(p_g + i_b) * tl.load(p_chart, mask=n > 0, other=0.0)
    o_r = tl.arange(0, BR)
    strips = (n + BR - 1) // BR
    for k in range(0, strips):
        top = (strips - 1 - k) * BR
        i_tail = tl.minimum(BR, n - top) - 1
        o_row = top + o_r
        m_row = o_row < n
        p_entry = p_out + (o_row.to(tl.int64) * M - o_r)
        # expectations to the right, to the row above, and diagonally to the row above, one step later
        b_right = tl.zeros([BR], dtype)
        b_up = b_right
        b_later = b_right
        b_dright = b_right
        b_dup = b_right
        b_dlater = b_right
        # weights, and expectations from the strip below, are loaded some steps ahead of their use
        last = m + i_tail - 1
        b_p0, b_q0, b_w0 = _weights(p_chart, last, top, o_row, o_r, N, m, m_row)
        b_p1, b_q1, b_w1 = _weights(p_chart, last - 1, top, o_row, o_r, N, m, m_row)
        b_p2, b_q2, b_w2 = _weights(p_chart, last - 2, top, o_row, o_r, N, m, m_row)
        b_p3, b_q3, b_w3 = _weights(p_chart, last - 3, top, o_row, o_r, N, m, m_row)
        m_tail = (o_r == i_tail) & (k > 0)
        b_given = tl.where((o_r == i_tail) & (k == 0), root, 0).to(dtype)
        b_given += _given(p_below, m - 1, o_r, m_tail)
        b_given1 = _given(p_below, m - 2, o_r, m_tail)
        b_dgiven = b_right
        b_dgiven1 = b_right
        if MOVED:
            b_dgiven = _given(p_below + M, m - 1, o_r, m_tail)
            b_dgiven1 = _given(p_below + M, m - 2, o_r, m_tail)
        for u in range(0, last + 1):
            t = last - u
            o_j = t - o_r
            m_in = (o_j >= 0) & (o_j < m) & m_row
            b_p, b_p0, b_p1, b_p2 = b_p0, b_p1, b_p2, b_p3
            b_q, b_q0, b_q1, b_q2 = b_q0, b_q1, b_q2, b_q3
            b_w, b_w0, b_w1, b_w2 = b_w0, b_w1, b_w2, b_w3
            b_p3, b_q3, b_w3 = _weights(p_chart, t - 4, top, o_row, o_r, N, m, m_row)
            b_e = b_right + from_below(b_up, b_given, i_tail, o_r, BR)
            b_e = tl.where(m_in, b_e, 0)
            b_given = b_given1
            b_given1 = _given(p_below, m - 3 - u, o_r, m_tail)
            b_right = b_e * b_w
            b_up = b_e * b_q + b_later
            b_later = b_e * b_p
            tl.store(p_below + t + o_r, b_up, mask=(o_r == 0) & (t < m) & (top > 0))
            if MOVED:
                b_dp, b_dq, b_dw = _weights(p_change, t, top, o_row, o_r, N, m, m_row)
                b_de = b_dright + from_below(b_dup, b_dgiven, i_tail, o_r, BR)
                b_de = tl.where(m_in, b_de, 0)
                b_dgiven = b_dgiven1
                b_dgiven1 = _given(p_below + M, m - 3 - u, o_r, m_tail)
                b_dright = b_de * b_w + b_e * b_dw
                b_dup = b_de * b_q + b_e * b_dq + b_dlater
                b_dlater = b_de * b_p + b_e * b_dp
                tl.store(p_below + M + t + o_r, b_dup, mask=(o_r == 0) & (t < m) & (top > 0))
                tl.store(p_entry + t, b_de, mask=m_in)
            else:
                tl.store(p_entry + t, b_e, mask=m_in)
        # the next strip reads values that other threads have written
        tl.debug_barrier()


@triton.jit
def _weights(p_chart, t, top, o_row, o_r, N, m, m_row):
    """Return the three weights of the cells of step t; 0 outside the problem."""
    o_j = t - o_r
    m_in = (o_j >= 0) & (o_j < m) & m_row
    # a step before the first has no cells: its address only needs to be valid
    p_line = p_chart + (tl.maximum(top + t, 0) % m).to(tl.int64) * 3 * N + o_row
    b_p = tl.load(p_line, mask=m_in, other=0)
    b_q = tl.load(p_line + N, mask=m_in, other=0)
    b_w = tl.load(p_line + 2 * N, mask=m_in, other=0)
    return b_p, b_q, b_w


@triton.jit
def _given(p_below, j, o_r, m_tail):
    """Return the expectation that the strip below passes to column j of the last row of this strip."""
    return tl.load(p_below + j + o_r * 0, mask=m_tail & (j >= 0), other=0)
