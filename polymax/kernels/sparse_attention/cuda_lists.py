"""Attention on lists: the threshold, the context and the gradient of a query from listed keys and values, gathered.

A program takes RUN groups of rows one after the other, and the chunks of a row's list one after the other.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_rows import sink_slopes, store_contexts, store_query_gradients
from polymax.kernels.sparse_attention.cuda_tile import (
    BM,
    cap_slope,
    capped_units,
    head_start,
    load_rows,
    load_thresholds,
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


@triton.jit
def listed_units(
    b_raw, b_top, o_m, o_j, m_list, p_mask, mask_l, mask_s, a, scale, softcap,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Return u of listed keys o_j (rows, entries) minus u of the row's largest z: 0 or less; -inf past the end of a
    list.
    """
    if PLAIN:
        b_u = (b_raw - b_top[:, None]) * (scale * a)
    else:
        b_u = capped_units(b_raw, a, scale, softcap, CAP)
        if MASK == 2:
            p_entry = p_mask + o_m.to(tl.int64)[:, None] * mask_l + o_j.to(tl.int64) * mask_s
            b_u += tl.load(p_entry, mask=m_list, other=0.0).to(tl.float32) * a
        b_u -= b_top[:, None]
    return tl.where(m_list, b_u, float("-inf"))


@triton.jit
def listed(b_n, i_c, BC: tl.constexpr):
    """Return a mask (rows, BC) that is True for entries i_c .. i_c + BC within lists of lengths b_n."""
    return (i_c + tl.arange(0, BC))[None, :] < b_n[:, None]


@triton.jit
def listed_keys(p_lists, o_row, b_n, i_c, LONGEST: tl.constexpr, BC: tl.constexpr):
    """Return entries i_c .. i_c + BC of the lists of rows o_row, of lengths b_n; 0 past the end of a list."""
    p_entry = p_lists + o_row[:, None] * LONGEST + (i_c + tl.arange(0, BC))[None, :]
    o_j = tl.load(p_entry, mask=listed(b_n, i_c, BC), other=0)
    # short sequences store keys in 16 bits, unsigned
    if p_lists.dtype.element_ty == tl.int16:
        o_key = o_j.to(tl.int32) & 0xFFFF
    else:
        o_key = o_j
    return o_key


@triton.jit
def gather(p_x, o_j, m_list, o_d, stride_l, D: tl.constexpr, BD: tl.constexpr):
    """Return listed rows of a matrix with D columns: (rows, entries, BD)."""
    p_entry = p_x + o_j.to(tl.int64)[:, :, None] * stride_l + o_d[None, None, :]
    if D == BD:
        b_x = tl.load(p_entry, mask=m_list[:, :, None], other=0.0)
    else:
        b_x = tl.load(p_entry, mask=m_list[:, :, None] & (o_d < D)[None, None, :], other=0.0)
    return b_x


@triton.jit
def lane_zeros(BR: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr):
    """Return the initial value of `lane_sums`: zeros (BR, lanes, BD)."""
    LANES: tl.constexpr = 256 // BD if 256 // BD < BC else BC
    return tl.zeros((BR, LANES, BD), tl.float32)


@triton.jit
def lane_sums(b_x):
    """Return partial sums (rows, lanes, BD) of entries (rows, entries, BD), to be added up over lanes at the end.

    Only entries of the same lane are added: a lane holds eight channels, a warp the rows of several entries side by
    side.
    """
    BR: tl.constexpr = b_x.shape[0]
    BC: tl.constexpr = b_x.shape[1]
    BD: tl.constexpr = b_x.shape[2]
    LANES: tl.constexpr = 256 // BD if 256 // BD < BC else BC
    return tl.sum(tl.reshape(b_x, (BR, BC // LANES, LANES, BD)), 1)


@Entry
@triton.jit
def listed_contexts(
    p_q, p_k, p_v, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_seed, p_plan, p_lists, p_top, p_depth,
    p_support, p_out, p_mean,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S, longest, blocks,
    row_tiles, plan_head, a1, scale, softcap, drop, tolerance,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr,
    BV: tl.constexpr, LONGEST: tl.constexpr, RUN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write the contexts of RUN times BR rows with lists, as `contexts` does from tiles."""
    i_bh = tl.program_id(1)
    i_0 = tl.program_id(0) * (RUN * BR)
    i_h = i_bh % heads
    first_q, first_k, queries, _, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
    p_bounds = p_plan + i_bh.to(tl.int64) * plan_head + blocks * row_tiles + (i_0 // BM) * 4
    if (i_0 < queries) & (tl.load(p_bounds + 3) == 1):
        o_d, o_v = tl.arange(0, BD), tl.arange(0, BV)
        a = exponent(p_alphas + i_h, a1, LEARNED)
        r = 1 / a
        p_head_q = p_q + head_start(i_b, i_h, first_q, q_b, q_h, q_l)
        p_head_k = p_k + head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
        p_head_v = p_v + head_start(i_b, i_h // group, first_k, v_b, v_h, v_l)
        p_head_mask = p_mask + i_b * mask_b + i_h.to(tl.int64) * mask_h
        b_sink = sink_units(p_sinks + i_h, a, BR, SINKS)
        for i_k in range(0, RUN):
            o_m = i_0 + i_k * BR + tl.arange(0, BR)
            m_rows = o_m < queries
            o_row = (i_b * heads + i_h) * L + first_q + o_m
            b_n = tl.load(p_plan + (i_bh.to(tl.int64) + 1) * plan_head - longest + o_m, mask=m_rows, other=0)
            b_top, b_depth = load_thresholds(p_top, p_depth, o_row, m_rows)
            b_q = load_rows(p_head_q, o_m, o_d, m_rows, q_l, D, BD).to(tl.float32)
            longest_list = tl.max(b_n, 0)
            b_u = tl.full((BR, LONGEST), float("-inf"), tl.float32)
            o_first = listed_keys(p_lists, o_row, b_n, 0, LONGEST, BC)
            o_next = o_first
            for i_c in range(0, longest_list, BC):
                o_j = o_next
                # load the next keys ahead of their use
                o_next = listed_keys(p_lists, o_row, b_n, i_c + BC, LONGEST, BC)
                m_list = listed(b_n, i_c, BC)
                b_k = gather(p_head_k, o_j, m_list, o_d, k_l, D, BD)
                b_raw = tl.sum(b_k.to(tl.float32) * b_q[:, None, :], 2)
                b_part = listed_units(
                    b_raw, b_top, o_m, o_j, m_list, p_head_mask, mask_l, mask_s, a, scale, softcap, MASK, CAP, PLAIN
                )  # fmt: skip
                b_u = _with_part(b_u, b_part, i_c, BC)
            # the first values are loaded while the threshold is computed
            b_v = gather(p_head_v, o_first, listed(b_n, 0, BC), o_v, v_l, V, BV)
            worst = 2.0
            turn = 0
            while (worst > 1 + last_error(tolerance, a, LEARNED)) & (turn < 24):
                b_over = tl.maximum((b_sink - b_top) + b_depth, 0.0)
                b_w = tl.maximum(b_u + b_depth[:, None], 0.0)
                b_f = weight(b_over, r, R) + tl.sum(weight(b_w, r, R), 1)
                b_g = slope(b_over, r, R) + tl.sum(slope(b_w, r, R), 1)
                b_depth = newton_step(b_depth, b_f, b_g, a, R)
                worst = tl.max(b_f, 0)
                turn += 1
            b_w = tl.maximum(b_u + b_depth[:, None], 0.0)
            b_over = tl.maximum((b_sink - b_top) + b_depth, 0.0)
            b_size = tl.sum((b_w > 0).to(tl.int32), 1) + (b_over > 0).to(tl.int32)
            b_p = tl.sum(weight(b_w, r, R), 1) + weight(b_over, r, R)
            b_s = tl.sum(slope(b_w, r, R), 1) + slope(b_over, r, R)
            b_state = row_states(p_seed, o_row) if DROP else o_m
            b_o, b_mean = lane_zeros(BR, BC, BV), lane_zeros(BR, BC, BV)
            b_o, b_mean = _add_values(b_o, b_mean, b_v, _part(b_w, 0, BC), b_state, o_first, r, drop, DROP, R)
            for i_c in range(BC, longest_list, BC):
                o_j = listed_keys(p_lists, o_row, b_n, i_c, LONGEST, BC)
                b_v = gather(p_head_v, o_j, listed(b_n, i_c, BC), o_v, v_l, V, BV)
                b_o, b_mean = _add_values(b_o, b_mean, b_v, _part(b_w, i_c, BC), b_state, o_j, r, drop, DROP, R)
            b_o, b_mean = tl.sum(b_o, 1), tl.sum(b_mean, 1)
            store_contexts(
                p_depth, p_support, p_out, p_mean, o_row, o_v, m_rows, b_depth, b_size, b_p, b_s, b_o, b_mean, V
            )  # fmt: skip


@triton.jit
def _add_values(b_o, b_mean, b_v, b_x, b_state, o_j, r, drop, DROP: tl.constexpr, R: tl.constexpr):
    """Return the sums of values under p and under s after adding keys o_j, whose w = (u - tau)_+ are b_x."""
    b_v = b_v.to(tl.float32)
    if DROP:
        b_v *= kept(b_state, o_j, drop)[:, :, None]
    b_o += lane_sums(weight(b_x, r, R)[:, :, None] * b_v)
    b_mean += lane_sums(slope(b_x, r, R)[:, :, None] * b_v)
    return b_o, b_mean


@triton.jit
def _with_part(b_all, b_part, i_c, BC: tl.constexpr):
    """Return rows (R, N) with entries i_c .. i_c + BC replaced; i_c is a multiple of BC."""
    BR: tl.constexpr = b_all.shape[0]
    N: tl.constexpr = b_all.shape[1]
    b_wide = tl.broadcast_to(b_part[:, None, :], (BR, N // BC, BC))
    o_c = tl.arange(0, N)
    return tl.where((o_c // BC == i_c // BC)[None, :], tl.reshape(b_wide, (BR, N)), b_all)


@triton.jit
def _part(b_all, i_c, BC: tl.constexpr):
    """Return entries i_c .. i_c + BC of rows (R, N); i_c is a multiple of BC."""
    BR: tl.constexpr = b_all.shape[0]
    N: tl.constexpr = b_all.shape[1]
    b_parts = tl.reshape(b_all, (BR, N // BC, BC))
    return tl.sum(tl.where((tl.arange(0, N // BC) == i_c // BC)[None, :, None], b_parts, 0.0), 1)


@Entry
@triton.jit
def listed_gradients(
    p_grad, p_q, p_k, p_v, p_mean, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_seed, p_plan, p_lists, p_top,
    p_depth, p_common, p_dq, p_dalpha, p_dsink,
    g_b, g_h, g_l, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S,
    longest, blocks, row_tiles, plan_head, a1, scale, softcap, drop,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr,
    BV: tl.constexpr, LONGEST: tl.constexpr, RUN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Write the gradients of RUN times BR rows with lists, as `query_gradients` does from tiles."""
    i_bh = tl.program_id(1)
    i_0 = tl.program_id(0) * (RUN * BR)
    i_h = i_bh % heads
    first_q, first_k, queries, _, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
    p_bounds = p_plan + i_bh.to(tl.int64) * plan_head + blocks * row_tiles + (i_0 // BM) * 4
    if (i_0 < queries) & (tl.load(p_bounds + 3) == 1):
        o_d, o_v = tl.arange(0, BD), tl.arange(0, BV)
        a = exponent(p_alphas + i_h, a1, LEARNED)
        r = 1 / a
        p_head_g = p_grad + head_start(i_b, i_h, first_q, g_b, g_h, g_l)
        p_head_q = p_q + head_start(i_b, i_h, first_q, q_b, q_h, q_l)
        p_head_k = p_k + head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
        p_head_v = p_v + head_start(i_b, i_h // group, first_k, v_b, v_h, v_l)
        p_head_mask = p_mask + i_b * mask_b + i_h.to(tl.int64) * mask_h
        for i_k in range(0, RUN):
            o_m = i_0 + i_k * BR + tl.arange(0, BR)
            m_rows = o_m < queries
            o_row = (i_b * heads + i_h) * L + first_q + o_m
            b_n = tl.load(p_plan + (i_bh.to(tl.int64) + 1) * plan_head - longest + o_m, mask=m_rows, other=0)
            b_top, b_depth = load_thresholds(p_top, p_depth, o_row, m_rows)
            b_q = load_rows(p_head_q, o_m, o_d, m_rows, q_l, D, BD).to(tl.float32)
            b_g = load_rows(p_head_g, o_m, o_v, m_rows, g_l, V, BV).to(tl.float32)
            b_common = tl.sum(b_g * load_rows(p_mean, o_row, o_v, m_rows, V, V, BV).to(tl.float32), 1)
            b_dsink, b_da = sink_slopes(p_sinks + i_h, b_top, b_depth, b_common, a, r, LEARNED, SINKS, R, BR)
            b_state = row_states(p_seed, o_row) if DROP else o_m
            b_dq = lane_zeros(BR, BC, BD)
            o_next = listed_keys(p_lists, o_row, b_n, 0, LONGEST, BC)
            for i_c in range(0, tl.max(b_n, 0), BC):
                o_j = o_next
                # load the next keys ahead of their use
                o_next = listed_keys(p_lists, o_row, b_n, i_c + BC, LONGEST, BC)
                m_list = listed(b_n, i_c, BC)
                b_k = gather(p_head_k, o_j, m_list, o_d, k_l, D, BD).to(tl.float32)
                b_v = gather(p_head_v, o_j, m_list, o_v, v_l, V, BV).to(tl.float32)
                b_raw = tl.sum(b_k * b_q[:, None, :], 2)
                b_dp = tl.sum(b_v * b_g[:, None, :], 2)
                if DROP:
                    b_dp *= kept(b_state, o_j, drop)
                b_u = listed_units(
                    b_raw, b_top, o_m, o_j, m_list, p_head_mask, mask_l, mask_s, a, scale, softcap, MASK, CAP, PLAIN
                )  # fmt: skip
                b_w = tl.maximum(b_u + b_depth[:, None], 0.0)
                b_dx = slope(b_w, r, R) * (b_dp - b_common[:, None])
                if LEARNED:
                    b_da += tl.sum(b_dx * alpha_slope(b_w, a), 1)
                if CAP:
                    b_dx *= cap_slope(b_raw, scale, softcap)
                b_dq += lane_sums(b_dx[:, :, None] * b_k)
            b_dq = tl.sum(b_dq, 1)
            store_query_gradients(
                p_dq, p_common, p_dalpha, p_dsink, o_row, o_d, m_rows, b_depth, b_dq, b_common, b_da, b_dsink, scale, D
            )  # fmt: skip
