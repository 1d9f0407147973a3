"""The gradients of keys and values: for each tile of keys, the rows that may have support in it, gathered.

A row's bits mark the tiles in which it may have support. A program packs the numbers of the rows whose bit is set for
its tile, and visits only these: the work is proportional to the nonempty pairs of a row and a tile. One program owns
one tile, and rows come in order, so that sums have the same bits in each call.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_dense import is_dense
from polymax.kernels.sparse_attention.cuda_tile import (
    BM,
    BN,
    cap_slope,
    excess,
    head_start,
    load_rows,
    load_thresholds,
    score_slopes,
    sequence,
)
from polymax.kernels.sparse_attention.cuda_weights import exponent, kept, row_states, weight


@Entry
@triton.jit
def key_gradients(
    p_grad, p_q, p_k, p_v, p_alphas, p_mask, p_starts_q, p_starts_k, p_seed, p_plan, p_top, p_depth, p_common, p_list,
    p_dk, p_dv,
    g_b, g_h, g_l, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S,
    longest, span, items, row_tiles, plan_head, a1, scale, softcap, left, right, offset, drop,
    LEARNED: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr,
    PLAIN: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BR: tl.constexpr, BP: tl.constexpr, MARKED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write dk and dv, except for dense heads if heads are MARKED.

    The marked rows among `span` rows are packed, BP at a time, then gathered, BR at a time.
    """
    o_d, o_v = tl.arange(0, BD), tl.arange(0, BV)
    p_list += tl.program_id(0).to(tl.int64) * span
    shared = heads // group
    blocks = (longest + BM - 1) // BM
    # early keys are seen by most rows: they come first
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        columns = items // row_tiles
        i_t = item // columns
        i_g = (item % columns) % shared
        i_s = (item % columns) // shared
        first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_s, L, S, PACKED)
        m_awaited = i_t * BN < keys
        if MARKED:
            i_first = i_s * heads + i_g * group
            m_awaited = m_awaited & (is_dense(p_plan, i_first, plan_head, blocks * row_tiles + 3) == 0)
        if m_awaited:
            o_n = i_t * BN + tl.arange(0, BN)
            p_head_k = p_k + head_start(i_b, i_g, first_k, k_b, k_h, k_l)
            p_head_v = p_v + head_start(i_b, i_g, first_k, v_b, v_h, v_l)
            b_k = load_rows(p_head_k, o_n, o_d, o_n < keys, k_l, D, BD)
            b_v = load_rows(p_head_v, o_n, o_v, o_n < keys, v_l, V, BV)
            b_dk = tl.zeros((BN, BD), tl.float32)
            b_dv = tl.zeros((BN, BV), tl.float32)
            for i_e in range(0, group):
                i_h = i_g * group + i_e
                a = exponent(p_alphas + i_h, a1, LEARNED)
                r = 1 / a
                p_words = p_plan + (i_s * heads + i_h).to(tl.int64) * plan_head + blocks * (row_tiles + 4)
                p_words += (i_t // 32) * longest
                # rows before the tile, or far behind it, do not see it
                seeing = i_t * BN - offset - right
                first, last = tl.maximum(seeing, 0) // BP * BP, tl.minimum(i_t * BN + BN - offset + left, queries)
                # the first rows may not see the tile whole; all later rows do, unless the keys or a window end in it
                n_edge = _on(p_words, tl.maximum(seeing, 0) + tl.arange(0, BN), seeing + BN - 1, queries, i_t)
                m_whole = (i_t * BN + BN <= keys) & (last - 1 + offset - left <= i_t * BN)
                p_head_q = p_q + head_start(i_b, i_h, first_q, q_b, q_h, q_l)
                p_head_g = p_grad + head_start(i_b, i_h, first_q, g_b, g_h, g_l)
                p_head_mask = p_mask + i_b * mask_b + i_h.to(tl.int64) * mask_h
                o_head = (i_b * heads + i_h) * L + first_q
                for i_r in range(first, last, span):
                    # other threads read the list of the span before, and will read the new one
                    tl.debug_barrier()
                    count = _pack(p_words, p_list, i_r, tl.minimum(i_r + span, last), queries, i_t, BP)
                    tl.debug_barrier()
                    n_seen = tl.where(m_whole, tl.where(i_r == first, (n_edge + BR - 1) // BR * BR, 0), count)
                    n_seen = tl.minimum(n_seen, count)
                    for i_p in tl.static_range(0, 2):
                        begin, end = (n_seen, count) if i_p else (n_seen * 0, n_seen)
                        b_dk, b_dv = _column_slopes(
                            b_dk, b_dv, b_k, b_v, p_head_g, p_head_q, p_head_mask, p_seed, p_top, p_depth, p_common,
                            p_list, g_l, q_l, mask_l, mask_s, o_head, o_n, o_d, o_v, begin, end, queries, keys, a, r,
                            scale, softcap, left, right, offset, drop, MASK, CAP, DROP, PLAIN, i_p == 0, R, D, BD, V,
                            BV, BR, PRECISION, STAGES,
                        )  # fmt: skip
            o_key = (i_b * shared + i_g) * S + first_k + o_n
            m_n = (o_n < keys)[:, None]
            p_tile = p_dk + o_key[:, None] * D + o_d[None, :]
            tl.store(p_tile, (b_dk * scale).to(p_dk.dtype.element_ty), mask=m_n & (o_d < D)[None, :])
            p_tile = p_dv + o_key[:, None] * V + o_v[None, :]
            tl.store(p_tile, b_dv.to(p_dv.dtype.element_ty), mask=m_n & (o_v < V)[None, :])


@triton.jit
def _on(p_words, o_r, end, queries, i_t):
    """Return how many of rows o_r before `end` have their bit set for a tile."""
    b_word = tl.load(p_words + o_r, mask=(o_r < end) & (o_r < queries), other=0)
    return tl.sum((b_word >> (i_t % 32)) & 1, 0)


@triton.jit
def _pack(p_words, p_list, begin, end, queries, i_t, BP: tl.constexpr):
    """Write the numbers of the rows begin .. end whose bit is set for a tile; return how many there are."""
    count = 0
    for i_r in range(begin, end, BP):
        o_r = i_r + tl.arange(0, BP)
        b_word = tl.load(p_words + o_r, mask=o_r < queries, other=0)
        b_on = (b_word >> (i_t % 32)) & 1
        p_at = p_list + count + tl.cumsum(b_on, 0) - 1
        tl.store(p_at, o_r.to(p_list.dtype.element_ty), mask=b_on > 0)
        count += tl.sum(b_on, 0)
    return count


@triton.jit
def _column_slopes(
    b_dk, b_dv, b_k, b_v, p_grad, p_q, p_mask, p_seed, p_top, p_depth, p_common, p_list, g_l, q_l, mask_l, mask_s,
    o_head, o_n, o_d, o_v, begin, end, queries, keys, a, r, scale, softcap, left, right, offset, drop,
    MASK: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr, R: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Return the gradients of a tile's keys and values after adding the packed rows begin .. end."""
    # the numbers of the next rows are loaded while these are worked on
    o_next = _packed(p_list, begin + tl.arange(0, BR), end)
    for i_c in tl.range(begin, end, BR, num_stages=STAGES):
        o_c = i_c + tl.arange(0, BR)
        o_m = o_next
        o_next = _packed(p_list, o_c + BR, end)
        b_q = load_rows(p_q, o_m, o_d, o_c < end, q_l, D, BD)
        b_g = load_rows(p_grad, o_m, o_v, o_c < end, g_l, V, BV)
        b_top, b_depth = load_thresholds(p_top, p_depth, o_head + o_m, o_c < end)
        b_common = tl.load(p_common + o_head + o_m, mask=o_c < end, other=0.0)
        b_state = row_states(p_seed, o_head + o_m) if DROP else o_m
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_dp = tl.dot(b_g, tl.trans(b_v), input_precision=PRECISION)
        b_w = excess(
            b_raw, b_top, b_depth, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, left, right,
            offset, MASK, CAP, PLAIN, EDGE,
        )  # fmt: skip
        b_p = weight(b_w, r, R)
        if DROP:
            b_p *= kept(b_state, o_n[None, :], drop)
        b_dx = score_slopes(b_w, b_dp, b_common, b_state, o_n, r, drop, DROP, R)
        # a weight of 1 has the derivative 0; rounding would leave a small multiple of a huge query
        b_dx *= tl.where(b_depth > 1, 0.0, 1.0)[:, None]
        if CAP:
            b_dx *= cap_slope(b_raw, scale, softcap)
        b_dv = tl.dot(tl.trans(b_p.to(b_g.dtype)), b_g, b_dv, input_precision=PRECISION)
        b_dk = tl.dot(tl.trans(b_dx.to(b_q.dtype)), b_q, b_dk, input_precision=PRECISION)
    return b_dk, b_dv


@triton.jit
def _packed(p_list, o_c, end):
    """Return the numbers of packed rows."""
    o_m = tl.load(p_list + o_c, mask=o_c < end, other=0)
    # short sequences store row numbers in 16 bits, unsigned
    if p_list.dtype.element_ty == tl.int16:
        o_row = o_m.to(tl.int32) & 0xFFFF
    else:
        o_row = o_m
    return o_row
