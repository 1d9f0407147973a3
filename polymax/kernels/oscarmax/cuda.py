"""Oscarmax for Triton: a bound finds rows that are one cluster, the others are sorted.

A long row is one cluster even for small strengths, since strengths are multiplied by ranks: the entry of rank r is
raised by r strengths, and the raised entries are made non-increasing. A row of m entries is one cluster if no sum of
its b largest entries, raised, exceeds b times the mean of all. For every v, the sum of the b largest scores is at most
b v + sum (x - v)_+, which leaves a quadratic in b, negative between its roots. With the maximum, the mean and the
minimum for v, each rules out a range of b. If the three leave no b, the first kernel needs no sort. The second kernel
solves the other rows.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend import triton_rows
from polymax.backend.triton_divided import SHORT, means, weights
from polymax.backend.triton_launch import Bound, Entry
from polymax.backend.triton_math import ceil_power
from polymax.kernels.isotonic.cuda import isotonic
from polymax.kernels.oscarmax import BAD, BEGINS, HEAVY
from polymax.kernels.oscarmax.cuda_sorted import LEFT, clusters, coded_mean
from polymax.kernels.oscarmax.reference import coded
from polymax.kernels.oscarmax.reference_prox import prox_by
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold.cuda import threshold

# longer rows, and float64, which has no wider integer for packing, are sorted by torch
LONGEST_SORTED = 2048
IS_HEAVY, IS_BEGINS, IS_BAD = tl.constexpr(HEAVY), tl.constexpr(BEGINS), tl.constexpr(BAD)


def oscarmax(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    if x.shape[-1] > LONGEST_SORTED or x.dtype == torch.float64:
        z, order = prox_by(isotonic, x, strength, True)
        y = threshold(z, 2.0, TSALLIS)
        return y, coded(y, z, order)
    return weights(x, strength, torch.int32, _launches)


def oscarmax_backward(code: Tensor, v: Tensor) -> Tensor:
    return means(coded_mean, code, v)


@lru_cache(maxsize=4096)
def _launches(count, n, dtype, _, many):
    """Return the launches for scores and strengths of these dtypes."""
    options = {"MANY": many, "HALF": dtype.itemsize == 2}
    if n <= SHORT:
        br, bt, be, warps = tile(count, n)
        every = clusters.prepared(**options, REST=False, BR=br, BT=bt, BE=be, num_warps=warps)
        return (Bound(every, (-(-count // br),), count, n),)
    rows, bn, warps = triton_rows.flat(n)
    first = _one_cluster.prepared(MANY=many, BR=rows, BN=bn, num_warps=warps)
    # one row per program: the result must not depend on which neighbouring rows the first kernel left
    bt, be, warps = triton_rows.quick_chunks(n)
    rest = clusters.prepared(**options, REST=True, BR=1, BT=bt, BE=be, num_warps=warps)
    return Bound(first, (-(-count // rows),), count, n), Bound(rest, (count,), count, n)


def tile(count: int, n: int) -> tuple[int, int, int, int]:
    """Return rows per program, threads to a row, entries to a thread, and warps."""
    bn = ceil_power(n)
    # the sort is straight-line code that grows with the entries to a thread and should stay in the instruction cache
    be = min(16 if bn == 1024 else 8, max(bn // 8, 1))
    bt = bn // be
    br = max(1, min(32 // bt, ceil_power(count)))
    return br, bt, be, max(1, br * bt // 32)


@Entry
@triton.jit
def _one_cluster(p_x, p_strength, p_y, p_code, count, n, MANY: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr):
    # programs past the last row repeat the last row
    i_r = tl.minimum(tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), count - 1)
    o_n = tl.arange(0, BN)[None, :]
    o_x = (i_r * n)[:, None] + o_n
    b_x = tl.load(p_x + o_x, mask=o_n < n, other=float("-inf")).to(tl.float32)
    b_s = tl.load(p_strength + (i_r if MANY else i_r * 0)).to(tl.float32)[:, None]
    m_good = (tl.min((b_x < float("inf")).to(tl.int32), 1)[:, None] > 0) & (b_s >= 0)
    m_here = m_good & (b_x != float("-inf"))
    b_size = tl.sum(m_here.to(tl.int32), 1)[:, None]
    b_m = b_size.to(tl.float32)
    b_top = tl.max(tl.where(m_here, b_x, float("-inf")), 1)[:, None]
    b_d = tl.where(m_here, b_x - tl.where(b_size > 0, b_top, 0), 0)
    b_low = tl.min(b_d, 1)[:, None]
    b_mean = tl.sum(b_d, 1)[:, None] / tl.maximum(b_m, 1)
    b_excess = tl.sum(tl.where(m_here, tl.maximum(b_d - b_mean, 0), 0), 1)[:, None]

    # numbers b ruled out by the bounds from the maximum, the mean and the minimum: up to, between, and from
    b_first = b_m + 2 * b_mean / b_s
    b_half = 0.5 * b_m
    b_square = b_half * b_half - 2 * b_excess / b_s
    b_root = tl.sqrt(tl.maximum(b_square, 0))
    b_third = 2 * (b_mean - b_low) / b_s
    # far from a tie, so that rounding does not matter
    b_margin = 1 + 0.01 * b_m
    m_both = b_third + b_margin <= b_first
    m_three = (b_square > 0) & (b_half - b_root + b_margin <= b_first) & (b_third + b_margin <= b_half + b_root)
    # sums of the largest numbers overflow: the second kernel uses a smaller unit
    m_one = (m_both | m_three) & (b_low > -1e30)

    b_y = tl.where(m_here, 1 / tl.maximum(b_m, 1), 0)
    b_begin = tl.min(tl.where(m_here, o_n, BN), 1)[:, None]
    b_code = 4 * o_n + tl.where(m_here, IS_HEAVY, 0) + tl.where(o_n == b_begin, IS_BEGINS, 0)
    b_code = tl.where(m_good, tl.where(m_one | (b_size == 0), b_code, LEFT), IS_BAD)
    b_y = tl.where(m_good, b_y, float("nan"))
    tl.store(p_y + o_x, b_y.to(p_y.dtype.element_ty), mask=o_n < n)
    tl.store(p_code + o_x, b_code, mask=o_n < n)
