"""Scores from logits, and powers of their excess over a threshold, for Triton."""

import triton
import triton.language as tl

# largest power that is computed by products
INTEGERS = 8


def power_of(alpha: float) -> int:
    """Return 1 / (alpha - 1) if it is a small integer, -1 for the exponential function, 0 for any other power."""
    if alpha <= 1:
        return -1 if alpha == 1 else 0
    power = round(1 / (alpha - 1))
    return power if power <= INTEGERS and abs(power * (alpha - 1) - 1) < 1e-12 else 0


@triton.jit
def capped_scores(b_x, softcap, CAP: tl.constexpr):
    """Return softcap tanh(x / softcap)."""
    if CAP:
        # 1 - 2 / (e^(2y) + 1), in which an overflow does not lead to NaN
        b_s = softcap * (1 - 2 / (tl.exp(b_x * (2 / softcap)) + 1))
    else:
        b_s = b_x
    return b_s


@triton.jit
def load_scores(p_x, p_bias, o_n, words, softcap, BIAS: tl.constexpr, CAP: tl.constexpr):
    """Return scores of words o_n of a row, -inf behind the last word."""
    b_x = tl.load(p_x + o_n, mask=o_n < words, other=float("-inf")).to(p_bias.dtype.element_ty)
    if BIAS:
        b_x += tl.load(p_bias + o_n, mask=o_n < words, other=0.0)
    if CAP:
        b_x = tl.where(o_n < words, capped_scores(b_x, softcap, CAP), float("-inf"))
    return b_x


@triton.jit
def powers(b_w, r, R: tl.constexpr):
    """Return w^(r-1) and w^r for w >= 0, both 0 at w = 0."""
    if R == 1:
        b_low = (b_w > 0).to(b_w.dtype)
        b_high = b_w
    elif R == 2:
        b_low = b_w
        b_high = b_w * b_w
    elif R > 2:
        b_low = b_w
        for _ in tl.static_range(R - 2):
            b_low = b_low * b_w
        b_high = b_low * b_w
    else:
        m_in = b_w > 0
        b_low = tl.where(m_in, tl.exp2(tl.log2(tl.where(m_in, b_w, 1)) * (r - 1)), 0)
        b_high = b_low * b_w
    return b_low, b_high


@triton.jit
def newton_step(b_total, b_lower, a, R: tl.constexpr):
    """Return Newton's step on a norm of the excess over a bound, which is convex: from the left it does not pass the
    root.
    """
    if R == 1:
        b_root = b_total * 0 + 1
    elif R == 2:
        b_root = tl.sqrt(b_total)
    else:
        b_root = tl.exp2(tl.log2(tl.where(b_total > 0, b_total, 1)) * (1 - a))
    return tl.where(b_lower > 0, (b_total - b_root) / tl.where(b_lower > 0, b_lower, 1), 0)


@triton.jit
def weights_of(b_z, b_tau, a, R: tl.constexpr):
    """Return the weights of scores z, which are less the largest score of their row, from the threshold."""
    if R == -1:
        b_p = tl.exp(b_z - b_tau)
    else:
        _, b_p = powers(tl.maximum(a * b_z - b_tau, 0.0), 1 / a, R)
        b_p = tl.where(b_tau == b_tau, b_p, float("nan"))
    return b_p


@triton.jit
def slopes_of_logits(b_dx, b_x, softcap, scale, CAP: tl.constexpr):
    """Return the gradients of logits from those of their scores x."""
    b_dx *= scale
    if CAP:
        b_c = b_x / (scale * softcap)
        b_dx *= 1 - b_c * b_c
    return b_dx


@triton.jit
def lowest_power(b_w, R: tl.constexpr):
    """Return w^(r-2) for w >= 0 and r >= 2, 0 at w = 0."""
    b_power = (b_w > 0).to(b_w.dtype)
    for _ in tl.static_range(R - 2):
        b_power = b_power * b_w
    return b_power


@triton.jit
def halley_step(b_total, b_lower, b_lowest, a, R: tl.constexpr):
    """Return `newton_step` corrected by the second derivative of the norm, from the sum of w^(r-2), where R >= 2."""
    b_step = newton_step(b_total, b_lower, a, R)
    if R >= 2:
        m_in = (b_total > 0) & (b_lower > 0)
        b_root = tl.exp2(tl.log2(tl.where(m_in, b_total, 1)) * (0 - a))
        b_bend = tl.where(m_in, b_lowest * b_total / tl.where(m_in, b_lower * b_lower, 1) - 1, 0)
        # far from the root the correction may have the wrong size
        b_less = 0.5 * (R - 1) * (1 - b_root) * b_bend
        b_step = b_step / (1 - tl.minimum(tl.maximum(b_less, -1.0), 0.5))
    return b_step
