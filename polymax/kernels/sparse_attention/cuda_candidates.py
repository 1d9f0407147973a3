"""Tiles that the scan of long sequences can skip: balls around keys bound the scores of a tile from above.

A ball is the mean c of a tile's keys and the largest distance r of a key from it. No score of a query q exceeds q c +
|q| r, which is one product for 64 keys. The scores in the tile whose centre scores highest on average bound the
thresholds of a block of queries from below. A tile is skipped if its upper bound is below this lower bound for each
query of the block. If neighbouring keys are alike, few tiles are left. If they are not, the first tiles show it, and
the scan reads all tiles.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_dense import DENSE
from polymax.kernels.sparse_attention.cuda_tile import (
    BM,
    BN,
    MARGIN,
    capped_units,
    head_start,
    heights,
    larger,
    load_rows,
    reach,
    row_top,
    sequence,
    unit,
)
from polymax.kernels.sparse_attention.cuda_weights import exponent, sink_units

# fourth number of a block's bounds while its tiles are listed for the scan, which overwrites it
LISTED = tl.constexpr(-1)
# relative margin, far above rounding errors of products
SLACK = tl.constexpr(1e-4)


@Entry
@triton.jit
def balls(
    p_k, p_starts_q, p_starts_k, p_centres, p_radii, k_b, k_h, k_l, shared, L, S, row_tiles,
    PACKED: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write the centre and the radius of each tile of keys; if a key is not finite, the centre or the radius is NaN or
    inf.
    """
    i_t, i_sg = tl.program_id(0), tl.program_id(1)
    _, first_k, _, keys, i_b = sequence(p_starts_q, p_starts_k, i_sg // shared, L, S, PACKED)
    if i_t * BN < keys:
        o_n = i_t * BN + tl.arange(0, BN)
        o_d = tl.arange(0, BD)
        m_n = o_n < keys
        b_k = load_rows(p_k + head_start(i_b, i_sg % shared, first_k, k_b, k_h, k_l), o_n, o_d, m_n, k_l, D, BD)
        b_k = b_k.to(tl.float32)
        b_mean = tl.sum(b_k, 0) / tl.minimum(keys - i_t * BN, BN)
        # distances are from the centre as it is stored
        b_c = b_mean.to(p_centres.dtype.element_ty)
        b_far = tl.where(m_n[:, None], b_k - b_c.to(tl.float32)[None, :], 0.0)
        radius = tl.sqrt(tl.max(tl.sum(b_far * b_far, 1), 0))
        length = tl.sqrt(tl.sum(b_mean * b_mean, 0))
        o_ball = i_sg.to(tl.int64) * row_tiles + i_t
        tl.store(p_centres + o_ball * D + o_d, b_c, mask=o_d < D)
        tl.store(p_radii + o_ball, radius + SLACK * (radius + length))


@Entry
@triton.jit
def candidates(
    p_q, p_k, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_centres, p_radii, p_plan,
    q_b, q_h, q_l, k_b, k_h, k_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S, blocks, row_tiles, plan_head,
    a1, scale, softcap, left, right, offset, few,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, SHARE: tl.constexpr,
    MARKED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the tiles in which a block of queries may have support to its plan: see tiles.py.

    The fourth bound of the block is then LISTED. It is 0, and no tile is listed, if the block has at most `few` tiles,
    or if more than SHARE eighths of them may hold support. Blocks of dense heads stay as they are if heads are MARKED.
    """
    i_m = blocks - 1 - tl.program_id(0)
    i_bh = tl.program_id(1)
    i_h = i_bh % heads
    first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
    p_plan += i_bh.to(tl.int64) * plan_head
    p_bounds = p_plan + blocks * row_tiles + i_m * 4
    m_awaited = i_m * BM < queries
    if MARKED:
        m_awaited = m_awaited & (tl.load(p_bounds + 3) != DENSE)
    if m_awaited:
        begin, whole_begin, whole_end, end = reach(i_m * BM, queries, keys, left, right, offset, BM)
        found = 0
        if whole_end - whole_begin > few:
            o_m = i_m * BM + tl.arange(0, BM)
            o_d = tl.arange(0, BD)
            a = exponent(p_alphas + i_h, a1, LEARNED)
            p_k += head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
            p_mask += i_b * mask_b + i_h.to(tl.int64) * mask_h
            o_ball = ((i_bh // heads) * (heads // group) + i_h // group).to(tl.int64) * row_tiles
            p_centres += o_ball * D
            p_radii += o_ball
            p_q += head_start(i_b, i_h, first_q, q_b, q_h, q_l)
            b_q = load_rows(p_q, o_m, o_d, o_m < queries, q_l, D, BD)
            b_wide = b_q.to(tl.float32)
            b_length = tl.sqrt(tl.sum(b_wide * b_wide, 1))
            i_best = _best(tl.sum(b_wide, 0), p_centres, o_d, whole_begin, whole_end, D, BD, BT)
            b_t = _least(
                b_q, p_k, p_mask, p_sinks + i_h, k_l, mask_l, mask_s, o_m, i_best * BN + tl.arange(0, BN), o_d,
                queries, keys, a, scale, softcap, left, right, offset, SINKS, MASK, CAP, PLAIN, D, BD,
                PRECISION,
            )  # fmt: skip
            n_all, n_whole = 0, 0
            i_t = begin
            found = LISTED
            while (i_t < end) & (found < 0):
                o_t = i_t + tl.arange(0, BT)
                b_c = load_rows(p_centres, o_t, o_d, o_t < end, D, D, BD)
                b_r = tl.load(p_radii + o_t, mask=o_t < end, other=0.0)
                b_most = tl.dot(b_q, tl.trans(b_c), input_precision=PRECISION) + b_length[:, None] * b_r[None, :]
                # a NaN bound is below nothing, so that its tile stays
                b_over = 1 - (capped_units(b_most, a, scale, softcap, CAP) < b_t[:, None]).to(tl.int32)
                m_edge = (o_t < whole_begin) | (o_t >= whole_end)
                b_on = ((o_t < end) & (m_edge | (tl.max(b_over, 0) > 0))).to(tl.int32)
                tl.store(p_plan + i_m * row_tiles + n_all + tl.cumsum(b_on, 0) - 1, o_t, mask=b_on > 0)
                n_all += tl.sum(b_on, 0)
                n_whole += tl.sum(tl.where(o_t < whole_end, b_on, 0), 0)
                i_t += BT
                # stop early if too many of the tiles up to here stay
                found = tl.where(n_all * 8 > (tl.minimum(i_t, end) - begin) * SHARE, 0, found)
            tl.store(p_bounds, whole_begin - begin)
            tl.store(p_bounds + 1, n_whole)
            tl.store(p_bounds + 2, n_all)
        tl.store(p_bounds + 3, found)


@triton.jit
def _best(b_sum, p_centres, o_d, begin, end, D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr):
    """Return the tile whose centre has the largest score on average."""
    most = float("-inf")
    i_best = begin
    for i_t in range(begin, end, BT):
        o_t = i_t + tl.arange(0, BT)
        b_c = load_rows(p_centres, o_t, o_d, o_t < end, D, D, BD).to(tl.float32)
        b_score = tl.where(o_t < end, tl.sum(b_c * b_sum[None, :], 1), float("-inf"))
        top = tl.max(b_score, 0)
        # the first of equal tiles; NaN is skipped
        at = tl.min(tl.where(b_score == top, o_t, end), 0)
        i_best = tl.where((top > most) & (at < end), at, i_best)
        most = tl.maximum(most, top)
    return i_best


@triton.jit
def _least(
    b_q, p_k, p_mask, p_sink, k_l, mask_l, mask_s, o_m, o_n, o_d, queries, keys, a, scale, softcap, left, right, offset,
    SINKS: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a lower bound of each row's threshold, from the maximum of its scores in a tile that it sees whole."""
    b_k = load_rows(p_k, o_n, o_d, o_n < keys, k_l, D, BD)
    b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
    b_z = heights(
        b_raw, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, left, right, offset, MASK, CAP,
        PLAIN, False,
    )  # fmt: skip
    b_top = larger(row_top(b_z) * unit(a, scale, PLAIN), sink_units(p_sink, a, BM, SINKS)) - 1
    b_top = tl.where(b_top > float("-inf"), b_top - MARGIN * (1 + tl.abs(b_top)), b_top)
    # rows after the last query see no key
    return tl.where(o_m < queries, b_top, float("inf"))
