"""Short rows: one launch computes thresholds and contexts, from scores that are computed again in each pass over them.

A block of queries passes over its tiles of keys a few times, and nothing but results is written to memory.

    1. The first pass keeps the two largest scores of each residue class of keys, for 64 classes by their place in a
       tile, and the mean. The threshold of these scores is a lower bound of tau, and close to it: if a support of 20
       keys is spread over 64 classes, few of them hold three. The mean gives another bound, n^(1 - alpha) below the
       mean of n scores u, which is tau if all scores are equal.
    2. Newton's steps over all scores lead close to tau. In half precision there are none if few of the kept scores
       exceed the bound.
    3. The last pass sums values. In half precision its sums give the next of Newton's steps, and what contexts are
       after it; the pass is repeated if the step is too large for that.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_rows import ALONE
from polymax.kernels.sparse_attention.cuda_short_rows import (
    CHUNK,
    EACH,
    NUMBERS,
    key_bounds,
    seen_tiles,
    shown_keys,
    tile_heights,
    value_sums,
)
from polymax.kernels.sparse_attention.cuda_tile import (
    MARGIN,
    head_start,
    larger,
    load_near,
    load_rows,
    over,
    sequence,
    unit,
)
from polymax.kernels.sparse_attention.cuda_weights import (
    exponent,
    last_error,
    newton_step,
    positive,
    row_states,
    sink_units,
    slope,
    weight,
)

# tolerated excess over 1 of the sum of the weights of kept scores: passes over all scores follow
NEAR = tl.constexpr(1.05)
# a factor of summed scores, so that no sum of finite scores overflows
SMALL = tl.constexpr(1 / 4096)
# for sparsemax and alpha 1.5: the most kept scores above the bound of a row for which values are summed at the bound
FEW_1, FEW_2 = tl.constexpr(12), tl.constexpr(48)
# tolerated relative change of s in the last step, which is the error of the mean, as contexts are corrected for it; for
# sparsemax, whose s changes by jumps, the tolerated excess over 1 of the sum of p
ROUGH_CHANGE, ROUGH_EXCESS = tl.constexpr(1 / 16), tl.constexpr(4e-3)


@Entry
@triton.jit(do_not_specialize=NUMBERS)
def short_contexts(
    p_q, p_k, p_v, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_seed, p_top, p_depth, p_support, p_out, p_mean,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S, blocks, a1, scale,
    softcap, left, right, offset, drop, tolerance,
    LEARNED: tl.constexpr, SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, DROP: tl.constexpr, COUNT: tl.constexpr, ROUGH: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Write tau, and sums of values under p and under s; and the size of the support if COUNT.

    If ROUGH, sums of p and of s may have errors of the size of the rounding of half precision.
    """
    # late queries see most keys if attention is causal: they come first
    i_m = blocks - 1 - tl.program_id(0)
    i_bh = tl.program_id(1)
    i_h = i_bh % heads
    first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
    if i_m * BR < queries:
        o_m = i_m * BR + tl.arange(0, BR)
        o_d, o_v = tl.arange(0, BD), tl.arange(0, BV)
        m_rows = o_m < queries
        a = exponent(p_alphas + i_h, a1, LEARNED)
        r = 1 / a
        p_q += head_start(i_b, i_h, first_q, q_b, q_h, q_l)
        p_k += head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
        p_v += head_start(i_b, i_h // group, first_k, v_b, v_h, v_l)
        p_mask += i_b * mask_b + i_h.to(tl.int64) * mask_h
        # padding is not read
        first, keys, solid = shown_keys(p_mask, mask_s, keys, MASK, CHUNK)
        o_row = (i_b * heads + i_h) * L + first_q + o_m
        begin, whole_begin, whole_end, end = seen_tiles(
            i_m * BR, queries, first, keys, solid, left, right, offset, BR, BN
        )  # fmt: skip
        b_q = load_rows(p_q, o_m, o_d, m_rows, q_l, D, BD)
        b_sink = sink_units(p_sinks + i_h, a, BR, SINKS)

        b_low, b_high = key_bounds(o_m, first, keys, left, right, offset)
        b_one = tl.full((BR, BN), float("-inf"), tl.float32)
        b_two = tl.full((BR, BN), float("-inf"), tl.float32)
        b_sum = tl.zeros((BR,), tl.float32)
        b_n = tl.zeros((BR,), tl.float32)
        b_one, b_two, b_sum, b_n = _largest(
            b_one, b_two, b_sum, b_n, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin, whole_end,
            end, queries, keys, a, scale, softcap, b_low, b_high, MASK, CAP, PLAIN, D, BD, BN, PRECISION, STAGES,
        )  # fmt: skip
        if MASK == 0:
            b_n = tl.maximum(b_high - b_low + 1, 0).to(tl.float32)
        # the sum is NaN if a score is
        b_top = larger(tl.where(b_sum == b_sum, tl.max(b_one, 1), float("nan")), b_sink)
        # inf - inf is NaN, and NaN stays; a row that sees no key has no threshold
        b_depth = tl.where(b_top < float("inf"), 1.0, float("nan"))
        m_blind = (b_top == float("-inf")) | (o_m >= queries)
        b_top, b_depth = tl.where(m_blind, float("inf"), b_top), tl.where(m_blind, 0.0, b_depth)
        factor = unit(a, scale, PLAIN)
        b_depth, b_f0, b_g0, b_n0 = _bound(b_depth, b_top, b_one, b_two, b_sum, b_n, b_sink, factor, a, r, ROUGH, R)

        # the tensors first: Triton fails to compile a loop that carries a number not read afterwards before a tensor
        b_step, b_before = tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32)
        worst = 2.0
        if ROUGH:
            FEW: tl.constexpr = FEW_1 if R == 1 else FEW_2
            worst = tl.where(tl.max(b_n0, 0) > FEW, 2.0, 0.0)
        turn = 0
        while (worst > 1 + last_error(tolerance, a, LEARNED)) & (turn < 24):
            b_w = over(b_sink, b_top, b_depth, factor, PRECISION)
            b_f, b_g = weight(b_w, r, R), slope(b_w, r, R)
            b_f, b_g = _moments(
                b_f, b_g, b_top, b_depth, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin,
                whole_end, end, queries, keys, a, r, scale, softcap, b_low, b_high, MASK, CAP, PLAIN, R, D, BD, BN,
                PRECISION, STAGES,
            )  # fmt: skip
            b_next = newton_step(b_depth, b_f, b_g, a, R)
            b_step, b_before, b_depth = b_depth - b_next, b_g, b_next
            worst = tl.max(b_f, 0)
            turn += 1

        b_state = row_states(p_seed, o_row) if DROP else o_m
        b_o = tl.zeros((BR, BV), tl.float32)
        b_mean = tl.zeros((BR, BV), tl.float32)
        b_p, b_s, b_n = tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.int32)
        b_next = b_depth
        at_bound = (turn == 0).to(tl.int32)
        turn = 0
        rough = 1
        while (rough > 0) & (turn < 24):
            b_depth = b_next
            b_w = over(b_sink, b_top, b_depth, factor, PRECISION)
            b_p, b_s, b_n = weight(b_w, r, R), slope(b_w, r, R), (b_w > 0).to(tl.int32)
            b_o = tl.zeros((BR, BV), tl.float32)
            b_mean = tl.zeros((BR, BV), tl.float32)
            b_o, b_mean, b_p, b_s, b_n = value_sums(
                b_o, b_mean, b_p, b_s, b_n, b_top, b_depth, b_q, b_state, p_k, p_v, p_mask, k_l, v_l, mask_l, mask_s,
                o_m, o_d, o_v, begin, whole_begin, whole_end, end, queries, keys, a, r, scale, softcap, b_low, b_high,
                drop, MASK, CAP, PLAIN, DROP, COUNT, EACH, R, D, BD, V, BV, BN, PRECISION, STAGES,
            )  # fmt: skip
            rough = 0
            if ROUGH:
                b_next = newton_step(b_depth, b_p, b_s, a, R)
                turn += 1
                if R == 1:
                    b_far = b_p - 1 > ROUGH_EXCESS
                else:
                    # s falls by the size of the support times the step
                    b_change, b_most = (b_before - b_s) * (b_depth - b_next), b_s * b_step * ROUGH_CHANGE
                    if at_bound > 0:
                        b_change = _largest_change(b_depth - b_next, b_p - b_f0, b_s - b_g0, b_n0)
                        b_most = b_s * ROUGH_CHANGE
                    b_far = b_change > b_most
                at_bound = 0
                rough = tl.max(b_far.to(tl.int32), 0)
                b_step, b_before = b_depth - b_next, b_s
        if ROUGH:
            # what the sums would be at the next depth, if no key left the support
            b_shift = (b_depth - b_next) * R
            b_o -= b_shift[:, None] * b_mean
            b_p -= b_shift * b_s
        b_o *= tl.where(b_depth == b_depth, 1 / tl.where(b_p > 0, b_p, 1.0), float("nan"))[:, None]
        b_mean /= tl.where(b_s > 0, b_s, 1.0)[:, None]
        # the largest score alone has weight if its s is the sum
        m_alone = (b_depth > 0) & (b_s == slope(over(b_top, b_top, b_depth, factor, PRECISION), r, R))
        b_depth = tl.where(m_alone, ALONE, tl.where(b_next > 1, 1.0, b_next))
        tl.store(p_top + o_row, b_top, mask=m_rows)
        tl.store(p_depth + o_row, b_depth, mask=m_rows)
        if COUNT:
            tl.store(p_support + o_row, b_n, mask=m_rows)
        o_tile = o_row[:, None] * V + o_v[None, :]
        m_tile = m_rows[:, None] & (o_v < V)[None, :]
        tl.store(p_out + o_tile, b_o.to(p_out.dtype.element_ty), mask=m_tile)
        tl.store(p_mean + o_tile, b_mean.to(p_mean.dtype.element_ty), mask=m_tile)


@triton.jit
def _largest(
    b_one, b_two, b_sum, b_n, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin, whole_end, end,
    queries, keys, a, scale, softcap, b_low, b_high, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return the two largest scores of each residue class, the sum of scores times SMALL, and how many there are."""
    for i_n in tl.range(begin, end, num_stages=STAGES):
        o_n = i_n * BN + tl.arange(0, BN)
        b_k = load_near(p_k, o_n, o_d, keys, k_l, D, BD)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = tile_heights(
            b_raw, b_low, b_high, i_n, whole_begin, whole_end, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a,
            scale, softcap, MASK, CAP, PLAIN, EACH,
        )  # fmt: skip
        b_two = tl.maximum(b_two, tl.minimum(b_one, b_z))
        b_one = tl.maximum(b_one, b_z)
        if MASK == 0 or MASK == 3:
            if (i_n < whole_begin) | (i_n >= whole_end):
                b_sum, b_n = _summed(b_sum, b_n, b_z, MASK, True, BN)
            else:
                b_sum, b_n = _summed(b_sum, b_n, b_z, MASK, False, BN)
        else:
            b_sum, b_n = _summed(b_sum, b_n, b_z, MASK, True, BN)
    return b_one, b_two, b_sum, b_n


@triton.jit
def _summed(b_sum, b_n, b_z, MASK: tl.constexpr, HIDDEN: tl.constexpr, BN: tl.constexpr):
    """Return the sum of scores and their number after adding a tile, some of whose scores may be -inf if HIDDEN."""
    if HIDDEN:
        m_seen = b_z != float("-inf")
        b_sum += tl.sum(tl.where(m_seen, b_z * SMALL, 0.0), 1)
        if MASK > 0:
            b_n += tl.sum(m_seen.to(tl.float32), 1)
    else:
        b_sum += tl.sum(b_z * SMALL, 1)
        if MASK > 0:
            b_n += BN
    return b_sum, b_n


@triton.jit
def _bound(b_depth, b_top, b_one, b_two, b_sum, b_n, b_sink, factor, a, r, ROUGH: tl.constexpr, R: tl.constexpr):
    """Return how far the lower bound of tau is below the top: the lesser of 1, of the mean's and of the scores'.

    If ROUGH, also return sums of w^r, w^(r - 1) and w^0 of these scores at the bound.
    """
    b_n = tl.maximum(b_n, 1.0)
    # the mean of the function of convex w^r is at least the function of the mean
    b_mean = (
        (b_top - b_sum / (b_n * SMALL)) * factor + tl.exp2(-a * tl.log2(b_n)) + MARGIN * (1 + tl.abs(b_top * factor))
    )
    b_depth = tl.where((b_mean > 0) & (b_mean < b_depth), b_mean, b_depth)
    b_one = (b_one - b_top[:, None]) * factor
    b_two = (b_two - b_top[:, None]) * factor
    worst = 2.0
    turn = 0
    while (worst > NEAR) & (turn < 6):
        b_over = positive((b_sink - b_top) + b_depth)
        b_w = positive(b_one + b_depth[:, None])
        b_y = positive(b_two + b_depth[:, None])
        b_f = weight(b_over, r, R) + tl.sum(weight(b_w, r, R) + weight(b_y, r, R), 1)
        b_g = slope(b_over, r, R) + tl.sum(slope(b_w, r, R) + slope(b_y, r, R), 1)
        b_depth = newton_step(b_depth, b_f, b_g, a, R)
        worst = tl.max(b_f, 0)
        turn += 1
    b_f, b_g, b_n = b_depth, b_depth, b_depth
    if ROUGH:
        b_over = positive((b_sink - b_top) + b_depth)
        b_w = positive(b_one + b_depth[:, None])
        b_y = positive(b_two + b_depth[:, None])
        b_f = weight(b_over, r, R) + tl.sum(weight(b_w, r, R) + weight(b_y, r, R), 1)
        b_g = slope(b_over, r, R) + tl.sum(slope(b_w, r, R) + slope(b_y, r, R), 1)
        b_n = slope(b_over, r, 1) + tl.sum(slope(b_w, r, 1) + slope(b_y, r, 1), 1)
    return b_depth, b_f, b_g, b_n


@triton.jit
def _largest_change(b_step, b_p, b_s, b_n):
    """Return a bound of how far s falls in a step for alpha 1.5: n kept scores are above tau, and the sums of the
    others are p and s.

    Each kept weight w falls by the step, and each other one by the lesser of w and the step: their sum is s, and none
    is larger than the root of p.
    """
    return b_step * (b_n + 1) + tl.maximum(b_s - tl.sqrt(tl.maximum(b_p, 0.0)), 0.0)


@triton.jit
def _moments(
    b_f, b_g, b_top, b_depth, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin, whole_end, end,
    queries, keys, a, r, scale, softcap, b_low, b_high, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return the sums of p and of s after adding all tiles."""
    factor = unit(a, scale, PLAIN)
    for i_n in tl.range(begin, end, num_stages=STAGES):
        o_n = i_n * BN + tl.arange(0, BN)
        b_k = load_near(p_k, o_n, o_d, keys, k_l, D, BD)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = tile_heights(
            b_raw, b_low, b_high, i_n, whole_begin, whole_end, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a,
            scale, softcap, MASK, CAP, PLAIN, EACH,
        )  # fmt: skip
        b_w = over(b_z, b_top[:, None], b_depth[:, None], factor, PRECISION)
        b_f += tl.sum(weight(b_w, r, R), 1)
        b_g += tl.sum(slope(b_w, r, R), 1)
    return b_f, b_g
