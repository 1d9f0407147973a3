"""Heads whose rows have support in most tiles: which they are, and their contexts, without lists of tiles.

A head is dense if a sample of its scores says so. Its kernels stream over tiles as those of short rows do, and the scan
and all kernels over lists leave it out. Thresholds begin with a guess instead of a bound:

    1. A sample of the tiles gives the mean and the deviation of a row's scores, and these the threshold of normal
       scores.
    2. A larger sample corrects it, as if its keys stood for all.
    3. A pass over all scores takes the sums of w^0, w^1 and w^2 above the guess, which give tau if no score enters or
       leaves the support on the way; and the largest score, to which the threshold is noted.
    4. Newton's steps follow where that was far.
    5. The last pass sums values, and shows if tau was close enough: see cuda_short_rows.py.

A wrong guess costs passes, and no digits.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention import tiles
from polymax.kernels.sparse_attention.cuda_rows import ALONE
from polymax.kernels.sparse_attention.cuda_short_rows import (
    CHUNK,
    NUMBERS,
    ROUGH_ERROR,
    key_bounds,
    seen_tiles,
    short_heights,
    shown_keys,
    tiles_of,
    value_sums,
)
from polymax.kernels.sparse_attention.cuda_tile import (
    BM,
    head_start,
    heights,
    larger,
    load_keys,
    load_rows,
    load_thresholds,
    row_top,
    sequence,
    unit,
)
from polymax.kernels.sparse_attention.cuda_weights import row_states, sink_units, slope, weight

# fourth number of a block's bounds if its head is dense
DENSE = tl.constexpr(tiles.DENSE)
# sampled queries, and sampled keys in runs of RUN
SAMPLE, RUN = tl.constexpr(64), tl.constexpr(16)
# a head is not dense if its weights lie in less than this share of the runs that as many would have by chance
SPREAD = tl.constexpr(0.5)
# sums of weights over all scores between which a guess stands
LEAST_SUM, MOST_SUM = tl.constexpr(0.01), tl.constexpr(100.0)
# distances of that sum from 1 from which one step leads close enough for the last pass, for sparsemax and for alpha 1.5
NEAR_1, NEAR_2 = tl.constexpr(0.01), tl.constexpr(0.25)
# passes over a sample read a tile in so many, at least LEAST tiles
THIN, THICK, LEAST = tl.constexpr(24), tl.constexpr(8), tl.constexpr(4)


@Entry
@triton.jit(do_not_specialize=NUMBERS)
def dense_heads(
    p_q, p_k, p_alphas, p_mask, p_sinks, p_starts_q, p_starts_k, p_plan,
    q_b, q_h, q_l, k_b, k_h, k_l, mask_b, mask_h, mask_l, mask_s, heads, group, L, S, blocks, row_tiles, plan_head, a1,
    scale, softcap, left, right, offset, fewest, weights, seen,
    SINKS: tl.constexpr, PACKED: tl.constexpr, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write to the plans of the heads that share keys if they are dense: the fourth bound of each block is DENSE or 0.

    Rows of the second half of the queries meet runs of keys that are spread over the keys. A head is dense if these
    rows see more than the share `seen` of these keys, and have more than `weights` nonzero weights in BM keys, which
    are spread. Sequences with fewer than `fewest` queries or keys have no dense heads.
    """
    i_sg = tl.program_id(0)
    shared = heads // group
    i_g = i_sg % shared
    i_s = i_sg // shared
    first_q, first_k, queries, keys, i_b = sequence(p_starts_q, p_starts_k, i_s, L, S, PACKED)
    found = 0
    if (queries >= fewest) & (keys >= fewest):
        r = 1 / a1
        o_d = tl.arange(0, BD)
        o_r, o_k = tl.arange(0, SAMPLE), tl.arange(0, BN)
        # sampled rows take turns among the heads that share keys
        o_h = i_g * group + o_r % group
        o_m = queries - 1 - ((o_r.to(tl.int64) * queries) // (2 * SAMPLE)).to(tl.int32)
        spread = (o_k // RUN).to(tl.int64)
        o_n = ((spread * 2 + 1) * keys // (2 * (BN // RUN))).to(tl.int32) // RUN * RUN + o_k % RUN
        p_rows = p_q + i_b * q_b + o_h.to(tl.int64) * q_h + first_q.to(tl.int64) * q_l
        b_q = tl.load((p_rows + o_m.to(tl.int64) * q_l)[:, None] + o_d[None, :], mask=(o_d < D)[None, :], other=0.0)
        b_k = load_rows(p_k + head_start(i_b, i_g, first_k, k_b, k_h, k_l), o_n, o_d, o_n < keys, k_l, D, BD)
        b_raw = tl.dot(b_q.to(b_k.dtype), tl.trans(b_k), input_precision=PRECISION)
        b_z = heights(
            b_raw, o_m, o_n, p_mask + i_b * mask_b + (o_h.to(tl.int64) * mask_h)[:, None], mask_l, mask_s, queries,
            keys, a1, scale, softcap, left, right, offset, MASK, CAP, PLAIN, True,
        )  # fmt: skip
        b_top = tl.max(b_z, 1)
        m_seen = b_z > float("-inf")
        b_seen = tl.sum(m_seen.to(tl.float32), 1)
        b_low, b_high = key_bounds(o_m, 0, keys, left, right, offset)
        b_share = tl.maximum(b_high - b_low + 1, 1).to(tl.float32) / tl.maximum(b_seen, 1.0)
        m_rows = (b_seen >= BN // 4) & (tl.abs(b_top) < float("inf"))
        b_u = tl.where(m_seen, (b_z - tl.where(m_rows, b_top, 0.0)[:, None]) * unit(a1, scale, PLAIN), float("-inf"))
        b_depth = tl.full((SAMPLE,), 1.0, tl.float32)
        for _ in range(0, 6):
            b_w = tl.maximum(b_u + b_depth[:, None], 0.0)
            b_f, b_g = tl.sum(weight(b_w, r, R), 1) * b_share, tl.sum(slope(b_w, r, R), 1) * b_share
            b_depth = two_sided_step(b_depth, b_f, b_g, b_g * 0.0, R)
        b_on = tl.where((b_u + b_depth[:, None] > 0) & m_rows[:, None], 1, 0)
        b_full = tl.max(tl.reshape(b_on, (SAMPLE, BN // RUN, RUN)), 2)
        b_any = tl.max(tl.reshape(tl.where(m_seen & m_rows[:, None], 1, 0), (SAMPLE, BN // RUN, RUN)), 2)
        full, runs = tl.sum(tl.sum(b_full, 1), 0), tl.sum(tl.sum(b_any, 1), 0)
        count, keys_seen = tl.sum(tl.sum(b_on, 1), 0), tl.sum(tl.where(m_rows, b_seen, 0.0), 0)
        rate = count / tl.maximum(keys_seen, 1.0)
        # by chance a run has a weight with probability 1 - exp(-x), which is more than x / (1 + x)
        expected = rate * RUN
        m_spread = (full > runs * SPREAD * expected / (1 + expected)) | (weights < 0)
        if (rate * BM > weights) & m_spread & (keys_seen > seen * (SAMPLE * BN)):
            found = DENSE
    for i_e in range(0, group):
        p_bounds = p_plan + (i_s * heads + i_g * group + i_e).to(tl.int64) * plan_head + blocks * row_tiles + 3
        for i_m in range(0, blocks, 1024):
            o_b = i_m + tl.arange(0, 1024)
            tl.store(p_bounds + o_b * 4, tl.zeros((1024,), tl.int32) + found, mask=o_b < blocks)


@triton.jit
def is_dense(p_plan, i_bh, plan_head, flag):
    """Return True if a head is dense; `flag` is the place of its first fourth bound in its plan."""
    return tl.load(p_plan + i_bh.to(tl.int64) * plan_head + flag) == DENSE


@triton.jit
def two_sided_step(b_depth, b_f, b_g, b_n, R: tl.constexpr):
    """Return the depth after a step from either side of the threshold; f, g and n are sums of w^r, w^(r - 1) and
    w^(r - 2), or n is 0.

    For alpha 1.5 the step solves f - 2 x g + x^2 n = 1 if n is given and f is near 1. Far above 1 it is Newton's, on
    the r-norm, and else that of an exponential f. Without support the depth is 1, that of a row with one key.
    """
    b_log = tl.log(tl.maximum(b_f, 1e-30)) * b_f / (b_g * R)
    if R == 1:
        # Newton's step is exact unless a score enters or leaves the support
        b_step = tl.where(b_f < 0.8, b_log, (b_f - 1) / b_g)
    else:
        b_root = tl.sqrt(tl.maximum(b_g * b_g - b_n * (b_f - 1), 0.0))
        b_step = tl.where(b_f < 2, (b_f - 1) / (b_g + b_root), (b_f - tl.sqrt(b_f)) / b_g)
        b_step = tl.where((b_f < 0.5) | ((b_f < 2) & (b_n <= 0)), b_log, b_step)
    return tl.where(b_g > 0, tl.minimum(b_depth - b_step, 1.0), tl.where(b_g == 0, 1.0, b_depth))


@triton.jit
def normal_threshold(b_mean, b_deviation, b_n, a, R: tl.constexpr):
    """Return tau of n normal scores u."""
    b_flat = tl.exp2(-a * tl.log2(b_n))
    b_deviation = tl.maximum(b_deviation, b_flat * 1e-3)
    # seek t at which E [(x - t)_+^r]^(1 / r) is c, from below
    b_c = b_flat / b_deviation
    b_t = -b_c
    for _ in range(0, 8):
        b_density = tl.exp(b_t * b_t * -0.5) * 0.3989422804014327
        b_tail = 0.5 - 0.5 * tl.erf(b_t * 0.7071067811865476)
        b_first = tl.maximum(b_density - b_t * b_tail, 1e-5)
        if R == 1:
            b_next = b_t + (b_first - b_c) / tl.maximum(b_tail, 1e-3)
        else:
            b_root = tl.sqrt(tl.maximum((1 + b_t * b_t) * b_tail - b_t * b_density, 1e-6))
            b_next = b_t + (b_root - b_c) * b_root / b_first
        # further out, single precision has no digits left
        b_t = tl.minimum(b_next, 3.0)
    return b_mean + b_deviation * b_t


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
    """Write tau of the rows of dense heads, close enough for the pass that sums values, and the sizes of supports."""
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
        factor = unit(a1, scale, PLAIN)
        b_all = tl.maximum(b_high - b_low + 1, 1).to(tl.float32)

        # the guess: tau is b_depth below the sample's largest score, or none
        sampled = tl.minimum(tl.maximum((end - begin) // THIN, LEAST), end - begin)
        b_top, b_sum, b_squares, b_n = _sample(
            b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, end, sampled, queries, keys, a1, scale, softcap,
            b_low, b_high, factor, MASK, CAP, PLAIN, D, BD, BR, BN, PRECISION, STAGES,
        )  # fmt: skip
        b_n = tl.maximum(b_n, 1.0)
        b_sum /= b_n
        b_deviation = tl.sqrt(tl.maximum(b_squares / b_n - b_sum * b_sum, 0.0))
        b_all = tl.maximum(b_high - b_low + 1, 1).to(tl.float32)
        b_depth = tl.minimum(-normal_threshold(b_sum - b_top * factor, b_deviation, b_all, a1, R), 1.0)
        m_guess = (tl.abs(b_top) < float("inf")) & (tl.abs(b_depth) < float("inf"))
        b_top, b_depth = tl.where(m_guess, b_top, float("inf")), tl.where(m_guess, b_depth, 0.0)
        sampled = tl.minimum(tl.maximum((end - begin) // THICK, LEAST), end - begin)
        share = (end - begin).to(tl.float32) / tl.maximum(sampled, 1).to(tl.float32)
        b_zero = tl.zeros((BR,), tl.float32)
        b_f, b_g, b_n, b_most = _census(
            b_zero, b_zero, b_zero, b_top, b_top, b_depth, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin,
            begin, begin, end, sampled, queries, keys, a1, r, scale, softcap, b_low, b_high, MASK, CAP, PLAIN, True,
            True, False, R, D, BD, BN, PRECISION, STAGES,
        )  # fmt: skip
        b_w = tl.maximum((b_sink - b_top) + b_depth, 0.0)
        b_f, b_g = b_f * share + weight(b_w, r, R), b_g * share + slope(b_w, r, R)
        b_depth = tl.where(m_guess, two_sided_step(b_depth, b_f, b_g, b_n * share, R), 0.0)

        b_w = tl.maximum((b_sink - b_top) + b_depth, 0.0)
        b_f, b_g, b_n, b_most = weight(b_w, r, R), slope(b_w, r, R), (b_w > 0).to(tl.float32), b_sink
        for i_p in tl.static_range(0, 2):
            b_f, b_g, b_n, b_most = _census(
                b_f, b_g, b_n, b_most, b_top, b_depth, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin,
                whole_begin, whole_end, end, 0, queries, keys, a1, r, scale, softcap, b_low, b_high, MASK, CAP, PLAIN,
                i_p == 0, False, True, R, D, BD, BN, PRECISION, STAGES,
            )  # fmt: skip
        b_next = two_sided_step(b_depth, b_f, b_g, b_n, R) + (b_most - b_top) * factor
        # without a guess, or with one far off, a row begins at the bound of its largest score
        m_near = (b_f > LEAST_SUM) & (b_f < MOST_SUM) & (b_next > 0) & (b_next <= 1)
        b_depth = tl.where(m_near, b_next, tl.where(b_most < float("inf"), 1.0, float("nan")))
        # a row that sees no key has no threshold, and a NaN stays
        m_blind = (b_most == float("-inf")) | (o_m >= queries)
        b_top, b_depth = tl.where(m_blind, float("inf"), b_most), tl.where(m_blind, 0.0, b_depth)
        b_gap = tl.where(m_near, tl.abs(b_f - 1), 2.0)
        NEAR: tl.constexpr = NEAR_1 if R == 1 else NEAR_2
        far = tl.max(tl.where((b_depth > 0) & (b_gap > NEAR), 1, 0), 0)

        turn = 0
        while (far > 0) & (turn < 24):
            b_w = tl.maximum((b_sink - b_top) + b_depth, 0.0)
            b_f, b_g, b_n = weight(b_w, r, R), slope(b_w, r, R), (b_w > 0).to(tl.float32)
            for i_p in tl.static_range(0, 2):
                b_f, b_g, b_n, b_most = _census(
                    b_f, b_g, b_n, b_most, b_top, b_depth, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin,
                    whole_begin, whole_end, end, 0, queries, keys, a1, r, scale, softcap, b_low, b_high, MASK, CAP,
                    PLAIN, i_p == 0, False, False, R, D, BD, BN, PRECISION, STAGES,
                )  # fmt: skip
            far = tl.max(tl.where((b_depth > 0) & (tl.abs(b_f - 1) > NEAR), 1, 0), 0)
            b_depth = tl.where(b_depth > 0, two_sided_step(b_depth, b_f, b_g, b_n, R), b_depth)
            turn += 1
        tl.store(p_top + o_row, b_top, mask=m_rows)
        tl.store(p_depth + o_row, b_depth, mask=m_rows)
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
        b_n = tl.load(p_support + o_row, mask=m_rows, other=0).to(tl.float32)
        turn = 0
        b_state = row_states(p_seed, o_row) if DROP else o_m
        b_o = tl.zeros((BR, BV), tl.float32)
        b_mean = tl.zeros((BR, BV), tl.float32)
        b_p, b_s, b_support = tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.int32)
        # this number after the tensors: see cuda_short_rows.py
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
            b_next = two_sided_step(b_depth, b_p, b_s, b_n, R)
            if R == 1:
                b_off = tl.abs(b_p - 1)
            else:
                # s falls by the size of the support times the step
                b_off = b_n * tl.abs(b_depth - b_next) / b_s
            m_off = (b_depth > 0) & (b_off > ROUGH_ERROR)
            again = tl.max(m_off.to(tl.int32), 0)
            b_depth = tl.where(m_off, b_next, b_depth)
            turn += 1
        b_o *= tl.where(b_depth == b_depth, 1 / tl.where(b_p > 0, b_p, 1.0), float("nan"))[:, None]
        b_mean /= tl.where(b_s > 0, b_s, 1.0)[:, None]
        # the largest score alone has weight if its s is the sum
        m_alone = (b_depth > 0) & (b_s == slope(b_depth, r, R))
        b_depth = tl.where(m_alone, ALONE, tl.where(b_depth > 1, 1.0, b_depth))
        tl.store(p_depth + o_row, b_depth, mask=m_rows)
        if COUNT:
            tl.store(p_support + o_row, b_support, mask=m_rows)
        o_tile = o_row[:, None] * V + o_v[None, :]
        m_tile = m_rows[:, None] & (o_v < V)[None, :]
        tl.store(p_out + o_tile, b_o.to(p_out.dtype.element_ty), mask=m_tile)
        tl.store(p_mean + o_tile, b_mean.to(p_mean.dtype.element_ty), mask=m_tile)


@triton.jit
def _sample(
    b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, end, count, queries, keys, a, scale, softcap, b_low, b_high,
    factor, MASK: tl.constexpr, CAP: tl.constexpr, PLAIN: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    BR: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return the largest score z of a row in `count` tiles, sums of u and of its square, and how many there are."""
    b_top = tl.full((BR,), float("-inf"), tl.float32)
    b_sum, b_squares = tl.zeros((BR,), tl.float32), tl.zeros((BR,), tl.float32)
    b_n = tl.zeros((BR,), tl.float32)
    for i_t in tl.range(0, count, num_stages=STAGES):
        o_n = (begin + (2 * i_t + 1) * (end - begin) // (2 * count)) * BN + tl.arange(0, BN)
        b_k = load_keys(p_k, o_n, o_d, keys, k_l, D, BD, True)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = short_heights(
            b_raw, b_low, b_high, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP, PLAIN,
            True,
        )  # fmt: skip
        m_seen = b_z > float("-inf")
        b_u = tl.where(m_seen, b_z * factor, 0.0)
        b_top = tl.maximum(b_top, tl.max(b_z, 1))
        b_sum += tl.sum(b_u, 1)
        b_squares += tl.sum(b_u * b_u, 1)
        b_n += tl.sum(tl.where(m_seen, 1.0, 0.0), 1)
    return b_top, b_sum, b_squares, b_n


@triton.jit
def _census(
    b_f, b_g, b_n, b_most, b_top, b_depth, b_q, p_k, p_mask, k_l, mask_l, mask_s, o_m, o_d, begin, whole_begin,
    whole_end, end, sampled, queries, keys, a, r, scale, softcap, b_low, b_high, MASK: tl.constexpr, CAP: tl.constexpr,
    PLAIN: tl.constexpr, EDGE: tl.constexpr, SAMPLED: tl.constexpr, MOST: tl.constexpr, R: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return the sums of w^r, w^(r - 1) and, for alpha 1.5, w^0 after adding the tiles of a kind, or a sample of all
    tiles; and the largest z if MOST.
    """
    factor = unit(a, scale, PLAIN)
    count, first, before, gap = tiles_of(begin, whole_begin, whole_end, end, EDGE)
    if SAMPLED:
        count = sampled
    for i_t in tl.range(0, count, num_stages=STAGES):
        if SAMPLED:
            i_n = begin + (2 * i_t + 1) * (end - begin) // (2 * count)
        else:
            i_n = first + i_t + tl.where(i_t < before, 0, gap)
        o_n = i_n * BN + tl.arange(0, BN)
        b_k = load_keys(p_k, o_n, o_d, keys, k_l, D, BD, EDGE)
        b_raw = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_z = short_heights(
            b_raw, b_low, b_high, o_m, o_n, p_mask, mask_l, mask_s, queries, keys, a, scale, softcap, MASK, CAP, PLAIN,
            EDGE,
        )  # fmt: skip
        b_w = tl.maximum((b_z - b_top[:, None]) * factor + b_depth[:, None], 0.0)
        b_f += tl.sum(weight(b_w, r, R), 1)
        b_g += tl.sum(slope(b_w, r, R), 1)
        if R == 2:
            b_n += tl.sum(tl.where(b_w > 0, 1.0, 0.0), 1)
        if MOST:
            b_most = larger(b_most, row_top(b_z))
    return b_f, b_g, b_n, b_most
