"""Constraint rows in Triton: sums of rows and prices of variables, and the prices of all rows by conjugate gradients.

One program has an instance. Vectors over variables and rows are in memory, and all threads meet between writing and
reading one. Pointers are to columns and signs (R, K) of rows, `by` to rows and signs (n, degree) of variables.
"""

import triton
import triton.language as tl


@triton.jit
def variables(p_columns, o_r, m_r, o_k, width):
    """The variables of rows o_r, (R, K), and where there are some."""
    m_on = m_r[:, None] & (o_k < width)
    o_v = tl.load(p_columns + o_r[:, None] * width + o_k, mask=m_on, other=-1)
    return o_v, m_on & (o_v >= 0)


@triton.jit
def ends(p_least, p_most, scale, o_r, m_r):
    """The least and the most that prices of rows may be."""
    b_low = scale * tl.load(p_least + o_r, mask=m_r, other=0)
    return b_low, scale * tl.load(p_most + o_r, mask=m_r, other=0)


@triton.jit
def paid(p_tau, p_by, p_by_signs, o_v, m_v, degree):
    """A^T tau of variables o_v: what they pay for their rows."""
    b_sum = tl.zeros(o_v.shape, tl.float64)
    for d in range(0, degree):
        o_r = tl.load(p_by + o_v * degree + d, mask=m_v, other=-1)
        m_some = o_r >= 0
        b_sign = tl.load(p_by_signs + o_v * degree + d, mask=m_some, other=0)
        b_sum += b_sign * tl.load(p_tau + o_r, mask=m_some, other=0)
    return b_sum


@triton.jit
def divided(b_r, p_diagonal, o_r, m_r):
    """r divided by the diagonal, or 0 where that is 0."""
    b_diagonal = tl.load(p_diagonal + o_r, mask=m_r, other=0)
    return tl.where(b_diagonal > 0, b_r / tl.where(b_diagonal > 0, b_diagonal, 1), 0)


@triton.jit
def prices(p_x, scale, p_tau, p_t, p_by, p_by_signs, n, degree, BV: tl.constexpr):
    """t = scale x - A^T tau, (n,)."""
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        m_in = o_v < n
        b_t = scale * tl.load(p_x + o_v, mask=m_in, other=0) - paid(p_tau, p_by, p_by_signs, o_v, m_in, degree)
        tl.store(p_t + o_v, b_t, mask=m_in)
    tl.debug_barrier()


@triton.jit
def clipped(p_t, p_weight, p_lower, p_upper, o_v, m_in):
    """Variables by their scores less prices; 0 where there are none."""
    b_t = tl.load(p_t + o_v, mask=m_in, other=0)
    b_w = tl.load(p_weight + o_v, mask=m_in, other=1)
    b_low = tl.load(p_lower + o_v, mask=m_in, other=0)
    b_high = tl.load(p_upper + o_v, mask=m_in, other=0)
    b_mu = tl.minimum(tl.maximum(b_t / b_w, b_low), b_high)
    b_free = m_in & (b_low < b_t / b_w) & (b_t / b_w < b_high)
    return b_t, b_w, tl.where(m_in, b_mu, 0), b_free


@triton.jit
def missed(
    p_t, p_tau, p_b, p_columns, p_signs, p_offset, p_least, p_most, scale, p_weight, p_lower, p_upper, count, width,
    BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """By how much rows are exceeded, b (R,), 0 where a price can do no more; and the largest of them."""
    worst = tl.sum(tl.zeros([BK], tl.float64), 0)
    o_k = tl.arange(0, BK)[None, :]
    for start in range(0, count, BR):
        o_r = start + tl.arange(0, BR)
        m_in = o_r < count
        o_v, m_on = variables(p_columns, o_r, m_in, o_k, width)
        b_sign = tl.load(p_signs + o_r[:, None] * width + o_k, mask=m_on, other=0)
        _, _, b_mu, _ = clipped(p_t, p_weight, p_lower, p_upper, o_v, m_on)
        b_b = tl.sum(b_sign * b_mu, 1) - tl.load(p_offset + o_r, mask=m_in, other=0)
        b_tau = tl.load(p_tau + o_r, mask=m_in, other=0)
        b_low, b_high = ends(p_least, p_most, scale, o_r, m_in)
        # a price at its lower end falls no further, at its upper end it rises no further
        m_stuck = ((b_tau <= b_low) & (b_b < 0)) | ((b_tau >= b_high) & (b_b > 0))
        b_b = tl.where(m_stuck | (m_in == 0), 0, b_b)
        tl.store(p_b + o_r, b_b, mask=m_in)
        worst = tl.maximum(worst, tl.max(tl.abs(b_b), 0))
    tl.debug_barrier()
    return worst


@triton.jit
def dual(p_t, p_tau, p_offset, p_weight, p_lower, p_upper, n, count, BV: tl.constexpr):
    """The function that prices minimise."""
    b_total = tl.zeros([BV], tl.float64)
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        b_t, b_w, b_mu, _ = clipped(p_t, p_weight, p_lower, p_upper, o_v, o_v < n)
        b_total += b_mu * (b_t - b_w * b_mu / 2)
    for start in range(0, count, BV):
        o_r = start + tl.arange(0, BV)
        m_in = o_r < count
        b_total += tl.load(p_offset + o_r, mask=m_in, other=0) * tl.load(p_tau + o_r, mask=m_in, other=0)
    return tl.sum(b_total, 0)


@triton.jit
def curvature(
    p_free, p_held, p_diagonal, p_columns, p_signs, p_weight, count, width, BR: tl.constexpr, BK: tl.constexpr
):
    """The diagonal of A D A^T, (R,), on free variables (n,), D = 1 / weight; 0 for rows that are not held."""
    o_k = tl.arange(0, BK)[None, :]
    for start in range(0, count, BR):
        o_r = start + tl.arange(0, BR)
        m_in = o_r < count
        m_held = tl.load(p_held + o_r, mask=m_in, other=0) != 0
        o_v, m_on = variables(p_columns, o_r, m_held, o_k, width)
        b_free = tl.load(p_free + o_v, mask=m_on, other=0)
        tl.store(p_diagonal + o_r, tl.sum(b_free / tl.load(p_weight + o_v, mask=m_on, other=1), 1), mask=m_in)
    tl.debug_barrier()


@triton.jit
def product(
    p_p, p_q, p_room, p_free, p_diagonal, damping, p_columns, p_signs, p_by, p_by_signs, p_weight, n, count, width,
    degree, BR: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """q = (A D A^T + damping) p, and <p, q> and <p, diagonal p>; p is 0 where the diagonal is."""
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        m_in = o_v < n
        b_sum = paid(p_p, p_by, p_by_signs, o_v, m_in, degree)
        b_free = tl.load(p_free + o_v, mask=m_in, other=0)
        tl.store(p_room + o_v, b_free * b_sum / tl.load(p_weight + o_v, mask=m_in, other=1), mask=m_in)
    tl.debug_barrier()
    o_k = tl.arange(0, BK)[None, :]
    pq = tl.sum(tl.zeros([BK], tl.float64), 0)
    size = pq
    for start in range(0, count, BR):
        o_r = start + tl.arange(0, BR)
        m_in = o_r < count
        b_diagonal = tl.load(p_diagonal + o_r, mask=m_in, other=0)
        o_v, m_on = variables(p_columns, o_r, b_diagonal > 0, o_k, width)
        b_sign = tl.load(p_signs + o_r[:, None] * width + o_k, mask=m_on, other=0)
        b_p = tl.load(p_p + o_r, mask=m_in, other=0)
        b_q = tl.sum(b_sign * tl.load(p_room + o_v, mask=m_on, other=0), 1) + damping * b_p
        b_q = tl.where(b_diagonal > 0, b_q, 0)
        tl.store(p_q + o_r, b_q, mask=m_in)
        pq += tl.sum(b_p * b_q, 0)
        size += tl.sum(b_diagonal * b_p * b_p, 0)
    tl.debug_barrier()
    return pq, size


@triton.jit
def gradients(
    p_b, p_y, p_work, p_room, p_free, p_diagonal, damping, small, p_columns, p_signs, p_by, p_by_signs, p_weight, n,
    count, width, degree, PASSES: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """y with  (A D A^T + damping) y = b  on rows with a diagonal: conjugate gradients; any where rows depend.

    `small` is how much of the squared norm may be left.
    """
    p_r = p_work
    p_p = p_work + count
    p_q = p_work + 2 * count
    for start in range(0, count, BV):
        o_r = start + tl.arange(0, BV)
        m_in = o_r < count
        m_on = tl.load(p_diagonal + o_r, mask=m_in, other=0) > 0
        tl.store(p_r + o_r, tl.where(m_on, tl.load(p_b + o_r, mask=m_in, other=0), 0), mask=m_in)
        tl.store(p_y + o_r, tl.zeros([BV], tl.float64), mask=m_in)
    tl.debug_barrier()
    zero = tl.sum(tl.zeros([BV], tl.float64), 0)
    enough = zero
    for step in range(0, PASSES):
        if step > 0:
            # what rounding has left of the first pass, computed afresh
            product(
                p_y, p_q, p_room, p_free, p_diagonal, damping, p_columns, p_signs, p_by, p_by_signs, p_weight, n,
                count, width, degree, BR, BK, BV,
            )  # fmt: skip
            for start in range(0, count, BV):
                o_r = start + tl.arange(0, BV)
                m_in = o_r < count
                m_on = tl.load(p_diagonal + o_r, mask=m_in, other=0) > 0
                b_left = tl.load(p_b + o_r, mask=m_in, other=0) - tl.load(p_q + o_r, mask=m_in, other=0)
                tl.store(p_r + o_r, tl.where(m_on, b_left, 0), mask=m_in)
            tl.debug_barrier()
        rz = zero
        for start in range(0, count, BV):
            o_r = start + tl.arange(0, BV)
            m_in = o_r < count
            b_r = tl.load(p_r + o_r, mask=m_in, other=0)
            b_z = divided(b_r, p_diagonal, o_r, m_in)
            tl.store(p_p + o_r, b_z, mask=m_in)
            rz += tl.sum(b_r * b_z, 0)
        tl.debug_barrier()
        # below this, rounding is followed into directions in which rows depend on each other
        enough = tl.maximum(enough, small * rz)
        turn = 0
        while (rz > enough) & (turn < 4 * count + 20):
            pq, size = product(
                p_p, p_q, p_room, p_free, p_diagonal, damping, p_columns, p_signs, p_by, p_by_signs, p_weight, n,
                count, width, degree, BR, BK, BV,
            )  # fmt: skip
            good = pq > 1e-14 * size
            rate = tl.where(good, rz / tl.where(good, pq, 1), 0)
            new = zero
            for start in range(0, count, BV):
                o_r = start + tl.arange(0, BV)
                m_in = o_r < count
                b_y = tl.load(p_y + o_r, mask=m_in, other=0) + rate * tl.load(p_p + o_r, mask=m_in, other=0)
                b_r = tl.load(p_r + o_r, mask=m_in, other=0) - rate * tl.load(p_q + o_r, mask=m_in, other=0)
                tl.store(p_y + o_r, b_y, mask=m_in)
                tl.store(p_r + o_r, b_r, mask=m_in)
                new += tl.sum(b_r * divided(b_r, p_diagonal, o_r, m_in), 0)
            # each thread reads what it has written itself
            for start in range(0, count, BV):
                o_r = start + tl.arange(0, BV)
                m_in = o_r < count
                b_r = tl.load(p_r + o_r, mask=m_in, other=0)
                b_z = divided(b_r, p_diagonal, o_r, m_in)
                b_p = b_z + new / rz * tl.load(p_p + o_r, mask=m_in, other=0)
                tl.store(p_p + o_r, b_p, mask=m_in)
            tl.debug_barrier()
            rz = tl.where(good, new, 0)
            turn += 1
