"""Rows in which many words have weight: their thresholds from all logits, and gradients by blocks, for Triton."""

import triton
import triton.language as tl

from polymax.kernels.linear_loss.cuda_power import load_scores, newton_step, powers, slopes_of_logits, weights_of


@triton.jit
def solve_rows(
    p_x, p_bias, p_top, p_value, p_tau,
    words, alpha, softcap,
    R: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the largest score, the smoothed maximum and the threshold of a row, which is read again at each step.

    The first steps use only the first scores, as if they were representative of the row: Newton's method may start on
    either side of the root.
    """
    i_r = tl.program_id(0).to(tl.int64)
    a = alpha - 1
    p_x += i_r * words
    b_first = load_scores(p_x, p_bias, tl.arange(0, BN), words, softcap, BIAS, CAP)
    b_shift = tl.max(b_first, 0)
    b_shift = tl.where((b_shift > float("-inf")) & (b_shift < float("inf")), b_shift, 0)
    b_t = b_shift * 0 - 1
    if R >= 0:
        share = tl.minimum(BN, words) / words
        for _ in range(6):
            b_low, b_high = powers(tl.maximum(a * (b_first - b_shift) - b_t, 0.0), 1 / a, R)
            b_t += newton_step(tl.sum(b_high) / share, tl.sum(b_low) / share, a, R)
    b_most = b_shift
    bad = 0
    b_total = b_shift * 0
    b_mean = b_shift * 0
    go = 1
    turn = 0
    while go > 0:
        b_tops = tl.full((BN,), float("-inf"), tl.float32)
        b_bad = tl.zeros((BN,), tl.int32)
        b_totals = tl.zeros((BN,), tl.float32)
        b_lowers = tl.zeros((BN,), tl.float32)
        b_means = tl.zeros((BN,), tl.float32)
        for i_n in range(0, words, BN):
            b_x = load_scores(p_x, p_bias, i_n + tl.arange(0, BN), words, softcap, BIAS, CAP)
            b_tops = tl.maximum(b_tops, b_x)
            b_bad = b_bad | (b_x != b_x).to(tl.int32) | (b_x == float("inf")).to(tl.int32)
            if R == -1:
                b_totals += tl.exp(b_x - b_shift)
            else:
                b_z = a * (b_x - b_shift)
                b_low, b_high = powers(tl.maximum(b_z - b_t, 0.0), 1 / a, R)
                b_totals += b_high
                b_lowers += b_low
                b_means += tl.where(b_high > 0, b_high * b_z, 0)
        b_most = tl.max(b_tops, 0)
        bad = tl.max(b_bad, 0)
        b_total = tl.sum(b_totals)
        turn += 1
        if R == -1:
            # if an exponential overflows or loses its digits, start again from the largest score
            go = (b_most > b_shift + 20).to(tl.int32) * (turn < 2).to(tl.int32)
            b_shift = tl.where(go > 0, b_most, b_shift)
        else:
            b_mean = tl.sum(b_means)
            go = (tl.abs(b_total - 1) > 2e-6).to(tl.int32) * (turn < 40).to(tl.int32)
            if go > 0:
                b_step = newton_step(b_total, tl.sum(b_lowers), a, R)
                # if no score lies above the threshold, restart from a safe bound
                b_next = tl.where(b_total > 0, b_t + b_step, a * (b_most - b_shift) - 1)
                go = (b_next != b_t).to(tl.int32)
                b_t = b_next
        go = go * (bad == 0).to(tl.int32) * (b_most > float("-inf")).to(tl.int32)
    b_top = tl.where((b_most > float("-inf")) & (bad == 0), b_most, 0)
    if R == -1:
        b_value = tl.log(b_total) - (b_top - b_shift)
        # a row of -inf has no weights
        b_tau = tl.where(b_most == float("-inf"), float("inf"), b_value)
    else:
        # relative to the largest score, and with weights that sum to 1
        b_up = a * (b_top - b_shift)
        b_tau = b_t - b_up
        if R == 1:
            b_tau = b_tau / b_total
        elif R == 2:
            b_tau = b_tau / tl.sqrt(b_total)
        else:
            b_tau = b_tau * tl.exp2(-a * tl.log2(b_total))
        b_value = (b_mean / b_total - b_up) / alpha + (b_tau + 1) / (alpha * a)
    b_value = tl.where(b_most == float("-inf"), float("-inf"), b_value)
    tl.store(p_top + i_r, b_top)
    tl.store(p_value + i_r, tl.where(bad > 0, float("nan"), b_value))
    tl.store(p_tau + i_r, tl.where(bad > 0, float("nan"), b_tau))


@triton.jit
def flat_slopes(
    p_x, p_bias, p_spread, p_top, p_tau, p_value, p_mean, p_moment, p_out,
    words, spread_stride, a, softcap, scale,
    R: tl.constexpr, BIAS: tl.constexpr, SPREAD: tl.constexpr, CAP: tl.constexpr,
    MOMENT: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a block of logits, from thresholds."""
    i_r = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m_n = o_n < words
    b_x = scale * load_scores(p_x + i_r * words, p_bias, o_n, words, softcap, BIAS, CAP)
    b_z = b_x - tl.load(p_top + i_r)
    b_p = weights_of(b_z, tl.load(p_tau + i_r), a, R)
    b_v = tl.load(p_value + i_r)
    if MOMENT:
        b_dx = b_p * (b_v + tl.load(p_moment + i_r) * tl.maximum(b_z, -1e30))
    else:
        b_dx = b_p * b_v
    if SPREAD:
        b_s = tl.load(p_spread + i_r * spread_stride + o_n, mask=m_n, other=0.0).to(b_dx.dtype)
        b_dx += tl.load(p_mean + i_r) * b_s
    b_dx = slopes_of_logits(b_dx, b_x, softcap, scale, CAP)
    tl.store(p_out + i_r * words + o_n, b_dx.to(p_out.dtype.element_ty), mask=m_n)
