"""Gradients of short rows: one launch over blocks of queries, then one over tiles of keys.

Weights are computed again from tau. The first launch writes <s, dp> / sum s of each row, which the second one reads. A
program owns the rows that it writes and adds in a fixed order, so that sums have the same bits in each call.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_dense import is_dense
from polymax.kernels.sparse_attention.cuda_rows import sink_slopes, store_query_gradients
from polymax.kernels.sparse_attention.cuda_short_rows import (
    CHUNK,
    EACH,
    NUMBERS,
    key_bounds,
    seen_tiles,
    shown_keys,
    tile_heights,
)
from polymax.kernels.sparse_attention.cuda_tile import (
    cap_slope,
    head_start,
    load_near,
    load_rows,
    load_thresholds,
    over,
    sequence,
    unit,
)
from polymax.kernels.sparse_attention.cuda_weights import alpha_slope, exponent, kept, row_states, slope, weight


@triton.jit
def wanted(p_plan, i_bh, plan_head, flag, DENSE: tl.constexpr):
    """Return True for each head of a call of short rows; of other calls for dense heads: see cuda_dense.py."""
    if DENSE:
        m_wanted = is_dense(p_plan, i_bh, plan_head, flag)
    else:
        m_wanted = i_bh >= 0
    return m_wanted


@Entry
@triton.jit(do_not_specialize=NUMBERS)
def short_query_gradients(
    p_grad, p_q, p_k, p_v, p_mean, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_seed, p_plan, p_top, p_depth,
    p_common, p_dq, p_dalpha, p_dsink,
    g_b, g_h, g_l, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S,
    blocks, plan_head, flag, a1, scale, softcap, left, right, offset, drop,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr,
    BV: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """Write dq = scale dx k with dx = s (grad . v - common), common = grad . mean; and the gradients of alpha and the
    sink by row.
    """
    i_m = blocks - 1 - tl.program_id(0)
    i_bh = tl.program_id(1)
    i_h = i_bh % heads
    first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
    if (i_m * BR < queries) & wanted(p_plan, i_bh, plan_head, flag, DENSE):
        o_m = i_m * BR + tl.arange(0, BR)
        o_d, o_v = tl.arange(0, BD), tl.arange(0, BV)
        m_rows = o_m < queries
        a = exponent(p_alphas + i_h, a1, LEARNED)
        r = 1 / a
        p_grad += head_start(i_b, i_h, first_q, g_b, g_h, g_l)
        p_q += head_start(i_b, i_h, first_q, q_b, q_h, q_l)
        p_k += head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
        p_v += head_start(i_b, i_h // group, first_k, v_b, v_h, v_l)
        p_mask += i_b * mask_b + i_h.to(tl.int64) * mask_h
        first, keys, solid = shown_keys(p_mask, mask_s, keys, MASK, CHUNK)
        o_row = (i_b * heads + i_h) * L + first_q + o_m
        begin, whole_begin, whole_end, end = seen_tiles(
            i_m * BR, queries, first, keys, solid, left, right, offset, BR, BN
        )  # fmt: skip
        b_top, b_depth = load_thresholds(p_top, p_depth, o_row, m_rows)
        b_q = load_rows(p_q, o_m, o_d, m_rows, q_l, D, BD)
        b_g = load_rows(p_grad, o_m, o_v, m_rows, g_l, V, BV)
        b_mean = load_rows(p_mean, o_row, o_v, m_rows, V, V, BV)
        b_common = tl.sum(b_g.to(tl.float32) * b_mean.to(tl.float32), 1)
        b_dsink, b_da = sink_slopes(p_sinks + i_h, b_top, b_depth, b_common, a, r, LEARNED, SINKS, R, BR)
        b_state = row_states(p_seed, o_row) if DROP else o_m
        b_low, b_high = key_bounds(o_m, first, keys, left, right, offset)
        b_dq = tl.zeros((BR, BD), tl.float32)
        b_dq, b_da = _row_slopes(
            b_dq, b_da, b_top, b_depth, b_common, b_q, b_g, b_state, p_k, p_v, p_mask, k_l, v_l, mask_l, mask_s, o_m,
            o_d, o_v, begin, whole_begin, whole_end, end, queries, keys, a, r, scale, softcap, b_low, b_high, drop,
            LEARNED, MASK, CAP, PLAIN, DROP, R, D, BD, V, BV, BN, PRECISION, STAGES,
        )  # fmt: skip
        store_query_gradients(
            p_dq, p_common, p_dalpha, p_dsink, o_row, o_d, m_rows, b_depth, b_dq, b_common, b_da, b_dsink, scale, D
        )  # fmt: skip


@triton.jit
def _row_slopes(
    b_dq, b_da, b_top, b_depth, b_common, b_q, b_g, b_state, p_k, p_v, p_mask, k_l, v_l, mask_l, mask_s, o_m, o_d, o_v,
    begin, whole_begin, whole_end, end, queries, keys, a, r, scale, softcap, b_low, b_high, drop,
    LEARNED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, DROP: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return the gradients of queries and of -alpha after adding tiles begin .. end."""
    factor = unit(a, scale, PLAIN)
    for i_n in tl.range(begin, end, num_stages=STAGES):
        o_n = i_n * BN + tl.arange(0, BN)
        b_k = load_near(p_k, o_n, o_d, keys, k_l, D, BD)
        b_v = load_near(p_v, o_n, o_v, keys, v_l, V, BV)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_dp = tl.dot(b_g, tl.trans(b_v), input_precision=PRECISION)
        b_z = tile_heights(
            b_raw, b_low, b_high, i_n, whole_begin, whole_end, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a,
            scale, softcap, MASK, CAP, PLAIN, EACH,
        )  # fmt: skip
        b_w = over(b_z, b_top[:, None], b_depth[:, None], factor, PRECISION)
        if DROP:
            b_dp *= kept(b_state, o_n[None, :], drop)
        b_dx = slope(b_w, r, R) * (b_dp - b_common[:, None])
        if LEARNED:
            b_da += tl.sum(b_dx * alpha_slope(b_w, a), 1)
        if CAP:
            b_dx *= cap_slope(b_raw, scale, softcap)
        b_dq = tl.dot(b_dx.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)
    return b_dq, b_da


@Entry
@triton.jit(do_not_specialize=NUMBERS)
def short_key_gradients(
    p_grad, p_q, p_k, p_v, p_alphas, p_mask, p_starts_q, p_starts_k, p_seed, p_plan, p_top, p_depth, p_common, p_dk,
    p_dv,
    g_b, g_h, g_l, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S,
    plan_head, flag, a1, scale, softcap, left, right, offset, drop,
    LEARNED: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr,
    DROP: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BR: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Write dk and dv, over blocks of BR queries."""
    i_t = tl.program_id(0)
    i_sg = tl.program_id(1)
    shared = heads // group
    i_g = i_sg % shared
    i_s = i_sg // shared
    first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_s, L, S, PACKED)
    i_0 = i_t * BN
    if (i_0 < keys) & wanted(p_plan, i_s * heads + i_g * group, plan_head, flag, DENSE):
        o_n = i_0 + tl.arange(0, BN)
        o_d, o_v = tl.arange(0, BD), tl.arange(0, BV)
        p_k += head_start(i_b, i_g, first_k, k_b, k_h, k_l)
        p_v += head_start(i_b, i_g, first_k, v_b, v_h, v_l)
        b_k = load_rows(p_k, o_n, o_d, o_n < keys, k_l, D, BD)
        b_v = load_rows(p_v, o_n, o_v, o_n < keys, v_l, V, BV)
        b_dk = tl.zeros((BN, BD), tl.float32)
        b_dv = tl.zeros((BN, BV), tl.float32)
        # key j is seen by queries from j - offset - right to j - offset + left; at the end, blocks that reach behind
        # the last query are whole, since such rows have no threshold
        begin = tl.maximum(i_0 - offset - right, 0) // BR
        end = tl.maximum((tl.minimum(i_0 + BN - offset + left, queries) + BR - 1) // BR, begin)
        whole_begin = tl.minimum((tl.maximum(i_0 + BN - 1 - offset - right, 0) + BR - 1) // BR, end)
        whole_end = tl.minimum(tl.maximum(tl.maximum(i_0 - offset + left + 1, 0) // BR, whole_begin), end)
        for i_e in range(0, group):
            i_h = i_g * group + i_e
            a = exponent(p_alphas + i_h, a1, LEARNED)
            r = 1 / a
            p_head_q = p_q + head_start(i_b, i_h, first_q, q_b, q_h, q_l)
            p_head_g = p_grad + head_start(i_b, i_h, first_q, g_b, g_h, g_l)
            p_head_mask = p_mask + i_b * mask_b + i_h.to(tl.int64) * mask_h
            o_head = (i_b * heads + i_h) * L + first_q
            first, last, solid = shown_keys(p_head_mask, mask_s, keys, MASK, CHUNK)
            # no query sees a tile of padding, and none sees a tile whole that holds padding or reaches behind the keys
            stop = tl.where((i_0 < last) & (i_0 + BN > first), end, begin)
            m_whole = (i_0 >= first) & (i_0 + BN <= last) & (solid > 0)
            past = tl.minimum(tl.where(m_whole, whole_end, whole_begin), stop)
            b_dk, b_dv = _column_slopes(
                b_dk, b_dv, b_k, b_v, p_head_g, p_head_q, p_head_mask, p_seed, p_top, p_depth, p_common, g_l, q_l,
                mask_l, mask_s, o_head, o_n, o_d, o_v, begin, tl.minimum(whole_begin, stop), past, stop, queries, keys,
                a, r, scale, softcap, left, right, offset, drop, MASK, CAP, DROP, PLAIN, R, D, BD, V, BV, BR,
                PRECISION, STAGES,
            )  # fmt: skip
        o_key = (i_b * shared + i_g) * S + first_k + o_n
        m_n = (o_n < keys)[:, None]
        p_tile = p_dk + o_key[:, None] * D + o_d[None, :]
        tl.store(p_tile, (b_dk * scale).to(p_dk.dtype.element_ty), mask=m_n & (o_d < D)[None, :])
        p_tile = p_dv + o_key[:, None] * V + o_v[None, :]
        tl.store(p_tile, b_dv.to(p_dv.dtype.element_ty), mask=m_n & (o_v < V)[None, :])


@triton.jit
def _column_slopes(
    b_dk, b_dv, b_k, b_v, p_grad, p_q, p_mask, p_seed, p_top, p_depth, p_common, g_l, q_l, mask_l, mask_s, o_head, o_n,
    o_d, o_v, begin, whole_begin, whole_end, end, queries, keys, a, r, scale, softcap, left, right, offset, drop,
    MASK: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr, PLAIN: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Return the gradients of a tile's keys and values after adding blocks begin .. end of queries."""
    factor = unit(a, scale, PLAIN)
    for i_m in tl.range(begin, end, num_stages=STAGES):
        o_m = i_m * BR + tl.arange(0, BR)
        m_rows = o_m < queries
        b_q = load_near(p_q, o_m, o_d, queries, q_l, D, BD)
        b_g = load_near(p_grad, o_m, o_v, queries, g_l, V, BV)
        b_top, b_depth = load_thresholds(p_top, p_depth, o_head + o_m, m_rows)
        b_common = tl.load(p_common + o_head + o_m, mask=m_rows, other=0.0)
        # a weight of 1 has the derivative 0; rounding would leave a small multiple of a huge query
        b_live = tl.where(b_depth > 1, 0.0, 1.0)
        b_common *= b_live
        b_low, b_high = key_bounds(o_m, 0, keys, left, right, offset)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_dp = tl.dot(b_g, tl.trans(b_v), input_precision=PRECISION)
        b_z = tile_heights(
            b_raw, b_low, b_high, i_m, whole_begin, whole_end, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a,
            scale, softcap, MASK, CAP, PLAIN, EACH,
        )  # fmt: skip
        b_w = over(b_z, b_top[:, None], b_depth[:, None], factor, PRECISION)
        b_p = weight(b_w, r, R)
        if DROP:
            b_keep = kept(row_states(p_seed, o_head + o_m), o_n[None, :], drop)
            b_p *= b_keep
            b_dp *= b_keep
        b_dx = slope(b_w, r, R) * (b_dp * b_live[:, None] - b_common[:, None])
        if CAP:
            b_dx *= cap_slope(b_raw, scale, softcap)
        b_dv = tl.dot(tl.trans(b_p.to(b_g.dtype)), b_g, b_dv, input_precision=PRECISION)
        b_dk = tl.dot(tl.trans(b_dx.to(b_q.dtype)), b_q, b_dk, input_precision=PRECISION)
    return b_dk, b_dv
