"""Rows of scores of the pages that were read: the threshold, and the sum of values under weights, in parts."""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_weights import exponent, newton_step, slope, weight
from polymax.kernels.sparse_decoding.cuda_pages import MARGIN, page_start, seen_pages


@triton.jit
def _row(p_alphas, p_sinks, p_lengths, i_row, heads, L, S, a1, left, right, offset,
         LEARNED: tl.constexpr, SINKS: tl.constexpr, PAGED: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Return alpha - 1 of a row, u of its sink, its sequence and head, and the pages that may have been read for it."""
    i_b, i_h = i_row // (heads * L), (i_row // L) % heads
    a = exponent(p_alphas + i_h, a1, LEARNED)
    sink = float("-inf")
    if SINKS:
        sink = tl.load(p_sinks + i_h).to(tl.float32) * a
    _, _, begin, end = seen_pages(p_lengths, i_b, L, S, left, right, offset, PAGED, BN)
    return a, sink, i_b, i_h, begin, end


@Entry
@triton.jit(do_not_specialize=["S", "offset"])
def thresholds(
    p_alphas, p_sinks, p_lengths, p_scores, p_maxima, p_list, p_top, p_depth, p_count,
    heads, L, S, pages, a1, left, right, offset, tolerance,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PAGED: tl.constexpr, R: tl.constexpr, BN: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write tau of a row from the pages above the threshold of the maxima of pages, and the list of these pages."""
    i_row = tl.program_id(0)
    a, sink, _, _, begin, end = _row(
        p_alphas, p_sinks, p_lengths, i_row, heads, L, S, a1, left, right, offset, LEARNED, SINKS, PAGED, BN
    )  # fmt: skip
    r = 1 / a
    o_row = i_row.to(tl.int64) * pages
    p_list += o_row
    top = sink
    bad = 0
    for i_c in range(begin, end, BP):
        b_m = _maxima(p_maxima + o_row, i_c, end, BP)
        top = tl.maximum(top, tl.max(b_m, 0))
        bad += tl.sum((b_m != b_m).to(tl.int32), 0)
    # a row that sees no key has no threshold
    depth = tl.where(top == float("-inf"), 0.0, 1.0)
    top = tl.where(top == float("-inf"), float("inf"), top)
    worst = 2.0
    turn = 0
    while (worst > 1.02) & (turn < 8):
        over = tl.maximum((sink - top) + depth, 0.0)
        f, g = weight(over, r, R), slope(over, r, R)
        for i_c in range(begin, end, BP):
            b_x = tl.maximum((_maxima(p_maxima + o_row, i_c, end, BP) - top) + depth, 0.0)
            f += tl.sum(weight(b_x, r, R), 0)
            g += tl.sum(slope(b_x, r, R), 0)
        depth = newton_step(depth, f, g, a, R)
        worst = f
        turn += 1
    # a margin above the rounding of a huge top
    bound = top - tl.where(depth > 0, depth + MARGIN * (1 + tl.abs(top)), depth)
    count = 0
    for i_c in range(begin, end, BP):
        b_on = (_maxima(p_maxima + o_row, i_c, end, BP) > bound).to(tl.int32)
        tl.store(p_list + count + tl.cumsum(b_on, 0) - 1, i_c + tl.arange(0, BP), mask=b_on > 0)
        count += tl.sum(b_on, 0)
    # other threads wrote the list that is read below
    tl.debug_barrier()
    o_n = tl.arange(0, BN)
    worst = 2.0
    turn = 0
    while (worst > 1 + tolerance) & (turn < 24):
        over = tl.maximum((sink - top) + depth, 0.0)
        f, g = weight(over, r, R), slope(over, r, R)
        for i_c in range(0, count, BC):
            o_c = i_c + tl.arange(0, BC)
            o_p = tl.load(p_list + o_c, mask=o_c < count, other=0)
            p_tile = p_scores + (o_row + o_p)[:, None] * BN + o_n[None, :]
            m_tile = (o_c < count)[:, None] & (o_n >= 0)[None, :]
            b_x = tl.maximum((tl.load(p_tile, mask=m_tile, other=float("-inf")) - top) + depth, 0.0)
            f += tl.sum(tl.sum(weight(b_x, r, R), 1), 0)
            g += tl.sum(tl.sum(slope(b_x, r, R), 1), 0)
        depth = newton_step(depth, f, g, a, R)
        worst = f
        turn += 1
    tl.store(p_top + i_row, top)
    # inf - inf is NaN
    m_known = (bad == 0) & ((top < float("inf")) | (depth == 0))
    tl.store(p_depth + i_row, tl.where(m_known, depth, float("nan")))
    tl.store(p_count + i_row, count)


@triton.jit
def _maxima(p_maxima, i_c, end, BP: tl.constexpr):
    o_c = i_c + tl.arange(0, BP)
    return tl.load(p_maxima + o_c, mask=o_c < end, other=float("-inf"))


@Entry
@triton.jit
def value_sums(
    p_v, p_table, p_alphas, p_scores, p_list, p_top, p_depth, p_count, p_sums, p_mass, p_size,
    v_b, v_g, v_p, v_l, table_b, heads, group, L, pages, a1,
    LEARNED: tl.constexpr, PAGED: tl.constexpr, R: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the sum of values under weights, over every n-th listed page of a row; the sum of the weights, their
    number.
    """
    i_s, i_row = tl.program_id(0), tl.program_id(1)
    parts = tl.num_programs(0)
    i_b, i_h = i_row // (heads * L), (i_row // L) % heads
    a = exponent(p_alphas + i_h, a1, LEARNED)
    r = 1 / a
    o_row = i_row.to(tl.int64) * pages
    top, depth = tl.load(p_top + i_row), tl.load(p_depth + i_row)
    count = tl.load(p_count + i_row)
    o_n, o_v = tl.arange(0, BN), tl.arange(0, BV)
    b_sum = tl.zeros((BV,), tl.float32)
    b_mass = tl.zeros((BN,), tl.float32)
    b_size = tl.zeros((BN,), tl.int32)
    for i_c in range(i_s, count, parts):
        i_p = tl.load(p_list + o_row + i_c)
        b_w = tl.maximum((tl.load(p_scores + (o_row + i_p) * BN + o_n) - top) + depth, 0.0)
        b_p = weight(b_w, r, R)
        o_page = page_start(p_table, i_b, i_p, i_c < count, table_b, v_b, v_p, PAGED)
        p_tile = p_v + o_page + (i_h // group).to(tl.int64) * v_g + o_n.to(tl.int64)[:, None] * v_l + o_v[None, :]
        b_v = tl.load(p_tile, mask=(b_w > 0)[:, None] & (o_v < V)[None, :], other=0.0).to(tl.float32)
        b_sum += tl.sum(b_p[:, None] * b_v, 0)
        b_mass += b_p
        b_size += (b_w > 0).to(tl.int32)
    o_part = i_row.to(tl.int64) * parts + i_s
    tl.store(p_sums + o_part * BV + o_v, b_sum)
    tl.store(p_mass + o_part, tl.sum(b_mass, 0))
    tl.store(p_size + o_part, tl.sum(b_size, 0))


@Entry
@triton.jit(do_not_specialize=["parts"])
def contexts(
    p_alphas, p_sinks, p_top, p_depth, p_sums, p_mass, p_size, p_out, p_support, heads, L, parts, a1,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, R: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BS: tl.constexpr,
):  # fmt: skip
    """Write the context of a row from its parts; weights sum to 1."""
    i_row = tl.program_id(0)
    i_h = (i_row // L) % heads
    a = exponent(p_alphas + i_h, a1, LEARNED)
    top, depth = tl.load(p_top + i_row), tl.load(p_depth + i_row)
    o_s, o_v = tl.arange(0, BS), tl.arange(0, BV)
    o_part = i_row.to(tl.int64) * parts + o_s
    mass = tl.sum(tl.load(p_mass + o_part, mask=o_s < parts, other=0.0), 0)
    size = tl.sum(tl.load(p_size + o_part, mask=o_s < parts, other=0), 0)
    if SINKS:
        over = tl.maximum((tl.load(p_sinks + i_h).to(tl.float32) * a - top) + depth, 0.0)
        mass += weight(over, 1 / a, R)
        size += (over > 0).to(tl.int32)
    m_tile = (o_s < parts)[:, None] & (o_v >= 0)[None, :]
    b_sum = tl.sum(tl.load(p_sums + o_part[:, None] * BV + o_v[None, :], mask=m_tile, other=0.0), 0)
    b_out = b_sum * tl.where(depth == depth, 1 / tl.where(mass > 0, mass, 1.0), float("nan"))
    tl.store(p_out + i_row.to(tl.int64) * V + o_v, b_out.to(p_out.dtype.element_ty), mask=o_v < V)
    tl.store(p_support + i_row, size)
