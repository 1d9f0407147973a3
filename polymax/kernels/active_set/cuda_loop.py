"""SparseMAP for Triton: one program to an instance, which asks for the best structure and weighs it, and so on.

What a program knows is in memory: it goes on where another launch has stopped, for want of places or of a structure.

Shapes:
    held = places (B, K, slots), structures as cuda.py lists them; gram and system, as triton_weights.py has them
    point = the scores of the first tensor, mu, scores - mu, and a direction that leaves a face, (B, d) each;
    d = height * width
    fresh (B, slots), the latest structure; state = status, iterations, gap (B,)
    tiles are BR rows of K, BP structures of BU slots
"""

import triton
import triton.language as tl

from polymax.kernels.active_set.triton_face import direction, nudge, widen
from polymax.kernels.active_set.triton_lists import compare, copy, look, spread
from polymax.kernels.active_set.triton_weights import admit, exact_weights, places_up_to, put, renew, worth

# what is next for an instance: a structure, with the inverse as good as it gets or not; an inverse; a direction that
# leaves its face, structures on one side of it and on the other; nothing; more places, for the two
RENEWED, GOING, RENEW, DIRECTION, FACE, OTHER_FACE = (tl.constexpr(i) for i in range(-1, 5))
CONVERGED, INFEASIBLE, FULL, FACE_FULL = (tl.constexpr(i) for i in range(5, 9))


@triton.jit(do_not_specialize=["height", "width", "slots", "rounds", "max_iter", "whole"])
def iterate(
    problem, held, point, fresh, state, height, width, slots, rounds, max_iter, tol, whole,
    BEST: tl.constexpr, SIZES: tl.constexpr, K: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Up to `rounds` steps of each instance; BEST(problem, ...) finds structures."""
    i_b = tl.program_id(0).to(tl.int64)
    d = height * width
    p_status, p_iterations, p_gap = state[0] + i_b, state[1] + i_b, state[2] + i_b
    mine = held[0] + i_b * K * slots, held[1] + i_b * K * K, held[2] + i_b * (K + 3) * K
    here = point[0] + i_b * d, point[1] + i_b * d, point[2] + i_b * d, point[3] + i_b * d
    p_fresh = fresh + i_b * slots
    status, iterations, gap = tl.load(p_status), tl.load(p_iterations), tl.load(p_gap)
    while ((status >= DIRECTION) | (iterations < max_iter)) & (status < CONVERGED) & (rounds > 0):
        before = status
        b_before = tl.load(mine[2] + (K + 1) * K + tl.arange(0, K)) >= 0
        if status == RENEW:
            _compare_all(mine, slots, K, BP, BU)
            renew(mine[1], mine[2], K, BR)
            status = status * 0 + RENEWED
        elif status == DIRECTION:
            direction(mine[0], mine[2], here[3], d, slots, K, BR, BP, BU)
            status = status * 0 + FACE
        else:
            tl.debug_barrier()
            score = BEST(problem, point[2], p_fresh, height, width, SIZES)
            tl.debug_barrier()
            if status >= FACE:
                more = widen(mine, here, p_fresh, score, _side(status), slots, K, BR, BP, BU)
                none = tl.where(status == FACE, OTHER_FACE, CONVERGED)
                status = tl.where(more > 0, DIRECTION, tl.where(more < 0, FACE_FULL, none))
            else:
                status, gap = _take(mine, here, p_fresh, score, status, slots, tol, K, BR, BP, BU)
                iterations += tl.where(status == GOING, 1, 0)
                status = tl.where((whole > 0) & (status == CONVERGED) & (gap == gap), DIRECTION, status)
        if status <= GOING:
            exact_weights(mine[1], mine[2], K, BR)
            _mean(mine, here, d, slots, K, BU)
            m_moved = (tl.load(mine[2] + (K + 1) * K + tl.arange(0, K)) >= 0) != b_before
            if (status == GOING) & (tl.max(m_moved.to(tl.int32), 0) == 0):
                # what has left at once would do so again: the set, and all that follows from it, is what it was
                end = tl.where(whole > 0, DIRECTION, CONVERGED)
                status = tl.where(before == RENEWED, end, RENEW)
        if (status == FACE) | (status == OTHER_FACE):
            nudge(here, _side(status), d, BU)
        rounds -= 1
    tl.store(p_status, status)
    tl.store(p_iterations, iterations)
    tl.store(p_gap, gap)


@triton.jit
def _side(status):
    return tl.where(status == FACE, 1.0, -1.0).to(tl.float64)


@triton.jit
def _take(
    held,
    point,
    p_fresh,
    score,
    status,
    slots,
    tol,
    K: tl.constexpr,
    BR: tl.constexpr,
    BP: tl.constexpr,
    BU: tl.constexpr,
):
    """Give the latest structure a place, if it helps: what is next, and the duality gap before it."""
    p_places, p_gram, p_system = held
    o_k = tl.arange(0, K)
    b_p = tl.load(p_system + (K + 1) * K + o_k)
    m_on = b_p >= 0
    top = places_up_to(b_p, K)
    current = worth(p_gram, p_system, K, BR)
    size, own, reach = look(p_fresh, point[0], point[1], slots, BU)
    score += own
    gap = score - reach - current
    place = tl.min(tl.where(m_on, K, o_k), 0)
    if score == float("-inf"):
        status = status * 0 + INFEASIBLE
        gap = tl.zeros([], tl.float64)
    elif (score != score) | ((top > 0) & ((gap > tol * (1 + tl.abs(current))) == 0)):
        status = status * 0 + CONVERGED
        if top == 0:
            # NaN, from the start
            copy(p_fresh, p_places, slots, BU)
            put(p_system + (K + 1) * K, tl.where(o_k == 0, 1.0, -1.0), K)
    elif place == K:
        status = status * 0 + FULL
    else:
        compare(p_places, p_gram, p_fresh, place, tl.maximum(top, place + 1), slots, K, BP, BU)
        m_same = tl.load(p_gram + place * K + o_k, mask=m_on, other=0) == size
        m_same = m_same & (tl.load(p_gram + o_k * K + o_k, mask=m_on, other=0) == size) & m_on
        if tl.max(m_same.to(tl.int32), 0) > 0:
            # a structure that has weight cannot do better than the exact weights, but for rounding
            status = tl.where(status == RENEWED, CONVERGED, RENEW)
        else:
            copy(p_fresh, p_places + place * slots, slots, BU)
            tl.store(p_system + K * K + place, score)
            good = admit(p_gram, p_system, place, status == RENEWED, K, BR)
            status = tl.where(good, GOING, RENEW)
    return status, gap


@triton.jit
def _compare_all(held, slots, K: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr):
    p_places, p_gram, p_system = held
    top = places_up_to(tl.load(p_system + (K + 1) * K + tl.arange(0, K)), K)
    for k in range(top):
        compare(p_places, p_gram, p_places + k * slots, k, top, slots, K, BP, BU)


@triton.jit
def _mean(held, point, d, slots, K: tl.constexpr, BU: tl.constexpr):
    """mu, the weighted sum of structures, and what it leaves of the scores."""
    p_places, _, p_system = held
    p_scores, p_mu, p_around, _ = point
    p_x = p_system + (K + 2) * K
    b_p = tl.load(p_system + (K + 1) * K + tl.arange(0, K))
    for i_d in range(0, d, BU):
        o_d = i_d + tl.arange(0, BU)
        tl.store(p_mu + o_d, tl.zeros([BU], tl.float64), mask=o_d < d)
    put(p_x, tl.maximum(b_p, 0.0), K)
    spread(p_places, p_x, p_mu, places_up_to(b_p, K), slots, BU)
    for i_d in range(0, d, BU):
        o_d = i_d + tl.arange(0, BU)
        b_mu = tl.load(p_mu + o_d, mask=o_d < d)
        tl.store(p_around + o_d, tl.load(p_scores + o_d, mask=o_d < d) - b_mu, mask=o_d < d)
    tl.debug_barrier()
