"""The gradients that one span of trees that score pairs of arcs passes on to narrower spans, for Triton.

`heard` has the gradients in the squares of the chart: of R, L, I and S. `taken` are those of pairs of siblings, [head,
modifier, sibling].
"""

import triton
import triton.language as tl

from polymax.kernels.head_automaton.cuda_inside import (
    below_left,
    below_right,
    gap,
    join_left,
    join_right,
    lanes,
    roots,
    squares,
)
from polymax.kernels.local_max.triton_max import weight_rows
from polymax.kernels.span_tree.cuda_chart import add_to


@triton.jit
def _heard(p_to, o_g, i, j, s, m_in):
    """Return the gradient of a span, the sum of its gradients as a left and as a right child."""
    b_left = tl.load(p_to + o_g + i * s + j, mask=m_in, other=0)
    return b_left + tl.load(p_to + o_g + j * s + i, mask=m_in, other=0)


@triton.jit(do_not_specialize=["width", "size", "count", "first"])
def outside_span(
    p_arcs,
    p_siblings,
    p_grandparents,
    p_lengths,
    p_chart,
    p_heard,
    p_mu,
    p_taken,
    width,
    size,
    count,
    first,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SIBS: tl.constexpr,
    GRAND: tl.constexpr,
    BG: tl.constexpr,
    BK: tl.constexpr,
):
    i_b = tl.program_id(1).to(tl.int64)
    i = first + tl.program_id(0)
    j = i + width
    n = tl.load(p_lengths + i_b).to(tl.int32)
    if j <= n:
        s = size
        p_r, p_l, p_v, p_s, square = squares(p_chart, i_b, s, count, SIBS)
        p_to_r, p_to_l, p_to_v, p_to_s, _ = squares(p_heard, i_b, s, count, SIBS)
        lane = square if GRAND else square * 0
        p_siblings += i_b * square * s
        o_c = tl.arange(0, BK)[None, :]
        m_on = o_c < width
        # gradients of all grandparents for the squares of i and of j
        b_under_right = tl.zeros([1, BK], tl.float64)
        b_under_left = tl.zeros([1, BK], tl.float64)
        b_join_right = tl.zeros([1, BK], tl.float64)
        b_join_left = tl.zeros([1, BK], tl.float64)
        total_right = tl.sum(tl.zeros([BK], tl.float64), 0)
        total_left = tl.sum(tl.zeros([BK], tl.float64), 0)
        for start in range(0, count, BG):
            o_lane, m_in = lanes(start, i, j, n, count, GRAND, BG)
            o_g = o_lane * lane
            o_row = o_g[:, None]
            m_ok = m_in & (i > 0)
            b_to_r = _heard(p_to_r, o_g, i, j, s, m_in)
            b_to_l = _heard(p_to_l, o_g, i, j, s, m_ok)
            b_right = tl.load(p_to_v + o_g + i * s + j, mask=m_in, other=0)
            b_left = tl.load(p_to_v + o_g + j * s + i, mask=m_ok, other=0)
            m_any = (b_to_r != 0) | (b_to_l != 0) | (b_right != 0) | (b_left != 0)
            if SIBS:
                b_to_s = _heard(p_to_s, o_g, i, j, s, m_ok)
                m_any = m_any | (b_to_s != 0)
            # other threads overwrite below what was read above
            tl.debug_barrier()
            # with the hard maximum few spans have a gradient
            if tl.max(m_any.to(tl.int32)) > 0:
                b_a = below_right(p_r, p_v, o_row, i, j, s, lane, m_in, width, BK)
                b_q = weight_rows(b_a, KIND, ALPHA) * b_to_r[:, None]
                b_right += tl.sum(tl.where(o_c == width - 1, b_q, 0), 1)
                m_some = m_in[:, None] & (o_c < width - 1)
                add_to(p_to_v + o_row + i * s + i + 1 + o_c, b_q, m_some)
                b_under_right += tl.sum(tl.where(m_some, b_q, 0), 0)[None, :]
                b_a = below_left(p_l, p_v, o_row, i, j, s, lane, m_ok, width, BK)
                b_q = weight_rows(b_a, KIND, ALPHA) * b_to_l[:, None]
                b_left += tl.sum(tl.where(o_c == 0, b_q, 0), 1)
                m_some = m_ok[:, None] & m_on & (o_c > 0)
                add_to(p_to_v + o_row + j * s + i + o_c, b_q, m_some)
                b_under_left += tl.sum(tl.where(m_some, b_q, 0), 0)[None, :]
                tl.store(p_to_v + o_g + i * s + j, b_right, mask=m_in)
                tl.store(p_to_v + o_g + j * s + i, b_left, mask=m_ok)
                total_right += tl.sum(tl.where(m_in, b_right, 0), 0)
                total_left += tl.sum(tl.where(m_ok, b_left, 0), 0)
                tl.debug_barrier()
                m_some = m_in[:, None] & m_on & (o_c > 0)
                b_a = join_right(p_r, p_l, p_v, p_s, p_siblings, o_row, i, j, s, lane, m_in, width, SIBS, BK)
                b_q = weight_rows(b_a, KIND, ALPHA) * b_right[:, None]
                b_join_right += tl.sum(tl.where(m_in[:, None] & m_on, b_q, 0), 0)[None, :]
                if SIBS:
                    add_to(p_to_v + o_row + i * s + i + o_c, b_q, m_some)
                else:
                    add_to(p_to_r + o_row + i * s + i + o_c, b_q, m_some)
                b_a = join_left(p_r, p_l, p_v, p_s, p_siblings, o_row, i, j, s, lane, m_ok, width, SIBS, BK)
                b_q = weight_rows(b_a, KIND, ALPHA) * b_left[:, None]
                b_join_left += tl.sum(tl.where(m_ok[:, None] & m_on, b_q, 0), 0)[None, :]
                if SIBS:
                    add_to(p_to_v + o_row + j * s + i + o_c, b_q, m_some & m_ok[:, None])
                    b_q = weight_rows(gap(p_r, p_l, o_row, i, j, s, m_ok, width, BK), KIND, ALPHA) * b_to_s[:, None]
                    add_to(p_to_r + o_row + i * s + i + o_c, b_q, m_some & m_ok[:, None])
                    add_to(p_to_l + o_row + j * s + i + 1 + o_c, b_q, m_ok[:, None] & (o_c < width - 1))
                else:
                    add_to(p_to_l + o_row + j * s + i + 1 + o_c, b_q, m_ok[:, None] & (o_c < width - 1))
                tl.debug_barrier()
        tl.debug_barrier()
        add_to(p_to_r + i * lane + j * s + i + 1 + o_c, b_under_right, o_c < width - 1)
        add_to(p_to_l + j * lane + i * s + i + o_c, b_under_left, m_on & (o_c > 0) & (i > 0))
        tl.store(p_mu + i_b * square + i * s + j, total_right)
        tl.store(p_mu + i_b * square + j * s + i, total_left, mask=i > 0)
        tl.debug_barrier()
        if SIBS:
            p_taken += i_b * square * s
            tl.store(p_taken + (i * s + j) * s + i + o_c, b_join_right, mask=m_on)
            tl.store(p_taken + (j * s + i) * s + tl.where(o_c == 0, j, i + o_c), b_join_left, mask=m_on & (i > 0))
            m_inner = m_on & (o_c > 0)
            add_to(p_to_s + i * lane + j * s + i + o_c, b_join_right, m_inner)
            add_to(p_to_s + j * lane + i * s + i + o_c, b_join_left, m_inner & (i > 0))
            m_none = (o_c == 0) & (width > 1)
            add_to(p_to_l + i * lane + j * s + i + 1 + o_c, b_join_right, m_none)
            add_to(p_to_r + j * lane + i * s + j - 1 + o_c, b_join_left, m_none & (i > 0))
        else:
            add_to(p_to_l + i * lane + j * s + i + 1 + o_c, b_join_right, o_c < width - 1)
            add_to(p_to_r + j * lane + i * s + i + o_c, b_join_left, m_on & (o_c > 0) & (i > 0))


@triton.jit(do_not_specialize=["size", "count"])
def root_weights(
    p_arcs,
    p_siblings,
    p_grandparents,
    p_lengths,
    p_chart,
    p_g,
    p_heard,
    p_mu,
    p_taken,
    size,
    count,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SIBS: tl.constexpr,
    GRAND: tl.constexpr,
    SINGLE: tl.constexpr,
    BR: tl.constexpr,
):
    """Write the gradients of the whole sentence's spans."""
    i_b = tl.program_id(0).to(tl.int64)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    s = size
    p_r, p_l, _, _, square = squares(p_chart, i_b, s, count, SIBS)
    p_to_r, p_to_l, _, _, _ = squares(p_heard, i_b, s, count, SIBS)
    g = tl.load(p_g + i_b).to(tl.float64)
    if SINGLE:
        b_a = roots(p_arcs + i_b * square, p_siblings + i_b * square * s, p_r, p_l, n, s, SIBS, BR)
        b_q = g * weight_rows(b_a, KIND, ALPHA)
        o_c = tl.arange(0, BR)[None, :]
        m_in = (o_c > 0) & (o_c <= n)
        tl.store(p_mu + i_b * square + o_c, b_q, mask=m_in)
        if SIBS:
            tl.store(p_taken + i_b * square * s + o_c * s, b_q, mask=m_in)
        tl.store(p_to_l + s + o_c, b_q, mask=m_in & (o_c > 1))
        tl.store(p_to_r + o_c * s + n, b_q, mask=m_in & (o_c < n))
    else:
        tl.store(p_to_r + n, tl.where(tl.load(p_r + n) == float("-inf"), 0, g), mask=n > 0)
