"""The walks of chains whose transitions fit into one tile: up for the values, down for the expectations. For Triton."""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.chain.cuda_local import column_max, finite_max, weights
from polymax.kernels.local_max.triton_max import HARD

# a loss below this part of the sum of its terms' sizes is rounding error
ROUNDING = tl.constexpr(32 * 2.0**-52)
# positions whose tags are read at a time
TERMS = tl.constexpr(128)


@Entry
@triton.jit
def walk_up(
    p_unary,
    p_w,
    p_lengths,
    p_tags,
    p_known,
    p_value,
    p_chart,
    group,
    stride_w,
    n,
    s,
    TAGS: tl.constexpr,
    ALPHA: tl.constexpr,
    KIND: tl.constexpr,
    SHARED: tl.constexpr,
    BS: tl.constexpr,
):
    """Write the value and the chart; with TAGS, of unary scores less the scores of the tags at their positions."""
    real: tl.constexpr = p_chart.dtype.element_ty
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b).to(tl.int32)
    p_unary += i_b * n * s
    p_chart += i_b * n * 2 * s
    i_w = (i_b // group) * stride_w
    o_s = tl.arange(0, BS)
    m_s = o_s < s
    b_zero = tl.zeros([BS], real)
    total = tl.zeros([], tl.float64)
    size = tl.zeros([], tl.float64)
    if length > 0:
        b_v = tl.load(p_unary + o_s, mask=m_s, other=float("-inf")).to(real)
        b_next = tl.load(p_unary + s + o_s, mask=m_s & (length > 1), other=float("-inf"))
        if TAGS:
            p_known += i_b * n
            size = tag_terms(p_unary, p_w, i_w, p_tags + i_b * n, p_known, length, s, SHARED)
            b_v -= tl.load(p_known)
            known = tl.load(p_known + 1, mask=length > 1, other=0)
        tl.store(p_chart + o_s, b_v, mask=m_s)
        tl.store(p_chart + s + o_s, b_zero, mask=m_s)
        b_w, w_top = load_whole(p_w, i_w, s, BS, real)
        for t in range(1, length):
            b_u = b_next.to(real)
            # load the inputs of the next step while this step is computed
            b_next = tl.load(p_unary + (t + 1) * s + o_s, mask=m_s & (t + 1 < length), other=float("-inf"))
            if not SHARED:
                b_w, w_top = load_whole(p_w, i_w + t - 1, s, BS, real)
            if TAGS:
                b_u -= known
                known = tl.load(p_known + t + 1, mask=t + 1 < length, other=0)
            unary_top, top = finite_max(b_u), finite_max(b_v)
            b_m, b_theta = column_max((b_v - top)[:, None] + b_w, ALPHA, KIND)
            b_v = b_m + (b_u - unary_top)
            p_row = p_chart + t * 2 * s + o_s
            tl.store(p_row, b_v, mask=m_s)
            tl.store(p_row + s, b_theta, mask=m_s)
            total += top.to(tl.float64) + unary_top.to(tl.float64) + w_top.to(tl.float64)
        top = finite_max(b_v)
        b_root, _ = column_max((b_v - top)[:, None], ALPHA, KIND)
        total += top.to(tl.float64) + tl.sum(b_root, 0).to(tl.float64)
    if TAGS:
        # a value below the rounding errors of its terms is 0; forbidden tags have infinite terms
        total = tl.where(tl.abs(total) <= size * ROUNDING, 0, total)
        total = tl.where((size == float("inf")) & (total == total), size, total)
    tl.store(p_value + i_b, total.to(p_value.dtype.element_ty))
    for t in range(length, n):
        tl.store(p_chart + t * 2 * s + o_s, b_zero, mask=m_s)
        tl.store(p_chart + t * 2 * s + s + o_s, b_zero, mask=m_s)


@Entry
@triton.jit(do_not_specialize=["given"])
def walk_down(
    p_w,
    p_lengths,
    p_tags,
    p_chart,
    p_v,
    p_g,
    p_mu,
    p_sums,
    group,
    stride_w,
    n,
    s,
    given,
    SUMMED: tl.constexpr,
    TAGS: tl.constexpr,
    ALPHA: tl.constexpr,
    KIND: tl.constexpr,
    SHARED: tl.constexpr,
    BS: tl.constexpr,
):
    """Write the expectations of states and of transitions; with TAGS, less g at the tags and between them."""
    real: tl.constexpr = p_chart.dtype.element_ty
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b).to(tl.int32)
    g = load_slope(p_v + i_b, p_g + i_b, given)
    if TAGS:
        # forbidden tags, whose value is infinite, have no gradient
        g = tl.where(tl.load(p_v + i_b) == float("inf"), 0, g)
        p_tags += i_b * n
        tag = tl.load(p_tags + length - 1, mask=length > 0, other=0)
        before_tag = tl.load(p_tags + length - 2, mask=length > 1, other=0)
    p_chart += i_b * n * 2 * s
    p_mu += i_b * n * s
    i_w = (i_b // group) * stride_w
    i_sum = i_b * (1 if SUMMED else n - 1)
    o_s = tl.arange(0, BS)
    m_s = o_s < s
    b_sum = clear(p_mu, p_sums, i_sum, length, n, s, SUMMED, BS)
    if length > 0:
        b_mu = last_weights(p_chart + (length - 1) * 2 * s, s, ALPHA, KIND, BS)
        b_mu = tl.sum(b_mu, 1) * g
        b_out = b_mu
        if TAGS:
            b_out -= tl.where(o_s == tag, g, 0)
        tl.store(p_mu + (length - 1) * s + o_s, b_out.to(p_mu.dtype.element_ty), mask=m_s)
        b_w, _ = load_whole(p_w, i_w, s, BS, real)
        before, theta = load_row(p_chart, length - 1, s, BS)
        for k in range(1, length):
            t = length - k
            b_v, b_theta = relative(before), theta
            # load the inputs of the next step while this step is computed
            before, theta = load_row(p_chart, t - 1, s, BS)
            if not SHARED:
                b_w, _ = load_whole(p_w, i_w + t - 1, s, BS, real)
            b_q = weights(b_v[:, None] + b_w, b_theta, ALPHA, KIND) * b_mu[None, :]
            b_mu = tl.sum(b_q, 1)
            if KIND != HARD:
                # expectations sum to g: rescale, so that rounding does not accumulate over the steps
                mass = tl.sum(b_mu, 0)
                b_mu = b_mu * tl.where(mass != 0, g / tl.where(mass != 0, mass, 1), 1)
            b_out = b_mu
            if TAGS:
                b_out -= tl.where(o_s == before_tag, g, 0)
                b_q -= tl.where((o_s == before_tag)[:, None] & (o_s == tag)[None, :], g, 0)
                tag = before_tag
                before_tag = tl.load(p_tags + t - 2, mask=t > 1, other=0)
            tl.store(p_mu + (t - 1) * s + o_s, b_out.to(p_mu.dtype.element_ty), mask=m_s)
            b_sum = put(p_sums, i_sum + t - 1, b_sum, b_q, s, SUMMED, BS)
    finish(p_sums, i_sum, b_sum, s, SUMMED, BS)


@triton.jit
def load_slope(p_v, p_g, given):
    """Return g, or 1 if it is not given; NaN if the value is NaN, since all derivatives of the instance are then
    NaN.
    """
    v = tl.load(p_v)
    return tl.where(v == v, tl.load(p_g, mask=given > 0, other=1.0), v)


@triton.jit
def tag_terms(p_unary, p_w, i_w, p_tags, p_known, length, s, SHARED: tl.constexpr):
    """Write the score of each tag plus that of the transition into it, and return the sum of their sizes.

    A score of -inf makes the sum infinite, and counts as 0. A number that is not a tag gives NaN.
    """
    size = tl.zeros([], tl.float64)
    for start in range(0, length, TERMS):
        o_t = start + tl.arange(0, TERMS)
        m_t = o_t < length
        b_tag = tl.load(p_tags + o_t, mask=m_t, other=0)
        b_before = tl.load(p_tags + o_t - 1, mask=m_t & (o_t > 0), other=-1)
        m_tag = (b_tag >= 0) & (b_tag < s)
        m_step = m_t & m_tag & (b_before >= 0) & (b_before < s)
        i_step = i_w + (o_t * 0 if SHARED else o_t - 1)
        b_state = tl.load(p_unary + o_t * s + b_tag, mask=m_t & m_tag, other=0).to(tl.float64)
        b_step = tl.load(p_w + (i_step * s + b_before) * s + b_tag, mask=m_step, other=0).to(tl.float64)
        b_state = tl.where(m_tag, b_state, float("nan"))
        size += tl.sum(tl.abs(b_state) + tl.abs(b_step), 0)
        b_state = tl.where(b_state == float("-inf"), 0, b_state)
        b_step = tl.where(b_step == float("-inf"), 0, b_step)
        tl.store(p_known + o_t, b_state + b_step, mask=m_t)
    # other threads wrote the terms
    tl.debug_barrier()
    return size


@triton.jit
def load_whole(p_w, i_w, s, BS: tl.constexpr, real: tl.constexpr):
    """Return transition matrix i_w less its maximum, and that maximum, or 0 if it is not finite."""
    b_w = load_square(p_w, i_w, s, float("-inf"), BS).to(real)
    top = finite_max(tl.max(b_w, 0))
    return b_w - top, top


@triton.jit
def load_square(p_x, i_x, s, other, BS: tl.constexpr):
    """Return matrix i_x."""
    o_s = tl.arange(0, BS)
    m_x = (o_s < s)[:, None] & (o_s < s)[None, :]
    return tl.load(p_x + i_x * s * s + (o_s[:, None] * s + o_s[None, :]), mask=m_x, other=other)


@triton.jit
def store_square(p_x, i_x, b_x, s, BS: tl.constexpr):
    o_s = tl.arange(0, BS)
    m_x = (o_s < s)[:, None] & (o_s < s)[None, :]
    tl.store(p_x + i_x * s * s + (o_s[:, None] * s + o_s[None, :]), b_x.to(p_x.dtype.element_ty), mask=m_x)


@triton.jit
def load_row(p_chart, t, s, BS: tl.constexpr):
    """Return v of step t - 1 and the thresholds of step t; for t = 0, -inf and 0."""
    o_s = tl.arange(0, BS)
    m_s = (o_s < s) & (t > 0)
    b_v = tl.load(p_chart + (t - 1) * 2 * s + o_s, mask=m_s, other=float("-inf"))
    return b_v, tl.load(p_chart + t * 2 * s + s + o_s, mask=m_s, other=0)


@triton.jit
def relative(b_v):
    """Return v less its maximum."""
    return b_v - finite_max(b_v)


@triton.jit
def last_weights(p_row, s, ALPHA: tl.constexpr, KIND: tl.constexpr, BS: tl.constexpr):
    """Return the weights (BS, 1) of the last states."""
    o_s = tl.arange(0, BS)
    b_v = relative(tl.load(p_row + o_s, mask=o_s < s, other=float("-inf")))
    _, b_theta = column_max(b_v[:, None], ALPHA, KIND)
    b_p = weights(b_v[:, None], b_theta, ALPHA, KIND)
    if KIND == HARD:
        b_p = tl.where(tl.max((b_v != b_v).to(tl.int32), 0) > 0, float("nan"), b_p)
    return b_p


@triton.jit
def clear(p_states, p_sums, i_sum, length, n, s, SUMMED: tl.constexpr, BS: tl.constexpr):
    """Write zeros at padded steps, and to the start of the sums."""
    o_s = tl.arange(0, BS)
    for t in range(length, n):
        tl.store(p_states + t * s + o_s, tl.zeros([BS], p_states.dtype.element_ty), mask=o_s < s)
    if not SUMMED:
        for t in range(tl.maximum(length, 1), n):
            store_square(p_sums, i_sum + t - 1, tl.zeros([BS, BS], tl.float32), s, BS)
    return tl.zeros([BS, BS] if SUMMED else [1, 1], tl.float64)


@triton.jit
def put(p_sums, i_sum, b_sum, b_q, s, SUMMED: tl.constexpr, BS: tl.constexpr):
    """Return the sum after adding the expectations of a step; unless SUMMED, store them instead."""
    if SUMMED:
        b_sum += b_q.to(tl.float64)
    else:
        store_square(p_sums, i_sum, b_q, s, BS)
    return b_sum


@triton.jit
def finish(p_sums, i_sum, b_sum, s, SUMMED: tl.constexpr, BS: tl.constexpr):
    """Store the sum over the steps."""
    if SUMMED:
        store_square(p_sums, i_sum, b_sum, s, BS)
