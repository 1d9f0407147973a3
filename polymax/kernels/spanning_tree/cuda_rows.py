"""Functions shared by the kernels of spanning trees in Triton: sums of logarithms, and the positions left at a step.

A square has rows of `size` entries. Tokens are not moved: the rank of a token is the step at which it is eliminated.
The root symbol stays to the end, with rank `size`; the rank of positions past the length is -1.
"""

import triton
import triton.language as tl

# the share of a probability that rounding may leave instead of 0
LOST = tl.constexpr(1e-11)


@triton.jit
def log_add(b_a, b_b):
    """Return log(exp(a) + exp(b))."""
    b_top = tl.maximum(b_a, b_b)
    b_safe = tl.where(b_top > float("-inf"), b_top, 0)
    b_sum = b_safe + tl.log(tl.exp(b_a - b_safe) + tl.exp(b_b - b_safe))
    return tl.where(b_top > float("-inf"), b_sum, b_a + b_b)


@triton.jit
def log_subtract(b_a, b_b):
    """Return log(exp(a) - exp(b)), -inf if b >= a, by rounding."""
    m_less = b_b < b_a
    b_rest = b_a + tl.log(1 - tl.exp(tl.where(m_less, b_b - b_a, -1.0)))
    return tl.where(m_less, tl.where(b_b > float("-inf"), b_rest, b_a), float("-inf"))


@triton.jit
def log_sum(b_x):
    """Return the log of the sum of exp(x), over all entries."""
    b_top = tl.max(b_x, 0)
    b_safe = tl.where(b_top > float("-inf"), b_top, 0)
    b_sum = b_safe + tl.log(tl.sum(tl.exp(b_x - b_safe), 0))
    # an empty sum is -inf, a sum with NaN is NaN
    return tl.where(b_top > float("-inf"), b_sum, tl.sum(b_x, 0))


@triton.jit
def log_sums(b_x, AXIS: tl.constexpr):
    """Return the log of the sum of exp(x) along an axis."""
    b_top = tl.max(b_x, AXIS)
    b_safe = tl.where(b_top > float("-inf"), b_top, 0)
    b_sum = b_safe + tl.log(tl.sum(tl.exp(b_x - tl.expand_dims(b_safe, AXIS)), AXIS))
    return tl.where(b_top > float("-inf"), b_sum, float("-inf"))


@triton.jit
def means(b_x, b_d, b_log_sum, AXIS: tl.constexpr):
    """Return the mean of d by weights exp(x), whose log of the sum is given, along an axis."""
    b_safe = tl.where(b_log_sum > float("-inf"), b_log_sum, 0)
    return tl.sum(tl.exp(b_x - tl.expand_dims(b_safe, AXIS)) * b_d, AXIS)


@triton.jit
def heads_of(p_ranks, step, k, last, o_j, size, FIRST: tl.constexpr):
    """Return masks of the possible heads of a token eliminated at `step`: for the pivot, and for all arcs."""
    m_left = (tl.load(p_ranks + o_j, mask=o_j < size, other=-1) > step) & (o_j != k)
    m_counted = tl.where(last, o_j == 0, o_j >= FIRST)
    return m_left & m_counted, m_left


@triton.jit
def token_of(p_ranks, step, o_j, size):
    """Return the token eliminated at a step."""
    b_ranks = tl.load(p_ranks + o_j, mask=(o_j > 0) & (o_j < size), other=-1)
    return tl.sum(tl.where(b_ranks == step, o_j, 0), 0)


@triton.jit
def fill(p_x, count, value, BLOCK: tl.constexpr):
    """Set a square to one value."""
    for start in range(0, count, BLOCK):
        o_x = start + tl.arange(0, BLOCK)
        tl.store(p_x + o_x, tl.zeros([BLOCK], tl.float64) + value, mask=o_x < count)
