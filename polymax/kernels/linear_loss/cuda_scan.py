"""Blocks of logits to lists of candidates, a program for each row, for Triton."""

import triton
import triton.language as tl

from polymax.kernels.linear_loss.cuda_power import capped_scores, newton_step, powers

FLAT = tl.constexpr(-1)


@triton.jit
def lowest(t):
    """A bound with room for its rounding and for that of what it is compared with."""
    return t - 1e-5 - 1e-6 * tl.abs(t)


@triton.jit
def scan_rows(
    p_x,
    p_bias,
    p_target,
    p_count,
    p_ids,
    p_values,
    p_top,
    p_bound,
    p_chosen,
    first,
    words,
    a,
    softcap,
    size,
    R: tl.constexpr,
    BIAS: tl.constexpr,
    CAP: tl.constexpr,
    TARGET: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Add to the list of a row what a block of logits has above its bound, and raise the bound."""
    i_r = tl.program_id(0).to(tl.int64)
    n_old = tl.load(p_count + i_r)
    i_y = 0
    if TARGET:
        i_y = tl.load(p_target + i_r).to(tl.int32)
    if (n_old >= 0) & (i_y >= 0):
        o_n = tl.arange(0, BN)
        b_x = tl.load(p_x + i_r * words + o_n, mask=o_n < words, other=float("-inf"))
        if BIAS:
            b_x += tl.load(p_bias + o_n, mask=o_n < words, other=0.0)
        b_x = capped_scores(b_x, softcap, CAP)
        b_x = tl.where(o_n < words, b_x, float("-inf"))
        if TARGET:
            if (i_y >= first) & (i_y < first + words):
                b_own = tl.sum(tl.where(o_n == i_y - first, b_x, 0))
                tl.store(p_chosen + i_r, b_own)
        b_top = tl.maximum(tl.load(p_top + i_r), tl.max(b_x, 0))
        tl.store(p_top + i_r, b_top)
        b_t = tl.maximum(tl.load(p_bound + i_r), a * b_top - 1)
        b_u = a * b_x
        # a NaN is not below anything, and so is found among the few
        n_new = tl.sum(1 - (b_u <= lowest(b_t)).to(tl.int32))
        if n_new > 0:
            r = 1 / a
            o_k = tl.arange(0, BK)
            m_k = o_k < n_old
            b_v = tl.load(p_values + i_r * size + o_k, mask=m_k, other=float("-inf"))
            b_j = tl.load(p_ids + i_r * size + o_k, mask=m_k, other=0)
            b_s = a * b_v
            go = 1
            turn = 0
            while go > 0:
                b_low, b_high = powers(tl.maximum(b_u - b_t, 0.0), r, R)
                b_low_k, b_high_k = powers(tl.maximum(b_s - b_t, 0.0), r, R)
                b_step = newton_step(tl.sum(b_high) + tl.sum(b_high_k), tl.sum(b_low) + tl.sum(b_low_k), a, R)
                b_t += b_step
                turn += 1
                go = (b_step > 0.02).to(tl.int32) * (turn < 10).to(tl.int32)
            m_old = m_k & (b_s > lowest(b_t))
            m_new = (b_u <= lowest(b_t)) == 0
            o_old = tl.cumsum(m_old.to(tl.int32), 0)
            o_new = tl.cumsum(m_new.to(tl.int32), 0)
            n_kept = tl.sum(m_old.to(tl.int32))
            n_all = n_kept + tl.sum(m_new.to(tl.int32))
            bad = tl.max((b_x != b_x).to(tl.int32), 0)
            if (n_all > size) | (bad > 0):
                tl.store(p_count + i_r, FLAT)
            else:
                # entries move to the front of the list from where others have read them
                tl.debug_barrier()
                o_old = i_r * size + o_old - 1
                tl.store(p_values + o_old, b_v, mask=m_old)
                tl.store(p_ids + o_old, b_j, mask=m_old)
                o_new = i_r * size + n_kept + o_new - 1
                tl.store(p_values + o_new, b_x, mask=m_new)
                tl.store(p_ids + o_new, first + o_n, mask=m_new)
                tl.store(p_count + i_r, n_all)
                tl.store(p_bound + i_r, b_t)
