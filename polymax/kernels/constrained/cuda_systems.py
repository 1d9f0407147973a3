"""Linear systems of constraint rows in Triton: the common step of all prices, by conjugate gradients.

    (A D A^T + damping) y = b

D is the rates of variables with their scores, 0 for fixed variables; rows with diagonal 0 take no part. A system of few
rows is a matrix in registers, so that an iteration needs no memory; a larger system uses lists of variables.
"""

import triton
import triton.language as tl

from polymax.kernels.constrained.cuda_rows import by_row, codes, paid, signed


@triton.jit
def solved(
    p_b, p_y, p_work, p_room, p_spread, p_diagonal, damping, small, p_rows, p_by, p_shared, n, count, degree,
    PASSES: tl.constexpr, SHARED: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write y of the system, any solution if rows depend on each other; `small` is the allowed share of the squared
    norm.
    """
    if SHARED > 0:
        _by_matrix(p_b, p_y, p_spread, p_diagonal, damping, small, p_shared, count, PASSES, SHARED, BS)
    else:
        _by_lists(
            p_b, p_y, p_work, p_room, p_spread, p_diagonal, damping, small, p_rows, p_by, n, count, degree,
            PASSES, BR, BK, BV, BD,
        )  # fmt: skip


@triton.jit
def _by_matrix(
    p_b, p_y, p_spread, p_diagonal, damping, small, p_shared, count, PASSES: tl.constexpr, SHARED: tl.constexpr,
    BS: tl.constexpr,
):  # fmt: skip
    """Solve with the matrix in registers. `shared` (SHARED, R, R) are the variables that two rows share, as codes."""
    o_r = tl.arange(0, BS)
    m_in = o_r < count
    b_diagonal = tl.load(p_diagonal + o_r, mask=m_in, other=0)
    m_on = b_diagonal > 0
    o_c = tl.arange(0, BS * BS)
    o_i, o_j = o_c // BS, o_c % BS
    m_in_pair = (o_i < count) & (o_j < count)
    b_entry = tl.zeros([BS * BS], tl.float64)
    for k in range(0, SHARED):
        b_code = tl.load(p_shared + (k * count + o_i) * count + o_j, mask=m_in_pair, other=0)
        b_entry += signed(p_spread, b_code)
    m_diagonal = o_r[:, None] == o_r[None, :]
    b_matrix = tl.where(m_diagonal, b_diagonal[None, :] + damping, tl.reshape(b_entry, [BS, BS]))
    b_matrix = tl.where(m_on[:, None] & m_on[None, :], b_matrix, 0)
    b_inverse = tl.where(m_on, 1 / tl.where(m_on, b_diagonal, 1), 0)
    b_b = tl.where(m_on, tl.load(p_b + o_r, mask=m_in, other=0), 0)
    b_y = tl.zeros([BS], tl.float64)
    enough = tl.sum(b_y, 0)
    for _ in range(0, PASSES):
        # residual of the pass before, which is rounding
        b_r = b_b - tl.sum(b_matrix * b_y[:, None], 0)
        b_p = b_r * b_inverse
        rz = tl.sum(b_r * b_p, 0)
        # below this, iterations would follow rounding into directions in which rows depend on each other
        enough = tl.maximum(enough, small * rz)
        turn = 0
        while (rz > enough) & (turn < 4 * count + 20):
            b_q = tl.sum(b_matrix * b_p[:, None], 0)
            pq = tl.sum(b_p * b_q, 0)
            good = pq > 1e-14 * tl.sum(b_diagonal * b_p * b_p, 0)
            rate = tl.where(good, rz / tl.where(good, pq, 1), 0)
            b_y += rate * b_p
            b_r -= rate * b_q
            b_z = b_r * b_inverse
            new = tl.sum(b_r * b_z, 0)
            b_p = b_z + new / rz * b_p
            rz = tl.where(good, new, 0)
            turn += 1
    tl.store(p_y + o_r, b_y, mask=m_in)
    tl.debug_barrier()


@triton.jit
def _product(
    p_p, p_q, p_room, p_spread, p_diagonal, damping, p_rows, p_by, n, count, degree,
    BR: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write q = (A D A^T + damping) p; return <p, q> and <p, diagonal p>; p is 0 if the diagonal is 0."""
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        m_in = o_v < n
        b_sum = paid(p_p, p_by, o_v, m_in, n, degree, BD)
        tl.store(p_room + o_v, b_sum * tl.load(p_spread + o_v, mask=m_in, other=0), mask=m_in)
    tl.debug_barrier()
    pq = tl.sum(tl.zeros([BK], tl.float64), 0)
    size = pq
    for start in range(0, count, BR):
        o_r = start + tl.arange(0, BR)
        m_in = o_r < count
        b_diagonal = tl.load(p_diagonal + o_r, mask=m_in, other=0)
        b_p = tl.load(p_p + o_r, mask=m_in, other=0)
        b_q = by_row(signed(p_room, codes(p_rows, start, count, BR, BK)), BR, BK) + damping * b_p
        b_q = tl.where(b_diagonal > 0, b_q, 0)
        tl.store(p_q + o_r, b_q, mask=m_in)
        pq += tl.sum(b_p * b_q, 0)
        size += tl.sum(b_diagonal * b_p * b_p, 0)
    tl.debug_barrier()
    return pq, size


@triton.jit
def _divided(b_r, p_diagonal, o_r, m_r):
    """Return r divided by the diagonal, or 0 if the diagonal is 0."""
    b_diagonal = tl.load(p_diagonal + o_r, mask=m_r, other=0)
    return tl.where(b_diagonal > 0, b_r / tl.where(b_diagonal > 0, b_diagonal, 1), 0)


@triton.jit
def _by_lists(
    p_b, p_y, p_work, p_room, p_spread, p_diagonal, damping, small, p_rows, p_by, n, count, degree,
    PASSES: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Solve with lists of variables and all vectors in memory."""
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
    for i_pass in range(0, PASSES):
        if i_pass > 0:
            # the residual of the first pass, recomputed
            _product(p_y, p_q, p_room, p_spread, p_diagonal, damping, p_rows, p_by, n, count, degree, BR, BK, BV, BD)
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
            b_z = _divided(b_r, p_diagonal, o_r, m_in)
            tl.store(p_p + o_r, b_z, mask=m_in)
            rz += tl.sum(b_r * b_z, 0)
        tl.debug_barrier()
        # below this, iterations would follow rounding into directions in which rows depend on each other
        enough = tl.maximum(enough, small * rz)
        turn = 0
        while (rz > enough) & (turn < 4 * count + 20):
            pq, size = _product(
                p_p, p_q, p_room, p_spread, p_diagonal, damping, p_rows, p_by, n, count, degree, BR, BK, BV, BD
            )
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
                new += tl.sum(b_r * _divided(b_r, p_diagonal, o_r, m_in), 0)
            # each thread reads only its own writes
            for start in range(0, count, BV):
                o_r = start + tl.arange(0, BV)
                m_in = o_r < count
                b_r = tl.load(p_r + o_r, mask=m_in, other=0)
                b_p = tl.load(p_p + o_r, mask=m_in, other=0)
                tl.store(p_p + o_r, _divided(b_r, p_diagonal, o_r, m_in) + new / rz * b_p, mask=m_in)
            tl.debug_barrier()
            rz = tl.where(good, new, 0)
            turn += 1
