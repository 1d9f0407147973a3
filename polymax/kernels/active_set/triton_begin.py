"""The start of SparseMAP for Triton: the initial state of a program, and a check for scores that are too large.

Shapes: as in cuda_loop.py; tiles are BR rows of K, and BU scores
"""

import triton
import triton.language as tl


@triton.jit(noinline=True)
def begin(p_given, held, point, d, K: tl.constexpr, BR: tl.constexpr, BU: tl.constexpr):
    """Write the state without structures: no weights, mu = 0; the places of structures are left as they are."""
    _, p_gram, p_system = held
    p_scores, p_mu, p_around, _ = point
    o_k = tl.arange(0, K)
    for i_r in range(0, K, BR):
        o_rows = (i_r + tl.arange(0, BR))[:, None] * K + o_k[None, :]
        tl.store(p_gram + o_rows, tl.zeros([BR, K], tl.float32))
        tl.store(p_system + o_rows, tl.zeros([BR, K], tl.float64))
    for row in tl.static_range(3):
        # rows of the system: scores, weights, and room for a vector
        tl.store(p_system + (K + row) * K + o_k, tl.full([K], -1.0 if row == 1 else 0.0, tl.float64))
    for i_d in range(0, d, BU):
        o_d = i_d + tl.arange(0, BU)
        b_x = tl.load(p_given + o_d, mask=o_d < d, other=0).to(tl.float64)
        tl.store(p_scores + o_d, b_x, mask=o_d < d)
        tl.store(p_mu + o_d, tl.zeros([BU], tl.float64), mask=o_d < d)
        tl.store(p_around + o_d, b_x, mask=o_d < d)
    tl.debug_barrier()


@triton.jit(noinline=True)
def any_large(p_x, count, limit, BU: tl.constexpr):
    """Return True if a score is NaN or +inf, or finite and larger than the limit."""
    b_found = tl.zeros([BU], tl.int32)
    for i_x in range(0, count, BU):
        o_x = i_x + tl.arange(0, BU)
        b_x = tl.load(p_x + o_x, mask=o_x < count, other=0).to(tl.float64)
        # comparisons with NaN are False
        m_small = (b_x <= limit) & ((b_x >= -limit) | (b_x == float("-inf")))
        b_found = tl.where(m_small, b_found, 1)
    return tl.max(b_found, 0) > 0
