"""One node of the recursion for 32 instances, for Triton: its arguments, their smoothed maximum, and the weights.

`at` is what all functions share: pointers to scores (P, B), tails, part and node values (N + 1, width); the instances
and which of them exist; B and width. Arguments are computed again at every pass over the edges of a node.
"""

import triton
import triton.language as tl

INF = tl.constexpr(float("inf"))
# more than the search in an interval of length 1 needs
STEPS = tl.constexpr(100)
UNROLL = tl.constexpr(4)


@triton.jit
def instances(p_roots, count, BB: tl.constexpr):
    """Instances of this program, which of them exist, their roots, and the largest of these."""
    o_b = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    m_b = o_b < count
    b_root = tl.load(p_roots + o_b, mask=m_b, other=-1)
    return o_b, m_b, b_root, tl.max(b_root)


@triton.jit
def edges(p_first, h):
    return tl.load(p_first + h), tl.load(p_first + h + 1)


@triton.jit
def row(p_x, i, o_b, m_b, stride):
    """Row i of an array whose columns are instances; 0 where i is -1."""
    return tl.load(p_x + i * stride + o_b, mask=m_b & (i >= 0), other=0).to(tl.float64)


@triton.jit
def increase(p_x, left, right, b_q, o_b, m_b, stride):
    """Add b_q to the rows of both tails."""
    b_left = row(p_x, left, o_b, m_b, stride)
    b_right = row(p_x, right, o_b, m_b, stride)
    # a tail may come twice
    b_left += tl.where(left == right, 2 * b_q, b_q)
    tl.store(p_x + left * stride + o_b, b_left, mask=m_b & (left >= 0))
    tl.store(p_x + right * stride + o_b, b_right + b_q, mask=m_b & (right >= 0) & (right != left))


@triton.jit
def total_of(p_scores, p_values, e, at):
    """Score of an edge plus the values of its tails, each from an array of its own."""
    left, right, part = tl.load(at[1] + 2 * e), tl.load(at[1] + 2 * e + 1), tl.load(at[2] + e)
    b_s = row(p_scores, part, at[4], at[5], at[6])
    b_a = b_s + row(p_values, left, at[4], at[5], at[7]) + row(p_values, right, at[4], at[5], at[7])
    # a forbidden edge stays forbidden whatever is below it
    return tl.where(b_s == -INF, b_s, b_a)


@triton.jit
def argument(e, at):
    return total_of(at[0], at[3], e, at)


@triton.jit
def top(begin, end, at):
    """The largest argument; NaN where one is NaN."""
    b_top = tl.full(at[4].shape, -INF, tl.float64)
    for e in tl.range(begin, end, loop_unroll_factor=UNROLL):
        b_a = argument(e, at)
        b_top = tl.where((b_a > b_top) | (b_a != b_a), b_a, b_top)
    return b_top


@triton.jit
def finite(b_top):
    """What to subtract from arguments: their maximum, where that is a number."""
    return tl.where(b_top - b_top == 0, b_top, 0)


@triton.jit
def inverse(b_total):
    return tl.where(b_total == 0, 0, 1 / b_total)


@triton.jit
def power(b_base, EXPONENT: tl.constexpr):
    """Power of a base >= 0; 0 at 0."""
    if EXPONENT == 0:
        b_power = tl.where(b_base == 0, 0, b_base * 0 + 1)
    elif EXPONENT == 1:
        b_power = b_base
    elif EXPONENT == 2:
        b_power = b_base * b_base
    else:
        b_power = tl.where(b_base == 0, 0, tl.exp(EXPONENT * tl.log(tl.where(b_base == 0, 1, b_base))))
    return b_power


@triton.jit
def base(b_a, b_top, b_tau, ALPHA: tl.constexpr):
    """((alpha - 1)(a - top) - tau)_+, of which the weight is a power; NaN stays."""
    b_base = (ALPHA - 1) * (b_a - finite(b_top)) - b_tau
    return tl.where(b_base < 0, 0, b_base)


@triton.jit
def weight(b_a, b_top, b_tau, b_before, count, ALPHA: tl.constexpr):
    """The weight, not normalised, of an edge of a node with `count` edges; those before it have the sum b_before."""
    if ALPHA == 1:
        b_w = tl.exp(b_a - finite(b_top))
    elif ALPHA == INF:
        # the first maximal edge; all are NaN where one is
        b_w = tl.where((b_a == b_top) & (b_before == 0) & (b_top > -INF), 1, tl.where(b_top != b_top, b_top, 0))
    else:
        b_w = power(base(b_a, b_top, b_tau, ALPHA), 1 / (ALPHA - 1))
    return tl.where(count == 1, tl.where(b_a > -INF, 1.0, 0.0), b_w)


@triton.jit
def total(begin, end, b_top, b_tau, at, ALPHA: tl.constexpr):
    """The sum of the weights of a node."""
    b_total = tl.zeros_like(b_top)
    for e in tl.range(begin, end, loop_unroll_factor=UNROLL):
        b_total += weight(argument(e, at), b_top, b_tau, b_total, end - begin, ALPHA)
    return b_total


@triton.jit
def threshold(begin, end, b_top, at, ALPHA: tl.constexpr):
    """The tau at which the weights sum to 1, relative to the largest argument.

    Newton's method on the norm of the bases, which is convex up to alpha = 2; halvings beyond, where the slope is
    infinite at a base of 0.
    """
    b_tau = tl.full(b_top.shape, -1, tl.float64)
    b_low = b_tau
    # where there is no maximum there is nothing to search
    b_busy = b_top - b_top == 0
    b_high = tl.where(b_busy, 0, b_low)
    go = 1
    i = 0
    while go > 0:
        b_total = tl.zeros_like(b_tau)
        b_slope = tl.zeros_like(b_tau)
        for e in range(begin, end):
            b_base = base(argument(e, at), b_top, b_tau, ALPHA)
            b_power = power(b_base, 1 / (ALPHA - 1) - 1)
            b_total += b_power * b_base
            b_slope += b_power
        b_over = b_total > 1
        b_low = tl.where(b_over, b_tau, b_low)
        b_high = tl.where(b_over, b_high, b_tau)
        b_step = 0.5 * (b_low + b_high)
        if ALPHA <= 2:
            b_newton = b_tau + (b_total - power(b_total, 2 - ALPHA)) / tl.where(b_slope == 0, 1, b_slope)
            b_step = tl.where((b_newton >= b_low) & (b_newton <= b_high), b_newton, b_step)
        # a lane that has arrived stays, however long its neighbours take
        b_step = tl.where(b_busy, b_step, b_tau)
        b_busy = tl.abs(b_step - b_tau) > 4e-16
        b_tau = b_step
        i += 1
        go = tl.max(b_busy.to(tl.int32)) * (i < STEPS).to(tl.int32)
    return b_tau


@triton.jit
def tsallis(begin, end, b_top, b_tau, at, ALPHA: tl.constexpr):
    """<p, a> - Omega(p), relative to the largest argument; p^alpha is p times its base."""
    C: tl.constexpr = 1 / (ALPHA * (ALPHA - 1))
    b_total = tl.zeros_like(b_top)
    b_value = tl.zeros_like(b_top)
    for e in range(begin, end):
        b_a = argument(e, at)
        b_base = base(b_a, b_top, b_tau, ALPHA)
        b_p = power(b_base, 1 / (ALPHA - 1))
        b_total += b_p
        b_value += tl.where(b_p == 0, 0, b_p * ((b_a - finite(b_top)) - C * b_base))
    return b_value * inverse(b_total) + C
