"""A span of trees that score pairs of arcs, for Triton: its values, and the arguments of its maxima.

Loads are (G, K): grandparents by choices. `row` is the offset of a grandparent's square, `s` the length of its rows.
"""

import triton
import triton.language as tl

from polymax.kernels.local_max.triton_max import value_rows
from polymax.kernels.span_tree.cuda_chart import load_sums


@triton.jit
def lanes(start, i, j, n, count, GRAND: tl.constexpr, BG: tl.constexpr):
    """Return grandparents from `start` on, and the mask of those of a span (i, j): outside of it, or 0 for the root
    symbol.
    """
    o_g = start + tl.arange(0, BG)
    if GRAND:
        m_in = (o_g <= n) & ((o_g < i) | (o_g > j))
        m_in = tl.where(i == 0, o_g == 0, m_in)
    else:
        m_in = o_g < count
    return o_g, m_in


@triton.jit
def gap(p_r, p_l, o_row, i, j, s, m_in, width, BK: tl.constexpr):
    """Return the scores (G, K) of the spans between two modifiers i and j of g."""
    o_c = tl.arange(0, BK)[None, :]
    m_on = m_in[:, None] & (o_c < width)
    return load_sums(p_r, o_row + i * s + i + o_c, p_l, o_row + j * s + i + 1 + o_c, m_on, float("-inf"))


@triton.jit
def join_right(p_r, p_l, p_v, p_s, p_siblings, o_row, i, j, s, lane, m_in, width, SIBS: tl.constexpr, BK: tl.constexpr):
    """Return scores (G, K) of the partial trees that can hang below the arc i -> j."""
    if SIBS:
        # the first column is the choice without a sibling, whose score is at the head itself
        o_c = tl.arange(0, BK)[None, :]
        p_pairs = p_siblings + (i * s + j) * s + i + o_c
        p_alone = p_l + i * lane + j * s + i + 1
        return _last_sibling(p_v + o_row + i * s + i, p_s + i * lane + j * s + i, p_pairs, p_alone, m_in, width, BK)
    else:
        return _lane_sums(p_r + o_row + i * s + i, p_l + i * lane + j * s + i + 1, m_in, width, BK)


@triton.jit
def join_left(p_r, p_l, p_v, p_s, p_siblings, o_row, i, j, s, lane, m_in, width, SIBS: tl.constexpr, BK: tl.constexpr):
    """Return scores (G, K) of the partial trees that can hang below the arc j -> i."""
    if SIBS:
        o_c = tl.arange(0, BK)[None, :]
        p_pairs = p_siblings + (j * s + i) * s + tl.where(o_c == 0, j, i + o_c)
        p_alone = p_r + j * lane + i * s + j - 1
        return _last_sibling(p_v + o_row + j * s + i, p_s + j * lane + i * s + i, p_pairs, p_alone, m_in, width, BK)
    else:
        return _lane_sums(p_l + o_row + j * s + i + 1, p_r + j * lane + i * s + i, m_in, width, BK)


@triton.jit
def below_right(p_r, p_v, o_row, i, j, s, lane, m_in, width, BK: tl.constexpr):
    """Return scores (G, K) of an outermost modifier i + 1 + c of i with its subtree; the last column, c = width - 1, is
    j.
    """
    return _lane_sums(p_v + o_row + i * s + i + 1, p_r + i * lane + j * s + i + 1, m_in, width, BK)


@triton.jit
def below_left(p_l, p_v, o_row, i, j, s, lane, m_in, width, BK: tl.constexpr):
    """Return scores (G, K) of an outermost modifier i + c of j with its subtree; the first column is i."""
    return _lane_sums(p_v + o_row + j * s + i, p_l + j * lane + i * s + i, m_in, width, BK)


@triton.jit
def _lane_sums(p_lanes, p_shared, m_in, width, BK: tl.constexpr):
    """Return rows of grandparents plus one row that all of them share."""
    o_c = tl.arange(0, BK)[None, :]
    m_on = m_in[:, None] & (o_c < width)
    b_shared = tl.load(p_shared + o_c, mask=o_c < width, other=0)
    return tl.where(m_on, tl.load(p_lanes + o_c, mask=m_on, other=0) + b_shared, float("-inf"))


@triton.jit
def _last_sibling(p_lanes, p_gaps, p_pairs, p_alone, m_in, width, BK: tl.constexpr):
    """Return rows of grandparents plus the gap to a last sibling and the pair's score; column 0 is the choice without
    one.
    """
    o_c = tl.arange(0, BK)[None, :]
    m_inner = (o_c > 0) & (o_c < width)
    b_shared = tl.load(p_gaps + o_c, mask=m_inner, other=0)
    b_shared += tl.load(p_pairs, mask=o_c < width, other=0).to(tl.float64)
    b_shared += tl.where(o_c == 0, tl.load(p_alone), 0)
    b_lanes = tl.load(p_lanes + o_c, mask=m_in[:, None] & m_inner, other=0)
    return tl.where(m_in[:, None] & (o_c < width), b_lanes + b_shared, float("-inf"))


@triton.jit
def squares(p_x, i_b, size, count, SIBS: tl.constexpr):
    """Return pointers to R, L, I and S of an instance's chart, and the size of a grandparent's square."""
    square = i_b * 0 + size * size
    cube = count * square
    p_r = p_x + i_b * (4 if SIBS else 3) * cube
    p_l = p_r + cube
    p_v = p_l + cube
    return p_r, p_l, p_v, p_v + cube, square


@triton.jit
def roots(p_arcs, p_siblings, p_r, p_l, n, s, SIBS: tl.constexpr, BR: tl.constexpr):
    """Return the total score of each token as the single root, (1, K)."""
    o_c = tl.arange(0, BR)[None, :]
    m_in = (o_c > 0) & (o_c <= n)
    b_a = tl.load(p_arcs + o_c, mask=m_in, other=0).to(tl.float64)
    if SIBS:
        # scores at [0, modifier, 0]
        b_a += tl.load(p_siblings + o_c * s, mask=m_in, other=0).to(tl.float64)
    b_rest = tl.load(p_l + s + o_c, mask=m_in, other=0) + tl.load(p_r + n * s + o_c, mask=m_in, other=0)
    return tl.where(m_in, b_a + b_rest, float("-inf"))


@triton.jit(do_not_specialize=["width", "size", "count", "first"])
def inside_span(
    p_arcs,
    p_siblings,
    p_grandparents,
    p_lengths,
    p_chart,
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
        lane = square if GRAND else square * 0
        p_arcs += i_b * square
        p_siblings += i_b * square * s
        p_grandparents += i_b * square * s
        o_c = tl.arange(0, BK)[None, :]
        to_right = tl.load(p_arcs + i * s + j).to(tl.float64)
        to_left = tl.load(p_arcs + j * s + i).to(tl.float64)
        for start in range(0, count, BG):
            o_lane, m_in = lanes(start, i, j, n, count, GRAND, BG)
            o_g = o_lane * lane
            o_row = o_g[:, None]
            # the root symbol has no head
            m_ok = m_in & (i > 0)
            if SIBS:
                b_gap = value_rows(gap(p_r, p_l, o_row, i, j, s, m_ok, width, BK), KIND, ALPHA)
                tl.store(p_s + o_g + i * s + j, b_gap, mask=m_ok)
                tl.store(p_s + o_g + j * s + i, b_gap, mask=m_ok)
            b_a = join_right(p_r, p_l, p_v, p_s, p_siblings, o_row, i, j, s, lane, m_in, width, SIBS, BK)
            b_ir = value_rows(b_a, KIND, ALPHA) + to_right
            b_a = join_left(p_r, p_l, p_v, p_s, p_siblings, o_row, i, j, s, lane, m_ok, width, SIBS, BK)
            b_il = value_rows(b_a, KIND, ALPHA) + to_left
            if GRAND:
                b_ir += tl.load(p_grandparents + o_g + i * s + j, mask=m_ok, other=0).to(tl.float64)
                b_il += tl.load(p_grandparents + o_g + j * s + i, mask=m_ok, other=0).to(tl.float64)
            tl.store(p_v + o_g + i * s + j, b_ir, mask=m_in)
            tl.store(p_v + o_g + j * s + i, b_il, mask=m_ok)
            # only the arc between i and j is a new choice: it is added from registers, not from memory
            b_a = below_right(p_r, p_v, o_row, i, j, s, lane, m_in, width - 1, BK)
            b_a = tl.where(m_in[:, None] & (o_c == width - 1), b_ir[:, None], b_a)
            b_value = value_rows(b_a, KIND, ALPHA)
            tl.store(p_r + o_g + i * s + j, b_value, mask=m_in)
            tl.store(p_r + o_g + j * s + i, b_value, mask=m_in)
            b_a = below_left(p_l, p_v, o_row, i, j, s, lane, m_ok, width, BK)
            b_a = tl.where(m_ok[:, None] & (o_c == 0), b_il[:, None], b_a)
            b_value = value_rows(b_a, KIND, ALPHA)
            tl.store(p_l + o_g + i * s + j, b_value, mask=m_ok)
            tl.store(p_l + o_g + j * s + i, b_value, mask=m_ok)


@triton.jit(do_not_specialize=["size", "count"])
def root_value(
    p_arcs,
    p_siblings,
    p_grandparents,
    p_lengths,
    p_chart,
    p_value,
    size,
    count,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SIBS: tl.constexpr,
    GRAND: tl.constexpr,
    SINGLE: tl.constexpr,
    BR: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    p_r, p_l, _, _, square = squares(p_chart, i_b, size, count, SIBS)
    if SINGLE:
        b_a = roots(p_arcs + i_b * square, p_siblings + i_b * square * size, p_r, p_l, n, size, SIBS, BR)
        value = tl.sum(value_rows(b_a, KIND, ALPHA), 0)
    else:
        value = tl.load(p_r + n)
    tl.store(p_value + i_b, tl.where(n > 0, value, 0))
