"""Cholesky's factor of gram + 1 for Triton, block by block of columns, and systems solved by it.

The columns of free places, and of structures that depend on those before them, are 0: they are left out of all systems.

Shapes: gram (K, K); factor (K, K), below the diagonal blocks, which have the inverses of theirs; blocks are NB columns,
tiles BM rows of them
"""

import triton
import triton.language as tl

from polymax.kernels.active_set.triton_weights import DEPENDENT

NB = tl.constexpr(16)


@triton.jit
def factorize(p_gram, p_factor, p_p, top, K: tl.constexpr, BM: tl.constexpr):
    """Write the factor for the structures whose p is not -1; it becomes -1 for those that depend on others."""
    o_b = tl.arange(0, NB)
    for i_c in range(0, top, NB):
        o_c = i_c + o_b
        b_p = tl.load(p_p + o_c)
        b_left = _left(p_gram, p_factor, p_p, o_c, i_c, top, K, NB)
        b_size = tl.load(p_gram + o_c * K + o_c).to(tl.float64) + 1
        b_inverse, b_kept = _inverse_block(b_left, b_size)
        for i_r in range(i_c + NB, top, BM):
            o_r = i_r + tl.arange(0, BM)
            b_below = _left(p_gram, p_factor, p_p, o_r, i_c, top, K, BM)
            b_rows = tl.dot(b_below, tl.trans(b_inverse), input_precision="ieee", out_dtype=tl.float64)
            tl.store(p_factor + o_r[:, None] * K + o_c[None, :], b_rows, mask=(o_r < top)[:, None])
        tl.debug_barrier()
        tl.store(p_factor + o_c[:, None] * K + o_c[None, :], b_inverse)
        tl.store(p_p + o_c, tl.where(b_kept > 0, b_p, -1.0))
        tl.debug_barrier()


@triton.jit
def _left(p_gram, p_factor, p_p, o_r, i_c, top, K: tl.constexpr, BM: tl.constexpr):
    """Return rows of a block of gram + 1 less the products of the columns before."""
    o_b = tl.arange(0, NB)
    o_c = i_c + o_b
    m_r = o_r < top
    m_both = (tl.load(p_p + o_r, mask=m_r, other=-1) >= 0)[:, None] & (tl.load(p_p + o_c) >= 0)[None, :]
    b_left = tl.load(p_gram + o_r[:, None] * K + o_c[None, :], mask=m_both, other=-1).to(tl.float64) + 1
    for i_b in range(0, i_c, NB):
        b_rows = tl.load(p_factor + o_r[:, None] * K + i_b + o_b[None, :], mask=m_r[:, None], other=0)
        b_across = tl.load(p_factor + o_c[None, :] * K + i_b + o_b[:, None], mask=(o_c < top)[None, :], other=0)
        b_left -= tl.dot(b_rows, b_across, input_precision="ieee", out_dtype=tl.float64)
    return b_left


@triton.jit
def _inverse_block(b_left, b_size):
    """Return the inverse of a block's factor, and 1 for each column that is kept, else 0."""
    o_b = tl.arange(0, NB)
    o_r, o_c = o_b[:, None], o_b[None, :]
    b_inverse = (o_r == o_c).to(tl.float64)
    b_scale = tl.zeros([NB], tl.float64)
    for j in range(NB):
        b_column = tl.sum(tl.where(o_c == j, b_left, 0.0), 1)
        b_row = tl.sum(tl.where(o_r == j, b_left, 0.0), 0)[None, :]
        b_other = tl.sum(tl.where(o_r == j, b_inverse, 0.0), 0)[None, :]
        pivot = tl.sum(tl.where(o_b == j, b_column, 0.0), 0)
        good = pivot > tl.sum(tl.where(o_b == j, b_size, 0.0), 0) * DEPENDENT
        share = tl.where(good, 1 / tl.where(good, pivot, 1.0), 0.0)
        b_by = tl.where(o_b > j, b_column * share, 0.0)[:, None]
        b_left -= b_by * b_row
        b_inverse -= b_by * b_other
        b_scale = tl.where(o_b == j, tl.sqrt(share), b_scale)
    b_inverse *= b_scale[:, None]
    return b_inverse, tl.sum(tl.where(o_r == o_c, b_inverse, 0.0), 0)


@triton.jit
def solve_both(p_factor, p_x, p_y, top, K: tl.constexpr, BM: tl.constexpr):
    """Solve the system for x and for y, in place; 0 at structures that take no part."""
    o_b = tl.arange(0, NB)
    for i_c in range(0, top, NB):
        o_c = i_c + o_b
        tl.debug_barrier()
        b_inverse = tl.load(p_factor + o_c[:, None] * K + o_c[None, :])
        b_x = tl.sum(b_inverse * tl.load(p_x + o_c)[None, :], 1)
        b_y = tl.sum(b_inverse * tl.load(p_y + o_c)[None, :], 1)
        tl.debug_barrier()
        tl.store(p_x + o_c, b_x)
        tl.store(p_y + o_c, b_y)
        tl.debug_barrier()
        b_x, b_y = tl.load(p_x + o_c), tl.load(p_y + o_c)
        for i_r in range(i_c + NB, top, BM):
            o_r = i_r + tl.arange(0, BM)
            m_r = o_r < top
            b_rows = tl.load(p_factor + o_r[:, None] * K + o_c[None, :], mask=m_r[:, None], other=0)
            b_next_x = tl.load(p_x + o_r, mask=m_r) - tl.sum(b_rows * b_x[None, :], 1)
            b_next_y = tl.load(p_y + o_r, mask=m_r) - tl.sum(b_rows * b_y[None, :], 1)
            tl.store(p_x + o_r, b_next_x, mask=m_r)
            tl.store(p_y + o_r, b_next_y, mask=m_r)
    blocks = tl.cdiv(top, NB)
    for block in range(0, blocks):
        i_c = (blocks - 1 - block) * NB
        o_c = i_c + o_b
        tl.debug_barrier()
        b_x, b_y = tl.load(p_x + o_c), tl.load(p_y + o_c)
        for i_r in range(i_c + NB, top, BM):
            o_r = i_r + tl.arange(0, BM)
            m_r = o_r < top
            b_rows = tl.load(p_factor + o_r[:, None] * K + o_c[None, :], mask=m_r[:, None], other=0)
            b_x -= tl.sum(b_rows * tl.load(p_x + o_r, mask=m_r, other=0)[:, None], 0)
            b_y -= tl.sum(b_rows * tl.load(p_y + o_r, mask=m_r, other=0)[:, None], 0)
        tl.debug_barrier()
        tl.store(p_x + o_c, b_x)
        tl.store(p_y + o_c, b_y)
        tl.debug_barrier()
        b_inverse = tl.load(p_factor + o_c[:, None] * K + o_c[None, :])
        b_x = tl.sum(b_inverse * tl.load(p_x + o_c)[:, None], 0)
        b_y = tl.sum(b_inverse * tl.load(p_y + o_c)[:, None], 0)
        tl.debug_barrier()
        tl.store(p_x + o_c, b_x)
        tl.store(p_y + o_c, b_y)
    tl.debug_barrier()
