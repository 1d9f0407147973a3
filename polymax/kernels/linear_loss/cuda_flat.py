"""Rows in which many words have weight: their thresholds from all logits, and gradients by blocks, for Triton."""

import triton
import triton.language as tl

from polymax.kernels.linear_loss.cuda_power import capped_scores, newton_step, powers


@triton.jit
def _scores(p_x, p_bias, o_n, words, softcap, BIAS: tl.constexpr, CAP: tl.constexpr):
    b_x = tl.load(p_x + o_n, mask=o_n < words, other=float("-inf"))
    if BIAS:
        b_x += tl.load(p_bias + o_n, mask=o_n < words, other=0.0)
    return tl.where(o_n < words, capped_scores(b_x, softcap, CAP), float("-inf"))


@triton.jit
def solve_rows(
    p_x, p_bias, p_top, p_value, p_tau, words, alpha, softcap,
    R: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The largest score, the smoothed maximum and the threshold of a row, which is read again at each step."""
    i_r = tl.program_id(0).to(tl.int64)
    p_x += i_r * words
    a = alpha - 1
    b_most = tl.full((BN,), float("-inf"), tl.float32)
    b_bad = tl.zeros((BN,), tl.int32)
    for i_n in range(0, words, BN):
        b_x = _scores(p_x, p_bias, i_n + tl.arange(0, BN), words, softcap, BIAS, CAP)
        b_most = tl.maximum(b_most, b_x)
        b_bad = b_bad | (b_x != b_x).to(tl.int32) | (b_x == float("inf")).to(tl.int32)
    b_top = tl.max(b_most, 0)
    bad = tl.max(b_bad, 0) > 0
    dead = b_top == float("-inf")
    b_top = tl.where(bad | dead, 0, b_top)
    if R == -1:
        b_sums = tl.zeros((BN,), tl.float32)
        for i_n in range(0, words, BN):
            b_x = _scores(p_x, p_bias, i_n + tl.arange(0, BN), words, softcap, BIAS, CAP)
            b_sums += tl.exp(b_x - b_top)
        b_tau = tl.log(tl.sum(b_sums))
        b_value = b_tau
    else:
        r = 1 / a
        b_t = b_top * 0 - 1
        go = ((bad | dead) == 0).to(tl.int32)
        turn = 0
        while go > 0:
            b_totals = tl.zeros((BN,), tl.float32)
            b_lowers = tl.zeros((BN,), tl.float32)
            for i_n in range(0, words, BN):
                b_x = _scores(p_x, p_bias, i_n + tl.arange(0, BN), words, softcap, BIAS, CAP)
                b_low, b_high = powers(tl.maximum(a * (b_x - b_top) - b_t, 0.0), r, R)
                b_totals += b_high
                b_lowers += b_low
            b_total = tl.sum(b_totals)
            b_step = newton_step(b_total, tl.sum(b_lowers), a, R)
            b_t += b_step
            turn += 1
            # convergence is quadratic, but for alpha = 2, where it ends with the last change of the support
            tolerance = 1e-6 if R == 1 else 1e-4
            go = (b_step > tolerance * tl.abs(b_t)).to(tl.int32) * (turn < 40).to(tl.int32)
        b_totals = tl.zeros((BN,), tl.float32)
        b_means = tl.zeros((BN,), tl.float32)
        for i_n in range(0, words, BN):
            b_x = _scores(p_x, p_bias, i_n + tl.arange(0, BN), words, softcap, BIAS, CAP)
            b_z = a * (b_x - b_top)
            b_low, b_high = powers(tl.maximum(b_z - b_t, 0.0), r, R)
            b_totals += b_high
            b_means += tl.where(b_high > 0, b_high * b_z, 0)
        b_total = tl.sum(b_totals)
        # the last step makes weights sum to 1
        if R == 1:
            b_tau = b_t / b_total
        elif R == 2:
            b_tau = b_t / tl.sqrt(b_total)
        else:
            b_tau = b_t * tl.exp2(-a * tl.log2(b_total))
        b_value = (tl.sum(b_means) / b_total) / alpha + (b_tau + 1) / (alpha * a)
    b_value = tl.where(dead, float("-inf"), b_value)
    tl.store(p_top + i_r, b_top)
    tl.store(p_value + i_r, tl.where(bad, float("nan"), b_value))
    tl.store(p_tau + i_r, tl.where(bad, float("nan"), b_tau))


@triton.jit
def flat_slopes(
    p_x, p_bias, p_spread, p_top, p_tau, p_value, p_mean, p_out, words, a, softcap,
    R: tl.constexpr, BIAS: tl.constexpr, SPREAD: tl.constexpr, CAP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of logits, from thresholds."""
    i_r = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m_n = o_n < words
    b_x = _scores(p_x + i_r * words, p_bias, o_n, words, softcap, BIAS, CAP)
    b_z = b_x - tl.load(p_top + i_r)
    b_tau = tl.load(p_tau + i_r)
    if R == -1:
        b_p = tl.exp(b_z - b_tau)
    else:
        b_low, b_p = powers(tl.maximum(a * b_z - b_tau, 0.0), 1 / a, R)
        b_p = tl.where(b_tau == b_tau, b_p, float("nan"))
    b_dx = b_p * tl.load(p_value + i_r)
    if SPREAD:
        b_dx += tl.load(p_mean + i_r) * tl.load(p_spread + o_n, mask=m_n, other=0.0)
    if CAP:
        b_dx *= 1 - (b_x / softcap) * (b_x / softcap)
    tl.store(p_out + i_r * words + o_n, b_dx.to(p_out.dtype.element_ty), mask=m_n)
