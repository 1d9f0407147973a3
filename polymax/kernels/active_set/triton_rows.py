"""Arrays that a program of the response writes, for Triton: overlaps in the shapes of weights, and rows of parts.

Shapes: gram (K, K) and system (K + 3, K) as in triton_weights.py; rows of d parts, in tiles of BD
"""

import triton
import triton.language as tl


@triton.jit
def write_system(p_overlaps, p_probs, p_gram, p_system, k, K: tl.constexpr, BR: tl.constexpr):
    """Write the overlaps of k structures and an empty system; structures with weight or with parts get a place."""
    o_k = tl.arange(0, K)
    for i_r in range(0, K, BR):
        o_r = (i_r + tl.arange(0, BR))[:, None]
        b_o = tl.load(p_overlaps + o_r * k + o_k[None, :], mask=(o_r < k) & (o_k < k)[None, :], other=0)
        tl.store(p_gram + o_r * K + o_k[None, :], b_o.to(tl.float32))
        tl.store(p_system + o_r * K + o_k[None, :], tl.zeros([BR, K], tl.float64))
    b_own = tl.load(p_overlaps + o_k * k + o_k, mask=o_k < k, other=0)
    m_on = (tl.load(p_probs + o_k, mask=o_k < k, other=0) > 0) | (b_own > 0)
    tl.store(p_system + K * K + o_k, tl.zeros([K], tl.float64))
    tl.store(p_system + (K + 1) * K + o_k, tl.where(m_on, 1.0, -1.0).to(tl.float64))
    tl.store(p_system + (K + 2) * K + o_k, tl.zeros([K], tl.float64))
    tl.debug_barrier()


@triton.jit
def write_row(p_x, p_to, size, d, BD: tl.constexpr):
    """Write a row of any dtype in float64, with zeros after its last entry."""
    for i_d in range(0, d, BD):
        o_d = i_d + tl.arange(0, BD)
        b_x = tl.load(p_x + o_d, mask=o_d < size, other=0)
        tl.store(p_to + o_d, b_x.to(tl.float64), mask=o_d < d)
    tl.debug_barrier()


@triton.jit
def round_row(p_x, p_to, d, BD: tl.constexpr):
    """Write a float64 row in the dtype of results, possibly to the same memory."""
    tl.debug_barrier()
    for i_d in range(0, d, BD):
        o_d = i_d + tl.arange(0, BD)
        b_x = tl.load(p_x + o_d, mask=o_d < d)
        tl.store(p_to + o_d, b_x.to(p_to.dtype.element_ty), mask=o_d < d)
