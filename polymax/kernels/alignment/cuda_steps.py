"""Functions shared by the walks over an alignment, for Triton: a lane's entry, its neighbour's number, zeros for
padding.
"""

import triton
import triton.language as tl


@triton.jit
def skewed(p_x, t, o_r, m, m_row):
    """Return the entry of each lane's row in column t - r; -inf outside the problem."""
    o_j = t - o_r
    return tl.load(p_x + t, mask=(o_j >= 0) & (o_j < m) & m_row, other=float("-inf"))


@triton.jit
def from_above(b_x, b_first, o_r, BR: tl.constexpr):
    """Return for every lane the number of the lane before it, b_first for the first lane."""
    return tl.where(o_r > 0, tl.gather(b_x, (o_r + (BR - 1)) % BR, 0), b_first)


@triton.jit
def from_below(b_x, b_last, i_tail, o_r, BR: tl.constexpr):
    """Return for every lane the number of the lane after it, b_last for lane i_tail."""
    return tl.where(o_r == i_tail, b_last, tl.gather(b_x, (o_r + 1) % BR, 0))


@triton.jit
def clear(p_x, N, M, n, m, BR: tl.constexpr):
    """Write zeros outside the first n rows and m columns of an (N, M) matrix."""
    start = tl.where(m < M, 0, n)
    p_row = p_x + start.to(tl.int64) * M
    for i in range(start, N):
        for left in range(tl.where(i < n, m, 0), M, BR):
            o_m = left + tl.arange(0, BR)
            tl.store(p_row + o_m, tl.zeros([BR], p_x.dtype.element_ty), mask=o_m < M)
        p_row += M
