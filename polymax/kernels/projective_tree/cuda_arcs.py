"""Reads and writes of projective-tree kernels in Triton besides spans: arcs, roots, and gradients of spans."""

import triton
import triton.language as tl


@triton.jit
def arcs(p_scores, o_i, o_j, size, m_in, absent):
    """Return the entries at [i, j] and [j, i], in float64; `absent` if no arc is allowed."""
    b_right = tl.load(p_scores + o_i * size + o_j, mask=m_in, other=0).to(tl.float64)
    m_some = m_in & (o_i > 0)
    b_left = tl.load(p_scores + o_j * size + o_i, mask=m_some, other=0).to(tl.float64)
    return tl.where(m_in, b_right, absent), tl.where(m_some, b_left, absent)


@triton.jit
def roots(p_scores, p_l, p_r, m, s, absent, BK: tl.constexpr):
    """Return the total score of each token as the single root, (1, K)."""
    o_c = tl.arange(0, BK)[None, :]
    m_in = (o_c > 0) & (o_c <= m)
    b_scores = tl.load(p_scores + o_c, mask=m_in, other=0).to(tl.float64)
    b_rest = tl.load(p_l + s + o_c, mask=m_in, other=0) + tl.load(p_r + m * s + o_c, mask=m_in, other=0)
    return tl.where(m_in, b_scores + b_rest, absent)


@triton.jit
def all_heard(p_to, square, o_i, o_j, s, m_in):
    """Return the gradients of R and L of spans (i, j), as left plus as right child, and those of I[i, j] and I[j,
    i].
    """
    b_right = tl.load(p_to + 2 * square + o_i * s + o_j, mask=m_in, other=0)
    b_left = tl.load(p_to + 2 * square + o_j * s + o_i, mask=m_in, other=0)
    return _heard(p_to, o_i, o_j, s, m_in), _heard(p_to + square, o_i, o_j, s, m_in), b_right, b_left


@triton.jit
def _heard(p_to, o_i, o_j, s, m_in):
    b_left = tl.load(p_to + o_i * s + o_j, mask=m_in, other=0)
    return b_left + tl.load(p_to + o_j * s + o_i, mask=m_in, other=0)


@triton.jit
def pick(b_x, m_here):
    """Return the entry of each row at which the mask is set."""
    return tl.sum(tl.where(m_here, b_x, 0), 1)


@triton.jit
def store_square(p_out, p_x, m, size, s, BLOCK: tl.constexpr):
    """Copy arcs from a square of a chart; 0 at all other entries."""
    for start in range(0, size * size, BLOCK):
        o_x = start + tl.arange(0, BLOCK)
        o_i = o_x // size
        o_j = o_x % size
        m_arc = (o_i <= m) & (o_j <= m) & (o_j > 0) & (o_i != o_j)
        b_x = tl.load(p_x + o_i * s + o_j, mask=m_arc & (o_x < size * size), other=0)
        tl.store(p_out + o_x, b_x, mask=o_x < size * size)
