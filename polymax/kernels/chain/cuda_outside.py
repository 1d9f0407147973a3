"""The walks for a chain's expectations: one down, or for their tangent one up for dv and then one down. For Triton."""

import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import on_device
from polymax.kernels.chain.cuda_edges import Tangents, change_of_weights, load_change, shared_change, without_tangents
from polymax.kernels.chain.cuda_local import column_max, load_matrix, load_states, load_tile, weights
from polymax.kernels.chain.cuda_shapes import TILE, ChainShapes
from polymax.kernels.local_max.triton_max import HARD, slopes

# entries of a tangent's tile, which is held with its derivative
TANGENT_TILE = 4096


def walk_back(
    chain: ChainShapes,
    chart: Tensor,
    g: Tensor,
    mu: Tensor,
    tangents: Tangents | None = None,
    d_unary: Tensor | None = None,
    dvalue: Tensor | None = None,
) -> None:
    """Fill the expectations mu of states; if tangents are given, fill them and the derivative of the value too."""
    if not mu.numel():
        return
    more = tangents or without_tangents(mu)
    along = (mu, mu) if d_unary is None or dvalue is None else (d_unary.contiguous(), dvalue)
    args = *chain.matrices, chain.lengths, chart.contiguous(), g.contiguous(), mu, *more, *along
    options = chain.options(TANGENT_TILE if tangents else TILE)
    with on_device(mu):
        _outside[(mu.shape[0],)](*args, TANGENTS=tangents is not None, **options)


@Entry
@triton.jit
def _outside(
    p_w,
    p_top,
    stride_wb,
    stride_wt,
    group,
    n,
    s,
    p_lengths,
    p_chart,
    p_g,
    p_mu,
    p_dv,
    p_means,
    p_dmu,
    p_dw,
    stride_db,
    stride_dt,
    p_du,
    p_dvalue,
    TANGENTS: tl.constexpr,
    ALPHA: tl.constexpr,
    KIND: tl.constexpr,
    BI: tl.constexpr,
    BJ: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b).to(tl.int32)
    g = tl.load(p_g + i_b)
    p_chart += i_b * n * 2 * s
    p_mu += i_b * n * s
    p_dv += i_b * n * s
    p_means += i_b * n * s
    p_dmu += i_b * n * s
    i_w = (i_b // group) * stride_wb
    i_d = (i_b // group) * stride_db
    o_i = tl.arange(0, BI)
    m_i = o_i < s
    b_zero = tl.zeros([BI], p_mu.dtype.element_ty)
    for t in range(length, n):
        tl.store((p_dmu if TANGENTS else p_mu) + t * s + o_i, b_zero, mask=m_i)
    if TANGENTS:
        total = _up(
            p_w, p_top, i_w, stride_wt, p_dw, i_d, stride_dt, p_chart, p_du + i_b * n * s, p_dv, p_means, length, s,
            ALPHA, KIND, BI, BJ,
        )  # fmt: skip
    if length > 0:
        b_v, _ = load_states(p_chart + (length - 1) * 2 * s, s, BI)
        _, b_theta = column_max(b_v[:, None], ALPHA, KIND)
        b_p = weights(b_v[:, None], b_theta, ALPHA, KIND)
        b_mu = tl.sum(b_p, 1)
        if KIND == HARD:
            b_mu = tl.where(tl.max((b_v != b_v).to(tl.int32), 0) > 0, float("nan"), b_mu)
        tl.store(p_mu + (length - 1) * s + o_i, b_mu * g, mask=m_i)
        if TANGENTS:
            b_da = load_change(p_dv + (length - 1) * s, b_v, s, BI)[:, None]
            b_dp = change_of_weights(b_p, b_da, slope_means(b_p, b_da, ALPHA, KIND), ALPHA, KIND)
            tl.store(p_dmu + (length - 1) * s + o_i, tl.sum(b_dp, 1) * g, mask=m_i)
            total += tl.sum(tl.sum(tl.where(b_p == 0, 0, b_p * b_da), 0), 0).to(tl.float64)
            # without a finite value no transition has weight
            total = tl.where(tl.sum(tl.sum(b_p, 0), 0) == 0, 0, total)
            tl.store(p_dvalue + i_b, total.to(p_dvalue.dtype.element_ty))
    for k in range(1, length):
        t = length - k
        b_v, _ = load_states(p_chart + (t - 1) * 2 * s, s, BI)
        b_dv = b_v
        b_mu, b_dmu = b_zero, b_zero
        if TANGENTS:
            b_dv = load_change(p_dv + (t - 1) * s, b_v, s, BI)
        i_wt, i_dt, p_theta = i_w + (t - 1) * stride_wt, i_d + (t - 1) * stride_dt, p_chart + t * 2 * s + s
        # other threads wrote the rows of the step after
        tl.debug_barrier()
        for i_j in range(0, s, BJ):
            o_j = i_j + tl.arange(0, BJ)
            b_p = _weights(p_w, p_top, i_wt, p_theta, b_v, o_j, s, ALPHA, KIND, BI)
            b_r = tl.load(p_mu + t * s + o_j, mask=o_j < s, other=0)
            b_mu += tl.sum(b_p * b_r[None, :], 1)
            if TANGENTS:
                b_da = b_dv[:, None] + load_tile(p_dw, i_dt, o_j, s, 0, BI)
                b_mean = tl.load(p_means + t * s + o_j, mask=o_j < s, other=0)
                b_dr = tl.load(p_dmu + t * s + o_j, mask=o_j < s, other=0)
                b_dp = change_of_weights(b_p, b_da, b_mean, ALPHA, KIND)
                b_dmu += tl.sum(b_dp * b_r[None, :] + b_p * b_dr[None, :], 1)
        if KIND != HARD:
            # expectations sum to g and their tangents to 0: rescale, so that rounding does not accumulate over the
            # steps
            mass = tl.sum(b_mu, 0)
            safe = tl.where(mass != 0, mass, 1)
            if TANGENTS:
                b_dmu -= tl.sum(b_dmu, 0) * (b_mu / safe)
            b_mu = b_mu * tl.where(mass != 0, g / safe, 1)
        tl.store(p_mu + (t - 1) * s + o_i, b_mu, mask=m_i)
        if TANGENTS:
            tl.store(p_dmu + (t - 1) * s + o_i, b_dmu, mask=m_i)


@triton.jit
def _up(
    p_w,
    p_top,
    i_w,
    stride_wt,
    p_dw,
    i_d,
    stride_dt,
    p_chart,
    p_du,
    p_dv,
    p_means,
    length,
    s,
    ALPHA: tl.constexpr,
    KIND: tl.constexpr,
    BI: tl.constexpr,
    BJ: tl.constexpr,
):
    """Fill dv and the means of the Jacobians; return the value's derivative without the part of the last maximum."""
    o_i = tl.arange(0, BI)
    m_i = o_i < s
    total = tl.zeros([], tl.float64)
    if length > 0:
        tl.store(p_dv + o_i, tl.load(p_du + o_i, mask=m_i, other=0), mask=m_i)
    for t in range(1, length):
        b_v, _ = load_states(p_chart + (t - 1) * 2 * s, s, BI)
        # other threads wrote the row of the step before
        tl.debug_barrier()
        b_raw = tl.load(p_dv + (t - 1) * s + o_i, mask=m_i, other=0)
        total += shared_change(b_raw, b_v).to(tl.float64)
        b_dv = load_change(p_dv + (t - 1) * s, b_v, s, BI)
        i_wt, i_dt, p_theta = i_w + (t - 1) * stride_wt, i_d + (t - 1) * stride_dt, p_chart + t * 2 * s + s
        for i_j in range(0, s, BJ):
            o_j = i_j + tl.arange(0, BJ)
            b_p = _weights(p_w, p_top, i_wt, p_theta, b_v, o_j, s, ALPHA, KIND, BI)
            b_da = b_dv[:, None] + load_tile(p_dw, i_dt, o_j, s, 0, BI)
            b_dm = tl.sum(tl.where(b_p == 0, 0, b_p * b_da), 0)
            b_du = tl.load(p_du + t * s + o_j, mask=o_j < s, other=0)
            tl.store(p_means + t * s + o_j, slope_means(b_p, b_da, ALPHA, KIND), mask=o_j < s)
            tl.store(p_dv + t * s + o_j, b_dm + b_du, mask=o_j < s)
    tl.debug_barrier()
    if length > 0:
        b_v, _ = load_states(p_chart + (length - 1) * 2 * s, s, BI)
        b_raw = tl.load(p_dv + (length - 1) * s + o_i, mask=m_i, other=0)
        total += shared_change(b_raw, b_v).to(tl.float64)
    return total


@triton.jit
def _weights(p_w, p_top, i_w, p_theta, b_v, o_j, s, ALPHA: tl.constexpr, KIND: tl.constexpr, BI: tl.constexpr):
    """Return weights of the transitions into states o_j."""
    b_w, _ = load_matrix(p_w, p_top, i_w, o_j, s, BI)
    b_theta = tl.load(p_theta + o_j, mask=o_j < s, other=0)
    return weights(b_v[:, None] + b_w, b_theta, ALPHA, KIND)


@triton.jit
def slope_means(b_p, b_da, ALPHA: tl.constexpr, KIND: tl.constexpr):
    """Return the means of the columns of da by the slopes of weights p."""
    b_slope = slopes(b_p, ALPHA, KIND)
    b_weight = tl.sum(b_slope, 0)
    return tl.sum(tl.where(b_slope == 0, 0, b_slope * b_da), 0) / tl.where(b_weight > 0, b_weight, 1)
