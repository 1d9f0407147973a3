"""The tangent of chains: a walk up for dv, the derivative of v, and one down for that of expectations. For Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.chain.cuda_edges import Tangents, change_of_weights, edges, load_change, shared_change
from polymax.kernels.chain.cuda_local import column_max, load_matrix, load_states, load_tile, weights
from polymax.kernels.chain.cuda_shapes import Chain, distinct
from polymax.kernels.local_max.triton_max import HARD, slopes
from polymax.kernels.triton_launch import Entry
from polymax.kernels.triton_math import on_device

TILE = 4096


def tangent(
    chain: Chain, unary: Tensor, chart: Tensor, g: Tensor, d_unary: Tensor, d_transition: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    value = unary.new_zeros(unary.shape[0])
    # per state: dv, the means of the Jacobians, expectations, and their tangent
    dv, means, mu, dmu = (torch.empty_like(unary, memory_format=torch.contiguous_format) for _ in range(4))
    dw, stride_b, stride_t = distinct(d_transition)
    if unary.numel():
        with on_device(unary):
            args = chain.lengths, chart.contiguous(), g.contiguous(), d_unary.contiguous(), dw, stride_b, stride_t
            out = value, dv, means, mu, dmu
            _tangent[(unary.shape[0],)](*chain.matrices, *args, *out, **chain.options(TILE))
    return value, dmu, edges(chain, chart, mu, Tangents(dv, means, dmu, dw, stride_b, stride_t))


@Entry
@triton.jit
def _tangent(
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
    p_du,
    p_dw,
    stride_db,
    stride_dt,
    p_value,
    p_dv,
    p_means,
    p_mu,
    p_dmu,
    ALPHA: tl.constexpr,
    KIND: tl.constexpr,
    BI: tl.constexpr,
    BJ: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b).to(tl.int32)
    g = tl.load(p_g + i_b)
    p_chart += i_b * n * 2 * s
    p_du += i_b * n * s
    p_dv += i_b * n * s
    p_means += i_b * n * s
    p_mu += i_b * n * s
    p_dmu += i_b * n * s
    o_i = tl.arange(0, BI)
    m_i = o_i < s
    b_zero = tl.zeros([BI], p_mu.dtype.element_ty)
    for t in range(length, n):
        tl.store(p_dmu + t * s + o_i, b_zero, mask=m_i)
    total = tl.zeros([], tl.float64)
    if length > 0:
        tl.store(p_dv + o_i, tl.load(p_du + o_i, mask=m_i, other=0), mask=m_i)
    for t in range(1, length):
        b_v, _ = load_states(p_chart + (t - 1) * 2 * s, s, BI)
        # the row of the step before is written by other threads
        tl.debug_barrier()
        b_raw = tl.load(p_dv + (t - 1) * s + o_i, mask=m_i, other=0)
        total += shared_change(b_raw, b_v).to(tl.float64)
        b_dv = load_change(p_dv + (t - 1) * s, b_v, s, BI)
        for i_j in range(0, s, BJ):
            o_j = i_j + tl.arange(0, BJ)
            b_p, b_da = _step(
                p_w,
                p_top,
                (i_b // group) * stride_wb + (t - 1) * stride_wt,
                p_dw,
                (i_b // group) * stride_db + (t - 1) * stride_dt,
                p_chart + t * 2 * s + s,
                b_v,
                b_dv,
                o_j,
                s,
                ALPHA,
                KIND,
                BI,
            )
            b_slope = slopes(b_p, ALPHA, KIND)
            b_weight = tl.sum(b_slope, 0)
            b_mean = tl.sum(tl.where(b_slope == 0, 0, b_slope * b_da), 0) / tl.where(b_weight > 0, b_weight, 1)
            b_dm = tl.sum(tl.where(b_p == 0, 0, b_p * b_da), 0)
            b_du = tl.load(p_du + t * s + o_j, mask=o_j < s, other=0)
            tl.store(p_means + t * s + o_j, b_mean, mask=o_j < s)
            tl.store(p_dv + t * s + o_j, b_dm + b_du, mask=o_j < s)
    tl.debug_barrier()
    if length > 0:
        b_v, _ = load_states(p_chart + (length - 1) * 2 * s, s, BI)
        b_raw = tl.load(p_dv + (length - 1) * s + o_i, mask=m_i, other=0)
        total += shared_change(b_raw, b_v).to(tl.float64)
        b_dv = load_change(p_dv + (length - 1) * s, b_v, s, BI)
        _, b_theta = column_max(b_v[:, None], ALPHA, KIND)
        b_p = weights(b_v[:, None], b_theta, ALPHA, KIND)
        b_slope = slopes(b_p, ALPHA, KIND)
        b_weight = tl.sum(b_slope, 0)
        b_da = b_dv[:, None]
        b_mean = tl.sum(tl.where(b_slope == 0, 0, b_slope * b_da), 0) / tl.where(b_weight > 0, b_weight, 1)
        total += tl.sum(tl.sum(tl.where(b_p == 0, 0, b_p * b_da), 0), 0).to(tl.float64)
        b_dp = change_of_weights(b_p, b_da, b_mean, ALPHA, KIND)
        tl.store(p_mu + (length - 1) * s + o_i, tl.sum(b_p, 1) * g, mask=m_i)
        tl.store(p_dmu + (length - 1) * s + o_i, tl.sum(b_dp, 1) * g, mask=m_i)
        # a value of -inf has no weights anywhere
        total = tl.where(tl.sum(tl.sum(b_p, 0), 0) == 0, 0, total)
        tl.store(p_value + i_b, total.to(p_value.dtype.element_ty))
    for k in range(1, length):
        t = length - k
        b_v, _ = load_states(p_chart + (t - 1) * 2 * s, s, BI)
        b_dv = load_change(p_dv + (t - 1) * s, b_v, s, BI)
        b_mu = b_zero
        b_dmu = b_zero
        # the rows of the step after are written by other threads
        tl.debug_barrier()
        for i_j in range(0, s, BJ):
            o_j = i_j + tl.arange(0, BJ)
            b_p, b_da = _step(
                p_w,
                p_top,
                (i_b // group) * stride_wb + (t - 1) * stride_wt,
                p_dw,
                (i_b // group) * stride_db + (t - 1) * stride_dt,
                p_chart + t * 2 * s + s,
                b_v,
                b_dv,
                o_j,
                s,
                ALPHA,
                KIND,
                BI,
            )
            b_mean = tl.load(p_means + t * s + o_j, mask=o_j < s, other=0)
            b_r = tl.load(p_mu + t * s + o_j, mask=o_j < s, other=0)
            b_dr = tl.load(p_dmu + t * s + o_j, mask=o_j < s, other=0)
            b_dp = change_of_weights(b_p, b_da, b_mean, ALPHA, KIND)
            b_mu += tl.sum(b_p * b_r[None, :], 1)
            b_dmu += tl.sum(b_dp * b_r[None, :] + b_p * b_dr[None, :], 1)
        if KIND != HARD:
            # expectations add up to g and their tangents to 0: rounding does not add up over the steps
            mass = tl.sum(b_mu, 0)
            b_part = b_mu / tl.where(mass != 0, mass, 1)
            b_dmu -= tl.sum(b_dmu, 0) * b_part
            b_mu = tl.where(mass != 0, b_part * g, b_mu)
        tl.store(p_mu + (t - 1) * s + o_i, b_mu, mask=m_i)
        tl.store(p_dmu + (t - 1) * s + o_i, b_dmu, mask=m_i)


@triton.jit
def _step(
    p_w, p_top, i_w, p_dw, i_d, p_theta, b_v, b_dv, o_j, s, ALPHA: tl.constexpr, KIND: tl.constexpr, BI: tl.constexpr
):
    """Weights of the transitions into states o_j, and the derivative of their scores."""
    b_w, _ = load_matrix(p_w, p_top, i_w, o_j, s, BI)
    b_theta = tl.load(p_theta + o_j, mask=o_j < s, other=0)
    b_dw = load_tile(p_dw, i_d, o_j, s, 0, BI)
    return weights(b_v[:, None] + b_w, b_theta, ALPHA, KIND), b_dv[:, None] + b_dw
