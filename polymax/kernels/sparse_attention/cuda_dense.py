"""Heads whose rows have support in most tiles: which they are, by a sample of their scores.

Such a head is dense. Its kernels stream over all tiles without lists, and the scan and all kernels over lists leave it
out: see cuda_dense_rows.py.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.sparse_attention import tiles
from polymax.kernels.sparse_attention.cuda_short_rows import NUMBERS, key_bounds
from polymax.kernels.sparse_attention.cuda_tile import BM, head_start, heights, load_rows, sequence, unit
from polymax.kernels.sparse_attention.cuda_weights import slope, weight

# fourth number of a block's bounds if its head is dense
DENSE = tl.constexpr(tiles.DENSE)
# sampled queries, and sampled keys in runs of RUN
SAMPLE, RUN = tl.constexpr(64), tl.constexpr(16)
# a head is not dense if its weights lie in less than this share of the runs that as many would have by chance
SPREAD = tl.constexpr(0.5)


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
    """Return the depth after a step from either side of the threshold; f and g are sums of w^r and w^(r - 1).

    n is half the second derivative of f for alpha 1.5, the size of the support, and the second derivative for
    sparsemax; or 0 if it is unknown. Near f = 1 the step solves the quadratic equation that these give. Far above 1 it
    is Newton's, on the r-norm, and far below that of an exponential f. Without support the depth is 1, that of a row
    with one key.
    """
    b_log = tl.log(tl.maximum(b_f, 1e-30)) * b_f / (b_g * R)
    # (f - 1) / g if n is 0
    b_root = tl.sqrt(tl.maximum(b_g * b_g - b_n * (b_f - 1) * (2 / R), 0.0))
    b_step = (b_f - 1) * (2 / R) / (b_g + b_root)
    if R == 1:
        b_far = (b_f - 1) / b_g
        m_log = (b_f < 0.5) | ((b_f < 0.8) & (b_n <= 0))
    else:
        b_far = (b_f - tl.sqrt(b_f)) / b_g
        m_log = (b_f < 0.5) | ((b_f < 2) & (b_n <= 0))
    b_step = tl.where(m_log, b_log, tl.where(b_f < 2, b_step, b_far))
    return tl.where(b_g > 0, tl.minimum(b_depth - b_step, 1.0), tl.where(b_g == 0, 1.0, b_depth))
