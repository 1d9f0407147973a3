"""Several sums or maxima of vectors at once, for Triton: one synchronization of threads instead of several."""

import triton
import triton.language as tl


@triton.jit
def two_sums(b_x, b_y):
    """Return the sums of x and of y."""
    return tl.reduce((b_x, b_y), 0, _add_two)


@triton.jit
def three_sums(b_x, b_y, b_z):
    """Return the sums of x, of y and of z."""
    return tl.reduce((b_x, b_y, b_z), 0, _add_three)


@triton.jit
def sum_and_largest(b_x, b_y):
    """Return the sum of x, and the largest of y."""
    return tl.reduce((b_x, b_y), 0, _add_and_larger)


@triton.jit
def two_largest(b_x, b_y):
    """Return the largest of x, and the largest of y."""
    return tl.reduce((b_x, b_y), 0, _larger_two)


@triton.jit
def first_of_largest(b_x, o_x):
    """Return the largest of x, and the least o_x at which x has this value."""
    return tl.reduce((b_x, o_x), 0, _larger_first)


@triton.jit
def _add_two(x, y, other_x, other_y):
    return x + other_x, y + other_y


@triton.jit
def _add_three(x, y, z, other_x, other_y, other_z):
    return x + other_x, y + other_y, z + other_z


@triton.jit
def _add_and_larger(x, y, other_x, other_y):
    return x + other_x, tl.where(y > other_y, y, other_y)


@triton.jit
def _larger_two(x, y, other_x, other_y):
    return tl.where(x > other_x, x, other_x), tl.where(y > other_y, y, other_y)


@triton.jit
def _larger_first(x, at, other_x, other_at):
    first = (x > other_x) | ((x == other_x) & (at < other_at))
    return tl.where(first, x, other_x), tl.where(first, at, other_at)
