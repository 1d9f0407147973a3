"""Several sums or maxima of vectors at once, for Triton: threads wait for each other once, not once for each."""

import triton
import triton.language as tl


@triton.jit
def two_sums(b_x, b_y):
    """What x and y add up to."""
    return tl.reduce((b_x, b_y), 0, _add_two)


@triton.jit
def three_sums(b_x, b_y, b_z):
    """What x, y and z add up to."""
    return tl.reduce((b_x, b_y, b_z), 0, _add_three)


@triton.jit
def sum_and_largest(b_x, b_y):
    """What x adds up to, and the largest of y."""
    return tl.reduce((b_x, b_y), 0, _add_and_larger)


@triton.jit
def two_largest(b_x, b_y):
    """The largest of x, and of y."""
    return tl.reduce((b_x, b_y), 0, _larger_two)


@triton.jit
def first_of_largest(b_x, o_x):
    """The largest of x, and the least of the numbers o_x that have it."""
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
