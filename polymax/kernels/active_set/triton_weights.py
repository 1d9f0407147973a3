"""Weights of structures that come and go, for Triton: one program to an instance, all it knows in memory.

    max over p in the simplex of <b, p> - 1/2 p^T gram p,   b the scores of structures, gram their overlaps

A structure has one of K places. The inverse of gram + 1 on the places in use follows as structures come and go, by an
outer product each. It only ever multiplies what is left of the equations, so that its rounding does not add up.

Shapes:
    gram (K, K) in float32, in which overlaps are exact
    system (K + 3, K) in float64: the inverse, 0 at free places; b; p, -1 at free places; room for a vector
    `top` is the number of places up to the last in use; tiles are BR rows of K
"""

import triton
import triton.language as tl

from polymax.kernels.active_set import tolerances

NOTHING, DEPENDENT = tl.constexpr(tolerances.NOTHING), tl.constexpr(tolerances.DEPENDENT)
# an inverse that errs by this share, squared, is still good to the last digits
WORN = tl.constexpr(1e-7)
# a mix that errs by less is as good as the inverse needs it
FINE = tl.constexpr(1e-11)


@triton.jit
def exact_weights(p_gram, p_system, b_step, b_one, known, K: tl.constexpr, BR: tl.constexpr):
    """The best weights of independent structures, dropping those that would become negative.

    Where it is `known`, the inverse times what gains differ by is given, and the inverse times 1.
    """
    o_k = tl.arange(0, K)
    p_x = p_system + (K + 2) * K
    b_p = tl.load(p_system + (K + 1) * K + o_k)
    top = places_up_to(b_p, K)
    if known == 0:
        b_w = tl.maximum(b_p, 0.0)
        put(p_x, b_w, K)
        b_gain, _ = product(p_gram, p_x, top, K, BR)
        b_gain = tl.load(p_system + K * K + o_k) - b_gain
        # gains that are all alike leave the weights as they are
        put(p_x, tl.where(b_p >= 0, b_gain - tl.sum(b_w * b_gain, 0), 0.0), K)
        b_step, b_one = product(p_system, p_x, top, K, BR)
    going = top > 0
    while going:
        m_on = b_p >= 0
        b_w = tl.where(m_on, b_p, 0.0)
        share = (1 - tl.sum(b_w, 0) - tl.sum(b_step, 0)) / tl.sum(b_one, 0)
        b_target = b_w + b_step + share * b_one
        b_fall = b_w - b_target
        b_length = tl.where(b_fall > 0, b_w / tl.where(b_fall > 0, b_fall, 1.0), 0.0)
        b_length = tl.where(m_on & (b_target <= NOTHING), b_length, float("inf"))
        length = tl.min(b_length, 0)
        going = length < float("inf")
        if going:
            gone = tl.argmin(b_length, 0)
            b_p = tl.where(m_on & (o_k != gone), tl.maximum(b_w - length * b_fall, 0.0), -1.0)
            # gains differ by what is left of the way; what the inverse makes of them loses a structure as it does
            b_row = tl.load(p_system + gone * K + o_k)
            b_row /= tl.sum(tl.where(o_k == gone, b_row, 0.0), 0)
            b_step *= 1 - length
            b_step = tl.where(o_k == gone, 0.0, b_step - tl.sum(tl.where(o_k == gone, b_step, 0.0), 0) * b_row)
            b_one = tl.where(o_k == gone, 0.0, b_one - tl.sum(tl.where(o_k == gone, b_one, 0.0), 0) * b_row)
            remove(p_system, gone, top, K, BR)
        else:
            b_p = tl.where(m_on, b_target, -1.0)
    put(p_system + (K + 1) * K, b_p, K)


@triton.jit
def admit(p_gram, p_system, place, gap, renewed, K: tl.constexpr, BR: tl.constexpr):
    """Take the structure at a free place in; one that depends on the others takes the weight of one of them.

    Returns whether the inverse was good enough; where it was not, nothing is done. And what exact weights need to know,
    if weights were exact and the structure gains more than others by the `gap`: 1 if so, 0 where a weight was taken.
    """
    o_k = tl.arange(0, K)
    b_p = tl.load(p_system + (K + 1) * K + o_k)
    weight = tl.zeros([], tl.float64)
    b_step, b_one = tl.zeros([K], tl.float64), tl.zeros([K], tl.float64)
    known = place * 0 + 1
    good = place >= 0
    going = place >= 0
    while going:
        top = tl.maximum(places_up_to(b_p, K), place + 1)
        m_on = b_p >= 0
        b_mix, b_ones, distance, size, error = nearest(p_gram, p_system, place, m_on, top, K, BR)
        going = (distance <= size * DEPENDENT) & (tl.sum(m_on.to(tl.int32), 0) > 0)
        if (error > size * WORN) & (renewed == 0):
            good = place < 0
            going = place < 0
        elif going:
            # along this way mu stays and the value rises, up to the first weight of 0
            b_up = m_on & (b_mix > NOTHING)
            b_length = tl.where(b_up, b_p / tl.where(b_up, b_mix, 1.0), float("inf"))
            length = tl.min(b_length, 0)
            gone = tl.argmin(b_length, 0)
            b_p = tl.where(m_on & (o_k != gone), tl.maximum(b_p - length * b_mix, 0.0), -1.0)
            weight += length
            known = place * 0
            remove(p_system, gone, top, K, BR)
        else:
            insert(p_system, place, b_mix, distance, top, K, BR)
            b_column = tl.where(o_k == place, 1.0, -b_mix) / distance
            b_step = gap * b_column
            b_one = tl.where(m_on, b_ones, 0.0) + (1 - tl.sum(b_mix, 0)) * b_column
    if good:
        put(p_system + (K + 1) * K, tl.where(o_k == place, weight, b_p), K)
    return good, b_step, b_one, known


@triton.jit(noinline=True)
def renew(p_gram, p_system, K: tl.constexpr, BR: tl.constexpr):
    """The inverse from the start; structures that depend on those before lose their places."""
    o_k = tl.arange(0, K)
    b_p = tl.load(p_system + (K + 1) * K + o_k)
    top = places_up_to(b_p, K)
    for i_r in range(0, top, BR):
        o_r = i_r + tl.arange(0, BR)
        tl.store(p_system + o_r[:, None] * K + o_k[None, :], tl.zeros([BR, K], tl.float64))
    for k in range(top):
        if tl.sum(tl.where(o_k == k, b_p, 0.0), 0) >= 0:
            b_before = (b_p >= 0) & (o_k < k)
            b_mix, _, distance, size, _ = nearest(p_gram, p_system, k, b_before, top, K, BR)
            if distance > size * DEPENDENT:
                insert(p_system, k, b_mix, distance, top, K, BR)
            else:
                b_p = tl.where(o_k == k, -1.0, b_p)
    b_w = tl.where(b_p >= 0, b_p, 0.0)
    total = tl.sum(b_w, 0)
    put(p_system + (K + 1) * K, tl.where(b_p >= 0, b_w / tl.where(total > 0, total, 1.0), -1.0), K)


@triton.jit
def remove(p_system, gone, top, K: tl.constexpr, BR: tl.constexpr):
    """The inverse without the structure at a place."""
    o_k = tl.arange(0, K)
    pivot = tl.load(p_system + gone * K + gone)
    put(p_system + (K + 2) * K, tl.load(p_system + gone * K + o_k), K)
    _add_outer(p_system, -1 / pivot, gone, top, K, BR)


@triton.jit
def product(p_matrix, p_x, top, K: tl.constexpr, BR: tl.constexpr):
    """A symmetric matrix times x, and times 1."""
    o_k = tl.arange(0, K)
    o_r = tl.arange(0, BR)
    # where a thread has whole columns of a tile, they are added up at once
    least: tl.constexpr = 512 if p_matrix.dtype.element_ty == tl.float64 else 1024
    WHOLE: tl.constexpr = least <= K
    b_sum = tl.zeros([1 if WHOLE else BR, K], tl.float64)
    b_all = tl.zeros([1 if WHOLE else BR, K], tl.float64)
    # free places have 0, and most often half of the columns are free
    m_k = (o_k < top)[None, :]
    b_m = tl.load(p_matrix + o_r[:, None] * K + o_k[None, :], mask=m_k, other=0)
    b_x = tl.load(p_x + o_r)
    for i_r in range(0, top, BR):
        # the next rows are on their way while these are added
        p_next = p_matrix + (i_r + BR + o_r)[:, None] * K + o_k[None, :]
        b_next = tl.load(p_next, mask=(i_r + BR + o_r < top)[:, None] & m_k, other=0)
        b_after = tl.load(p_x + i_r + BR + o_r, mask=i_r + BR + o_r < top, other=0)
        b_wide = b_m.to(tl.float64)
        if WHOLE:
            b_sum += tl.sum(b_wide * b_x[:, None], 0)[None, :]
            b_all += tl.sum(b_wide, 0)[None, :]
        else:
            b_sum += b_wide * b_x[:, None]
            b_all += b_wide
        b_m, b_x = b_next, b_after
    return tl.sum(b_sum, 0), tl.sum(b_all, 0)


@triton.jit
def put(p_x, b_x, K: tl.constexpr):
    """Write a vector that other threads read, after they have read what was there."""
    tl.debug_barrier()
    tl.store(p_x + tl.arange(0, K), b_x)
    tl.debug_barrier()


@triton.jit
def places_up_to(b_p, K: tl.constexpr):
    """How many places there are up to the last in use."""
    return tl.max(tl.where(b_p >= 0, tl.arange(0, K) + 1, 0), 0)


@triton.jit
def nearest(p_gram, p_system, place, m_on, top, K: tl.constexpr, BR: tl.constexpr):
    """The affine mix of others that is nearest to a structure, its squared distance, its size, and the error made.

    After the mix comes the inverse times 1.
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
    b_left = tl.where(m_on, b_a - b_left - tl.sum(b_mix, 0), 0.0)
    # an error of the mix enters squared
    distance = size - tl.sum(b_mix * (b_a + b_left), 0)
    error = tl.max(tl.abs(b_left), 0)
    if error > size * FINE:
        put(p_x, b_left, K)
        b_more, _ = product(p_system, p_x, top, K, BR)
        b_mix += tl.where(m_on, b_more, 0.0)
    return b_mix, b_ones, distance, size, error


@triton.jit
def insert(p_system, place, b_mix, distance, top, K: tl.constexpr, BR: tl.constexpr):
    put(p_system + (K + 2) * K, tl.where(tl.arange(0, K) == place, -1.0, b_mix), K)
    _add_outer(p_system, 1 / distance, -1, top, K, BR)


@triton.jit(noinline=True)
def _add_outer(p_system, scale, gone, top, K: tl.constexpr, BR: tl.constexpr):
    """Add x x^T scale to the inverse, and clear the row and the column of `gone`."""
    o_k = tl.arange(0, K)
    o_r = tl.arange(0, BR)
    p_x = p_system + (K + 2) * K
    b_x = tl.load(p_x + o_k)
    p_rows = p_system + o_r[:, None] * K + o_k[None, :]
    m_k = (o_k < top)[None, :]
    b_m = tl.load(p_rows, mask=m_k, other=0)
    b_y = tl.load(p_x + o_r)
    for i_r in range(0, top, BR):
        # the next rows are on their way while these are written
        m_next = i_r + BR + o_r < top
        b_next = tl.load(p_rows + BR * K, mask=m_next[:, None] & m_k, other=0)
        b_after = tl.load(p_x + i_r + BR + o_r, mask=m_next, other=0)
        b_m += (scale * b_y)[:, None] * b_x[None, :]
        tl.store(p_rows, tl.where((i_r + o_r == gone)[:, None] | (o_k == gone)[None, :], 0.0, b_m), mask=m_k)
        b_m, b_y = b_next, b_after
        p_rows += BR * K
    tl.debug_barrier()
