"""The walks of the tangent of chains whose transitions fit into one tile: up for dv, then down. For Triton."""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.chain.cuda_edges import change_of_weights, shared_change
from polymax.kernels.chain.cuda_local import weights
from polymax.kernels.chain.cuda_outside import slope_means
from polymax.kernels.chain.cuda_whole_walks import (
    clear,
    finish,
    last_weights,
    load_row,
    load_slope,
    load_whole,
    put,
    relative,
)
from polymax.kernels.local_max.triton_max import HARD


@Entry
@triton.jit(do_not_specialize=["given", "at_sums", "states", "steps", "valued"])
def walk_tangent(
    p_w,
    p_lengths,
    p_chart,
    p_v,
    p_g,
    p_du,
    p_dw,
    p_room,
    p_value,
    p_dmu,
    p_sums,
    group,
    stride_w,
    n,
    s,
    given,
    group_d,
    stride_d,
    at_sums,
    states,
    steps,
    valued,
    SUMMED: tl.constexpr,
    ONE: tl.constexpr,
    ALPHA: tl.constexpr,
    KIND: tl.constexpr,
    SHARED: tl.constexpr,
    BS: tl.constexpr,
):
    real: tl.constexpr = p_chart.dtype.element_ty
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b).to(tl.int32)
    g = load_slope(p_v + i_b, p_g + i_b, given)
    p_chart += i_b * n * 2 * s
    p_room += i_b * n * 2 * s
    p_du += i_b * n * s
    p_dmu += i_b * n * s
    i_w = (i_b // group) * stride_w
    i_d = (i_b // group_d) * stride_d
    i_sum = i_b * (1 if SUMMED else n - 1)
    p_sums += at_sums
    o_s = tl.arange(0, BS)
    m_s = o_s < s
    # missing tangents are 0
    m_du = m_s & (states > 0)
    b_sum = clear(p_dmu, p_sums, i_sum, length, n, s, SUMMED, BS)
    total = tl.zeros([], tl.float64)
    if length > 0:
        b_w, _ = load_whole(p_w, i_w, s, BS, real)
        b_dw = _tangents(p_dw, i_d, s, steps, BS)
        b_v = tl.load(p_chart + o_s, mask=m_s, other=float("-inf"))
        b_dv = tl.load(p_du + o_s, mask=m_du, other=0)
        for t in range(1, length):
            # a constant for all states is added to the total, and cancels in every weight
            b_v = relative(b_v)
            shift = shared_change(b_dv, b_v)
            total += shift.to(tl.float64)
            b_dv = tl.where(b_v > float("-inf"), b_dv - shift, 0)
            tl.store(p_room + (t - 1) * 2 * s + o_s, b_dv, mask=m_s)
            if not SHARED:
                b_w, _ = load_whole(p_w, i_w + t - 1, s, BS, real)
            if not ONE:
                b_dw = _tangents(p_dw, i_d + t - 1, s, steps, BS)
            p_row = p_chart + t * 2 * s + o_s
            b_theta = tl.load(p_row + s, mask=m_s, other=0)
            b_p = weights(b_v[:, None] + b_w, b_theta, ALPHA, KIND)
            b_da = b_dv[:, None] + b_dw
            tl.store(p_room + t * 2 * s + s + o_s, slope_means(b_p, b_da, ALPHA, KIND), mask=m_s)
            b_dv = tl.sum(tl.where(b_p == 0, 0, b_p * b_da), 0) + tl.load(p_du + t * s + o_s, mask=m_du, other=0)
            b_v = tl.load(p_row, mask=m_s, other=float("-inf"))
        b_v = relative(b_v)
        shift = shared_change(b_dv, b_v)
        b_dv = tl.where(b_v > float("-inf"), b_dv - shift, 0)
        b_root = last_weights(p_chart + (length - 1) * 2 * s, s, ALPHA, KIND, BS)
        b_end = b_dv[:, None]
        b_droot = change_of_weights(b_root, b_end, slope_means(b_root, b_end, ALPHA, KIND), ALPHA, KIND)
        total += shift.to(tl.float64) + tl.sum(tl.sum(tl.where(b_root == 0, 0, b_root * b_end), 0), 0).to(tl.float64)
        # without a finite value no transition has weight
        total = tl.where(tl.sum(tl.sum(b_root, 0), 0) == 0, 0, total)
        b_mu, b_dmu = tl.sum(b_root, 1) * g, tl.sum(b_droot, 1) * g
        tl.store(p_dmu + (length - 1) * s + o_s, b_dmu, mask=m_s)
        # other threads wrote the rows that are read below
        tl.debug_barrier()
        for k in range(1, length):
            t = length - k
            b_v, b_theta = load_row(p_chart, t, s, BS)
            b_dv = tl.load(p_room + (t - 1) * 2 * s + o_s, mask=m_s, other=0)
            b_mean = tl.load(p_room + t * 2 * s + s + o_s, mask=m_s, other=0)
            if not SHARED:
                b_w, _ = load_whole(p_w, i_w + t - 1, s, BS, real)
            if not ONE:
                b_dw = _tangents(p_dw, i_d + t - 1, s, steps, BS)
            b_p = weights(relative(b_v)[:, None] + b_w, b_theta, ALPHA, KIND)
            b_q = change_of_weights(b_p, b_dv[:, None] + b_dw, b_mean, ALPHA, KIND) * b_mu[None, :]
            b_q += b_p * b_dmu[None, :]
            b_mu, b_dmu = tl.sum(b_p * b_mu[None, :], 1), tl.sum(b_q, 1)
            if KIND != HARD:
                # expectations sum to g and their tangents to 0: rescale, so that rounding does not accumulate over the
                # steps
                mass = tl.sum(b_mu, 0)
                safe = tl.where(mass != 0, mass, 1)
                b_dmu -= tl.sum(b_dmu, 0) * (b_mu / safe)
                b_mu = b_mu * tl.where(mass != 0, g / safe, 1)
            tl.store(p_dmu + (t - 1) * s + o_s, b_dmu, mask=m_s)
            b_sum = put(p_sums, i_sum + t - 1, b_sum, b_q, s, SUMMED, BS)
    tl.store(p_value + i_b, total.to(p_value.dtype.element_ty), mask=valued > 0)
    finish(p_sums, i_sum, b_sum, s, SUMMED, BS)


@triton.jit
def _tangents(p_dw, i_d, s, steps, BS: tl.constexpr):
    """Return matrix i_d of the tangents of transitions; zeros if `steps` is 0."""
    o_s = tl.arange(0, BS)
    m_x = (o_s < s)[:, None] & (o_s < s)[None, :] & (steps > 0)
    return tl.load(p_dw + i_d * s * s + (o_s[:, None] * s + o_s[None, :]), mask=m_x, other=0)
