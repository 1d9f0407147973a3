"""SparseMAP for Triton: one program per instance repeats finding the best structure and updating the weights.

The state of a program lies in memory, so that a launch continues where the last one stopped for lack of places or of a
structure.

Shapes:
    held = places (B, K, slots), structures as cuda.py lists them; gram and system, as triton_weights.py has them
    point (4, B, d): the scores of the first tensor, mu, scores - mu, and a direction that leaves a face;
    d = height * width
    fresh (B, slots), the latest structure; gaps (B,)
    known (3, B): status, iterations, how many structures have places
    given (B, d), the scores of the first tensor in their own dtype; others: the scores of other tensors, `total`
    numbers
    tiles are BR rows of K, BP structures of BU slots, and BS columns of the row of a slot (0 if slots are not rows)

If QUICK is 1, a structure is first sought in float32: any structure that gains is as good a step as the best one. The
gain is computed from integer overlaps in float64, which does not need mu. If float32 finds no structure that gains, the
search goes on in float64, to the end.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.active_set.triton_begin import any_large, begin
from polymax.kernels.active_set.triton_lists import compare, copy, look, mean_rows, rough_rows, spread
from polymax.kernels.active_set.triton_sums import two_largest
from polymax.kernels.active_set.triton_weights import admit, exact_weights, places_up_to, put, renew

# the next step of an instance (its status):
# WEIGH: compute weights
# RENEWED: find a structure; the inverse has just been computed anew
# GOING: find a structure
# RENEW: compute the inverse anew
# DIRECTION: choose a direction that leaves the face
# FACE, OTHER_FACE: find structures on one side of it, then on the other
# CONVERGED, INFEASIBLE: nothing
# FULL, FACE_FULL: more places, for the loop and for the face
# LARGE: smaller scores
WEIGH, RENEWED, GOING, RENEW, DIRECTION, FACE, OTHER_FACE = (tl.constexpr(i) for i in range(-2, 5))
CONVERGED, INFEASIBLE, FULL, FACE_FULL, LARGE = (tl.constexpr(i) for i in range(5, 10))

# steps after which weights are computed from the residual of the equations instead of from the step before
LATE = tl.constexpr(32)
# how structures are sought: at first, then in float32, at last in float64
FIRST, ROUGH, LAST = (tl.constexpr(i) for i in range(3))


@Entry
@triton.jit(do_not_specialize=["height", "width", "slots", "rounds", "max_iter", "whole", "first", "wary", "total"])
def iterate(
    problem, held, point, fresh, known, gaps, height, width, slots, rounds, max_iter, tol, whole,
    first, given, others, total, wary, limit,
    BEST: tl.constexpr, SIZES: tl.constexpr, K: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr,
    BS: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """Take up to `rounds` steps for each instance; BEST(problem, ...) finds structures. If `whole`, cuda_face.py
    continues.

    At `first`, the program writes its initial state. If also `wary`, it gives up on scores beyond the limit: each
    program checks the scores of its instance, and a share of the scores of other tensors.
    """
    i_b = tl.program_id(0).to(tl.int64)
    d = height * width
    n = tl.num_programs(0).to(tl.int64)
    p_status, p_iterations, p_gap = known + i_b, known + n + i_b, gaps + i_b
    mine = held[0] + i_b * K * slots, held[1] + i_b * K * K, held[2] + i_b * (K + 3) * K
    arounds = point + 2 * n * d
    here = point + i_b * d, point + (n + i_b) * d, arounds + i_b * d, arounds + (n + i_b) * d
    # the memory of the direction is still free
    roughs = (point + 3 * n * d).to(tl.pointer_type(tl.float32))
    p_fresh = fresh + i_b * slots
    status = tl.load(p_status, mask=first == 0, other=RENEWED)
    # the first structure does not count as an iteration
    iterations = tl.load(p_iterations, mask=first == 0, other=-1)
    gap = tl.load(p_gap, mask=first == 0, other=0.0)
    if first > 0:
        begin(given + i_b * d, mine, here, d, K, BR, BU)
        if wary > 0:
            share = tl.cdiv(total, tl.num_programs(0))
            rest = tl.minimum(total - i_b * share, share)
            large = any_large(given + i_b * d, d, limit, BU) | any_large(others + i_b * share, rest, limit, BU)
            status = tl.where(large, LARGE, status)
    tl.debug_barrier()
    square = _square(here[1], d, BP * BU)
    # steps since weights were computed from the residual of the equations; 0 if each launch is a step
    late = tl.where((first == 0) & (rounds > 1), 1, 0)
    how = status * 0 + (FIRST if QUICK else LAST)
    # the gain that all structures with weight share
    level = tl.zeros([], tl.float64)
    p_p = mine[2] + (K + 1) * K + tl.arange(0, K)
    b_p = tl.load(p_p)
    while (status < DIRECTION) & (iterations < max_iter) & (rounds > 0):
        before = status
        b_step, b_one = tl.zeros([K], tl.float64), tl.zeros([K], tl.float64)
        told = status * 0
        again = status * 0
        top = status * 0
        m_before = b_p >= 0
        if (status == RENEW) | (status == WEIGH):
            if status == RENEW:
                _compare_all(mine, slots, K, BP, BU)
                renew(mine[1], mine[2], K, BR)
            b_p = tl.load(p_p)
            top = places_up_to(b_p, K)
            status = status * 0 + RENEWED
        else:
            score = _ask(problem, arounds, roughs, p_fresh, how, height, width, BEST, SIZES, QUICK)
            b_p, top, status, gap, b_step, b_one, told = _take(
                mine, here, b_p, p_fresh, score, status, square, how, level, slots, tol, K, BR, BP, BU, QUICK
            )
            iterations += tl.where(status == GOING, 1, 0)
            # refine the last digits of weights before they are final
            again = ((status == CONVERGED) & (((late > 0) & (gap == gap)) | (how == ROUGH))).to(tl.int32)
            status = tl.where(again > 0, GOING, status)
            how = tl.where(again > 0, LAST, tl.where((how == FIRST) & (status == GOING), ROUGH, how))
            status = tl.where((whole > 0) & (status == CONVERGED) & (gap == gap), DIRECTION, status)
        if status <= GOING:
            told = tl.where((late < LATE) & (rounds > 1), told, 0)
            b_p, level = exact_weights(mine[1], mine[2], b_p, top, b_step, b_one, level, told, K, BR)
            tl.store(p_p, b_p)
            late = tl.where(told > 0, late + 1, 0)
            m_moved = (b_p >= 0) != m_before
            if (status == GOING) & (again == 0) & (tl.max(m_moved.to(tl.int32), 0) == 0):
                # a structure that left at once would do so again, since the set is unchanged
                end = tl.where(whole > 0, DIRECTION, CONVERGED)
                status = tl.where(how == ROUGH, GOING, tl.where(before == RENEWED, end, RENEW))
                how = how * 0 + LAST
            roughly = given + i_b * d, roughs + i_b * d
            square = _mean(mine, here, b_p, top, roughly, how, height, width, slots, K, BP, BU, BS, QUICK)
        rounds -= 1
    if QUICK and how == ROUGH:
        # the next launch continues from mu
        top = places_up_to(b_p, K)
        _mean(mine, here, b_p, top, (given, roughs), how * 0 + LAST, height, width, slots, K, BP, BU, BS, QUICK)
    tl.store(p_status, status)
    tl.store(p_iterations, iterations)
    tl.store(p_gap, gap)
    tl.store(known + 2 * n + i_b, tl.sum((b_p >= 0).to(tl.int32), 0))


@triton.jit
def _ask(
    problem, arounds, roughs, p_fresh, how, height, width,
    BEST: tl.constexpr, SIZES: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """Write the best structure around mu; return the score of its parts in other tensors."""
    score = tl.zeros([], tl.float64)
    tl.debug_barrier()
    if QUICK:
        if how == ROUGH:
            score = BEST(problem, roughs, p_fresh, height, width, SIZES)
        else:
            score = BEST(problem, arounds, p_fresh, height, width, SIZES)
    else:
        score = BEST(problem, arounds, p_fresh, height, width, SIZES)
    tl.debug_barrier()
    return score


@triton.jit
def _take(
    held, point, b_p, p_fresh, score, status, square, how, level, slots, tol,
    K: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """Give the latest structure a place if it improves the objective.

    Returns the weights and the number of places up to the last in use, the next status, the gap before this step, and
    the values that `admit` passes on to `exact_weights`.
    """
    p_places, p_gram, p_system = held
    o_k = tl.arange(0, K)
    m_on = b_p >= 0
    # the first free place has the largest K - place
    top, place = two_largest(tl.where(m_on, o_k + 1, 0), tl.where(m_on, 0, K - o_k))
    place = K - place
    size, own, reach = look(p_fresh, point[0], point[1], slots, BU)
    score += own
    current = level
    if how == ROUGH:
        if place < K:
            compare(p_places, p_gram, p_fresh, place, tl.maximum(top, place + 1), slots, K, BP, BU)
            reach = tl.sum(tl.load(p_gram + place * K + o_k) * tl.maximum(b_p, 0.0), 0)
    else:
        current = tl.sum(tl.where(m_on, tl.load(p_system + K * K + o_k) * b_p, 0.0), 0) - square
    gap = score - reach - current
    b_step, b_one = tl.zeros([K], tl.float64), tl.zeros([K], tl.float64)
    known = place * 0
    if (score == float("-inf")) & (how != ROUGH):
        status = status * 0 + INFEASIBLE
        gap = tl.zeros([], tl.float64)
    elif (score != score) | ((top > 0) & ((gap > tol * (1 + tl.abs(current))) == 0)) | ((how == ROUGH) & (place == K)):
        status = status * 0 + CONVERGED
        if top == 0:
            # NaN, from the first structure on
            copy(p_fresh, p_places, slots, BU)
            b_p = tl.where(o_k == 0, 1.0, -1.0).to(tl.float64)
            tl.store(p_system + (K + 1) * K + o_k, b_p)
    elif place == K:
        status = status * 0 + FULL
    else:
        if how != ROUGH:
            compare(p_places, p_gram, p_fresh, place, tl.maximum(top, place + 1), slots, K, BP, BU)
        m_same = m_on & (tl.load(p_gram + place * K + o_k) == size)
        same = tl.max(m_same.to(tl.int32), 0)
        if same > 0:
            # it may use a subset of another structure's parts
            m_same = m_same & (tl.load(p_gram + o_k * K + o_k, mask=m_same, other=0) == size)
            same = tl.max(m_same.to(tl.int32), 0)
        if same > 0:
            # a structure that has weight cannot improve on the exact weights, but for rounding
            status = tl.where((status == RENEWED) | (how == ROUGH), CONVERGED, RENEW)
        else:
            copy(p_fresh, p_places + place * slots, slots, BU)
            tl.store(p_system + K * K + place, score)
            top = tl.maximum(top, place + 1)
            b_p, good, b_step, b_one, known = admit(p_gram, p_system, b_p, top, place, gap, status == RENEWED, K, BR)
            # after a new inverse, or the first structure, weights are not exact yet
            known = tl.where(status == GOING, known, 0)
            status = tl.where(good, GOING, RENEW)
    return b_p, top, status, gap, b_step, b_one, known


@triton.jit(noinline=True)
def _compare_all(held, slots, K: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr):
    p_places, p_gram, p_system = held
    top = places_up_to(tl.load(p_system + (K + 1) * K + tl.arange(0, K)), K)
    for k in range(top):
        compare(p_places, p_gram, p_places + k * slots, k, top, slots, K, BP, BU)


@triton.jit
def _mean(
    held, point, b_p, top, roughly, how, height, width, slots,
    K: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr, BS: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """Write mu, the weighted sum of structures, and the scores less mu; return ||mu||^2."""
    p_places, _, p_system = held
    p_x = p_system + (K + 2) * K
    square = tl.zeros([], tl.float64)
    if how == ROUGH:
        if QUICK:
            p_w = p_x.to(tl.pointer_type(tl.float32))
            put(p_w, tl.maximum(b_p, 0.0), K)
            rough_rows(p_places, p_w, *roughly, top, height, width, BU, BS)
    else:
        put(p_x, tl.maximum(b_p, 0.0), K)
        if BS:
            square = mean_rows(p_places, p_x, point, top, height, width, BU, BS)
        else:
            square = _mean_of_lists(p_places, p_x, point, top, height * width, slots, BP, BU)
    return square


@triton.jit(noinline=True)
def _mean_of_lists(p_places, p_weights, point, top, d, slots, BP: tl.constexpr, BU: tl.constexpr):
    p_scores, p_mu, p_around, _ = point
    for i_d in range(0, d, BP * BU):
        o_d = i_d + tl.arange(0, BP * BU)
        tl.store(p_mu + o_d, tl.zeros([BP * BU], tl.float64), mask=o_d < d)
    tl.debug_barrier()
    spread(p_places, p_weights, p_mu, top, slots, BU)
    b_square = tl.zeros([BP * BU], tl.float64)
    for i_d in range(0, d, BP * BU):
        o_d = i_d + tl.arange(0, BP * BU)
        b_mu = tl.load(p_mu + o_d, mask=o_d < d, other=0)
        tl.store(p_around + o_d, tl.load(p_scores + o_d, mask=o_d < d) - b_mu, mask=o_d < d)
        b_square += b_mu * b_mu
    tl.debug_barrier()
    return tl.sum(b_square, 0)


@triton.jit
def _square(p_x, d, BD: tl.constexpr):
    b_square = tl.zeros([BD], tl.float64)
    for i_d in range(0, d, BD):
        o_d = i_d + tl.arange(0, BD)
        b_x = tl.load(p_x + o_d, mask=o_d < d, other=0)
        b_square += b_x * b_x
    return tl.sum(b_square, 0)
