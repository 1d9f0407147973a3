"""Kept logits of flat rows, a column for each row: their thresholds, and gradients in their place, for Triton."""

import triton
import triton.language as tl

from polymax.kernels.linear_loss.cuda_power import (
    capped_scores,
    halley_step,
    lowest_power,
    powers,
    slopes_of_logits,
    weights_of,
)


@triton.jit
def kept_scores(
    p_x, p_reference, p_bias, o_w, o_n, words, n, stride, softcap, scale,
    BIAS: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Return the scores (BW, BN) of words o_w in rows o_n, -inf outside of the matrix.

    What is kept is a logit less the reference of its row, without its bias.
    """
    m_x = (o_w < words)[:, None] & (o_n < n)[None, :]
    b_x = tl.load(p_x + o_w.to(tl.int64)[:, None] * stride + o_n[None, :], mask=m_x, other=float("-inf"))
    b_x = b_x.to(p_reference.dtype.element_ty) + tl.load(p_reference + o_n, mask=o_n < n, other=0.0)[None, :]
    if BIAS:
        b_x += tl.load(p_bias + o_w, mask=o_w < words, other=0.0)[:, None]
    if CAP:
        b_x = tl.where(m_x, capped_scores(b_x, softcap, CAP), float("-inf"))
    return scale * b_x


@triton.jit
def solve_columns(
    p_x, p_reference, p_bias, p_top, p_value, p_tau,
    words, n, stride, sample, near, alpha, softcap, scale,
    R: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Write the largest score, the smoothed maximum and the threshold of BN rows, whose scores are read at each turn.

    The first turns use words at even distances as if these were all words: Newton's method may start on either side of
    the root. If the weights sum to 1 but for `near`, the last step is taken without another turn.
    """
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    m_n = o_n < n
    a = alpha - 1
    b_shift = scale * capped_scores(tl.load(p_reference + o_n, mask=m_n, other=0.0), softcap, CAP)
    b_t = b_shift * 0 - 1
    b_most = b_shift
    b_total = b_shift
    b_lower = b_shift
    b_lowest = b_shift
    b_upper = b_shift
    every = tl.maximum(words // sample, 1)
    if R == -1:
        every = 1
    go = 1
    turn = 0
    while go > 0:
        b_tops = tl.full((BW, BN), float("-inf"), tl.float32)
        b_totals = tl.zeros((BW, BN), tl.float32)
        b_lowers = tl.zeros((BW, BN), tl.float32)
        b_lowests = tl.zeros((BW, BN), tl.float32)
        b_uppers = tl.zeros((BW, BN), tl.float32)
        count = tl.cdiv(words, every)
        for i_w in tl.range(0, count, BW, num_stages=STAGES):
            o_w = (i_w + tl.arange(0, BW)) * every
            b_x = kept_scores(p_x, p_reference, p_bias, o_w, o_n, words, n, stride, softcap, scale, BIAS, CAP)
            b_tops = tl.maximum(b_tops, b_x)
            if R == -1:
                b_totals += tl.exp(b_x - b_shift[None, :])
            else:
                b_w = a * (b_x - b_shift[None, :]) - b_t[None, :]
                b_low, b_high = powers(tl.maximum(b_w, 0.0), 1 / a, R)
                if R >= 2:
                    b_lowests += lowest_power(tl.maximum(b_w, 0.0), R)
                # a NaN stays
                b_totals += tl.where(b_w == b_w, b_high, b_w)
                b_lowers += b_low
                b_uppers += tl.where(b_high > 0, b_high * b_w, 0.0)
        b_most = tl.max(b_tops, 0)
        b_total = tl.sum(b_totals, 0)
        turn += 1
        # if sums overflow or lose their digits, start again from the largest score
        m_live = (b_most > float("-inf")) & (b_most < float("inf"))
        m_far = m_live & (tl.abs(b_most - b_shift) > 20)
        m_go = m_far
        if R >= 0:
            times = words / count
            b_total *= times
            b_lower = tl.sum(b_lowers, 0) * times
            b_lowest = tl.sum(b_lowests, 0) * times
            b_upper = tl.sum(b_uppers, 0) * times
            # if no score lies above the threshold, restart from a safe bound
            b_step = halley_step(b_total, b_lower, b_lowest, a, R)
            b_step = tl.where(b_total > 0, b_step, a * (b_most - b_shift) - 1 - b_t)
            m_off = (tl.abs(b_total - 1) > near) & (b_total < float("inf")) & (b_t + b_step != b_t)
            m_step = (m_far == 0) & m_live & m_off
            b_t = tl.where(m_far, -1.0, tl.where(m_step, b_t + b_step, b_t))
            m_go = m_far | m_step
        b_shift = tl.where(m_far, b_most, b_shift)
        go = tl.max(m_go.to(tl.int32), 0) * (turn < 48).to(tl.int32)
        # the sample is left for all words
        if (every > 1) & ((go == 0) | (turn >= 8)):
            every = 1
            go = 1
    m_dead = b_most == float("-inf")
    # infinities and NaN
    m_bad = (b_total < float("inf")) == 0
    b_top = tl.where(m_dead | m_bad, 0, b_most)
    if R == -1:
        b_value = tl.log(b_total) - (b_top - b_shift)
        # a row of -inf has no weights
        b_tau = tl.where(m_dead, float("inf"), b_value)
    else:
        b_up = a * (b_top - b_shift)
        # the dual function at the threshold, and its decrease by the last step
        b_miss = tl.where(b_lower > 0, (b_total - 1) * (b_total - 1) / tl.where(b_lower > 0, b_lower, 1), 0)
        b_value = (b_t - b_up) / a + b_upper / alpha + 1 / (alpha * a) - b_miss / 2
        b_tau = tl.where(m_dead, 0, b_t + halley_step(b_total, b_lower, b_lowest, a, R) - b_up)
    b_value = tl.where(m_bad, float("nan"), tl.where(m_dead, float("-inf"), b_value))
    tl.store(p_top + o_n, b_top, mask=m_n)
    tl.store(p_value + o_n, b_value, mask=m_n)
    tl.store(p_tau + o_n, tl.where(m_bad, float("nan"), b_tau), mask=m_n)


@triton.jit
def slope_columns(
    p_x, p_reference, p_bias, p_spread, p_top, p_tau, p_value, p_mean,
    words, n, stride, spread_stride, a, softcap, scale,
    R: tl.constexpr, BIAS: tl.constexpr, SPREAD: tl.constexpr, CAP: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the gradients of logits in the place of the logits."""
    o_w = tl.program_id(0) * BW + tl.arange(0, BW)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m_n = o_n < n
    b_x = kept_scores(p_x, p_reference, p_bias, o_w, o_n, words, n, stride, softcap, scale, BIAS, CAP)
    b_z = b_x - tl.load(p_top + o_n, mask=m_n, other=0.0)[None, :]
    b_p = weights_of(b_z, tl.load(p_tau + o_n, mask=m_n, other=0.0)[None, :], a, R)
    b_dx = b_p * tl.load(p_value + o_n, mask=m_n, other=0.0)[None, :]
    m_x = (o_w < words)[:, None] & m_n[None, :]
    if SPREAD:
        p_part = p_spread + o_n.to(tl.int64)[None, :] * spread_stride + o_w[:, None]
        b_s = tl.load(p_part, mask=m_x, other=0.0).to(b_dx.dtype)
        b_dx += tl.load(p_mean + o_n, mask=m_n, other=0.0)[None, :] * b_s
    b_dx = slopes_of_logits(b_dx, b_x, softcap, scale, CAP)
    p_out = p_x + o_w.to(tl.int64)[:, None] * stride + o_n[None, :]
    tl.store(p_out, b_dx.to(p_x.dtype.element_ty), mask=m_x)


@triton.jit
def pick_columns(
    p_x, p_reference, p_bias, p_named, p_chosen,
    stride, k, softcap, scale,
    BIAS: tl.constexpr, CAP: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write the scores of the named words of a row."""
    i_r = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BK)
    o_w = tl.load(p_named + i_r * k + o_k, mask=o_k < k, other=-1).to(tl.int64)
    b_x = tl.load(p_x + o_w * stride + i_r, mask=o_w >= 0, other=0.0).to(p_reference.dtype.element_ty)
    b_x += tl.load(p_reference + i_r)
    if BIAS:
        b_x += tl.load(p_bias + o_w, mask=o_w >= 0, other=0.0)
    tl.store(p_chosen + i_r * k + o_k, scale * capped_scores(b_x, softcap, CAP), mask=o_k < k)


@triton.jit
def name_columns(
    p_x, p_spread, p_named, p_chosen, p_top, p_tau, p_value, p_mean, p_slope,
    stride, spread_stride, k, a, softcap, scale,
    R: tl.constexpr, SPREAD: tl.constexpr, CAP: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of the logits of named words, whose scores have the gradient `slope` of their own.

    Both parts of a gradient are added up before they are rounded.
    """
    i_r = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BK)
    o_w = tl.load(p_named + i_r * k + o_k, mask=o_k < k, other=-1).to(tl.int64)
    m_k = o_w >= 0
    b_x = tl.load(p_chosen + i_r * k + o_k, mask=m_k, other=0.0)
    b_dx = weights_of(b_x - tl.load(p_top + i_r), tl.load(p_tau + i_r), a, R) * tl.load(p_value + i_r)
    if SPREAD:
        b_s = tl.load(p_spread + i_r * spread_stride + o_w, mask=m_k, other=0.0).to(b_dx.dtype)
        b_dx += tl.load(p_mean + i_r) * b_s
    b_dx += tl.load(p_slope + i_r * k + o_k, mask=m_k, other=0.0)
    b_dx = slopes_of_logits(b_dx, b_x, softcap, scale, CAP)
    tl.store(p_x + o_w * stride + i_r, b_dx.to(p_x.dtype.element_ty), mask=m_k)
