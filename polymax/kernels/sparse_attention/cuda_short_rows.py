"""Short rows: one launch computes thresholds and contexts, from scores that are computed again in each pass over them.

A block of queries passes over its tiles of keys a few times, and nothing but results is written to memory.

    1. The first pass keeps the two largest scores of each residue class of keys, for 64 classes by their place in a
       tile, and the mean. The threshold of these scores is a lower bound of tau, and close to it: if a support of 20
       keys is spread over 64 classes, few of them hold three. The mean gives another bound, n^(1 - alpha) below the
       mean of n scores u, which is tau if all scores are equal.
    2. Newton's steps over all scores, one or more, lead close to tau.
    3. The last pass sums values. In half precision it also shows if tau was close enough, and is repeated if it was
       not.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_rows import ALONE
from polymax.kernels.sparse_attention.cuda_tile import (
    MARGIN,
    head_start,
    larger,
    load_keys,
    load_rows,
    masked_heights,
    sequence,
    unit,
)
from polymax.kernels.sparse_attention.cuda_weights import (
    exponent,
    kept,
    last_error,
    newton_step,
    row_states,
    sink_units,
    slope,
    weight,
)

# tolerated excess over 1 of the sum of the weights of kept scores: passes over all scores follow
NEAR = tl.constexpr(1.05)
# entries of a mask that are loaded at once
CHUNK = tl.constexpr(1024)
# a factor of summed scores, so that no sum of finite scores overflows
SMALL = tl.constexpr(1 / 4096)
# tolerated relative error of sums of p and of s in half precision, a quarter of the rounding of bfloat16
ROUGH_ERROR = tl.constexpr(1e-3)
# lengths, numbers of heads and strides of masks, for whose values nothing is compiled anew
NUMBERS = (
    "mask_b", "mask_h", "mask_l", "heads", "group", "L", "S", "blocks", "row_tiles", "plan_head", "flag", "left",
    "right", "offset", "drop", "fewest",
)  # fmt: skip


@triton.jit
def shown_keys(p_mask, mask_s, keys, MASK: tl.constexpr, BK: tl.constexpr):
    """Return the first key that a bool mask with one row shows, the number of keys up to the last one, and 1 if it
    shows all keys between: padding needs no mask. For other masks return 0, all keys and 1.
    """
    first, last, solid = keys * 0, keys, keys * 0 + 1
    if MASK == 3:
        first, last, shown = keys, keys * 0, keys * 0
        for i_n in range(0, keys, BK):
            o_n = i_n + tl.arange(0, BK)
            m_shown = tl.load(p_mask + o_n.to(tl.int64) * mask_s, mask=o_n < keys, other=0) != 0
            first = tl.minimum(first, tl.min(tl.where(m_shown, o_n, keys), 0))
            last = tl.maximum(last, tl.max(tl.where(m_shown, o_n + 1, 0), 0))
            shown += tl.sum(m_shown.to(tl.int32), 0)
        solid = (shown == last - first).to(tl.int32)
    return first, last, solid


@triton.jit
def seen_tiles(i_0, queries, first, keys, solid, left, right, offset, BR: tl.constexpr, BN: tl.constexpr):
    """Return bounds of the tiles of BN keys that queries i_0 .. i_0 + BR see: begin, begin and end of the tiles that
    all of these see whole, end. No tile counts as whole if `solid` is 0.
    """
    i_1 = tl.minimum(i_0 + BR, queries) - 1
    low, high = tl.maximum(i_0 + offset - left, first), tl.minimum(i_1 + offset + right + 1, keys)
    whole_low, whole_high = tl.maximum(i_1 + offset - left, first), tl.minimum(i_0 + offset + right + 1, keys)
    begin, end = low // BN, (tl.maximum(high, 0) + BN - 1) // BN
    end = tl.maximum(end, begin)
    whole_begin = tl.minimum((whole_low + BN - 1) // BN, end)
    whole_end = tl.minimum(tl.maximum(tl.maximum(whole_high * solid, 0) // BN, whole_begin), end)
    return begin, whole_begin, whole_end, end


@triton.jit
def key_bounds(o_m, first, keys, left, right, offset):
    """Return the first and the last key of each row."""
    return tl.maximum(o_m + (offset - left), first), tl.minimum(o_m + (offset + right), keys - 1)


@triton.jit
def short_heights(
    b_raw, b_low, b_high, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Return z as `heights` does; row i sees the keys from b_low to b_high, which take two comparisons."""
    b_z = masked_heights(
        b_raw, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP, PLAIN, EDGE
    )
    if EDGE:
        m_seen = (o_n[None, :] >= b_low[:, None]) & (o_n[None, :] <= b_high[:, None])
        b_z = tl.where(m_seen, b_z, float("-inf"))
    return b_z


@triton.jit
def tiles_of(begin, whole_begin, whole_end, end, EDGE: tl.constexpr):
    """Return the number of tiles of a kind, those at edges or those that all rows see whole; and the first one, the
    number of tiles before a gap, and the length of the gap.
    """
    if EDGE:
        count, first, before, gap = whole_begin - begin + end - whole_end, begin, whole_begin - begin, whole_end
        gap = whole_end - whole_begin
    else:
        count, first, before, gap = whole_end - whole_begin, whole_begin, whole_end - whole_begin, begin * 0
    return count, first, before, gap


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

    If ROUGH, sums of p and of s may have a relative error of ROUGH_ERROR.
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
        for i_p in tl.static_range(0, 2):
            b_one, b_two, b_sum, b_n = _largest(
                b_one, b_two, b_sum, b_n, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin,
                whole_end, end, queries, keys, a, scale, softcap, b_low, b_high, MASK, CAP, PLAIN, i_p == 0, D,
                BD, BN, PRECISION, STAGES,
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
        b_depth = _bound(b_depth, b_top, b_one, b_two, b_sum, b_n, b_sink, factor, a, r, R)

        # the tensors first: Triton fails to compile a loop that carries a number not read afterwards before a tensor
        b_step, b_before = tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32)
        worst = 2.0
        turn = 0
        while (worst > 1 + last_error(tolerance, a, LEARNED)) & (turn < 24):
            b_w = tl.maximum((b_sink - b_top) + b_depth, 0.0)
            b_f, b_g = weight(b_w, r, R), slope(b_w, r, R)
            for i_p in tl.static_range(0, 2):
                b_f, b_g = moments(
                    b_f, b_g, b_top, b_depth, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin,
                    whole_end, end, queries, keys, a, r, scale, softcap, b_low, b_high, MASK, CAP, PLAIN,
                    i_p == 0, R, D, BD, BN, PRECISION, STAGES,
                )  # fmt: skip
            b_next = newton_step(b_depth, b_f, b_g, a, R)
            b_step, b_before, b_depth = b_depth - b_next, b_g, b_next
            worst = tl.max(b_f, 0)
            turn += 1

        turn = 0
        b_state = row_states(p_seed, o_row) if DROP else o_m
        b_o = tl.zeros((BR, BV), tl.float32)
        b_mean = tl.zeros((BR, BV), tl.float32)
        b_p, b_s, b_n = tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.int32)
        rough = 1
        while (rough > 0) & (turn < 24):
            b_w = tl.maximum((b_sink - b_top) + b_depth, 0.0)
            b_p, b_s, b_n = weight(b_w, r, R), slope(b_w, r, R), (b_w > 0).to(tl.int32)
            b_o = tl.zeros((BR, BV), tl.float32)
            b_mean = tl.zeros((BR, BV), tl.float32)
            for i_p in tl.static_range(0, 2):
                b_o, b_mean, b_p, b_s, b_n = value_sums(
                    b_o, b_mean, b_p, b_s, b_n, b_top, b_depth, b_q, b_state, p_k, p_v, p_mask, k_l, v_l, mask_l,
                    mask_s, o_m, o_d, o_v, begin, whole_begin, whole_end, end, queries, keys, a, r, scale, softcap,
                    b_low, b_high, drop, MASK, CAP, PLAIN, DROP, COUNT, i_p == 0, R, D, BD, V, BV, BN, PRECISION,
                    STAGES,
                )  # fmt: skip
            rough = 0
            if ROUGH:
                b_next = newton_step(b_depth, b_p, b_s, a, R)
                if R == 1:
                    b_far = b_p - 1 > ROUGH_ERROR
                else:
                    # s falls by the size of the support times the step
                    b_far = (b_before - b_s) * (b_depth - b_next) > b_s * b_step * ROUGH_ERROR
                turn += 1
                rough = tl.max(b_far.to(tl.int32), 0)
                b_step, b_before = b_depth - b_next, b_s
                # if all rows are close enough, tau stays what the sums were taken with
                b_depth = tl.where(b_far.to(tl.int32) + rough > 0, b_next, b_depth)
        b_o *= tl.where(b_depth == b_depth, 1 / tl.where(b_p > 0, b_p, 1.0), float("nan"))[:, None]
        b_mean /= tl.where(b_s > 0, b_s, 1.0)[:, None]
        # the largest score alone has weight if its s is the sum
        m_alone = (b_depth > 0) & (b_s == slope(b_depth, r, R))
        b_depth = tl.where(m_alone, ALONE, tl.where(b_depth > 1, 1.0, b_depth))
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
    EDGE: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Return the two largest scores of each residue class, the sum of scores times SMALL, and how many there are."""
    count, first, before, gap = tiles_of(begin, whole_begin, whole_end, end, EDGE)
    for i_t in tl.range(0, count, num_stages=STAGES):
        o_n = (first + i_t + tl.where(i_t < before, 0, gap)) * BN + tl.arange(0, BN)
        b_k = load_keys(p_k, o_n, o_d, keys, k_l, D, BD, EDGE)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = short_heights(
            b_raw, b_low, b_high, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP, PLAIN,
            EDGE,
        )  # fmt: skip
        b_two = tl.maximum(b_two, tl.minimum(b_one, b_z))
        b_one = tl.maximum(b_one, b_z)
        if EDGE or (MASK > 0 and MASK != 3):
            m_seen = b_z != float("-inf")
            b_sum += tl.sum(tl.where(m_seen, b_z * SMALL, 0.0), 1)
            if MASK > 0:
                b_n += tl.sum(m_seen.to(tl.float32), 1)
        else:
            b_sum += tl.sum(b_z * SMALL, 1)
            b_n += BN
    return b_one, b_two, b_sum, b_n


@triton.jit
def _bound(b_depth, b_top, b_one, b_two, b_sum, b_n, b_sink, factor, a, r, R: tl.constexpr):
    """Return how far the lower bound of tau is below the top: the lesser of 1, of the mean's and of the scores'."""
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
        b_over = tl.maximum((b_sink - b_top) + b_depth, 0.0)
        b_w = tl.maximum(b_one + b_depth[:, None], 0.0)
        b_y = tl.maximum(b_two + b_depth[:, None], 0.0)
        b_f = weight(b_over, r, R) + tl.sum(weight(b_w, r, R) + weight(b_y, r, R), 1)
        b_g = slope(b_over, r, R) + tl.sum(slope(b_w, r, R) + slope(b_y, r, R), 1)
        b_depth = newton_step(b_depth, b_f, b_g, a, R)
        worst = tl.max(b_f, 0)
        turn += 1
    return b_depth


@triton.jit
def moments(
    b_f, b_g, b_top, b_depth, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin, whole_end, end,
    queries, keys, a, r, scale, softcap, b_low, b_high, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, EDGE: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return the sums of p and of s after adding the tiles of a kind."""
    factor = unit(a, scale, PLAIN)
    count, first, before, gap = tiles_of(begin, whole_begin, whole_end, end, EDGE)
    for i_t in tl.range(0, count, num_stages=STAGES):
        o_n = (first + i_t + tl.where(i_t < before, 0, gap)) * BN + tl.arange(0, BN)
        b_k = load_keys(p_k, o_n, o_d, keys, k_l, D, BD, EDGE)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = short_heights(
            b_raw, b_low, b_high, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP, PLAIN,
            EDGE,
        )  # fmt: skip
        b_w = tl.maximum((b_z - b_top[:, None]) * factor + b_depth[:, None], 0.0)
        b_f += tl.sum(weight(b_w, r, R), 1)
        b_g += tl.sum(slope(b_w, r, R), 1)
    return b_f, b_g


@triton.jit
def value_sums(
    b_o, b_mean, b_p, b_s, b_n, b_top, b_depth, b_q, b_state, p_k, p_v, p_mask, k_l, v_l, mask_l, mask_s, o_m, o_d, o_v,
    begin, whole_begin, whole_end, end, queries, keys, a, r, scale, softcap, b_low, b_high, drop,
    MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, DROP: tl.constexpr, COUNT: tl.constexpr,
    EDGE: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return sums of values under p and s, of p and of s, and the support, after adding the tiles of a kind."""
    factor = unit(a, scale, PLAIN)
    count, first, before, gap = tiles_of(begin, whole_begin, whole_end, end, EDGE)
    for i_t in tl.range(0, count, num_stages=STAGES):
        o_n = (first + i_t + tl.where(i_t < before, 0, gap)) * BN + tl.arange(0, BN)
        b_k = load_keys(p_k, o_n, o_d, keys, k_l, D, BD, EDGE)
        b_v = load_keys(p_v, o_n, o_v, keys, v_l, V, BV, EDGE)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = short_heights(
            b_raw, b_low, b_high, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP, PLAIN,
            EDGE,
        )  # fmt: skip
        b_w = tl.maximum((b_z - b_top[:, None]) * factor + b_depth[:, None], 0.0)
        b_weight, b_slope = weight(b_w, r, R), slope(b_w, r, R)
        b_p += tl.sum(b_weight, 1)
        b_s += tl.sum(b_slope, 1)
        if COUNT:
            b_n += tl.sum((b_w > 0).to(tl.int32), 1)
        if DROP:
            b_keep = kept(b_state, o_n[None, :], drop)
            b_weight, b_slope = b_weight * b_keep, b_slope * b_keep
        b_o = tl.dot(b_weight.to(b_v.dtype), b_v, b_o, input_precision=PRECISION)
        b_mean = tl.dot(b_slope.to(b_v.dtype), b_v, b_mean, input_precision=PRECISION)
    return b_o, b_mean, b_p, b_s, b_n
