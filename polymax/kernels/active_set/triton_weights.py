"""Weights of structures as they are added and removed, for Triton: one program per instance, with its state in memory.

    max over p in the simplex of <b, p> - 1/2 p^T gram p,   b the scores of structures, gram their overlaps

A structure has one of K places. The inverse of gram + 1 on the places in use is updated by an outer product for each
structure that is added or removed. It is only applied to residuals of the equations, so that its rounding errors do not
add up.

Shapes:
    gram (K, K) in float32, in which overlaps are exact
    system (K + 3, K) in float64: the inverse, 0 at free places; b; p, -1 at free places; room for a vector
    `top` is the number of places up to the last in use; tiles are BR rows of K
"""

import triton
import triton.language as tl

from polymax.kernels.active_set import tolerances
from polymax.kernels.active_set.triton_sums import sum_and_largest, three_sums, two_sums

NOTHING, DEPENDENT = tl.constexpr(tolerances.NOTHING), tl.constexpr(tolerances.DEPENDENT)
# an inverse with this relative error still gives all digits, since the error enters squared
WORN = tl.constexpr(1e-7)
# the error of a mix up to which the inverse stays accurate
FINE = tl.constexpr(1e-11)


@triton.jit
def exact_weights(p_gram, p_system, b_p, top, b_step, b_one, level, known, K: tl.constexpr, BR: tl.constexpr):
    """Return the best weights of independent structures, dropping negative ones, and their common gain.

    If `known`, b_step (the inverse times the differences of gains), b_one (the inverse times 1) and level are given.
    """
    o_k = tl.arange(0, K)
    p_x = p_system + (K + 2) * K
    if known == 0:
        b_w = tl.maximum(b_p, 0.0)
        put(p_x, b_w, K)
        b_gain, _ = product(p_gram, p_x, top, K, BR)
        b_gain = tl.load(p_system + K * K + o_k) - b_gain
        level = tl.sum(b_w * b_gain, 0)
        # gains that are all equal leave the weights as they are
        put(p_x, tl.where(b_p >= 0, b_gain - level, 0.0), K)
        b_step, b_one = product(p_system, p_x, top, K, BR)
    going = top > 0
    while going:
        m_on = b_p >= 0
        b_w = tl.where(m_on, b_p, 0.0)
        total, step, one = three_sums(b_w, b_step, b_one)
        share = (1 - total - step) / one
        b_target = b_w + b_step + share * b_one
        b_fall = b_w - b_target
        b_length = tl.where(b_fall > 0, b_w / tl.where(b_fall > 0, b_fall, 1.0), 0.0)
        b_length = tl.where(m_on & (b_target <= NOTHING), b_length, float("inf"))
        length, gone = tl.min(b_length, 0, return_indices=True)
        going = length < float("inf")
        # (gram + 1) step is the differences of gains, and (gram + 1) one is 1
        level += tl.where(going, length, 1.0) * (step - share * (1 - one))
        if going:
            b_p = tl.where(m_on & (o_k != gone), tl.maximum(b_w - length * b_fall, 0.0), -1.0)
            # the differences of gains shrink with the rest of the step; removing a structure changes step and one as
            # the inverse
            b_row = tl.load(p_system + gone * K + o_k)
            b_row /= tl.load(p_system + gone * K + gone)
            b_step *= 1 - length
            step, one = two_sums(tl.where(o_k == gone, b_step, 0.0), tl.where(o_k == gone, b_one, 0.0))
            b_step = tl.where(o_k == gone, 0.0, b_step - step * b_row)
            b_one = tl.where(o_k == gone, 0.0, b_one - one * b_row)
            remove(p_system, gone, top, K, BR)
        else:
            b_p = tl.where(m_on, b_target, -1.0)
    return b_p, level


@triton.jit
def admit(p_gram, p_system, b_p, top, place, gap, renewed, K: tl.constexpr, BR: tl.constexpr):
    """Take the structure at a free place in; a structure that depends on the others takes the weight of one of them.

    Returns the weights, and True if the inverse was accurate enough; if not, the weights are unchanged. Also returns
    the inputs of `exact_weights` if weights were exact and the structure gains more than the others by the `gap`, with
    the flag 1; the flag is 0 if a weight was taken.
    """
    o_k = tl.arange(0, K)
    b_before = b_p
    weight = tl.zeros([], tl.float64)
    b_step, b_one = tl.zeros([K], tl.float64), tl.zeros([K], tl.float64)
    known = place * 0 + 1
    good = place >= 0
    going = place >= 0
    while going:
        m_on = b_p >= 0
        b_mix, total, b_ones, distance, size, error = nearest(p_gram, p_system, place, m_on, top, K, BR)
        going = distance <= size * DEPENDENT
        if (error > size * WORN) & (renewed == 0):
            good = place < 0
            going = place < 0
        elif going:
            # along this direction mu stays and the value rises, up to the first weight of 0
            b_up = m_on & (b_mix > NOTHING)
            b_length = tl.where(b_up, b_p / tl.where(b_up, b_mix, 1.0), float("inf"))
            length, gone = tl.min(b_length, 0, return_indices=True)
            b_p = tl.where(m_on & (o_k != gone), tl.maximum(b_p - length * b_mix, 0.0), -1.0)
            weight += length
            known = place * 0
            remove(p_system, gone, top, K, BR)
        else:
            insert(p_system, place, b_mix, distance, top, K, BR)
            b_column = tl.where(o_k == place, 1.0, -b_mix) / distance
            b_step = gap * b_column
            b_one = tl.where(m_on, b_ones, 0.0) + (1 - total) * b_column
    b_p = tl.where(good, tl.where(o_k == place, weight, b_p), b_before)
    return b_p, good, b_step, b_one, known


@triton.jit(noinline=True)
def renew(p_gram, p_system, K: tl.constexpr, BR: tl.constexpr):
    """Compute the inverse anew; structures that depend on those before them lose their places."""
    o_k = tl.arange(0, K)
    b_p = tl.load(p_system + (K + 1) * K + o_k)
    top = places_up_to(b_p, K)
    for i_r in range(0, top, BR):
        o_r = i_r + tl.arange(0, BR)
        tl.store(p_system + o_r[:, None] * K + o_k[None, :], tl.zeros([BR, K], tl.float64))
    for k in range(top):
        if tl.sum(tl.where(o_k == k, b_p, 0.0), 0) >= 0:
            b_before = (b_p >= 0) & (o_k < k)
            b_mix, _, _, distance, size, _ = nearest(p_gram, p_system, k, b_before, top, K, BR)
            if distance > size * DEPENDENT:
                insert(p_system, k, b_mix, distance, top, K, BR)
            else:
                b_p = tl.where(o_k == k, -1.0, b_p)
    b_w = tl.where(b_p >= 0, b_p, 0.0)
    total = tl.sum(b_w, 0)
    put(p_system + (K + 1) * K, tl.where(b_p >= 0, b_w / tl.where(total > 0, total, 1.0), -1.0), K)


@triton.jit
def remove(p_system, gone, top, K: tl.constexpr, BR: tl.constexpr):
    """Remove the structure at a place from the inverse."""
    o_k = tl.arange(0, K)
    pivot = tl.load(p_system + gone * K + gone)
    put(p_system + (K + 2) * K, tl.load(p_system + gone * K + o_k), K)
    _add_outer(p_system, -1 / pivot, gone, top, K, BR)


@triton.jit
def product(p_matrix, p_x, top, K: tl.constexpr, BR: tl.constexpr):
    """Return a symmetric matrix times x, and times 1."""
    o_k = tl.arange(0, K)
    # rows of a tile in the same thread are added up first
    FEW: tl.constexpr = 8 if BR > 8 else BR
    b_sum = tl.zeros([FEW, K], tl.float64)
    b_all = tl.zeros([FEW, K], tl.float64)
    for i_r in range(0, top, BR):
        o_r = i_r + tl.arange(0, BR)
        b_m = tl.load(p_matrix + o_r[:, None] * K + o_k[None, :], mask=_columns(top, K), other=0).to(tl.float64)
        b_x = tl.load(p_x + o_r)
        b_sum += tl.sum(tl.reshape(b_m * b_x[:, None], [BR // FEW, FEW, K]), 0)
        b_all += tl.sum(tl.reshape(b_m, [BR // FEW, FEW, K]), 0)
    return tl.sum(b_sum, 0), tl.sum(b_all, 0)


@triton.jit
def put(p_x, b_x, K: tl.constexpr):
    """Write a vector that other threads will read, after they have read its old values."""
    tl.debug_barrier()
    tl.store(p_x + tl.arange(0, K), b_x)
    tl.debug_barrier()


@triton.jit
def places_up_to(b_p, K: tl.constexpr):
    """Return the number of places up to the last in use."""
    return tl.max(tl.where(b_p >= 0, tl.arange(0, K) + 1, 0), 0)


@triton.jit
def nearest(p_gram, p_system, place, m_on, top, K: tl.constexpr, BR: tl.constexpr):
    """Return the affine mix of others nearest to a structure, the sum of the mix, the inverse times 1, the squared
    distance, the structure's size, and the error of the mix.

    The size includes the 1 of gram + 1.
    """
    o_k = tl.arange(0, K)
    p_x = p_system + (K + 2) * K
    size = tl.load(p_gram + place * K + place).to(tl.float64) + 1
    b_a = tl.where(m_on, tl.load(p_gram + place * K + o_k).to(tl.float64) + 1, 0.0)
    put(p_x, b_a, K)
    b_mix, b_ones = product(p_system, p_x, top, K, BR)
    b_mix = tl.where(m_on, b_mix, 0.0)
    put(p_x, b_mix, K)
    b_left, _ = product(p_gram, p_x, top, K, BR)
    total = tl.sum(b_mix, 0)
    b_left = tl.where(m_on, b_a - b_left - total, 0.0)
    # the error of the mix enters squared
    reach, error = sum_and_largest(b_mix * (b_a + b_left), tl.abs(b_left))
    distance = size - reach
    if error > size * FINE:
        put(p_x, b_left, K)
        b_more, _ = product(p_system, p_x, top, K, BR)
        b_mix += tl.where(m_on, b_more, 0.0)
        total = tl.sum(b_mix, 0)
    return b_mix, total, b_ones, distance, size, error


@triton.jit
def insert(p_system, place, b_mix, distance, top, K: tl.constexpr, BR: tl.constexpr):
    put(p_system + (K + 2) * K, tl.where(tl.arange(0, K) == place, -1.0, b_mix), K)
    _add_outer(p_system, 1 / distance, -1, top, K, BR)


@triton.jit(noinline=True)
def _add_outer(p_system, scale, gone, top, K: tl.constexpr, BR: tl.constexpr):
    """Add x x^T scale to the inverse, and clear the row and the column of `gone`."""
    o_k = tl.arange(0, K)
    p_x = p_system + (K + 2) * K
    b_x = tl.load(p_x + o_k)
    for i_r in range(0, top, BR):
        o_r = i_r + tl.arange(0, BR)
        p_rows = p_system + o_r[:, None] * K + o_k[None, :]
        b_m = tl.load(p_rows, mask=_columns(top, K), other=0)
        b_m += (scale * tl.load(p_x + o_r))[:, None] * b_x[None, :]
        m_gone = (o_r == gone)[:, None] | (o_k == gone)[None, :]
        tl.store(p_rows, tl.where(m_gone, 0.0, b_m), mask=_columns(top, K))
    tl.debug_barrier()


@triton.jit
def _columns(top, K: tl.constexpr):
    """Return the number of columns of places in use, rounded up to groups of a thread: free places are 0."""
    return (tl.arange(0, K) < tl.cdiv(top, 4) * 4)[None, :]
