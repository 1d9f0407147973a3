"""Structures as lists of parts, for Triton: their overlaps, sums over their parts, and their weighted sum.

Shapes: places (k, slots), -1 for none; tiles are BP structures of BU slots
"""

import triton
import triton.language as tl

from polymax.kernels.active_set.triton_sums import three_sums


@triton.jit(noinline=True)
def look(p_one, p_scores, p_mu, slots, BU: tl.constexpr):
    """Return the number of parts of a structure, and the sums of the scores and of mu over them."""
    b_size = tl.zeros([BU], tl.float32)
    b_own = tl.zeros([BU], tl.float64)
    b_reach = tl.zeros([BU], tl.float64)
    for i_u in range(0, slots, BU):
        o_u = i_u + tl.arange(0, BU)
        b_at = tl.load(p_one + o_u, mask=o_u < slots, other=-1)
        m_on = b_at >= 0
        b_size += m_on.to(tl.float32)
        b_own += tl.load(p_scores + b_at, mask=m_on, other=0)
        b_reach += tl.load(p_mu + b_at, mask=m_on, other=0)
    return three_sums(b_size, b_own, b_reach)


@triton.jit(noinline=True)
def copy(p_one, p_to, slots, BU: tl.constexpr):
    """Write a list to a place."""
    for i_u in range(0, slots, BU):
        o_u = i_u + tl.arange(0, BU)
        tl.store(p_to + o_u, tl.load(p_one + o_u, mask=o_u < slots, other=-1), mask=o_u < slots)


@triton.jit(noinline=True)
def compare(p_places, p_gram, p_one, place, top, slots, K: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr):
    """Write the overlaps of one structure with others, and with itself at its place, to gram (K, K).

    Each part can only occur in one slot, so that a slot is compared with the same slot of the others.
    """
    for i_r in range(0, top, BP):
        o_r = i_r + tl.arange(0, BP)
        b_both = tl.zeros([BP], tl.float32)
        for i_u in range(0, slots, BU):
            o_u = i_u + tl.arange(0, BU)
            b_one = tl.load(p_one + o_u, mask=o_u < slots, other=-1)
            p_rows = p_places + o_r[:, None] * slots + o_u[None, :]
            b_at = tl.load(p_rows, mask=(o_r != place)[:, None] & (o_u < slots)[None, :], other=-1)
            b_at = tl.where((o_r == place)[:, None], b_one[None, :], b_at)
            b_both += tl.sum(((b_at == b_one[None, :]) & (b_one >= 0)[None, :]).to(tl.float32), 1)
        tl.store(p_gram + place * K + o_r, b_both)
        tl.store(p_gram + o_r * K + place, b_both)
    tl.debug_barrier()


@triton.jit(noinline=True)
def gather(p_places, p_x, p_out, top, slots, BP: tl.constexpr, BU: tl.constexpr):
    """Write the sum of x over the parts of each structure."""
    for i_r in range(0, top, BP):
        o_r = i_r + tl.arange(0, BP)
        b_sum = tl.zeros([BP, BU], tl.float64)
        for i_u in range(0, slots, BU):
            o_u = i_u + tl.arange(0, BU)
            m_rows = (o_r < top)[:, None] & (o_u < slots)[None, :]
            b_at = tl.load(p_places + o_r[:, None] * slots + o_u[None, :], mask=m_rows, other=-1)
            b_sum += tl.load(p_x + b_at, mask=b_at >= 0, other=0).to(tl.float64)
        tl.store(p_out + o_r, tl.sum(b_sum, 1), mask=o_r < top)
    tl.debug_barrier()


@triton.jit(noinline=True)
def spread(p_places, p_weights, p_total, top, slots, BU: tl.constexpr):
    """Add the weighted sum of structures to `p_total` in a fixed order, so that each call gives the same bits."""
    for i_u in range(0, slots, BU):
        o_u = i_u + tl.arange(0, BU)
        weight = tl.load(p_weights)
        b_at = tl.load(p_places + o_u, mask=o_u < slots, other=-1)
        for k in range(0, top):
            # load the next structure while this one is added
            after = tl.minimum(k + 1, top - 1)
            next_weight = tl.load(p_weights + after)
            b_next = tl.load(p_places + after * slots + o_u, mask=o_u < slots, other=-1)
            m_u = tl.where(weight != 0, b_at, -1) >= 0
            tl.store(p_total + b_at, tl.load(p_total + b_at, mask=m_u, other=0) + weight, mask=m_u)
            # another thread may add to the same part next
            tl.debug_barrier()
            weight = next_weight
            b_at = b_next


@triton.jit(noinline=True)
def spread_rows(p_places, p_weights, p_total, top, rows, columns, BU: tl.constexpr, BS: tl.constexpr):
    """Add the weighted sum of structures that have one part of each row, (rows, columns), to `p_total`."""
    for i_t in range(0, rows, BU):
        b_sum, o_part, m_part = _sum_rows(p_places, p_weights, i_t, top, rows, columns, BU, BS)
        b_sum += tl.load(p_total + o_part, mask=m_part, other=0)
        tl.store(p_total + o_part, b_sum, mask=m_part)
    tl.debug_barrier()


@triton.jit(noinline=True)
def mean_rows(p_places, p_weights, point, top, rows, columns, BU: tl.constexpr, BS: tl.constexpr):
    """Write mu, the weighted sum of structures of one part per row, and the scores less mu; return ||mu||^2."""
    p_scores, p_mu, p_around, _ = point
    b_square = tl.zeros([BU], tl.float64)
    for i_t in range(0, rows, BU):
        b_mu, o_part, m_part = _sum_rows(p_places, p_weights, i_t, top, rows, columns, BU, BS)
        tl.store(p_mu + o_part, b_mu, mask=m_part)
        tl.store(p_around + o_part, tl.load(p_scores + o_part, mask=m_part) - b_mu, mask=m_part)
        b_square += tl.sum(tl.sum(b_mu * b_mu, 0), 0)
    tl.debug_barrier()
    return tl.sum(b_square, 0)


@triton.jit(noinline=True)
def rough_rows(p_places, p_weights, p_given, p_rough, top, rows, columns, BU: tl.constexpr, BS: tl.constexpr):
    """Write the scores less the weighted sum of structures of one part per row; weights and results are in float32."""
    for i_t in range(0, rows, BU):
        b_mu, o_part, m_part = _sum_rows(p_places, p_weights, i_t, top, rows, columns, BU, BS)
        tl.store(p_rough + o_part, tl.load(p_given + o_part, mask=m_part).to(tl.float32) - b_mu, mask=m_part)
    tl.debug_barrier()


@triton.jit
def _sum_rows(
    p_places, p_weights, i_t, top, rows, columns, BU: tl.constexpr, BS: tl.constexpr
):  # fmt: skip
    """Return the sums of weights in BU rows, in the dtype of the weights, the offsets of these parts, and their mask.

    Weights must be 0 up to a multiple of 8 structures. A thread has a row and adds to all of its columns, 0 to all but
    one, so that sums stay in registers. Comparing the group of a column and its place in the group takes fewer
    operations than comparing the column.
    """
    GROUPS: tl.constexpr = 4 if BS <= 32 else 8
    EACH: tl.constexpr = BS // GROUPS
    SHIFT: tl.constexpr = (EACH > 1) + (EACH > 2) + (EACH > 4)
    REAL: tl.constexpr = p_weights.dtype.element_ty
    o_g, o_e = tl.arange(0, GROUPS)[:, None], tl.arange(0, EACH)[:, None]
    o_t = i_t + tl.arange(0, BU)
    m_t = o_t < rows
    b_sum = tl.zeros([GROUPS, EACH, BU], REAL)
    for i_k in range(0, top, 8):
        for k in tl.static_range(8):
            b_at = tl.load(p_places + (i_k + k) * rows + o_t, mask=m_t, other=0) - o_t * columns
            # the difference of an unused slot is negative, which matches no group
            b_group = tl.where((b_at >> SHIFT)[None, :] == o_g, tl.load(p_weights + i_k + k), 0.0)
            b_each = tl.where((b_at & (EACH - 1))[None, :] == o_e, 1.0, 0.0).to(REAL)
            b_sum += b_group[:, None, :] * b_each[None, :, :]
    o_s = o_g[:, :, None] * EACH + o_e[None, :, :]
    return b_sum, o_t[None, None, :] * columns + o_s, m_t[None, None, :] & (o_s < columns)
