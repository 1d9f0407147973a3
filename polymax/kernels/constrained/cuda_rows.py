"""Constraint rows in Triton: variables from their prices, and violations of rows.

One program has an instance. Vectors over variables and rows are in memory, with a barrier between a write and a read.
Rows list their variables as codes, `rows` (R, BK), and variables their rows, `by` (degree, n): the index plus 1,
negative for a coefficient of -1; 0 for no entry.
"""

import triton
import triton.language as tl


@triton.jit
def signed(p_x, b_code):
    """Return the entries of x that codes name, with their signs; 0 for the code 0."""
    b_x = tl.load(p_x + tl.abs(b_code) - 1, mask=b_code != 0, other=0)
    return tl.where(b_code < 0, -b_x, b_x)


@triton.jit
def named(p_x, b_code):
    """Return the entries of x that codes name; 0 for the code 0."""
    return tl.load(p_x + tl.abs(b_code) - 1, mask=b_code != 0, other=0)


@triton.jit
def codes(p_rows, start, count, BR: tl.constexpr, BK: tl.constexpr):
    """Return the codes of BR rows from `start` on, one row after the other.

    The tile has one dim while entries are loaded: for two dims, compilers choose the order themselves, and then move
    all addresses from thread to thread.
    """
    o_c = tl.arange(0, BR * BK)
    return tl.load(p_rows + start * BK + o_c, mask=o_c < (count - start) * BK, other=0)


@triton.jit
def by_row(b_x, BR: tl.constexpr, BK: tl.constexpr):
    """Return the sums of rows, (BR,), from entries one row after the other."""
    return tl.sum(tl.reshape(b_x, [BR, BK]), 1)


@triton.jit
def ends(p_least, p_most, scale, o_r, m_r):
    """Return the least and the largest allowed prices of rows."""
    b_low = scale * tl.load(p_least + o_r, mask=m_r, other=0)
    return b_low, scale * tl.load(p_most + o_r, mask=m_r, other=0)


@triton.jit
def paid(p_tau, p_by, o_v, m_v, n, degree, BD: tl.constexpr):
    """Return A^T tau at variables o_v: the sum of the signed prices of the rows of each variable."""
    b_sum = tl.zeros(o_v.shape, tl.float64)
    for start in range(0, degree, BD):
        for d in tl.static_range(0, BD):
            b_code = tl.load(p_by + (start + d) * n + o_v, mask=m_v & (start + d < degree), other=0)
            b_sum += signed(p_tau, b_code)
    return b_sum


@triton.jit
def rises(p_rise, p_rows, p_weight, count, BR: tl.constexpr, BK: tl.constexpr):
    """Write the largest rate at which sums of rows fall with their prices, (R,): the rate if all of their variables are
    free.
    """
    for start in range(0, count, BR):
        o_r = start + tl.arange(0, BR)
        b_code = codes(p_rows, start, count, BR, BK)
        b_weight = tl.load(p_weight + tl.abs(b_code) - 1, mask=b_code != 0, other=1)
        tl.store(p_rise + o_r, by_row(tl.where(b_code != 0, 1 / b_weight, 0), BR, BK), mask=o_r < count)
    tl.debug_barrier()


@triton.jit
def point(
    p_x, scale, p_tau, p_mu, p_spread, p_by, p_weight, p_lower, p_upper, p_offset, n, count, degree,
    BV: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write mu = clip((scale x - A^T tau) / weight) and its rate (0 at a bound); return the dual value of prices
    tau.
    """
    b_total = tl.zeros([BV], tl.float64)
    for start in range(0, n, BV):
        o_v = start + tl.arange(0, BV)
        m_in = o_v < n
        b_t = scale * tl.load(p_x + o_v, mask=m_in, other=0) - paid(p_tau, p_by, o_v, m_in, n, degree, BD)
        b_w = tl.load(p_weight + o_v, mask=m_in, other=1)
        b_low = tl.load(p_lower + o_v, mask=m_in, other=0)
        b_high = tl.load(p_upper + o_v, mask=m_in, other=0)
        b_raw = b_t / b_w
        b_mu = tl.minimum(tl.maximum(b_raw, b_low), b_high)
        tl.store(p_mu + o_v, b_mu, mask=m_in)
        tl.store(p_spread + o_v, tl.where((b_low < b_raw) & (b_raw < b_high), 1 / b_w, 0), mask=m_in)
        b_total += tl.where(m_in, b_mu * (b_t - b_w * b_mu / 2), 0)
    for start in range(0, count, BV):
        o_r = start + tl.arange(0, BV)
        m_in = o_r < count
        b_total += tl.load(p_offset + o_r, mask=m_in, other=0) * tl.load(p_tau + o_r, mask=m_in, other=0)
    tl.debug_barrier()
    return tl.sum(b_total, 0)


@triton.jit
def missed(
    p_mu, p_spread, p_tau, p_b, p_diagonal, p_rows, p_offset, p_least, p_most, scale, count,
    BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Write b (R,), the amount by which each row is exceeded; return the largest |b|.

    b is 0 for a row whose price is at an end of its range, and would have to move beyond this end.

    Also write the diagonal (R,) of A D A^T, with the rates D of variables: 0 for rows whose price cannot move.
    """
    worst = tl.sum(tl.zeros([BK], tl.float64), 0)
    for start in range(0, count, BR):
        o_r = start + tl.arange(0, BR)
        m_in = o_r < count
        b_code = codes(p_rows, start, count, BR, BK)
        b_b = by_row(signed(p_mu, b_code), BR, BK) - tl.load(p_offset + o_r, mask=m_in, other=0)
        b_diagonal = by_row(named(p_spread, b_code), BR, BK)
        b_tau = tl.load(p_tau + o_r, mask=m_in, other=0)
        b_low, b_high = ends(p_least, p_most, scale, o_r, m_in)
        # a price at its lower end cannot fall, at its upper end it cannot rise
        m_stuck = ((b_tau <= b_low) & (b_b < 0)) | ((b_tau >= b_high) & (b_b > 0))
        b_b = tl.where(m_stuck | (m_in == 0), 0, b_b)
        m_held = (b_b != 0) | ((b_tau > b_low) & (b_tau < b_high))
        tl.store(p_b + o_r, b_b, mask=m_in)
        tl.store(p_diagonal + o_r, tl.where(m_held, b_diagonal, 0), mask=m_in)
        worst = tl.maximum(worst, tl.max(tl.abs(b_b), 0))
    tl.debug_barrier()
    return worst


@triton.jit
def step(p_tau, p_y, length, p_least, p_most, scale, p_out, count, BV: tl.constexpr):
    """Write tau + length y, clipped to the ends of prices."""
    for start in range(0, count, BV):
        o_r = start + tl.arange(0, BV)
        m_in = o_r < count
        b_tau = tl.load(p_tau + o_r, mask=m_in, other=0) + length * tl.load(p_y + o_r, mask=m_in, other=0)
        b_low, b_high = ends(p_least, p_most, scale, o_r, m_in)
        tl.store(p_out + o_r, tl.minimum(tl.maximum(b_tau, b_low), b_high), mask=m_in)
    tl.debug_barrier()


@triton.jit
def step_alone(p_tau, p_b, p_rise, degree, p_least, p_most, scale, count, BV: tl.constexpr):
    """Move every price part of the way to the value that would satisfy its row alone: divided by the degree of
    variables.
    """
    for start in range(0, count, BV):
        o_r = start + tl.arange(0, BV)
        m_in = o_r < count
        b_rise = tl.load(p_rise + o_r, mask=m_in, other=1) * degree
        b_step = tl.load(p_b + o_r, mask=m_in, other=0) / tl.maximum(b_rise, 1e-300)
        b_low, b_high = ends(p_least, p_most, scale, o_r, m_in)
        b_tau = tl.load(p_tau + o_r, mask=m_in, other=0) + b_step
        tl.store(p_tau + o_r, tl.minimum(tl.maximum(b_tau, b_low), b_high), mask=m_in)
    tl.debug_barrier()
