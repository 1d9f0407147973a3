"""The one dense pass: each row's maximum in each tile, which gives a bound of tau and the tiles that matter.

The threshold of any subset of a row's scores is a lower bound of tau. The maxima over tiles of 64 keys hold nearly the
whole support of a row whose support is spread, so that their threshold is close to tau. A tile whose maximum is below
it is empty for the row and is skipped by all later kernels.

In long sequences some blocks have a list of tiles outside which they have no support: see cuda_candidates.py. Maxima of
these blocks are stored in the order of the list, those of other blocks in the order of tiles.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_candidates import LISTED
from polymax.kernels.sparse_attention.cuda_dense import DENSE
from polymax.kernels.sparse_attention.cuda_tile import (
    BM,
    BN,
    MARGIN,
    head_start,
    heights,
    larger,
    load_keys,
    load_rows,
    part,
    reach,
    row_top,
    sequence,
    unit,
)
from polymax.kernels.sparse_attention.cuda_weights import exponent, newton_step, sink_units, slope, weight

# tolerated excess of the sum of the maxima's weights over 1: a slightly lower bound lets a few more keys pass
NEAR = tl.constexpr(1.1)
# u from which on a matrix product and a sum of products differ by too much
LARGE = tl.constexpr(1024.0)


@Entry
@triton.jit
def scan(
    p_q, p_k, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_maxima, p_top, p_depth, p_plan,
    q_b, q_h, q_l, k_b, k_h, k_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S, longest, items, blocks, row_tiles,
    plan_head, a1, scale, softcap, left, right, offset, few,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr,
    LONGEST: tl.constexpr, TILES: tl.constexpr, MARKED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the bounds and plans of blocks, but those of dense heads if heads are MARKED. TILES is "all", "unlisted"
    (blocks of which a part has no list) or "listed".
    """
    o_r = tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    p_maxima += tl.program_id(0).to(tl.int64) * row_tiles * BR
    columns = items // blocks
    # long rows first, so that no program begins a long row at the end
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        i_m = blocks - 1 - item // columns
        i_bh = item % columns
        i_h = i_bh % heads
        first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
        i_0 = i_m * BR
        p_head_plan = p_plan + i_bh.to(tl.int64) * plan_head
        if _awaited(p_head_plan, i_0, queries, longest, row_tiles, BR, TILES, MARKED):
            o_m = i_0 + o_r
            a = exponent(p_alphas + i_h, a1, LEARNED)
            r = 1 / a
            p_head_q = p_q + head_start(i_b, i_h, first_q, q_b, q_h, q_l)
            p_head_k = p_k + head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
            p_head_mask = p_mask + i_b * mask_b + i_h.to(tl.int64) * mask_h
            b_q = load_rows(p_head_q, o_m, o_d, o_m < queries, q_l, D, BD)
            p_tiles = p_head_plan + i_m * row_tiles
            if TILES == "listed":
                p_bounds = p_head_plan + blocks * row_tiles + i_m * 4
                begin = i_m * 0
                whole_begin, whole_end, end = tl.load(p_bounds), tl.load(p_bounds + 1), tl.load(p_bounds + 2)
            else:
                begin, whole_begin, whole_end, end = reach(i_0, queries, keys, left, right, offset, BR)
            b_top = tl.full((BR,), float("-inf"), tl.float32)
            for i_p in tl.static_range(0, 3):
                first, last = part(whole_begin, whole_end, end, i_p)
                b_top = _maxima(
                    b_top, b_q, p_head_k, p_head_mask, p_tiles, p_maxima, k_l, mask_l, mask_s, o_m, o_r, o_d,
                    tl.maximum(first, begin), last, queries, keys, a, scale, softcap, left, right, offset, MASK, CAP,
                    PLAIN, i_p != 1, D, BD, BR, TILES, PRECISION, STAGES,
                )  # fmt: skip
            b_sink = sink_units(p_sinks + i_h, a, BR, SINKS)
            b_top = larger(b_top, b_sink)
            # other threads wrote the maxima that are read below
            tl.debug_barrier()

            # inf - inf is NaN, and NaN stays; a row that sees no key has no threshold
            b_depth = tl.where(b_top < float("inf"), 1.0, float("nan"))
            m_blind = (b_top == float("-inf")) | (o_m >= queries)
            b_top, b_depth = tl.where(m_blind, float("inf"), b_top), tl.where(m_blind, 0.0, b_depth)
            factor = unit(a, scale, PLAIN)
            b_depth = _bound(b_top, b_depth, b_sink, p_maxima, o_r, begin, end, factor, a, r, R, BR, BT)
            b_depth = tl.where(b_depth > 0, b_depth + MARGIN * (1 + tl.abs(b_top * factor)), b_depth)
            o_row = (i_b * heads + i_h) * L + first_q + o_m
            tl.store(p_top + o_row, b_top, mask=o_m < queries)
            tl.store(p_depth + o_row, b_depth, mask=o_m < queries)
            _note(
                p_head_plan, p_tiles, p_maxima, b_top, b_depth, o_m, o_r, i_0, begin, end, queries, keys, longest,
                row_tiles, left, right, offset, factor, few, BR, LONGEST, TILES,
            )  # fmt: skip
            tl.debug_barrier()


@triton.jit
def _awaited(
    p_plan, i_0, queries, longest, row_tiles, BR: tl.constexpr, TILES: tl.constexpr, MARKED: tl.constexpr
):  # fmt: skip
    """Return True if this pass handles queries i_0 .. i_0 + BR."""
    m_awaited = i_0 < queries
    if TILES != "all" or MARKED:
        o_0 = i_0 + tl.arange(0, BR // BM) * BM
        p_bounds = p_plan + ((longest + BM - 1) // BM) * row_tiles + (o_0 // BM) * 4
        # a last part without queries counts as listed
        mark = tl.max(tl.load(p_bounds + 3, mask=o_0 < queries, other=LISTED), 0)
        if TILES == "listed":
            m_awaited = m_awaited & (mark == LISTED)
        elif TILES == "unlisted":
            m_awaited = m_awaited & (mark != LISTED) & (mark != DENSE)
        else:
            m_awaited = m_awaited & (mark != DENSE)
    return m_awaited


@triton.jit
def _maxima(
    b_top, b_q, p_k, p_mask, p_tiles, p_maxima, k_l, mask_l, mask_s, o_m, o_r, o_d, begin, end, queries, keys, a, scale,
    softcap, left, right, offset,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    BR: tl.constexpr, TILES: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    for i_t in tl.range(begin, end, num_stages=STAGES):
        if TILES == "listed":
            o_n = tl.load(p_tiles + i_t) * BN + tl.arange(0, BN)
        else:
            o_n = i_t * BN + tl.arange(0, BN)
        b_k = load_keys(p_k, o_n, o_d, keys, k_l, D, BD, EDGE)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_max = row_top(
            heights(
                b_raw, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, left, right, offset, MASK,
                CAP, PLAIN, EDGE,
            )
        )  # fmt: skip
        tl.store(p_maxima + i_t * BR + o_r, b_max)
        b_top = larger(b_top, b_max)
    return b_top


@triton.jit
def _bound(
    b_top, b_depth, b_sink, p_maxima, o_r, begin, end, factor, a, r, R: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr
):  # fmt: skip
    """Return how far the threshold of the maxima is below the top, nearly; each step stays below the threshold."""
    # first by chunks: the threshold of any chunk is a bound
    for i_t in range(begin, end, BT):
        b_u = _load_maxima(p_maxima, b_top, i_t, end, o_r, factor, BR, BT)
        for _ in range(3):
            b_x = tl.maximum(b_u + b_depth[:, None], 0.0)
            b_depth = newton_step(b_depth, tl.sum(weight(b_x, r, R), 1), tl.sum(slope(b_x, r, R), 1), a, R)
    worst = 2.0
    turn = 0
    while (worst > NEAR) & (turn < 6):
        b_over = tl.maximum((b_sink - b_top) + b_depth, 0.0)
        b_f, b_g = weight(b_over, r, R), slope(b_over, r, R)
        for i_t in range(begin, end, BT):
            b_u = _load_maxima(p_maxima, b_top, i_t, end, o_r, factor, BR, BT)
            b_x = tl.maximum(b_u + b_depth[:, None], 0.0)
            b_f += tl.sum(weight(b_x, r, R), 1)
            b_g += tl.sum(slope(b_x, r, R), 1)
        b_depth = newton_step(b_depth, b_f, b_g, a, R)
        worst = tl.max(b_f, 0)
        turn += 1
    return b_depth


@triton.jit
def _load_maxima(p_maxima, b_top, i_t, end, o_r, factor, BR: tl.constexpr, BT: tl.constexpr):
    """Return u of the maxima of tiles minus u of the row's largest: 0 or less."""
    o_t = i_t + tl.arange(0, BT)
    b_m = tl.load(p_maxima + o_t[None, :] * BR + o_r[:, None], mask=(o_t < end)[None, :], other=float("-inf"))
    return (b_m - b_top[:, None]) * factor


@triton.jit
def _note(
    p_plan, p_tiles, p_maxima,
    b_top, b_depth, o_m, o_r, i_0, begin, end, queries, keys, longest, row_tiles, left, right, offset, factor,
    few,
    BR: tl.constexpr, LONGEST: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write the plan of a block: see tiles.py."""
    PARTS: tl.constexpr = BR // BM
    longest_blocks = (longest + BM - 1) // BM
    i_p = i_0 // BM + tl.arange(0, PARTS)
    o_0 = i_0 + tl.arange(0, PARTS) * BM
    _, whole_begin, whole_end, _ = reach(o_0, queries, keys, left, right, offset, BM)
    n_before = tl.zeros((PARTS,), tl.int32)
    n_whole = tl.zeros((PARTS,), tl.int32)
    n_all = tl.zeros((PARTS,), tl.int32)
    b_pairs = tl.zeros((BR,), tl.int32)
    p_words = p_plan + longest_blocks * (row_tiles + 4)
    # the margin in the depth exceeds the rounding of a huge top
    b_bound = b_top - b_depth / factor
    n_seen = begin
    for i_w in range(0, (row_tiles + 31) // 32):
        o_at = i_w * 32 + tl.arange(0, 32)
        if TILES == "listed":
            # the next entries of the list, as far as they belong to the word
            o_at = n_seen + tl.arange(0, 32)
            o_t = tl.load(p_tiles + o_at, mask=o_at < end, other=row_tiles)
            m_t = (o_at < end) & (o_t < i_w * 32 + 32)
            n_seen += tl.sum(m_t.to(tl.int32), 0)
            # the entries written below overwrite those just read
            tl.debug_barrier()
        else:
            o_t = o_at
            m_t = (o_t >= begin) & (o_t < end)
        b_m = tl.load(p_maxima + o_at[None, :] * BR + o_r[:, None], mask=m_t[None, :], other=float("-inf"))
        b_on = (b_m > b_bound[:, None]).to(tl.int32)
        b_pairs += tl.sum(b_on, 1)
        b_word = tl.sum(b_on << (o_t % 32)[None, :], 1)
        b_any = tl.max(tl.reshape(b_on, (PARTS, BM, 32)), 1)
        o_to = n_all[:, None] + tl.cumsum(b_any, 1) - 1
        tl.store(p_plan + i_p[:, None] * row_tiles + o_to, o_t[None, :] + tl.zeros_like(o_to), mask=b_any > 0)
        n_all += tl.sum(b_any, 1)
        n_before += tl.sum(tl.where(o_t[None, :] < whole_begin[:, None], b_any, 0), 1)
        n_whole += tl.sum(tl.where(o_t[None, :] < whole_end[:, None], b_any, 0), 1)
        tl.store(p_words + i_w * longest + o_m, b_word, mask=o_m < queries)
    p_bounds = p_plan + longest_blocks * row_tiles + i_p * 4
    m_in = o_0 < queries
    tl.store(p_bounds, n_before, mask=m_in)
    tl.store(p_bounds + 1, n_whole, mask=m_in)
    tl.store(p_bounds + 2, n_all, mask=m_in)
    # a row with more tiles than its list is long has no list, nor one whose scores lists would round otherwise; a few
    # tiles are faster than lists
    b_long = (b_pairs > LONGEST) | ((tl.abs(b_top) * factor > LARGE) & (b_top < float("inf")))
    n_long = tl.max(tl.reshape(b_long.to(tl.int32), (PARTS, BM)), 1)
    tl.store(p_bounds + 3, ((n_long == 0) & (n_all > few)).to(tl.int32), mask=m_in)
