"""Contexts of dense heads: thresholds that begin with a guess, then sums of values over all tiles.

A guess takes the place of a bound, which for flat rows is far from the threshold:

    1. A sample of the tiles gives the mean and the deviation of a row's scores, and these the threshold of normal
       scores, and how curved the sum of weights is there.
    2. A pass over all scores takes the sums of w^r and w^(r - 1) above the guess, which with that curvature give tau.
       It is repeated for blocks with rows whose guess was far off.
    3. The last pass sums values. Its sums of weights show how far tau still is, and correct the sums of values; the
       pass is repeated for a block in which this is too far.

A wrong guess costs passes, and no digits.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention.cuda_dense import is_dense, two_sided_step
from polymax.kernels.sparse_attention.cuda_rows import ALONE
from polymax.kernels.sparse_attention.cuda_short_rows import (
    CHUNK,
    NUMBERS,
    key_bounds,
    seen_tiles,
    short_heights,
    shown_keys,
    tiles_of,
    value_sums,
)
from polymax.kernels.sparse_attention.cuda_tile import (
    head_start,
    larger,
    load_keys,
    load_rows,
    load_thresholds,
    row_top,
    sequence,
    unit,
)
from polymax.kernels.sparse_attention.cuda_weights import row_states, sink_units, slope, weight

# sums of weights over all scores between which a guess stands
LEAST_SUM, MOST_SUM = tl.constexpr(0.01), tl.constexpr(100.0)
# distances of that sum from 1 from which one step leads close enough for the last pass, for sparsemax and for alpha 1.5
NEAR_1, NEAR_2 = tl.constexpr(0.1), tl.constexpr(0.3)
# tolerated relative error of sums of s in the last pass for alpha 1.5, twice the rounding of bfloat16; sums of p are
# corrected
ROUGH_CHANGE = tl.constexpr(1 / 256)
# tolerated error of sums of p in the last pass for sparsemax, in all and for each key of the support: few keys enter a
# small support
ROUGH_SUM, ROUGH_KEY = tl.constexpr(2.5e-4), tl.constexpr(1e-6)
# two roundings of float32
ROUNDING = tl.constexpr(2.0**-22)
# the sample is one tile in so many, at least LEAST tiles
THIN, LEAST = tl.constexpr(8), tl.constexpr(4)


@triton.jit
def normal_threshold(b_mean, b_deviation, b_n, a, R: tl.constexpr):
    """Return tau of n normal scores u, and n f / g^2 there, with the sums f, g and n of `two_sided_step`."""
    b_flat = tl.exp2(-a * tl.log2(b_n))
    b_deviation = tl.maximum(b_deviation, b_flat * 1e-3)
    # seek t at which E [(x - t)_+^r]^(1 / r) is c, from below
    b_c = b_flat / b_deviation
    b_t = -b_c
    b_curve = b_c * 0.0
    for _ in range(0, 8):
        b_density = tl.exp(b_t * b_t * -0.5) * 0.3989422804014327
        b_tail = 0.5 - 0.5 * tl.erf(b_t * 0.7071067811865476)
        b_first = tl.maximum(b_density - b_t * b_tail, 1e-5)
        if R == 1:
            b_curve = b_density * b_first / tl.maximum(b_tail * b_tail, 1e-6)
            b_next = b_t + (b_first - b_c) / tl.maximum(b_tail, 1e-3)
        else:
            b_second = tl.maximum((1 + b_t * b_t) * b_tail - b_t * b_density, 1e-6)
            b_curve = b_second * b_tail / (b_first * b_first)
            b_root = tl.sqrt(b_second)
            b_next = b_t + (b_root - b_c) * b_root / b_first
        # further out, single precision has no digits left
        b_t = tl.minimum(b_next, 3.0)
    return b_mean + b_deviation * b_t, tl.minimum(b_curve, R)


@Entry
@triton.jit(do_not_specialize=NUMBERS)
def dense_thresholds(
    p_q, p_k, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_plan, p_top, p_depth, p_support,
    q_b, q_h, q_l, k_b, k_h, k_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S, blocks, plan_head, flag, a1,
    scale, softcap, left, right, offset,
    SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Write tau of the rows of dense heads, close enough for the pass that sums values, and the sizes of supports.

    The reference of tau is the largest score of the sample, or of the row if the sample's was not close.
    """
    i_m = blocks - 1 - tl.program_id(0)
    i_bh = tl.program_id(1)
    i_h = i_bh % heads
    first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
    if (i_m * BR < queries) & is_dense(p_plan, i_bh, plan_head, flag):
        o_m = i_m * BR + tl.arange(0, BR)
        o_d = tl.arange(0, BD)
        m_rows = o_m < queries
        r = 1 / a1
        p_q += head_start(i_b, i_h, first_q, q_b, q_h, q_l)
        p_k += head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
        p_mask += i_b * mask_b + i_h.to(tl.int64) * mask_h
        first, keys, solid = shown_keys(p_mask, mask_s, keys, MASK, CHUNK)
        o_row = (i_b * heads + i_h) * L + first_q + o_m
        begin, whole_begin, whole_end, end = seen_tiles(
            i_m * BR, queries, first, keys, solid, left, right, offset, BR, BN
        )  # fmt: skip
        b_q = load_rows(p_q, o_m, o_d, m_rows, q_l, D, BD)
        b_sink = sink_units(p_sinks + i_h, a1, BR, SINKS)
        b_low, b_high = key_bounds(o_m, first, keys, left, right, offset)
        b_top, b_depth, b_curve = _guess(
            b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin, whole_end, end, queries, keys, a1,
            scale, softcap, b_low, b_high, MASK, CAP, PLAIN, R, D, BD, BR, BN, PRECISION, STAGES,
        )  # fmt: skip
        m_blind = (o_m >= queries) | ((b_high < b_low) & (b_sink == float("-inf")))
        NEAR: tl.constexpr = NEAR_1 if R == 1 else NEAR_2

        b_n = tl.zeros((BR,), tl.float32)
        # these numbers after the tensors: see cuda_short_contexts.py
        far = 1
        turn = 0
        while (far > 0) & (turn < 24):
            b_w = tl.maximum((b_sink - b_top) + b_depth, 0.0)
            b_f, b_g = weight(b_w, r, R), slope(b_w, r, R)
            for i_p in tl.static_range(0, 2):
                b_f, b_g = _census(
                    b_f, b_g, b_top, b_depth, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin,
                    whole_end, end, queries, keys, a1, r, scale, softcap, b_low, b_high, MASK, CAP, PLAIN, i_p == 0, R,
                    D, BD, BN, PRECISION, STAGES,
                )  # fmt: skip
            b_n = b_curve * b_g * b_g / tl.maximum(b_f, 1e-30)
            b_next = tl.where(b_depth > 0, two_sided_step(b_depth, b_f, b_g, b_n, R), b_depth)
            b_gap = tl.abs(b_f - 1)
            if turn == 0:
                # a row without a guess, or with one far off, begins anew
                m_near = (b_f > LEAST_SUM) & (b_f < MOST_SUM) & (b_next > 0)
                m_new = (m_near == 0) & (m_blind == 0)
                b_next = tl.where(m_near, b_next, 0.0)
                b_top = tl.where(m_near, b_top, float("inf"))
                if tl.max(m_new.to(tl.int32), 0) > 0:
                    b_most = b_sink
                    for i_p in tl.static_range(0, 2):
                        b_most = _largest(
                            b_most, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin, whole_end, end,
                            queries, keys, a1, scale, softcap, b_low, b_high, MASK, CAP, PLAIN, i_p == 0, D, BD, BN,
                            PRECISION, STAGES,
                        )  # fmt: skip
                    # at the bound of its largest score; if it sees no key it has no threshold, and NaN stays
                    m_new = m_new & (b_most != float("-inf"))
                    b_next = tl.where(m_new, tl.where(b_most < float("inf"), 1.0, float("nan")), b_next)
                    b_top = tl.where(m_new, b_most, b_top)
                    b_gap = tl.where(m_new, 2.0, b_gap)
            b_depth = b_next
            far = tl.max(tl.where((b_depth > 0) & (b_gap > NEAR), 1, 0), 0)
            turn += 1
        tl.store(p_top + o_row, b_top, mask=m_rows)
        tl.store(p_depth + o_row, b_depth, mask=m_rows)
        if R == 2:
            tl.store(p_support + o_row, b_n.to(tl.int32), mask=m_rows)


@Entry
@triton.jit(do_not_specialize=NUMBERS)
def dense_contexts(
    p_q, p_k, p_v, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_seed, p_plan, p_top, p_depth, p_support, p_out,
    p_mean,
    q_b, q_h, q_l, k_b, k_h, k_l, v_b, v_h, v_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S, blocks, plan_head,
    flag, a1, scale, softcap, left, right, offset, drop,
    SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr,
    DROP: tl.constexpr, COUNT: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, V: tl.constexpr,
    BV: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write sums of values under p and under s for the rows of dense heads, and tau; and supports if COUNT."""
    i_m = blocks - 1 - tl.program_id(0)
    i_bh = tl.program_id(1)
    i_h = i_bh % heads
    first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_bh // heads, L, S, PACKED)
    if (i_m * BR < queries) & is_dense(p_plan, i_bh, plan_head, flag):
        o_m = i_m * BR + tl.arange(0, BR)
        o_d, o_v = tl.arange(0, BD), tl.arange(0, BV)
        m_rows = o_m < queries
        r = 1 / a1
        p_q += head_start(i_b, i_h, first_q, q_b, q_h, q_l)
        p_k += head_start(i_b, i_h // group, first_k, k_b, k_h, k_l)
        p_v += head_start(i_b, i_h // group, first_k, v_b, v_h, v_l)
        p_mask += i_b * mask_b + i_h.to(tl.int64) * mask_h
        first, keys, solid = shown_keys(p_mask, mask_s, keys, MASK, CHUNK)
        o_row = (i_b * heads + i_h) * L + first_q + o_m
        begin, whole_begin, whole_end, end = seen_tiles(
            i_m * BR, queries, first, keys, solid, left, right, offset, BR, BN
        )  # fmt: skip
        b_q = load_rows(p_q, o_m, o_d, m_rows, q_l, D, BD)
        b_sink = sink_units(p_sinks + i_h, a1, BR, SINKS)
        b_low, b_high = key_bounds(o_m, first, keys, left, right, offset)
        b_top, b_depth = load_thresholds(p_top, p_depth, o_row, m_rows)
        b_n = tl.zeros((BR,), tl.float32)
        if R == 2:
            b_n += tl.load(p_support + o_row, mask=m_rows, other=0).to(tl.float32)
        turn = 0
        b_state = row_states(p_seed, o_row) if DROP else o_m
        b_o = tl.zeros((BR, BV), tl.float32)
        b_mean = tl.zeros((BR, BV), tl.float32)
        b_p, b_s, b_support = tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.int32)
        b_before = b_depth
        # this number after the tensors: see cuda_short_contexts.py
        again = 1
        while (again > 0) & (turn < 24):
            b_w = tl.maximum((b_sink - b_top) + b_depth, 0.0)
            b_p, b_s, b_support = weight(b_w, r, R), slope(b_w, r, R), (b_w > 0).to(tl.int32)
            b_o = tl.zeros((BR, BV), tl.float32)
            b_mean = tl.zeros((BR, BV), tl.float32)
            for i_p in tl.static_range(0, 2):
                b_o, b_mean, b_p, b_s, b_support = value_sums(
                    b_o, b_mean, b_p, b_s, b_support, b_top, b_depth, b_q, b_state, p_k, p_v, p_mask, k_l, v_l, mask_l,
                    mask_s, o_m, o_d, o_v, begin, whole_begin, whole_end, end, queries, keys, a1, r, scale, softcap,
                    b_low, b_high, drop, MASK, CAP, PLAIN, DROP, COUNT, i_p == 0, R, D, BD, V, BV, BN, PRECISION,
                    STAGES,
                )  # fmt: skip
            b_before = b_depth
            b_depth, again = _nearer(b_depth, b_p, b_s, b_n, b_top * unit(a1, scale, PLAIN), R)
            turn += 1
        b_step, b_p, b_depth = _corrected(b_before, b_depth, b_p, b_s, b_n, r, R)
        b_o += b_mean * b_step[:, None]
        b_o *= tl.where(b_depth == b_depth, 1 / tl.where(b_p > 0, b_p, 1.0), float("nan"))[:, None]
        b_mean /= tl.where(b_s > 0, b_s, 1.0)[:, None]
        tl.store(p_depth + o_row, b_depth, mask=m_rows)
        if COUNT:
            tl.store(p_support + o_row, b_support, mask=m_rows)
        o_tile = o_row[:, None] * V + o_v[None, :]
        m_tile = m_rows[:, None] & (o_v < V)[None, :]
        tl.store(p_out + o_tile, b_o.to(p_out.dtype.element_ty), mask=m_tile)
        tl.store(p_mean + o_tile, b_mean.to(p_mean.dtype.element_ty), mask=m_tile)


@triton.jit
def _nearer(b_depth, b_p, b_s, b_n, b_up, R: tl.constexpr):
    """Return the depth after a step from sums of p and s, and 1 if they have to be taken again for a row; b_up is the u
    of its top.
    """
    b_next = tl.where(b_depth > 0, two_sided_step(b_depth, b_p, b_s, b_n, R), b_depth)
    # tau has no more digits than u
    m_off = (b_depth > 0) & (tl.abs(b_depth - b_next) > tl.abs(b_up) * ROUNDING)
    if R == 1:
        m_off = m_off & (tl.abs(b_p - 1) > tl.minimum(b_s * ROUGH_KEY, ROUGH_SUM))
        # s jumps where a score enters the support, so that tau stays what the sums were taken with
        b_next = tl.where(m_off, b_next, b_depth)
    else:
        # s changes by the size of the support times the step
        m_off = m_off & (b_n * tl.abs(b_depth - b_next) > b_s * ROUGH_CHANGE)
    return b_next, tl.max(m_off.to(tl.int32), 0)


@triton.jit
def _corrected(b_before, b_depth, b_p, b_s, b_n, r, R: tl.constexpr):
    """Return a factor of the sum of values under s that corrects the one under p, the sum of p with it, and the depth
    to note.

    The sums were taken at the depth before. p is (w + step)^2 then, unless a score enters or leaves the support.
    """
    # the largest score alone has weight if sums are those of one key, and b_depth is that key's w
    if R == 1:
        m_alone = (b_s == 1) & (tl.abs(b_p - b_before) < 1e-5)
    else:
        m_alone = (b_p == b_s * b_s) & (tl.abs(b_s - b_before) < 1e-5)
    b_step = b_depth - b_before
    b_step = b_step * 0.0 if R == 1 else b_step * (2 + b_step * b_n / tl.where(b_s > 0, b_s, 1.0))
    return b_step, b_p + b_s * b_step, tl.where(m_alone & (b_before > 0), ALONE, tl.where(b_depth > 1, 1.0, b_depth))


@triton.jit
def _load_tile(p_k, i_0, o_d, keys, stride_l, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, EDGE: tl.constexpr):
    """Return keys from i_0 on as `load_keys` does, which are as far from each other in each tile."""
    return load_keys(p_k + i_0.to(tl.int64) * stride_l, tl.arange(0, BN), o_d, keys - i_0, stride_l, D, BD, EDGE)


@triton.jit
def _guess(
    b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin, whole_end, end, queries, keys, a, scale,
    softcap, b_low, b_high, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, R: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Return the largest z of a row in a sample, how far tau is below it, and the curvature as `normal_threshold` does;
    inf and 0 for a row without finite scores in the sample.
    """
    factor = unit(a, scale, PLAIN)
    b_all = tl.maximum(b_high - b_low + 1, 1).to(tl.float32)
    sampled = tl.minimum(tl.maximum((end - begin) // THIN, LEAST), end - begin)
    # if there are enough, tiles that all rows see whole stand for all
    m_whole = 2 * (whole_end - whole_begin) > end - begin
    b_top = tl.full((BR,), float("-inf"), tl.float32)
    b_zero = tl.zeros((BR,), tl.float32)
    b_sum, b_squares, b_n = b_zero, b_zero, b_zero
    for i_p in tl.static_range(0, 2):
        b_top, b_sum, b_squares, b_n = _sample(
            b_top, b_sum, b_squares, b_n, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d,
            whole_begin if i_p == 1 else begin, whole_end if i_p == 1 else end,
            tl.where(m_whole, i_p, 1 - i_p) * sampled, queries, keys, a, scale, softcap, b_low, b_high, factor,
            MASK, CAP, PLAIN, i_p == 0, D, BD, BR, BN, PRECISION, STAGES,
        )  # fmt: skip
    b_n = tl.maximum(b_n, 1.0)
    b_sum /= b_n
    b_deviation = tl.sqrt(tl.maximum(b_squares / b_n - b_sum * b_sum, 0.0))
    b_tau, b_curve = normal_threshold(b_sum - b_top * factor, b_deviation, b_all, a, R)
    b_depth = tl.minimum(-b_tau, 1.0)
    m_guess = (tl.abs(b_top) < float("inf")) & (tl.abs(b_depth) < float("inf"))
    b_top, b_depth = tl.where(m_guess, b_top, float("inf")), tl.where(m_guess, b_depth, 0.0)
    # at least 1 for alpha 1.5, and 2 for exponential tails; Newton's step for sparsemax
    UNKNOWN: tl.constexpr = 0.0 if R == 1 else 1.5
    return b_top, b_depth, tl.where(m_guess, b_curve, UNKNOWN)


@triton.jit
def _sample(
    b_top, b_sum, b_squares, b_n, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, end, count, queries, keys, a,
    scale, softcap, b_low, b_high, factor, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr,
    EDGE: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Return the largest z of a row, sums of u and of its square, and how many there are, after adding `count` tiles
    that are spread from `begin` to `end`.
    """
    o_l = tl.arange(0, BN)
    for i_t in tl.range(0, count, num_stages=STAGES):
        i_0 = (begin + (2 * i_t + 1) * (end - begin) // (2 * count)) * BN
        b_k = _load_tile(p_k, i_0, o_d, keys, k_l, D, BD, BN, EDGE)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = short_heights(
            b_raw, b_low, b_high, o_m, i_0 + o_l, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP,
            PLAIN, EDGE,
        )  # fmt: skip
        b_top = tl.maximum(b_top, tl.max(b_z, 1))
        b_u = b_z * factor
        if EDGE or MASK > 0:
            m_seen = b_z > float("-inf")
            b_u = tl.where(m_seen, b_u, 0.0)
            b_n += tl.sum(tl.where(m_seen, 1.0, 0.0), 1)
        else:
            b_n += BN
        b_sum += tl.sum(b_u, 1)
        b_squares += tl.sum(b_u * b_u, 1)
    return b_top, b_sum, b_squares, b_n


@triton.jit
def _census(
    b_f, b_g, b_top, b_depth, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin, whole_end, end,
    queries, keys, a, r, scale, softcap, b_low, b_high, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr,
    EDGE: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Return the sums of w^r and w^(r - 1) after adding the tiles of a kind."""
    factor = unit(a, scale, PLAIN)
    count, first, before, gap = tiles_of(begin, whole_begin, whole_end, end, EDGE)
    o_l = tl.arange(0, BN)
    for i_t in tl.range(0, count, num_stages=STAGES):
        i_0 = (first + i_t + tl.where(i_t < before, 0, gap)) * BN
        b_k = _load_tile(p_k, i_0, o_d, keys, k_l, D, BD, BN, EDGE)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = short_heights(
            b_raw, b_low, b_high, o_m, i_0 + o_l, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP,
            PLAIN, EDGE,
        )  # fmt: skip
        b_w = tl.maximum((b_z - b_top[:, None]) * factor + b_depth[:, None], 0.0)
        b_f += tl.sum(weight(b_w, r, R), 1)
        b_g += tl.sum(slope(b_w, r, R), 1)
    return b_f, b_g


@triton.jit
def _largest(
    b_most, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin, whole_end, end, queries, keys, a,
    scale, softcap, b_low, b_high, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, EDGE: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return the largest z of rows, or NaN, after the tiles of a kind."""
    count, first, before, gap = tiles_of(begin, whole_begin, whole_end, end, EDGE)
    o_l = tl.arange(0, BN)
    for i_t in tl.range(0, count, num_stages=STAGES):
        i_0 = (first + i_t + tl.where(i_t < before, 0, gap)) * BN
        b_k = _load_tile(p_k, i_0, o_d, keys, k_l, D, BD, BN, EDGE)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = short_heights(
            b_raw, b_low, b_high, o_m, i_0 + o_l, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP,
            PLAIN, EDGE,
        )  # fmt: skip
        b_most = larger(b_most, row_top(b_z))
    return b_most
