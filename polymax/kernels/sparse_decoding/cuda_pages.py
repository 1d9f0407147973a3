"""Pages of keys: the bound of a box, the pages that can matter, and their scores.

A program takes a part of the pages of a head of keys, with all rows that share the head: its queries and query heads.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_tile import capped_units, heights, larger, load_rows, row_top
from polymax.kernels.sparse_attention.cuda_weights import newton_step, slope, weight

# relative margin for the rounding of scores in another kernel
MARGIN = tl.constexpr(1e-4)


@triton.jit
def row_places(p_alphas, i_g, group, L, a1, LEARNED: tl.constexpr, BR: tl.constexpr):
    """Return head, query and validity of the rows of a head of keys, and their alpha - 1."""
    o_r = tl.arange(0, BR)
    # rows of padding read the mask of the last head: that of a next head may be behind the end of its memory
    i_h = i_g * group + tl.minimum(o_r // L, group - 1)
    m_r = o_r < group * L
    a = tl.zeros((BR,), tl.float32) + a1
    if LEARNED:
        a = tl.load(p_alphas + i_h, mask=m_r, other=2.0).to(tl.float32) - 1
    return i_h, o_r % L, m_r, a


@triton.jit
def seen_pages(p_lengths, i_b, L, S, left, right, offset, PAGED: tl.constexpr, BN: tl.constexpr):
    """Return keys of a sequence, the position of its first query, and the first and the end of the pages that a query
    sees.
    """
    if PAGED:
        keys = tl.load(p_lengths + i_b).to(tl.int32)
        first = keys - L
    else:
        keys = S
        first = offset
    begin = tl.minimum(tl.maximum(first - left, 0), keys) // BN
    end = (tl.maximum(tl.minimum(first + L + right, keys), 0) + BN - 1) // BN
    return keys, first, begin, tl.maximum(end, begin)


@triton.jit
def part_of_pages(p_lengths, i_s, i_b, L, S, left, right, offset, PAGED: tl.constexpr, BN: tl.constexpr):
    """Return `seen_pages` with the share of pages of program i_s."""
    keys, first, begin, end = seen_pages(p_lengths, i_b, L, S, left, right, offset, PAGED, BN)
    share = (end - begin + tl.num_programs(0) - 1) // tl.num_programs(0)
    return keys, first, begin + i_s * share, tl.minimum(begin + (i_s + 1) * share, end)


@triton.jit
def page_start(p_table, i_b, i_p, m_p, table_b, s_b, s_p, PAGED: tl.constexpr):
    """Return offsets of pages i_p of a sequence in a tensor, s_b apart for pages of a pool, else s_b and s_p for
    sequences and pages.
    """
    if PAGED:
        at = tl.load(p_table + i_b * table_b + i_p, mask=m_p, other=0).to(tl.int64) * s_b
    else:
        at = i_b.to(tl.int64) * s_b + i_p.to(tl.int64) * s_p
    return at


@Entry
@triton.jit(do_not_specialize=["S", "offset"])
def page_bounds(
    p_q, p_k, p_boxes, p_table, p_lengths, p_alphas, p_mask, p_bounds, p_seeds,
    q_b, q_h, q_l, k_b, k_g, k_p, k_l, x_b, x_g, x_p, mask_b, mask_h, mask_l, mask_s, table_b,
    heads, group, L, S, pages, a1, scale, softcap, left, right, offset,
    LEARNED: tl.constexpr, PAGED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr, R: tl.constexpr,
    BR: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write bounds of all pages, (rows, pages); and seeds: maximum and threshold in the page with each part's largest
    bound.
    """
    i_s, i_bg = tl.program_id(0), tl.program_id(1)
    i_b, i_g = i_bg // (heads // group), i_bg % (heads // group)
    i_h, i_q, m_r, a = row_places(p_alphas, i_g, group, L, a1, LEARNED, BR)
    keys, first, begin, end = part_of_pages(p_lengths, i_s, i_b, L, S, left, right, offset, PAGED, BN)
    o_d, o_n, o_r = tl.arange(0, BD), tl.arange(0, BN), tl.arange(0, BR)
    o_head = i_b.to(tl.int64) * q_b + i_h.to(tl.int64) * q_h
    b_q = load_rows(p_q, (o_head + i_q * q_l), o_d, m_r, 1, D, BD)
    b_up, b_down = tl.maximum(b_q, 0.0).to(b_q.dtype), tl.minimum(b_q, 0.0).to(b_q.dtype)
    o_row = (i_b * heads + i_h).to(tl.int64) * L + i_q
    best = float("-inf")
    at = begin
    for i_c in range(begin, end, BP):
        o_p = i_c + tl.arange(0, BP)
        m_p = o_p < end
        o_box = page_start(p_table, i_b, o_p, m_p, table_b, x_b, x_p, PAGED) + i_g.to(tl.int64) * x_g
        b_low = load_rows(p_boxes, o_box, o_d, m_p, 1, D, BD)
        b_high = load_rows(p_boxes + D, o_box, o_d, m_p, 1, D, BD)
        b_raw = tl.dot(b_up, tl.trans(b_high), input_precision=PRECISION)
        b_raw = tl.dot(b_down, tl.trans(b_low), b_raw, input_precision=PRECISION)
        b_u = capped_units(b_raw, a[:, None], scale, softcap, CAP)
        o_from, o_to = (first + i_q - left)[:, None], (first + i_q + right)[:, None]
        m_seen = (o_p * BN + BN > o_from) & (o_p * BN <= o_to) & m_p[None, :] & m_r[:, None]
        b_u = tl.where(m_seen, b_u, float("-inf"))
        m_tile = m_r[:, None] & m_p[None, :]
        tl.store(p_bounds + o_row[:, None] * pages + o_p[None, :], b_u, mask=m_tile)
        b_any = tl.max(b_u, 0)
        top = tl.max(b_any, 0)
        i_top = tl.argmax(b_any, 0)
        at = tl.where(top > best, i_c + i_top, at)
        best = tl.maximum(best, top)
    m_some = begin < end
    o_k = page_start(p_table, i_b, at, m_some, table_b, k_b, k_p, PAGED) + i_g.to(tl.int64) * k_g
    o_key = at * BN + o_n
    b_k = load_rows(p_k + o_k, o_n, o_d, (o_key < keys) & m_some, k_l, D, BD)
    p_rows = p_mask + (i_b.to(tl.int64) * mask_b + i_h.to(tl.int64) * mask_h)[:, None]
    b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
    b_u = heights(
        b_raw, i_q, o_key, p_rows, mask_l, mask_s, L, keys, a[:, None], scale, softcap,
        left, right, first, MASK, CAP, False, True,
    )  # fmt: skip
    b_u = tl.where(m_some & m_r[:, None], b_u, float("-inf"))
    b_top = row_top(b_u)
    b_none = tl.full((BR,), float("-inf"), tl.float32)
    p_seed = p_seeds + (i_bg * tl.num_programs(0) + i_s) * (2 * BR) + o_r
    tl.store(p_seed, b_top)
    b_depth = _depth(b_u, b_none, tl.where(b_top == float("-inf"), 0.0, b_top), tl.full((BR,), 1.0, tl.float32), a, R)
    tl.store(p_seed + BR, b_top - b_depth)


@Entry
@triton.jit(do_not_specialize=["S", "offset"])
def page_scores(
    p_q, p_k, p_table, p_lengths, p_alphas, p_mask, p_sinks, p_bounds, p_seeds, p_list, p_scores, p_maxima,
    q_b, q_h, q_l, k_b, k_g, k_p, k_l, mask_b, mask_h, mask_l, mask_s, table_b,
    heads, group, L, S, pages, a1, scale, softcap, left, right, offset,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PAGED: tl.constexpr, BOXES: tl.constexpr, MASK: tl.constexpr,
    CAP: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    BP: tl.constexpr, BS: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write scores (rows, pages, BN) of the pages that can matter, and the maximum of each page, -inf for others."""
    i_s, i_bg = tl.program_id(0), tl.program_id(1)
    i_b, i_g = i_bg // (heads // group), i_bg % (heads // group)
    i_h, i_q, m_r, a = row_places(p_alphas, i_g, group, L, a1, LEARNED, BR)
    keys, first, begin, end = part_of_pages(p_lengths, i_s, i_b, L, S, left, right, offset, PAGED, BN)
    o_d, o_n = tl.arange(0, BD), tl.arange(0, BN)
    o_head = i_b.to(tl.int64) * q_b + i_h.to(tl.int64) * q_h
    b_q = load_rows(p_q, (o_head + i_q * q_l), o_d, m_r, 1, D, BD)
    o_row = (i_b * heads + i_h).to(tl.int64) * L + i_q
    p_rows = p_mask + (i_b.to(tl.int64) * mask_b + i_h.to(tl.int64) * mask_h)[:, None]
    count = end - begin
    if BOXES:
        b_sink = tl.full((BR,), float("-inf"), tl.float32)
        if SINKS:
            b_sink = tl.load(p_sinks + i_h, mask=m_r, other=0.0).to(tl.float32) * a
        b_t = _seed_bound(p_seeds + i_bg * tl.num_programs(0) * (2 * BR), tl.num_programs(0), b_sink, a, R, BR, BS)
        p_list += i_bg.to(tl.int64) * pages + begin
        count = 0
        for i_c in range(begin, end, BP):
            o_p = i_c + tl.arange(0, BP)
            m_tile = m_r[:, None] & (o_p < end)[None, :]
            b_u = tl.load(p_bounds + o_row[:, None] * pages + o_p[None, :], mask=m_tile, other=float("-inf"))
            # a page with a NaN bound must be read
            b_on = tl.max(((b_u > b_t[:, None]) | (b_u != b_u) | (b_t != b_t)[:, None]).to(tl.int32), 0)
            b_on = tl.where(o_p < end, b_on, 0)
            tl.store(p_list + count + tl.cumsum(b_on, 0) - 1, o_p, mask=b_on > 0)
            p_tile = p_maxima + o_row[:, None] * pages + o_p[None, :]
            tl.store(p_tile, tl.full((BR, BP), float("-inf"), tl.float32), mask=m_tile & (b_on == 0)[None, :])
            count += tl.sum(b_on, 0)
        # other threads wrote the list that is read below
        tl.debug_barrier()
    for i_c in tl.range(0, count, num_stages=STAGES):
        if BOXES:
            i_p = tl.load(p_list + i_c)
        else:
            i_p = begin + i_c
        o_k = page_start(p_table, i_b, i_p, i_c < count, table_b, k_b, k_p, PAGED) + i_g.to(tl.int64) * k_g
        o_key = i_p * BN + o_n
        b_k = load_rows(p_k + o_k, o_n, o_d, o_key < keys, k_l, D, BD)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_u = heights(
            b_raw, i_q, o_key, p_rows, mask_l, mask_s, L, keys, a[:, None], scale,
            softcap, left, right, first, MASK, CAP, False, True,
        )  # fmt: skip
        p_tile = p_scores + (o_row[:, None] * pages + i_p) * BN + o_n[None, :]
        tl.store(p_tile, b_u, mask=m_r[:, None])
        tl.store(p_maxima + o_row * pages + i_p, row_top(b_u), mask=m_r)


@triton.jit
def _seed_bound(p_seeds, parts, b_sink, a, R: tl.constexpr, BR: tl.constexpr, BS: tl.constexpr):
    """Return a lower bound of each row's tau: the threshold of the seeds' maxima, or the largest threshold of a seed;
    -inf without seeds.
    """
    o_s, o_r = tl.arange(0, BS), tl.arange(0, BR)
    p_seed = p_seeds + o_s[None, :] * (2 * BR) + o_r[:, None]
    m_seed = (o_s < parts)[None, :] & (o_r >= 0)[:, None]
    b_m = tl.load(p_seed, mask=m_seed, other=float("-inf"))
    b_top = larger(row_top(b_m), b_sink)
    b_page = tl.max(tl.load(p_seed + BR, mask=m_seed, other=float("-inf")), 1)
    # Newton's steps need a finite start; NaN stays
    m_none = b_top == float("-inf")
    b_depth = tl.where(m_none, 1.0, 1 - larger(b_page - (b_top - 1), tl.zeros((BR,), tl.float32)))
    b_depth = _depth(b_m, b_sink, tl.where(m_none, 0.0, b_top), b_depth, a, R)
    return b_top - (b_depth + MARGIN * (1 + tl.abs(b_top)))


@triton.jit
def _depth(b_u, b_sink, b_top, b_depth, a, R: tl.constexpr):
    """Return about how far the threshold of rows of scores and their sink is below the largest; steps start further
    down.
    """
    r = 1 / a
    for _ in range(8):
        b_over = tl.maximum((b_sink - b_top) + b_depth, 0.0)
        b_x = tl.maximum((b_u - b_top[:, None]) + b_depth[:, None], 0.0)
        b_f = weight(b_over, r, R) + tl.sum(weight(b_x, r[:, None], R), 1)
        b_g = slope(b_over, r, R) + tl.sum(slope(b_x, r[:, None], R), 1)
        b_depth = newton_step(b_depth, b_f, b_g, a, R)
    return b_depth
