"""One span of trees that score pairs of arcs, for Triton: its values, and the arguments of its maxima.

Loads are (G, K): grandparents by choices. `row` is the place of a grandparent's square, `s` the length of its rows.
"""

import triton
import triton.language as tl

from polymax.kernels.span_tree.cuda_chart import load_sums
from polymax.kernels.span_tree.cuda_smooth import value_rows


@triton.jit
def lanes(start, i, j, n, count, GRAND: tl.constexpr, BG: tl.constexpr):
    """Grandparents from `start` on, and which of them a span (i, j) has: those outside; of the root symbol itself."""
    o_g = start + tl.arange(0, BG)
    if GRAND:
        b_in = (o_g <= n) & ((o_g < i) | (o_g > j))
        b_in = tl.where(i == 0, o_g == 0, b_in)
    else:
        b_in = o_g < count
    return o_g, b_in


@triton.jit
def gap(p_r, p_l, o_row, i, j, s, b_in, width, BK: tl.constexpr):
    """Between two modifiers i and j of g: (G, K)."""
    o_c = tl.arange(0, BK)[None, :]
    b_on = b_in[:, None] & (o_c < width)
    return load_sums(p_r, o_row + i * s + i + o_c, p_l, o_row + j * s + i + 1 + o_c, b_on, float("-inf"))


@triton.jit
def join_right(p_r, p_l, p_v, p_s, p_siblings, o_row, i, j, s, lane, b_in, width, SIBS: tl.constexpr, BK: tl.constexpr):
    """What may be below an arc from i to j: (G, K)."""
    o_c = tl.arange(0, BK)[None, :]
    b_on = b_in[:, None] & (o_c < width)
    if SIBS:
        b_inner = (o_c > 0) & (o_c < width)
        o_pair = (i * s + j) * s + i
        b_t = tl.load(p_s + i * lane + j * s + i + o_c, mask=b_inner, other=0)
        # the first column is that of no sibling, whose score is at the head itself
        b_t += tl.load(p_siblings + o_pair + o_c, mask=o_c < width, other=0).to(tl.float64)
        b_t += tl.where(o_c == 0, tl.load(p_l + i * lane + j * s + i + 1), 0)
        b_v = tl.load(p_v + o_row + i * s + i + o_c, mask=b_in[:, None] & b_inner, other=0)
        return tl.where(b_on, b_v + b_t, float("-inf"))
    b_t = tl.load(p_l + i * lane + j * s + i + 1 + o_c, mask=o_c < width, other=0)
    b_v = tl.load(p_r + o_row + i * s + i + o_c, mask=b_on, other=0)
    return tl.where(b_on, b_v + b_t, float("-inf"))


@triton.jit
def join_left(p_r, p_l, p_v, p_s, p_siblings, o_row, i, j, s, lane, b_in, width, SIBS: tl.constexpr, BK: tl.constexpr):
    """What may be below an arc from j to i: (G, K)."""
    o_c = tl.arange(0, BK)[None, :]
    b_on = b_in[:, None] & (o_c < width)
    if SIBS:
        b_inner = (o_c > 0) & (o_c < width)
        o_pair = (j * s + i) * s
        b_t = tl.load(p_s + j * lane + i * s + i + o_c, mask=b_inner, other=0)
        b_t += tl.load(p_siblings + o_pair + tl.where(o_c == 0, j, i + o_c), mask=o_c < width, other=0).to(tl.float64)
        b_t += tl.where(o_c == 0, tl.load(p_r + j * lane + i * s + j - 1), 0)
        b_v = tl.load(p_v + o_row + j * s + i + o_c, mask=b_in[:, None] & b_inner, other=0)
        return tl.where(b_on, b_v + b_t, float("-inf"))
    b_t = tl.load(p_r + j * lane + i * s + i + o_c, mask=o_c < width, other=0)
    b_v = tl.load(p_l + o_row + j * s + i + 1 + o_c, mask=b_on, other=0)
    return tl.where(b_on, b_v + b_t, float("-inf"))


@triton.jit
def below_right(p_r, p_v, o_row, i, j, s, lane, b_in, width, BK: tl.constexpr):
    """The outermost modifier i + 1 + c of i, and what it heads: (G, K); the last column, c = width - 1, is j."""
    o_c = tl.arange(0, BK)[None, :]
    b_on = b_in[:, None] & (o_c < width)
    b_t = tl.load(p_r + i * lane + j * s + i + 1 + o_c, mask=o_c < width, other=0)
    b_v = tl.load(p_v + o_row + i * s + i + 1 + o_c, mask=b_on, other=0)
    return tl.where(b_on, b_v + b_t, float("-inf"))


@triton.jit
def below_left(p_l, p_v, o_row, i, j, s, lane, b_in, width, BK: tl.constexpr):
    """The outermost modifier i + c of j, and what it heads: (G, K); the first column is i."""
    o_c = tl.arange(0, BK)[None, :]
    b_on = b_in[:, None] & (o_c < width)
    b_t = tl.load(p_l + j * lane + i * s + i + o_c, mask=o_c < width, other=0)
    b_v = tl.load(p_v + o_row + j * s + i + o_c, mask=b_on, other=0)
    return tl.where(b_on, b_v + b_t, float("-inf"))


@triton.jit
def roots(p_arcs, p_siblings, p_r, p_l, n, s, SIBS: tl.constexpr, BR: tl.constexpr):
    """What each token adds up to as the single root, (1, K)."""
    o_c = tl.arange(0, BR)[None, :]
    b_in = (o_c > 0) & (o_c <= n)
    b_a = tl.load(p_arcs + o_c, mask=b_in, other=0).to(tl.float64)
    if SIBS:
        # [0, modifier, 0]
        b_a += tl.load(p_siblings + o_c * s, mask=b_in, other=0).to(tl.float64)
    b_rest = tl.load(p_l + s + o_c, mask=b_in, other=0) + tl.load(p_r + n * s + o_c, mask=b_in, other=0)
    return tl.where(b_in, b_a + b_rest, float("-inf"))


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
        square = i_b * 0 + s * s
        lane = square if GRAND else square * 0
        p_r = p_chart + i_b * (4 if SIBS else 3) * count * square
        p_l = p_r + count * square
        p_v = p_l + count * square
        p_s = p_v + count * square
        p_arcs += i_b * square
        p_siblings += i_b * square * s
        p_grandparents += i_b * square * s
        o_c = tl.arange(0, BK)[None, :]
        to_right = tl.load(p_arcs + i * s + j).to(tl.float64)
        to_left = tl.load(p_arcs + j * s + i).to(tl.float64)
        for start in range(0, count, BG):
            o_g, b_in = lanes(start, i, j, n, count, GRAND, BG)
            o_line = o_g * lane
            o_row = o_line[:, None]
            # nothing is the head of the root symbol
            b_left = b_in & (i > 0)
            if SIBS:
                b_gap = value_rows(gap(p_r, p_l, o_row, i, j, s, b_left, width, BK), KIND, ALPHA)
                tl.store(p_s + o_line + i * s + j, b_gap, mask=b_left)
                tl.store(p_s + o_line + j * s + i, b_gap, mask=b_left)
            b_a = join_right(p_r, p_l, p_v, p_s, p_siblings, o_row, i, j, s, lane, b_in, width, SIBS, BK)
            b_ir = value_rows(b_a, KIND, ALPHA) + to_right
            b_a = join_left(p_r, p_l, p_v, p_s, p_siblings, o_row, i, j, s, lane, b_left, width, SIBS, BK)
            b_il = value_rows(b_a, KIND, ALPHA) + to_left
            if GRAND:
                b_ir += tl.load(p_grandparents + o_line + i * s + j, mask=b_left, other=0).to(tl.float64)
                b_il += tl.load(p_grandparents + o_line + j * s + i, mask=b_left, other=0).to(tl.float64)
            tl.store(p_v + o_line + i * s + j, b_ir, mask=b_in)
            tl.store(p_v + o_line + j * s + i, b_il, mask=b_left)
            # of the choices, only the arc between i and j is new: it comes from registers, not from memory
            b_a = below_right(p_r, p_v, o_row, i, j, s, lane, b_in, width - 1, BK)
            b_a = tl.where(b_in[:, None] & (o_c == width - 1), b_ir[:, None], b_a)
            b_value = value_rows(b_a, KIND, ALPHA)
            tl.store(p_r + o_line + i * s + j, b_value, mask=b_in)
            tl.store(p_r + o_line + j * s + i, b_value, mask=b_in)
            b_a = below_left(p_l, p_v, o_row, i, j, s, lane, b_left, width, BK)
            b_a = tl.where(b_left[:, None] & (o_c == 0), b_il[:, None], b_a)
            b_value = value_rows(b_a, KIND, ALPHA)
            tl.store(p_l + o_line + i * s + j, b_value, mask=b_left)
            tl.store(p_l + o_line + j * s + i, b_value, mask=b_left)


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
    square = i_b * 0 + size * size
    p_r = p_chart + i_b * (4 if SIBS else 3) * count * square
    if SINGLE:
        p_l = p_r + count * square
        b_a = roots(p_arcs + i_b * square, p_siblings + i_b * square * size, p_r, p_l, n, size, SIBS, BR)
        value = tl.sum(value_rows(b_a, KIND, ALPHA), 0)
    else:
        value = tl.load(p_r + n)
    tl.store(p_value + i_b, tl.where(n > 0, value, 0))
