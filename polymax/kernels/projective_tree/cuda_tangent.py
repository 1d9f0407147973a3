"""Hessian-vector products of projective trees for Triton: the passes of cuda.py and their derivatives along d."""

import triton
import triton.language as tl

from polymax.kernels.local_max.triton_max import mean_rows, tangent_rows, weight_rows
from polymax.kernels.projective_tree.cuda_arcs import arcs, heard, pick, roots, store_square
from polymax.kernels.span_tree.cuda_chart import add_to, clear, load_sums, spans


@triton.jit
def tangent(
    p_scores,
    p_lengths,
    p_chart,
    p_g,
    p_d,
    p_dchart,
    p_space,
    p_dspace,
    p_dvalue,
    p_dmu,
    size,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SINGLE: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
    BR: tl.constexpr,
    PAD: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    m = tl.load(p_lengths + i_b).to(tl.int32)
    s = size + PAD
    square = (size + 1) * s
    p_scores += i_b * size * size
    p_d += i_b * size * size
    p_c = p_chart + i_b * 3 * square
    p_dc = p_dchart + i_b * 3 * square
    p_to = p_space + i_b * 3 * square
    p_dto = p_dspace + i_b * 3 * square
    clear(p_dc, 3 * square, BI * BK)
    clear(p_to, 3 * square, BI * BK)
    clear(p_dto, 3 * square, BI * BK)
    tl.debug_barrier()
    _forward(p_c, p_d, p_dc, m, size, s, square, KIND, ALPHA, SINGLE, BI, BK)
    g = tl.load(p_g + i_b).to(tl.float64)
    if SINGLE:
        dvalue = _single_root(p_scores, p_d, p_c, p_dc, p_to, p_dto, g, m, s, square, KIND, ALPHA, BR)
    else:
        reached = (m > 0) & (tl.load(p_c + m) != float("-inf"))
        dvalue = tl.where(reached, tl.load(p_dc + m), 0)
        tl.store(p_to + m, tl.where(reached, g, 0))
    tl.store(p_dvalue + i_b, tl.where(m > 0, dvalue, 0))
    tl.debug_barrier()
    _backward(p_c, p_dc, p_to, p_dto, m, s, square, KIND, ALPHA, SINGLE, BI, BK)
    store_square(p_dmu + i_b * size * size, p_dto + 2 * square, m, size, s, BI * BK)


@triton.jit
def _forward(
    p_c,
    p_d,
    p_dc,
    m,
    size,
    s,
    square,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SINGLE: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
):
    """Fill the derivative of the chart."""
    p_r, p_l, p_v = p_c, p_c + square, p_c + 2 * square
    p_dr, p_dl, p_dv = p_dc, p_dc + square, p_dc + 2 * square
    first = 1 if SINGLE else 0
    o_c = tl.arange(0, BK)[None, :]
    for width in range(1, m + 1 - first):
        for start in range(0, m + 1 - first - width, BI):
            o_i, o_j, m_in, o_left, o_right, m_on = spans(start, first, width, m, s, BI, BK)
            b_right, b_left = arcs(p_d, o_i, o_j, size, m_in, 0)
            b_p = weight_rows(load_sums(p_r, o_left, p_l, o_right + 1, m_on, float("-inf")), KIND, ALPHA)
            b_gap = mean_rows(b_p, load_sums(p_dr, o_left, p_dl, o_right + 1, m_on, 0))
            b_right += b_gap
            b_left += b_gap
            tl.store(p_dv + o_i * s + o_j, b_right, mask=m_in)
            tl.store(p_dv + o_j * s + o_i, b_left, mask=m_in)
            # of the choices, only the arc (i, j) itself is new: it comes from registers, not from memory
            b_p = weight_rows(load_sums(p_v, o_left + 1, p_r, o_right + 1, m_on, float("-inf")), KIND, ALPHA)
            b_da = load_sums(p_dv, o_left + 1, p_dr, o_right + 1, m_on & (o_c < width - 1), 0)
            b_r = mean_rows(b_p, tl.where(m_on & (o_c == width - 1), b_right[:, None], b_da))
            b_p = weight_rows(load_sums(p_l, o_left, p_v, o_right, m_on, float("-inf")), KIND, ALPHA)
            b_da = load_sums(p_dl, o_left, p_dv, o_right, m_on & (o_c > 0), 0)
            b_l = mean_rows(b_p, tl.where(m_on & (o_c == 0), b_left[:, None], b_da))
            tl.store(p_dr + o_i * s + o_j, b_r, mask=m_in)
            tl.store(p_dr + o_j * s + o_i, b_r, mask=m_in)
            tl.store(p_dl + o_i * s + o_j, b_l, mask=m_in)
            tl.store(p_dl + o_j * s + o_i, b_l, mask=m_in)
        tl.debug_barrier()


@triton.jit
def _single_root(
    p_scores,
    p_d,
    p_c,
    p_dc,
    p_to,
    p_dto,
    g,
    m,
    s,
    square,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    BR: tl.constexpr,
):
    """Start both backward passes at the choice of the root; the derivative of the value."""
    o_r = tl.arange(0, BR)[None, :]
    m_roots = (o_r > 0) & (o_r <= m)
    b_p = weight_rows(roots(p_scores, p_c + square, p_c, m, s, float("-inf"), BR), KIND, ALPHA)
    b_da = roots(p_d, p_dc + square, p_dc, m, s, 0, BR)
    b_dp = tangent_rows(b_p, b_da, KIND, ALPHA) * g
    dvalue = tl.sum(mean_rows(b_p, b_da), 0)
    tl.store(p_to + m * s + o_r, b_p * g, mask=m_roots)
    tl.store(p_to + square + s + o_r, b_p * g, mask=m_roots)
    tl.store(p_dto + m * s + o_r, b_dp, mask=m_roots)
    tl.store(p_dto + square + s + o_r, b_dp, mask=m_roots)
    tl.store(p_dto + 2 * square + o_r, b_dp, mask=m_roots)
    return dvalue


@triton.jit
def _backward(
    p_c,
    p_dc,
    p_to,
    p_dto,
    m,
    s,
    square,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SINGLE: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
):
    """Fill what the spans hear, and its derivative."""
    p_r, p_l, p_v = p_c, p_c + square, p_c + 2 * square
    p_dr, p_dl, p_dv = p_dc, p_dc + square, p_dc + 2 * square
    p_to_r, p_to_l, p_to_v = p_to, p_to + square, p_to + 2 * square
    p_dto_r, p_dto_l, p_dto_v = p_dto, p_dto + square, p_dto + 2 * square
    first = 1 if SINGLE else 0
    o_c = tl.arange(0, BK)[None, :]
    for step in range(0, m - first):
        width = m - first - step
        for start in range(0, step + 1, BI):
            o_i, o_j, m_in, o_left, o_right, m_on = spans(start, first, width, m, s, BI, BK)
            m_before = m_on & (o_c < width - 1)
            m_after = m_on & (o_c > 0)
            o_arc = o_i * s + o_j
            o_back = o_j * s + o_i

            b_here = heard(p_to_r, o_i, o_j, s, m_in)[:, None]
            b_dhere = heard(p_dto_r, o_i, o_j, s, m_in)[:, None]
            b_p = weight_rows(load_sums(p_v, o_left + 1, p_r, o_right + 1, m_on, float("-inf")), KIND, ALPHA)
            b_dp = tangent_rows(b_p, load_sums(p_dv, o_left + 1, p_dr, o_right + 1, m_on, 0), KIND, ALPHA)
            b_q, b_dq = b_p * b_here, b_dp * b_here + b_p * b_dhere
            b_gap = tl.load(p_to_v + o_arc, mask=m_in, other=0) + pick(b_q, o_c == width - 1)
            b_dgap = tl.load(p_dto_v + o_arc, mask=m_in, other=0) + pick(b_dq, o_c == width - 1)
            # what was read above is written below, by other threads
            tl.debug_barrier()
            add_to(p_to_v + o_left + 1, b_q, m_on)
            add_to(p_dto_v + o_left + 1, b_dq, m_on)
            add_to(p_to_r + o_right + 1, b_q, m_before)
            add_to(p_dto_r + o_right + 1, b_dq, m_before)

            b_here = heard(p_to_l, o_i, o_j, s, m_in)[:, None]
            b_dhere = heard(p_dto_l, o_i, o_j, s, m_in)[:, None]
            b_p = weight_rows(load_sums(p_l, o_left, p_v, o_right, m_on, float("-inf")), KIND, ALPHA)
            b_dp = tangent_rows(b_p, load_sums(p_dl, o_left, p_dv, o_right, m_on, 0), KIND, ALPHA)
            b_q, b_dq = b_p * b_here, b_dp * b_here + b_p * b_dhere
            b_gap += tl.load(p_to_v + o_back, mask=m_in, other=0) + pick(b_q, o_c == 0)
            b_dgap += tl.load(p_dto_v + o_back, mask=m_in, other=0) + pick(b_dq, o_c == 0)
            tl.debug_barrier()
            add_to(p_to_v + o_right, b_q, m_on)
            add_to(p_dto_v + o_right, b_dq, m_on)
            add_to(p_to_l + o_left, b_q, m_after)
            add_to(p_dto_l + o_left, b_dq, m_after)

            b_p = weight_rows(load_sums(p_r, o_left, p_l, o_right + 1, m_on, float("-inf")), KIND, ALPHA)
            b_dp = tangent_rows(b_p, load_sums(p_dr, o_left, p_dl, o_right + 1, m_on, 0), KIND, ALPHA)
            b_q, b_dq = b_p * b_gap[:, None], b_dp * b_gap[:, None] + b_p * b_dgap[:, None]
            add_to(p_to_r + o_left, b_q, m_after)
            add_to(p_dto_r + o_left, b_dq, m_after)
            add_to(p_to_l + o_right + 1, b_q, m_before)
            add_to(p_dto_l + o_right + 1, b_dq, m_before)
        tl.debug_barrier()
