"""Blocks of queries over the tiles that matter to them: the threshold, the context, and the gradient of queries."""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_tile import (
    BM,
    BN,
    cap_slope,
    excess,
    head_start,
    load_rows,
    load_thresholds,
    part,
    score_slopes,
    sequence,
)
from polymax.kernels.sparse_attention.cuda_weights import (
    alpha_slope,
    exponent,
    kept,
    last_error,
    newton_step,
    row_states,
    sink_units,
    slope,
    weight,
)

# the depth of a row in which one key has all the weight: the least float32 above 1
ALONE = tl.constexpr(1.00000011920928955078125)


@Entry
@triton.jit
def thresholds(
    p_q, p_k, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_plan, p_top, p_depth,
    q_b, q_h, q_l, k_b, k_h, k_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S, blocks, row_tiles, plan_head, a1,
    scale, softcap, left, right, offset, tolerance,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Write tau by Newton's method from the bound of the scan, over the tiles that matter to a block."""
    i_m = blocks - 1 - tl.program_id(0)
    i_bh = tl.program_id(1)
    i_h = i_bh % heads
    first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
    p_plan += i_bh.to(tl.int64) * plan_head
    p_bounds = p_plan + blocks * row_tiles + i_m * 4
    if (i_m * BM < queries) & (tl.load(p_bounds + 3) == 0):
        o_m = i_m * BM + tl.arange(0, BM)
        o_d = tl.arange(0, BD)
        m_rows = o_m < queries
        a = exponent(p_alphas + i_h, a1, LEARNED)
        r = 1 / a
        p_q += head_start(i_b, i_h, first_q, q_b, q_h, q_l)
        p_k += head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
        p_mask += i_b * mask_b + i_h.to(tl.int64) * mask_h
        p_tiles = p_plan + i_m * row_tiles
        n_before, n_whole, n_all = tl.load(p_bounds), tl.load(p_bounds + 1), tl.load(p_bounds + 2)
        o_row = (i_b * heads + i_h) * L + first_q + o_m
        b_top, b_depth = load_thresholds(p_top, p_depth, o_row, m_rows)
        # the bound has a margin for rounding in other kernels, which scores in this kernel do not need
        b_depth = tl.where(b_depth > 1, 1.0, b_depth)
        b_q = load_rows(p_q, o_m, o_d, m_rows, q_l, D, BD)
        b_sink = sink_units(p_sinks + i_h, a, BM, SINKS)
        worst = 2.0
        turn = 0
        while (worst > 1 + last_error(tolerance, a, LEARNED)) & (turn < 24):
            b_w = tl.maximum((b_sink - b_top) + b_depth, 0.0)
            b_f, b_g = weight(b_w, r, R), slope(b_w, r, R)
            for i_p in tl.static_range(0, 3):
                begin, end = part(n_before, n_whole, n_all, i_p)
                b_f, b_g = _moments(
                    b_f, b_g, b_top, b_depth, b_q, p_k, p_mask, p_tiles, k_l, mask_l, mask_s, o_m, o_d, begin, end,
                    queries, keys, a, r, scale, softcap, left, right, offset, MASK, CAP, PLAIN, i_p != 1, R, D, BD,
                    PRECISION, STAGES,
                )  # fmt: skip
            b_depth = newton_step(b_depth, b_f, b_g, a, R)
            worst = tl.max(b_f, 0)
            turn += 1
        tl.store(p_depth + o_row, b_depth, mask=m_rows)


@triton.jit
def _moments(
    b_f, b_g, b_top, b_depth, b_q, p_k, p_mask, p_tiles, k_l, mask_l, mask_s, o_m, o_d, begin, end, queries, keys, a, r,
    scale, softcap, left, right, offset,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return the sums of p and of s after adding tiles begin .. end."""
    for i_t in tl.range(begin, end, num_stages=STAGES):
        o_n = tl.load(p_tiles + i_t) * BN + tl.arange(0, BN)
        b_k = load_rows(p_k, o_n, o_d, o_n < keys, k_l, D, BD)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_w = excess(
            b_raw, b_top, b_depth, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, left, right,
            offset, MASK, CAP, PLAIN, EDGE,
        )  # fmt: skip
        b_f += tl.sum(weight(b_w, r, R), 1)
        b_g += tl.sum(slope(b_w, r, R), 1)
    return b_f, b_g


@Entry
@triton.jit
def contexts(
    p_q, p_k, p_v, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_seed, p_plan, p_top, p_depth, p_support, p_out,
    p_mean,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S, blocks, row_tiles,
    plan_head, a1, scale, softcap, left, right, offset, drop,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr,
    BV: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write sums of values under p and under s, over the tiles that matter to a block."""
    i_m = blocks - 1 - tl.program_id(0)
    i_bh = tl.program_id(1)
    i_h = i_bh % heads
    first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
    p_plan += i_bh.to(tl.int64) * plan_head
    p_bounds = p_plan + blocks * row_tiles + i_m * 4
    if (i_m * BM < queries) & (tl.load(p_bounds + 3) == 0):
        o_m = i_m * BM + tl.arange(0, BM)
        o_d, o_v = tl.arange(0, BD), tl.arange(0, BV)
        m_rows = o_m < queries
        a = exponent(p_alphas + i_h, a1, LEARNED)
        r = 1 / a
        p_q += head_start(i_b, i_h, first_q, q_b, q_h, q_l)
        p_k += head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
        p_v += head_start(i_b, i_h // group, first_k, v_b, v_h, v_l)
        p_mask += i_b * mask_b + i_h.to(tl.int64) * mask_h
        p_tiles = p_plan + i_m * row_tiles
        n_before, n_whole, n_all = tl.load(p_bounds), tl.load(p_bounds + 1), tl.load(p_bounds + 2)
        o_row = (i_b * heads + i_h) * L + first_q + o_m
        b_top, b_depth = load_thresholds(p_top, p_depth, o_row, m_rows)
        b_q = load_rows(p_q, o_m, o_d, m_rows, q_l, D, BD)
        b_state = row_states(p_seed, o_row) if DROP else o_m
        b_w = tl.maximum((sink_units(p_sinks + i_h, a, BM, SINKS) - b_top) + b_depth, 0.0)
        b_p, b_s = weight(b_w, r, R), slope(b_w, r, R)
        b_n = (b_w > 0).to(tl.int32)
        b_o = tl.zeros((BM, BV), tl.float32)
        b_mean = tl.zeros((BM, BV), tl.float32)
        for i_p in tl.static_range(0, 3):
            begin, end = part(n_before, n_whole, n_all, i_p)
            b_o, b_mean, b_p, b_s, b_n = _sums(
                b_o, b_mean, b_p, b_s, b_n, b_top, b_depth, b_q, b_state, p_k, p_v, p_mask, p_tiles, k_l, v_l, mask_l,
                mask_s, o_m, o_d, o_v, begin, end, queries, keys, a, r, scale, softcap, left, right, offset, drop, MASK,
                CAP, PLAIN, DROP, i_p != 1, R, D, BD, V, BV, PRECISION, STAGES,
            )  # fmt: skip
        store_contexts(
            p_depth, p_support, p_out, p_mean, o_row, o_v, m_rows, b_depth, b_n, b_p, b_s, b_o, b_mean, V
        )  # fmt: skip


@triton.jit
def store_contexts(
    p_depth, p_support, p_out, p_mean, o_row, o_v, m_rows, b_depth, b_n, b_p, b_s, b_o, b_mean, V: tl.constexpr
):  # fmt: skip
    """Write contexts and means: sums of values divided by the sums of p and s; NaN if tau is NaN.

    The depth of a row with a single key in its support is ALONE.
    """
    b_o *= tl.where(b_depth == b_depth, 1 / tl.where(b_p > 0, b_p, 1.0), float("nan"))[:, None]
    b_mean /= tl.where(b_s > 0, b_s, 1.0)[:, None]
    b_depth = tl.where(b_n == 1, ALONE, tl.where(b_depth > 1, 1.0, b_depth))
    tl.store(p_depth + o_row, b_depth, mask=m_rows)
    tl.store(p_support + o_row, b_n, mask=m_rows)
    o_tile = o_row[:, None] * V + o_v[None, :]
    m_tile = m_rows[:, None] & (o_v < V)[None, :]
    tl.store(p_out + o_tile, b_o.to(p_out.dtype.element_ty), mask=m_tile)
    tl.store(p_mean + o_tile, b_mean.to(p_mean.dtype.element_ty), mask=m_tile)


@triton.jit
def _sums(
    b_o, b_mean, b_p, b_s, b_n, b_top, b_depth, b_q, b_state, p_k, p_v, p_mask, p_tiles, k_l, v_l, mask_l, mask_s, o_m,
    o_d, o_v, begin, end, queries, keys, a, r, scale, softcap, left, right, offset, drop,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, DROP: tl.constexpr, EDGE: tl.constexpr, R: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    for i_t in tl.range(begin, end, num_stages=STAGES):
        o_n = tl.load(p_tiles + i_t) * BN + tl.arange(0, BN)
        b_k = load_rows(p_k, o_n, o_d, o_n < keys, k_l, D, BD)
        b_v = load_rows(p_v, o_n, o_v, o_n < keys, v_l, V, BV)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_w = excess(
            b_raw, b_top, b_depth, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, left, right,
            offset, MASK, CAP, PLAIN, EDGE,
        )  # fmt: skip
        b_weight, b_slope = weight(b_w, r, R), slope(b_w, r, R)
        b_p += tl.sum(b_weight, 1)
        b_s += tl.sum(b_slope, 1)
        b_n += tl.sum((b_w > 0).to(tl.int32), 1)
        if DROP:
            b_keep = kept(b_state, o_n[None, :], drop)
            b_weight, b_slope = b_weight * b_keep, b_slope * b_keep
        b_o = tl.dot(b_weight.to(b_v.dtype), b_v, b_o, input_precision=PRECISION)
        b_mean = tl.dot(b_slope.to(b_v.dtype), b_v, b_mean, input_precision=PRECISION)
    return b_o, b_mean, b_p, b_s, b_n


@Entry
@triton.jit
def query_gradients(
    p_grad, p_q, p_k, p_v, p_mean, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_seed, p_plan, p_top, p_depth,
    p_common, p_dq, p_dalpha, p_dsink,
    g_b, g_h, g_l, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S,
    blocks, row_tiles, plan_head, a1, scale, softcap, left, right, offset, drop,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr,
    BV: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write dq = scale dx k with dx = s (grad . v - common), common = grad . mean; and the gradients of alpha and the
    sink by row.
    """
    i_m = blocks - 1 - tl.program_id(0)
    i_bh = tl.program_id(1)
    i_h = i_bh % heads
    first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
    p_plan += i_bh.to(tl.int64) * plan_head
    p_bounds = p_plan + blocks * row_tiles + i_m * 4
    if (i_m * BM < queries) & (tl.load(p_bounds + 3) == 0):
        o_m = i_m * BM + tl.arange(0, BM)
        o_d, o_v = tl.arange(0, BD), tl.arange(0, BV)
        m_rows = o_m < queries
        a = exponent(p_alphas + i_h, a1, LEARNED)
        r = 1 / a
        p_grad += head_start(i_b, i_h, first_q, g_b, g_h, g_l)
        p_q += head_start(i_b, i_h, first_q, q_b, q_h, q_l)
        p_k += head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
        p_v += head_start(i_b, i_h // group, first_k, v_b, v_h, v_l)
        p_mask += i_b * mask_b + i_h.to(tl.int64) * mask_h
        p_tiles = p_plan + i_m * row_tiles
        n_before, n_whole, n_all = tl.load(p_bounds), tl.load(p_bounds + 1), tl.load(p_bounds + 2)
        o_row = (i_b * heads + i_h) * L + first_q + o_m
        b_top, b_depth = load_thresholds(p_top, p_depth, o_row, m_rows)
        b_q = load_rows(p_q, o_m, o_d, m_rows, q_l, D, BD)
        b_g = load_rows(p_grad, o_m, o_v, m_rows, g_l, V, BV)
        b_mean = load_rows(p_mean, o_row, o_v, m_rows, V, V, BV)
        b_common = tl.sum(b_g.to(tl.float32) * b_mean.to(tl.float32), 1)
        b_dsink, b_da = sink_slopes(p_sinks + i_h, b_top, b_depth, b_common, a, r, LEARNED, SINKS, R, BM)
        b_state = row_states(p_seed, o_row) if DROP else o_m
        b_dq = tl.zeros((BM, BD), tl.float32)
        for i_p in tl.static_range(0, 3):
            begin, end = part(n_before, n_whole, n_all, i_p)
            b_dq, b_da = _row_slopes(
                b_dq, b_da, b_top, b_depth, b_common, b_q, b_g, b_state, p_k, p_v, p_mask, p_tiles, k_l, v_l, mask_l,
                mask_s, o_m, o_d, o_v, begin, end, queries, keys, a, r, scale, softcap, left, right, offset, drop,
                LEARNED, MASK, CAP, PLAIN, DROP, i_p != 1, R, D, BD, V, BV, PRECISION, STAGES,
            )  # fmt: skip
        store_query_gradients(
            p_dq, p_common, p_dalpha, p_dsink, o_row, o_d, m_rows, b_depth, b_dq, b_common, b_da, b_dsink, scale, D
        )  # fmt: skip


@triton.jit
def sink_slopes(
    p_sink, b_top, b_depth, b_common, a, r,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, R: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Return the gradient of the sink by row, whose value is 0, and its part in the gradient of -alpha."""
    b_w = tl.maximum((sink_units(p_sink, a, BR, SINKS) - b_top) + b_depth, 0.0)
    b_dsink = -slope(b_w, r, R) * b_common
    b_da = tl.zeros((BR,), tl.float32)
    if LEARNED:
        b_da += b_dsink * alpha_slope(b_w, a)
    return b_dsink, b_da


@triton.jit
def store_query_gradients(
    p_dq, p_common, p_dalpha, p_dsink, o_row, o_d, m_rows, b_depth, b_dq, b_common, b_da, b_dsink, scale,
    D: tl.constexpr,
):  # fmt: skip
    # a weight of 1 has the derivative 0; rounding would leave a small multiple of a huge key
    b_live = tl.where(b_depth > 1, 0.0, 1.0)
    b_da *= b_live
    b_dq = tl.where((b_depth == b_depth)[:, None], b_dq * (scale * b_live)[:, None], float("nan"))
    m_tile = m_rows[:, None] & (o_d < D)[None, :]
    tl.store(p_dq + o_row[:, None] * D + o_d[None, :], b_dq.to(p_dq.dtype.element_ty), mask=m_tile)
    tl.store(p_common + o_row, b_common, mask=m_rows)
    tl.store(p_dalpha + o_row, -b_da, mask=m_rows)
    tl.store(p_dsink + o_row, b_dsink, mask=m_rows)


@triton.jit
def _row_slopes(
    b_dq, b_da, b_top, b_depth, b_common, b_q, b_g, b_state, p_k, p_v, p_mask, p_tiles, k_l, v_l, mask_l, mask_s, o_m,
    o_d, o_v, begin, end, queries, keys, a, r, scale, softcap, left, right, offset, drop,
    LEARNED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, DROP: tl.constexpr,
    EDGE: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    for i_t in tl.range(begin, end, num_stages=STAGES):
        o_n = tl.load(p_tiles + i_t) * BN + tl.arange(0, BN)
        b_k = load_rows(p_k, o_n, o_d, o_n < keys, k_l, D, BD)
        b_v = load_rows(p_v, o_n, o_v, o_n < keys, v_l, V, BV)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_dp = tl.dot(b_g, tl.trans(b_v), input_precision=PRECISION)
        b_w = excess(
            b_raw, b_top, b_depth, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, left, right,
            offset, MASK, CAP, PLAIN, EDGE,
        )  # fmt: skip
        b_dx = score_slopes(b_w, b_dp, b_common, b_state, o_n, r, drop, DROP, R)
        if LEARNED:
            b_da += tl.sum(b_dx * alpha_slope(b_w, a), 1)
        if CAP:
            b_dx *= cap_slope(b_raw, scale, softcap)
        b_dq = tl.dot(b_dx.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)
    return b_dq, b_da
