"""Weights and functions of them: powers, Newton's steps, sinks, and dropout, for Triton."""

import triton
import triton.language as tl

from polymax.kernels.tsallis_slope.cuda import curve


@triton.jit
def exponent(p_alpha, a1, LEARNED: tl.constexpr):
    """Return alpha - 1, loaded for the head if LEARNED."""
    a = a1
    if LEARNED:
        a = tl.load(p_alpha).to(tl.float32) - 1
    return a


@triton.jit
def slope(b_w, r, R: tl.constexpr):
    """Return s = p^(2 - alpha) = w^(r - 1), 0 outside the support."""
    if R == 1:
        # the least positive w is a rounding error of numbers near 1; a comparison takes twice as many operations
        b_s = tl.minimum(b_w * 1e30, 1.0)
    elif R == 2:
        b_s = b_w
    else:
        b_s = tl.where(b_w > 0, tl.exp2((r - 1) * tl.log2(tl.where(b_w > 0, b_w, 1.0))), 0.0)
    return b_s


@triton.jit
def weight(b_w, r, R: tl.constexpr):
    """Return p = w^r with w = (u - tau)_+; R is 1 for sparsemax, 2 for alpha 1.5, 0 for any other r."""
    if R == 1:
        b_p = b_w
    elif R == 2:
        b_p = b_w * b_w
    else:
        # a kernel that needs both p and s computes one power for both
        b_p = b_w * slope(b_w, r, R)
    return b_p


@triton.jit
def positive(b_w):
    """Return the positive part of w, which is at most 1: an end at 0 and 1 is part of the instruction before it."""
    return tl.minimum(tl.maximum(b_w, 0.0), 1.0)


@triton.jit
def newton_step(b_depth, b_f, b_g, a, R: tl.constexpr):
    """Return the depth after Newton's step on the r-norm, which never passes the threshold from below. f = sum w^r, g =
    sum w^(r - 1).
    """
    if R == 1:
        b_step = (b_f - 1) / b_g
    elif R == 2:
        b_step = (b_f - tl.sqrt(b_f)) / b_g
    else:
        b_step = (b_f - tl.exp2((1 - a) * tl.log2(tl.maximum(b_f, 1.0)))) / b_g
    return tl.where(b_f > 1, b_depth - b_step, b_depth)


@triton.jit
def last_error(tolerance, a, LEARNED: tl.constexpr):
    """Return the allowed error of the sum of weights before Newton's last step, which squares the error for alpha <=
    1.5.
    """
    if LEARNED:
        tolerance = tl.where(a <= 0.5, 1e-3, tolerance)
    return tolerance


@triton.jit
def alpha_slope(b_w, a):
    """Return the derivative of p^a / a in a, plus 1 / a^2, with p^a = w: its factors sum to 0, so that the constant
    cancels.
    """
    b_log = tl.log(tl.where(b_w > 0, b_w, 1.0))
    return tl.where(b_w > 0, b_log * b_log * curve(b_log, False) / (a * a), 0.0)


@triton.jit
def sink_units(p_sink, a, BR: tl.constexpr, SINKS: tl.constexpr):
    """Return u of the sink for each row, -inf if there is no sink."""
    if SINKS:
        b_sink = tl.zeros((BR,), tl.float32) + tl.load(p_sink).to(tl.float32) * a
    else:
        b_sink = tl.full((BR,), float("-inf"), tl.float32)
    return b_sink


@triton.jit
def row_states(p_seed, o_row):
    """Return a 32-bit hash state for each row, counted over all batches and heads: see dropout.py."""
    seed = tl.load(p_seed)
    b_row = o_row.to(tl.int64)
    b_state = _mixed(_mixed((seed >> 32).to(tl.uint32)) ^ seed.to(tl.uint32))
    return _mixed(_mixed(b_state ^ (b_row >> 32).to(tl.uint32)) ^ b_row.to(tl.uint32))


@triton.jit
def kept(b_state, o_key, drop):
    """Return 1 / (1 - rate) for weights (rows, keys) that are kept, 0 for dropped weights; o_key is (1, keys) or (rows,
    keys).
    """
    b_drawn = _mixed(b_state[:, None] ^ _mixed(o_key.to(tl.uint32))) >> 8
    return tl.where(b_drawn.to(tl.int32) >= drop, 1 / (1 - drop * 5.9604644775390625e-08), 0.0)


@triton.jit
def _mixed(b_x):
    b_x = b_x ^ (b_x >> 16)
    b_x = b_x * 0x7FEB352D
    b_x = b_x ^ (b_x >> 15)
    b_x = b_x * 0x846CA68B
    return b_x ^ (b_x >> 16)
