"""Steps of all threshold kernels: exponents, the next guess, coefficients of the Jacobian. For Triton."""

import triton
import triton.language as tl

from polymax.backend.triton_math import fast_log2, log2_1p
from polymax.kernels.threshold import NORM, SQUARED_NORM, TSALLIS

# methods that find the threshold: POWER is for one alpha in float32, for which Newton's method needs no guard
SOFTMAX, SPARSEMAX, ENTMAX15, POWER, GENERAL = (tl.constexpr(i) for i in range(5))
# rows that a launch computes, by their alpha: powers below 1 amplify rounding, so that alpha > 2 runs in float64
ALL_ROWS, UP_TO_2, ABOVE_2 = (tl.constexpr(i) for i in range(3))
IS_TSALLIS, IS_NORM, IS_SQUARED = (tl.constexpr(f) for f in (TSALLIS, NORM, SQUARED_NORM))
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def exponents(p_alpha, i_r, m_r, alpha, FAMILY: tl.constexpr, PER_ROW: tl.constexpr, b_like):
    """Return a mask of rows with alpha = 1, the scale of the scores and the exponent r, as columns."""
    b_alpha = b_like * 0 + alpha
    if PER_ROW:
        b_alpha = tl.load(p_alpha + i_r, mask=m_r, other=2.0).to(b_like.dtype)[:, None] + b_like * 0
    m_entropic = b_alpha == 1
    b_safe = tl.where(m_entropic, b_like * 0 + 2, b_alpha)
    if FAMILY == IS_TSALLIS:
        b_scale = b_safe - 1
        b_r = 1 / (b_safe - 1)
    else:
        b_scale = b_like * 0 + 1
        b_r = b_safe / (b_safe - 1)
    return m_entropic, b_scale, b_r


@triton.jit
def highest(b_scale, n):
    """Return an upper bound of t: the support's edge of a single entry or, below alpha = 1, a bound for n equal
    entries.
    """
    return tl.where(b_scale > 0, 1 / b_scale, b_scale * 0 + n)


@triton.jit
def rows_of_part(p_alpha, i_r, m_r, PART: tl.constexpr):
    """Return the mask of the rows of a launch: all, those with alpha at most 2, or those above."""
    if PART != ALL_ROWS:
        b_alpha = tl.load(p_alpha + i_r, mask=m_r, other=2.0)
        m_r = m_r & ((b_alpha > 2) == (PART == ABOVE_2))
    return m_r


@triton.jit
def log2_distance(b_z, b_t, b_scale, WIDE: tl.constexpr):
    """Return a mask of positive d = 1 + scale (z - t), d and its logarithm; 1 and 0 outside the mask."""
    b_s = b_scale * (b_z - b_t)
    # below alpha = 1 the scale is negative, and -inf entries have an infinite distance
    m_in = (b_s > -1) & (b_s < float("inf"))
    return m_in, tl.where(m_in, 1 + b_s, 1), log2_1p(tl.where(m_in, b_s, 0), WIDE)


@triton.jit
def step(b_t, b_low, b_high, b_lowest, b_lower, b_total, b_scale, b_r, FAMILY: tl.constexpr):
    """Return the next t by Newton's or Halley's method, or by bisection; and the bracket."""
    b_safe = tl.where(b_total > 0, b_total, 1)
    b_under = tl.where(b_lower > 0, b_lower, 1)
    b_ratio = b_under / b_safe
    if FAMILY == IS_SQUARED:
        b_log = tl.log2(b_under) + (2 / b_r - 1) * tl.log2(b_safe)
        b_slope = (b_r - 1) * b_lowest / b_under - (b_r - 2) * b_ratio
        m_convex = b_r >= 2
        b_step = _one_minus_exp2(-b_log) / tl.where(b_slope > 0, b_slope, 1)
    else:
        b_log = tl.log2(b_safe)
        b_newton = _one_minus_exp2(-b_log / b_r) / b_ratio
        # Halley's correction; below r = 2 the second derivative is unbounded, and Newton's step is safer
        b_bend = tl.where(b_r >= 2, (b_r - 1) * (b_lowest / b_under - b_ratio), 0)
        b_damp = 1 - 0.5 * b_newton * b_bend
        b_step = b_newton / tl.where(b_damp > 0.5, b_damp, 1) / b_scale
        m_convex = (b_r >= 1) | (b_r < 0)
    m_over = (b_log >= 0) & (b_total > 0)
    b_low = tl.where(m_over, b_t, b_low)
    b_high = tl.where(m_over, b_high, b_t)
    b_guess = b_t + b_step
    m_inside = m_convex & (b_low <= b_guess) & (b_guess <= b_high)
    return tl.where(m_inside, b_guess, 0.5 * (b_low + b_high)), b_low, b_high, m_convex


@triton.jit
def _one_minus_exp2(b_x):
    """Return 1 - 2^x, by its series near 0, where the formula cancels."""
    b_s = b_x * LN_2
    b_near = -b_s * (1 + b_s * (1 / 2 + b_s * (1 / 6 + b_s * (1 / 24 + b_s / 120))))
    return tl.where(tl.abs(b_s) < 1e-2, b_near, 1 - tl.exp2(b_x))


@triton.jit
def weights(b_y, b_alpha, METHOD: tl.constexpr, WIDE: tl.constexpr):
    """Return y^(2 - alpha) on the support, 0 elsewhere; NaN stays."""
    if METHOD == SOFTMAX:
        b_w = b_y
    elif METHOD == SPARSEMAX:
        b_w = tl.where(b_y > 0, 1.0, b_y)
    elif METHOD == ENTMAX15:
        b_w = tl.sqrt(b_y)
    else:
        m_in = b_y > 0
        b_safe = tl.where(m_in, b_y, 1.0)
        b_log = tl.log2(b_safe) if WIDE else fast_log2(b_safe)
        b_w = tl.where(m_in, tl.exp2(b_log * (2 - b_alpha)), b_y)
    return b_w


@triton.jit
def coefficients(b_total, b_wv, b_yv, b_norm, b_alpha, FAMILY: tl.constexpr):
    """Return a, b, c of J v = w (a v + b) + c y, from the sums of w, w v, y v and y^alpha."""
    b_safe = tl.where(b_total == 0, 1, b_total)
    if FAMILY == IS_TSALLIS:
        b_a = b_total * 0 + 1
        b_b = -b_wv / b_safe
        b_c = b_total * 0
    else:
        b_log = tl.log2(tl.where(b_norm > 0, b_norm, 1)) / b_alpha
        if FAMILY == IS_NORM:
            b_a = tl.exp2(b_log * (b_alpha - 1)) / (b_alpha - 1)
            b_b = -b_a * b_yv
            b_c = -b_a * (b_wv - b_total * b_yv)
        else:
            b_weight = tl.exp2(b_log * (b_alpha - 2))
            b_kappa = (2 - b_alpha) * tl.exp2(-2 * b_log)
            b_mass = b_weight * b_total - b_kappa
            b_mean = (b_weight * b_wv - b_kappa * b_yv) / tl.where(b_mass == 0, 1, b_mass)
            b_a = b_weight / (b_alpha - 1)
            b_b = -b_a * b_mean
            b_c = b_kappa * (b_mean - b_yv) / (b_alpha - 1)
    return b_a, b_b, b_c
