"""Fusedmax for Triton: rows with lone peaks by a closed form, the others by level splitting.

Few entries can have weight: the prox moves an entry by at most 2 strengths, and so the threshold, which is at least
that of the scores less 2 strengths. Entries lower by 4 strengths never reach it, and it does not matter how low they
are: each pulls its neighbours down by one strength. The remaining, live entries of a row form runs that are independent
of each other, and runs of one or two entries have a closed form. The first kernel solves rows in which all live runs
are that short in one pass over memory; the second kernel solves the other rows.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend import triton_rows
from polymax.backend.triton_divided import SHORT, means, weights
from polymax.backend.triton_launch import Bound, Entry
from polymax.backend.triton_rows import sparsemax_rows
from polymax.kernels.fusedmax import ABOVE, ABSENT, BAD, BELOW, FIRST, SAME, WITHOUT
from polymax.kernels.fusedmax.cuda_back import marked_mean
from polymax.kernels.fusedmax.cuda_levels import LEFT, levels

IS_ABSENT, IS_WITHOUT, IS_SAME, IS_ABOVE, IS_BELOW, IS_FIRST, IS_BAD = (
    tl.constexpr(mark) for mark in (ABSENT, WITHOUT, SAME, ABOVE, BELOW, FIRST, BAD)
)


def fusedmax(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    return weights(x, strength, torch.int8, _launches)


def fusedmax_backward(mark: Tensor, v: Tensor) -> Tensor:
    return means(marked_mean, mark, v)


@lru_cache(maxsize=4096)
def _launches(count, n, dtype, _, many):
    """Return the launches for scores and strengths of these dtypes."""
    if n > triton_rows.LONGEST:
        raise ValueError(f"x must have rows of at most {triton_rows.LONGEST} entries on CUDA; got {n}")
    options = {"MANY": many, "WIDE": dtype == torch.float64}
    if n <= SHORT:
        br, bt, be, warps = triton_rows.chunks(count, n)
        every = levels.prepared(**options, REST=False, BR=br, BT=bt, BE=be, num_warps=warps)
        return (Bound(every, (-(-count // br),), count, n),)
    rows, bn, warps = triton_rows.flat(n)
    first = _peaks.prepared(**options, BR=rows, BN=bn, num_warps=warps)
    # one row per program: the result must not depend on which neighbouring rows the first kernel left
    bt, be, warps = triton_rows.quick_chunks(n)
    rest = levels.prepared(**options, REST=True, BR=1, BT=bt, BE=be, num_warps=warps)
    return Bound(first, (-(-count // rows),), count, n), Bound(rest, (count,), count, n)


@Entry
@triton.jit
def _peaks(
    p_x,
    p_strength,
    p_y,
    p_mark,
    count,
    n,
    MANY: tl.constexpr,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
):
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    eps = 2.2e-16 if WIDE else 1.2e-7
    # programs past the last row repeat the last row
    i_r = tl.minimum(tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), count - 1)
    o_n = tl.arange(0, BN)[None, :]
    o_x = (i_r * n)[:, None] + o_n
    b_x = tl.load(p_x + o_x, mask=o_n < n, other=float("-inf")).to(dtype)
    b_s = tl.load(p_strength + (i_r if MANY else i_r * 0)).to(dtype)[:, None]
    m_good = (tl.min((b_x < float("inf")).to(tl.int32), 1)[:, None] > 0) & (b_s >= 0)
    b_x = tl.where(m_good, b_x, float("-inf"))
    b_s = tl.where(m_good, b_s, 0)
    m_here = b_x != float("-inf")
    b_top = tl.max(b_x, 1)[:, None]
    m_dead = b_top == float("-inf")
    b_top = tl.where(m_dead, 0, b_top)
    b_d = b_x - b_top

    # lower bound of the threshold of the scores, by two steps of Michelot's method, and entries that can reach it
    b_tau = tl.full([BR, 1], -1, dtype)
    for _ in tl.static_range(2):
        m_in = b_d > b_tau
        b_size = tl.sum(m_in.to(tl.int32), 1)[:, None].to(dtype)
        b_sum = tl.sum(tl.where(m_in, b_d, 0), 1)[:, None]
        b_tau = tl.maximum(b_tau, (b_sum - 1) / tl.maximum(b_size, 1))
    b_floor = b_tau - 4.0001 * b_s - 1e-5
    m_live = b_d > b_floor

    # first and last present entries; neighbours are loaded only if they can matter
    b_first = tl.min(tl.where(m_here, o_n, BN), 1)[:, None]
    b_last = tl.max(tl.where(m_here, o_n, -1), 1)[:, None]
    m_gaps = b_last - b_first + 1 > tl.sum(m_here.to(tl.int32), 1)[:, None]
    b_left = tl.load(p_x + o_x - 1, mask=m_live & (o_n > b_first), other=float("-inf")).to(dtype) - b_top
    b_right = tl.load(p_x + o_x + 1, mask=m_live & (o_n < b_last), other=float("-inf")).to(dtype) - b_top
    m_left, m_right = b_left > b_floor, b_right > b_floor
    # `levels` uses a smaller unit for strengths near the largest numbers
    m_hard = m_gaps | (b_floor < -1e30) | (tl.max((m_left & m_right).to(tl.int32), 1)[:, None] > 0)

    # a lone entry is pulled down by each neighbour that it has; a pair has a closed form of its own
    b_alone = b_d - tl.where(o_n > b_first, b_s, 0) - tl.where(o_n < b_last, b_s, 0)
    m_outer = tl.where(m_right, o_n > b_first, o_n < b_last)
    m_beyond = tl.where(m_right, o_n + 1 < b_last, o_n - 1 > b_first)
    b_own = b_d - tl.where(m_outer, b_s, 0)
    b_other = tl.where(m_right, b_right, b_left) - tl.where(m_beyond, b_s, 0)
    b_gap = b_own - b_other
    # as in the kernel `levels`: rounding must not split a tie
    b_limit = b_s + 8 * eps * (b_s + tl.minimum(tl.abs(b_own) + tl.abs(b_other), 10 * b_s))
    m_fused = tl.abs(b_gap) <= 2 * b_limit
    b_apart = b_own + tl.where(b_gap > 0, -b_s, b_s)
    b_pair = tl.where(m_fused, 0.5 * (b_own + b_other), b_apart)
    b_z = tl.where(m_left | m_right, b_pair, b_alone)
    b_z = tl.where(m_live & (m_hard == 0), b_z, float("-inf"))
    b_high = tl.max(b_z, 1)[:, None]
    b_z = b_z - tl.where(b_high == float("-inf"), 0, b_high)
    b_y = sparsemax_rows(b_z)

    b_kind = tl.where(b_gap > 0, IS_ABOVE, IS_BELOW)
    b_kind = tl.where(m_left, tl.where(m_fused, IS_SAME, b_kind), tl.where(o_n > b_first, IS_ABOVE, IS_FIRST))
    b_mark = tl.where(b_y > 0, b_kind, tl.where(m_here, IS_WITHOUT, IS_ABSENT))
    b_mark = tl.where(m_good, tl.where(m_hard, LEFT, b_mark), IS_BAD)
    b_y = tl.where(m_good, b_y, float("nan"))
    tl.store(p_y + o_x, b_y.to(p_y.dtype.element_ty), mask=o_n < n)
    tl.store(p_mark + o_x, b_mark.to(tl.int8), mask=o_n < n)
