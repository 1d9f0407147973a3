"""The face of the polytope that mu lies on, for Triton: structures of weight 0 that determine how mu moves.

MAP is called with points nudged off mu, in directions along which the found structures do not differ. A new structure
with the same score as the found ones adds a direction. The steps are those of numba_face.py; w (d,) is the direction.
"""

import triton
import triton.language as tl

from polymax.kernels.active_set import tolerances
from polymax.kernels.active_set.triton_lists import compare, copy, gather, look, spread, spread_rows
from polymax.kernels.active_set.triton_weights import DEPENDENT, insert, nearest, places_up_to, product, put

NUDGE, TIED, APART = (tl.constexpr(x) for x in (tolerances.NUDGE, tolerances.TIED, tolerances.APART))


@triton.jit
def nudge(point, side, d, BU: tl.constexpr):
    """Write the scores less a point nudged off mu."""
    p_scores, p_mu, p_around, p_w = point
    for i_d in range(0, d, BU):
        o_d = i_d + tl.arange(0, BU)
        b_mu = tl.load(p_mu + o_d, mask=o_d < d) - tl.load(p_w + o_d, mask=o_d < d) * (side * NUDGE)
        tl.store(p_around + o_d, tl.load(p_scores + o_d, mask=o_d < d) - b_mu, mask=o_d < d)


@triton.jit
def widen(
    held, point, p_fresh, score, side, square, slots,
    K: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Add the latest structure with weight 0 if it adds to the face: return 1 if so, else 0, or -1 if there is no room.

    `square` is ||mu||^2.
    """
    p_places, p_gram, p_system = held
    p_scores, p_mu, _, p_w = point
    o_k = tl.arange(0, K)
    b_p = tl.load(p_system + (K + 1) * K + o_k)
    m_on = b_p >= 0
    place = tl.min(tl.where(m_on, K, o_k), 0)
    current = tl.sum(tl.where(m_on, tl.load(p_system + K * K + o_k) * b_p, 0.0), 0) - square
    _, own, reach = look(p_fresh, p_scores, p_mu, slots, BU)
    _, along, _ = look(p_fresh, p_w, p_w, slots, BU)
    # all structures found have the same product with w
    _, level, _ = look(p_places + tl.min(tl.where(m_on, o_k, K), 0) * slots, p_w, p_w, slots, BU)
    gap = score + own - reach - current
    more = place * 0
    if (gap >= (1 + tl.abs(current)) * (0 - TIED)) & ((along - level) * side > APART):
        if place == K:
            more = place * 0 - 1
        else:
            top = tl.maximum(places_up_to(b_p, K), place + 1)
            compare(p_places, p_gram, p_fresh, place, top, slots, K, BP, BU)
            copy(p_fresh, p_places + place * slots, slots, BU)
            tl.store(p_system + K * K + place, score + own)
            b_mix, _, _, distance, size, _ = nearest(p_gram, p_system, place, m_on, top, K, BR)
            if distance > size * DEPENDENT:
                insert(p_system, place, b_mix, distance, top, K, BR)
                put(p_system + (K + 1) * K, tl.where(o_k == place, 0.0, b_p), K)
                more = place * 0 + 1
    return more


@triton.jit
def direction(
    p_places, p_system, p_w, height, width, slots,
    K: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Write a direction w orthogonal to all differences of structures, random for each number of structures."""
    d = height * width
    o_k = tl.arange(0, K)
    p_x = p_system + (K + 2) * K
    b_p = tl.load(p_system + (K + 1) * K + o_k)
    top = places_up_to(b_p, K)
    count = tl.sum((b_p >= 0).to(tl.int32), 0)
    for i_d in range(0, d, BU):
        o_d = i_d + tl.arange(0, BU)
        tl.store(p_w + o_d, 2 * tl.rand(count, o_d).to(tl.float64) - 1, mask=o_d < d)
    tl.debug_barrier()
    # a second pass removes the rounding of the first
    for _ in range(2):
        gather(p_places, p_w, p_x, top, slots, BP, BU)
        put(p_x, tl.where(b_p >= 0, tl.load(p_x + o_k, mask=o_k < top, other=0), 0.0), K)
        b_x, b_one = product(p_system, p_x, top, K, BR)
        share = tl.sum(b_x, 0) / tl.sum(b_one, 0)
        put(p_x, tl.where(b_p >= 0, share * b_one - b_x, 0.0), K)
        if BS:
            spread_rows(p_places, p_x, p_w, top, height, width, BU, BS)
        else:
            spread(p_places, p_x, p_w, top, slots, BU)
