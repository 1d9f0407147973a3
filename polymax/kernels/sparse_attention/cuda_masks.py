"""The gradient of an added mask: for each of its tiles, the slopes of the scores that it is added to.

    dmask = sum of dx over the batches, heads, queries and keys that share an entry        dx = s (grad . v - common)

One program owns an entry and adds in a fixed order, so that sums have the same bits in each call.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_dense import is_dense
from polymax.kernels.sparse_attention.cuda_tile import BM, BN, excess, load_rows, load_thresholds, score_slopes
from polymax.kernels.sparse_attention.cuda_weights import exponent, row_states


@Entry
@triton.jit
def mask_gradients(
    p_grad, p_q, p_k, p_v, p_alphas, p_mask, p_seed, p_plan, p_top, p_depth, p_common, p_dmask,
    g_b, g_h, g_l, q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S,
    blocks, row_tiles, plan_head, a1, scale, softcap, left, right, offset, drop, batch_run, head_run,
    LEARNED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr, DROP: tl.constexpr, PLAIN: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, SHORT: tl.constexpr, MARKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write dmask. ROWS and KEYS are true if the mask has a row for each query and a column for each key.

    Short rows have no plan, and SHORT takes all tiles.
    """
    i_n, i_r, i_o = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    o_d, o_v = tl.arange(0, BD), tl.arange(0, BV)
    heads_apart = heads // head_run
    end_m, end_t = blocks, row_tiles
    if ROWS:
        end_m = i_r + 1
    if KEYS:
        end_t = i_n + 1
    b_sum = tl.zeros((BM, BN), tl.float32)
    for i_e in range(0, batch_run * head_run):
        i_b = ((i_o // heads_apart) * batch_run + i_e // head_run).to(tl.int64)
        i_h = (i_o % heads_apart) * head_run + i_e % head_run
        a = exponent(p_alphas + i_h, a1, LEARNED)
        r = 1 / a
        p_words = p_plan + (i_b * heads + i_h) * plan_head + blocks * (row_tiles + 4)
        p_head_g = p_grad + i_b * g_b + i_h.to(tl.int64) * g_h
        p_head_q = p_q + i_b * q_b + i_h.to(tl.int64) * q_h
        p_head_k = p_k + i_b * k_b + (i_h // group).to(tl.int64) * k_h
        p_head_v = p_v + i_b * v_b + (i_h // group).to(tl.int64) * v_h
        p_head_mask = p_mask + i_b * mask_b + i_h.to(tl.int64) * mask_h
        for i_m in range(i_r, end_m):
            o_m = i_m * BM + tl.arange(0, BM)
            m_rows = o_m < L
            o_row = (i_b * heads + i_h) * L + o_m
            for i_t in range(i_n, end_t):
                # most tiles are empty
                held = 1
                if not SHORT:
                    b_word = tl.load(p_words + (i_t // 32) * L + o_m, mask=m_rows, other=0)
                    held = tl.max((b_word >> (i_t % 32)) & 1, 0)
                    if MARKED:
                        # dense heads have no bits
                        m_dense = is_dense(p_plan, i_b * heads + i_h, plan_head, blocks * row_tiles + 3)
                        held = tl.maximum(held, m_dense.to(tl.int32))
                if held > 0:
                    o_n = i_t * BN + tl.arange(0, BN)
                    b_q = load_rows(p_head_q, o_m, o_d, m_rows, q_l, D, BD)
                    b_g = load_rows(p_head_g, o_m, o_v, m_rows, g_l, V, BV)
                    b_k = load_rows(p_head_k, o_n, o_d, o_n < S, k_l, D, BD)
                    b_v = load_rows(p_head_v, o_n, o_v, o_n < S, v_l, V, BV)
                    b_top, b_depth = load_thresholds(p_top, p_depth, o_row, m_rows)
                    b_common = tl.load(p_common + o_row, mask=m_rows, other=0.0)
                    b_state = row_states(p_seed, o_row) if DROP else o_m
                    b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
                    b_dp = tl.dot(b_g, tl.trans(b_v), input_precision=PRECISION)
                    b_w = excess(
                        b_raw, b_top, b_depth, o_m, o_n, p_head_mask, mask_l, mask_s, L, S, a, scale, softcap, left,
                        right, offset, MASK, CAP, PLAIN, True,
                    )  # fmt: skip
                    b_sum += score_slopes(b_w, b_dp, b_common, b_state, o_n, r, drop, DROP, R)
    o_m, o_n = i_r * BM + tl.arange(0, BM), i_n * BN + tl.arange(0, BN)
    if ROWS and KEYS:
        p_tile = p_dmask + (i_o.to(tl.int64) * L + o_m.to(tl.int64)[:, None]) * S + o_n[None, :]
        tl.store(p_tile, b_sum, mask=(o_m < L)[:, None] & (o_n < S)[None, :])
    elif ROWS:
        tl.store(p_dmask + i_o.to(tl.int64) * L + o_m, tl.sum(b_sum, 1), mask=o_m < L)
    elif KEYS:
        tl.store(p_dmask + i_o.to(tl.int64) * S + o_n, tl.sum(b_sum, 0), mask=o_n < S)
    else:
        tl.store(p_dmask + i_o, tl.sum(b_sum))
