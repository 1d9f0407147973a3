"""Expectations of a chain's transitions, or their tangent, from those of its states. For Triton.

    mu[i, j] = p[i, j] mu_t[j],    dmu[i, j] = dp[i, j] mu_t[j] + p[i, j] dmu_t[j]

All steps run in parallel. Instances and steps that share a transition are divided into parts of fixed order: a program
sums its part in float64, and the parts are summed afterwards.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import on_device
from polymax.kernels.chain.cuda_local import load_matrix, load_states, load_tile, weights
from polymax.kernels.chain.cuda_shapes import ChainShapes
from polymax.kernels.local_max.triton_max import slopes

# programs that fill the device
PROGRAMS = 1024
TILE = 4096
# entries that a program adds up over the parts
BLOCK = 32


class Tangents(NamedTuple):
    """Results of the tangent's walk: dv, the means of the Jacobians and dmu per state; and d of the transitions."""

    dv: Tensor
    means: Tensor
    dmu: Tensor
    d_transition: Tensor
    stride_b: int
    stride_t: int


def without_tangents(mu: Tensor) -> Tangents:
    """Return placeholders for a kernel compiled without tangents, which reads none of them."""
    return Tangents(mu, mu, mu, mu, 0, 0)


def edges(chain: ChainShapes, chart: Tensor, mu: Tensor, tangents: Tangents | None = None) -> Tensor:
    """Return a tensor of the transitions' shape, summed over instances and steps that share a transition."""
    batch, steps, s = chain.transition.shape[:3]
    if chain.n < 2 or not chain.batch or not chain.transition.numel():
        return chain.transition.new_zeros(chain.transition.shape)
    options = chain.options(TILE)
    tiles = triton.cdiv(s, options["BJ"])
    span = chain.n - 1 if steps == 1 else 1
    terms = chain.group * span
    # the sums of parts take at most half the memory of the unary scores
    most = max(chain.batch * chain.n // (2 * batch * steps * s), 1)
    parts = min(terms, most, max(1, PROGRAMS // (batch * steps * tiles)))
    each = triton.cdiv(terms, parts)
    out = chain.transition.new_empty(batch, steps, parts, s, s)
    more = tangents or without_tangents(mu)
    args = *chain.matrices, chain.lengths, chart.contiguous(), mu, *more, out, steps, span, terms, parts, each
    with on_device(mu):
        _edges[(batch * steps * parts, tiles)](*args, TANGENTS=tangents is not None, **options)
        return out.squeeze(2) if parts == 1 else sum_of_parts(out)


def sum_of_parts(parts: Tensor) -> Tensor:
    """Return the sum over the parts, dim 2."""
    batch, steps, count, s, _ = parts.shape
    total = parts.new_empty(batch, steps, s, s)
    _add[(batch * steps, triton.cdiv(s * s, BLOCK))](parts, total, count, s * s, B=BLOCK, num_warps=1)
    return total


@Entry
@triton.jit
def _add(p_parts, p_total, count, size, B: tl.constexpr):
    o_x = tl.program_id(1) * B + tl.arange(0, B)
    m_x = o_x < size
    p_parts += tl.program_id(0).to(tl.int64) * count * size
    b_sum = tl.zeros([B], tl.float64)
    for k in range(count):
        b_sum += tl.load(p_parts + k * size + o_x, mask=m_x, other=0).to(tl.float64)
    p_total += tl.program_id(0).to(tl.int64) * size
    tl.store(p_total + o_x, b_sum.to(p_total.dtype.element_ty), mask=m_x)


@Entry
@triton.jit
def _edges(
    p_w,
    p_top,
    stride_wb,
    stride_wt,
    group,
    n,
    s,
    p_lengths,
    p_chart,
    p_mu,
    p_dv,
    p_means,
    p_dmu,
    p_dw,
    stride_db,
    stride_dt,
    p_out,
    steps,
    span,
    terms,
    parts,
    each,
    TANGENTS: tl.constexpr,
    ALPHA: tl.constexpr,
    KIND: tl.constexpr,
    BI: tl.constexpr,
    BJ: tl.constexpr,
):
    i_slot = (tl.program_id(0) // parts).to(tl.int64)
    i_part = tl.program_id(0) % parts
    i_m, i_step = i_slot // steps, i_slot % steps
    o_i = tl.arange(0, BI)
    o_j = tl.program_id(1) * BJ + tl.arange(0, BJ)
    m_j = o_j < s
    b_sum = tl.zeros([BI, BJ], tl.float64)
    for k in range(i_part * each, tl.minimum(i_part * each + each, terms)):
        i_b = i_m * group + k // span
        t = i_step + k % span + 1
        if t < tl.load(p_lengths + i_b):
            # the index of row t of instance i_b among all rows
            i_row = i_b * n + t
            b_v, _ = load_states(p_chart + (i_row - 1) * 2 * s, s, BI)
            b_w, _ = load_matrix(p_w, p_top, i_m * stride_wb + (t - 1) * stride_wt, o_j, s, BI)
            b_theta = tl.load(p_chart + i_row * 2 * s + s + o_j, mask=m_j, other=0)
            b_mu = tl.load(p_mu + i_row * s + o_j, mask=m_j, other=0)
            b_p = weights(b_v[:, None] + b_w, b_theta, ALPHA, KIND)
            if TANGENTS:
                b_dv = load_change(p_dv + (i_row - 1) * s, b_v, s, BI)
                b_dw = load_tile(p_dw, i_m * stride_db + (t - 1) * stride_dt, o_j, s, 0, BI)
                b_mean = tl.load(p_means + i_row * s + o_j, mask=m_j, other=0)
                b_dmu = tl.load(p_dmu + i_row * s + o_j, mask=m_j, other=0)
                b_q = change_of_weights(b_p, b_dv[:, None] + b_dw, b_mean, ALPHA, KIND) * b_mu[None, :]
                b_q += b_p * b_dmu[None, :]
            else:
                b_q = b_p * b_mu[None, :]
            b_sum += b_q.to(tl.float64)
    p_out += tl.program_id(0).to(tl.int64) * s * s
    m_x = (o_i < s)[:, None] & m_j[None, :]
    tl.store(p_out + (o_i[:, None] * s + o_j[None, :]), b_sum.to(p_out.dtype.element_ty), mask=m_x)


@triton.jit
def load_change(p_dv, b_v, s, BI: tl.constexpr):
    """Return dv of one step less its mean at the best states: a constant for all states cancels in every weight."""
    o_i = tl.arange(0, BI)
    b_dv = tl.load(p_dv + o_i, mask=o_i < s, other=0)
    return tl.where(b_v > float("-inf"), b_dv - shared_change(b_dv, b_v), 0)


@triton.jit
def shared_change(b_dv, b_v):
    """Return the mean of dv over the best states, whose v is 0."""
    count = tl.sum((b_v == 0).to(b_dv.dtype), 0)
    return tl.sum(tl.where(b_v == 0, b_dv, 0), 0) / tl.where(count > 0, count, 1)


@triton.jit
def change_of_weights(b_p, b_da, b_mean, ALPHA: tl.constexpr, KIND: tl.constexpr):
    """Return dp = J da, from the mean of da under the slopes."""
    b_slope = slopes(b_p, ALPHA, KIND)
    # a transition without weight may have an infinite tangent
    return tl.where(b_slope == 0, 0, b_slope * (b_da - b_mean[None, :]))
