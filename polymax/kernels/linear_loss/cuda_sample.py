"""Guesses about rows from a sample of words, for Triton: the largest logit, and how many words have weight."""

import triton
import triton.language as tl

from polymax.kernels.linear_loss.cuda_power import capped_scores, newton_step, powers


@triton.jit
def product_of(p_a, p_b, d, b_like, BD: tl.constexpr):
    """Return the inner product of two vectors, in the dtype of b_like."""
    b_sum = tl.zeros((BD,), b_like.dtype)
    for i_d in range(0, d, BD):
        o_d = i_d + tl.arange(0, BD)
        b_a = tl.load(p_a + o_d, mask=o_d < d, other=0.0).to(b_like.dtype)
        b_sum += b_a * tl.load(p_b + o_d, mask=o_d < d, other=0.0).to(b_like.dtype)
    return tl.sum(b_sum, 0)


@triton.jit
def refer_rows(
    p_x, p_some, p_bias, p_h, p_w, p_named, p_reference, p_less,
    count, d, h_stride, w_stride, k,
    BIAS: tl.constexpr, NAMED: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write the logit, without bias, of the likeliest word among some words and the first named one; and less it."""
    i_r = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BK)
    b_x = tl.load(p_x + i_r * count + o_k, mask=o_k < count, other=float("-inf"))
    b_s = b_x
    if BIAS:
        b_s += tl.load(p_some + o_k, mask=o_k < count, other=0.0)
    b_best = tl.max(b_s, 0)
    b_found = tl.max(tl.where(b_s == b_best, b_x, float("-inf")), 0)
    if NAMED:
        i_w = tl.load(p_named + i_r * k).to(tl.int64)
        if i_w >= 0:
            b_own = product_of(p_h + i_r * h_stride, p_w + i_w * w_stride, d, b_x, BD)
            b_score = b_own
            if BIAS:
                b_score += tl.load(p_bias + i_w)
            b_found = tl.where(b_score > b_best, b_own, b_found)
    b_found = tl.where((b_found > float("-inf")) & (b_found < float("inf")), b_found, 0)
    b_less = (0 - b_found).to(p_less.dtype.element_ty)
    tl.store(p_less + i_r, b_less)
    tl.store(p_reference + i_r, 0 - b_less.to(b_x.dtype))


@triton.jit
def guess_rows(
    p_x, p_some, p_bias, p_h, p_w, p_named, p_crowded, p_counted,
    count, times, d, h_stride, w_stride, named_stride, k, a, softcap, scale, size,
    R: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, NAMED: tl.constexpr, BK: tl.constexpr, BA: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """Write 1 for a row that counts, and 1 if more than `size` of its words seem to have weight.

    Each word of the sample stands for `times` words.
    """
    i_r = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BK)
    b_x = tl.load(p_x + i_r * count + o_k, mask=o_k < count, other=float("-inf"))
    if BIAS:
        b_x += tl.load(p_some + o_k, mask=o_k < count, other=0.0)
    b_s = a * scale * tl.where(o_k < count, capped_scores(b_x, softcap, CAP), float("-inf"))
    b_t = tl.max(b_s, 0) - 1
    for _ in range(12):
        b_low, b_high = powers(tl.maximum(b_s - b_t, 0.0), 1 / a, R)
        b_t += tl.maximum(newton_step(tl.sum(b_high, 0) * times, tl.sum(b_low, 0) * times, a, R), 0.0)
    counted = 1
    if NAMED:
        o_a = tl.arange(0, BA)
        p_named += i_r * named_stride
        counted = (tl.max(tl.load(p_named + o_a, mask=o_a < k, other=-1), 0) >= 0).to(tl.int32)
        i_w = tl.load(p_named, mask=k > 0, other=-1).to(tl.int64)
        if i_w >= 0:
            # words with much weight are rarely in the sample, but often among the targets
            b_own = product_of(p_h + i_r * h_stride, p_w + i_w * w_stride, d, b_x, BD)
            if BIAS:
                b_own += tl.load(p_bias + i_w)
            b_t = tl.maximum(b_t, a * scale * capped_scores(b_own, softcap, CAP) - 1)
    b_support = times * tl.sum((b_s > b_t).to(tl.int32), 0)
    tl.store(p_crowded + i_r, (b_support > size).to(tl.int32) * counted)
    tl.store(p_counted + i_r, counted)
