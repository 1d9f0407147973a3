"""Chains with one program per instance, which walks along the steps in one launch. For Triton.

The chart holds v_t, each relative to the maximum of the step before, and the threshold of each state, which gives the
weights of the transitions into it. If the transitions fit into one tile, kernels keep the states in registers
(cuda_whole.py). Otherwise only the states' expectations need the walk back; those of the transitions follow from them,
all steps at once (cuda_edges.py).

A single transition (s, s) shared by all instances and steps is also accepted; results then have its shape.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import on_device
from polymax.kernels.chain import cuda_whole as whole
from polymax.kernels.chain.cuda_edges import Tangents, edges
from polymax.kernels.chain.cuda_local import column_max, finite_max, load_matrix, load_states
from polymax.kernels.chain.cuda_outside import walk_back
from polymax.kernels.chain.cuda_shapes import ChainShapes, distinct


def chain_inside(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    shape = whole.shape_of(unary, transition, alpha)
    if shape is not None:
        return whole.inside(shape, unary, transition, lengths)
    batch, n, s = unary.shape
    value, chart = unary.new_empty(batch), unary.new_empty(batch, n, 2, s)
    chain = ChainShapes(unary, with_dims(transition), lengths, alpha)
    if s == 0:
        return value.copy_(torch.where(lengths > 0, -torch.inf, 0.0)), chart
    if batch:
        with on_device(unary):
            _inside[(batch,)](unary.contiguous(), *chain.matrices, chain.lengths, value, chart, **chain.options())
    return value, chart


def chain_outside(
    unary: Tensor, transition: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    shape = whole.shape_of(unary, transition, alpha)
    if shape is not None and whole.fused(shape):
        return whole.outside(shape, transition, lengths, chart, g)
    chain = ChainShapes(unary, with_dims(transition), lengths, alpha)
    mu = torch.empty_like(unary, memory_format=torch.contiguous_format)
    walk_back(chain, chart, g, mu)
    return mu, edges(chain, chart, mu).view(transition.shape)


def chain_tangent(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    chart: Tensor,
    g: Tensor,
    d_unary: Tensor,
    d_transition: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:
    shape = whole.shape_of(unary, transition, alpha)
    if shape is not None and whole.fused(shape):
        return whole.tangent(shape, transition, lengths, chart, g, d_unary, d_transition)
    if transition.dim() == 2:
        given = unary, with_dims(transition), lengths, chart, g, d_unary, with_dims(d_transition)
        value, du, dw = chain_tangent(*given, alpha)
        return value, du, dw.view(transition.shape)
    if d_transition.shape != transition.shape:
        every = transition.expand(d_transition.shape)
        value, du, dw = chain_tangent(unary, every, lengths, chart, g, d_unary, d_transition, alpha)
        return value, du, dw.sum_to_size(transition.shape)
    chain = ChainShapes(unary, transition, lengths, alpha)
    value = unary.new_zeros(unary.shape[0])
    dv, means, mu, dmu = (torch.empty_like(unary, memory_format=torch.contiguous_format) for _ in range(4))
    tangents = Tangents(dv, means, dmu, *distinct(d_transition))
    walk_back(chain, chart, g, mu, tangents, d_unary, value)
    return value, dmu, edges(chain, chart, mu, tangents)


def with_dims(transition: Tensor) -> Tensor:
    return transition if transition.dim() == 4 else transition.view(1, 1, *transition.shape)


@Entry
@triton.jit
def _inside(
    p_unary,
    p_w,
    p_top,
    stride_wb,
    stride_wt,
    group,
    n,
    s,
    p_lengths,
    p_value,
    p_chart,
    ALPHA: tl.constexpr,
    KIND: tl.constexpr,
    BI: tl.constexpr,
    BJ: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b).to(tl.int32)
    p_unary += i_b * n * s
    p_chart += i_b * n * 2 * s
    o_i = tl.arange(0, BI)
    m_i = o_i < s
    b_zero = tl.zeros([BI], p_chart.dtype.element_ty)
    total = tl.zeros([], tl.float64)
    if length > 0:
        b_v = tl.load(p_unary + o_i, mask=m_i, other=float("-inf"))
        tl.store(p_chart + o_i, b_v, mask=m_i)
        tl.store(p_chart + s + o_i, b_zero, mask=m_i)
    for t in range(1, length):
        b_unary = tl.load(p_unary + t * s + o_i, mask=m_i, other=float("-inf"))
        unary_top = finite_max(b_unary)
        # other threads wrote the row of the step before
        tl.debug_barrier()
        b_v, top = load_states(p_chart + (t - 1) * 2 * s, s, BI)
        i_w = (i_b // group) * stride_wb + (t - 1) * stride_wt
        w_top = top * 0
        for i_j in range(0, s, BJ):
            o_j = i_j + tl.arange(0, BJ)
            b_w, w_top = load_matrix(p_w, p_top, i_w, o_j, s, BI)
            b_m, b_theta = column_max(b_v[:, None] + b_w, ALPHA, KIND)
            b_u = tl.load(p_unary + t * s + o_j, mask=o_j < s, other=float("-inf"))
            p_row = p_chart + t * 2 * s + o_j
            tl.store(p_row, b_m + (b_u - unary_top), mask=o_j < s)
            tl.store(p_row + s, b_theta, mask=o_j < s)
        total += top.to(tl.float64) + unary_top.to(tl.float64) + w_top.to(tl.float64)
    tl.debug_barrier()
    if length > 0:
        b_v, top = load_states(p_chart + (length - 1) * 2 * s, s, BI)
        b_root, _ = column_max(b_v[:, None], ALPHA, KIND)
        total += top.to(tl.float64) + tl.sum(b_root, 0).to(tl.float64)
    tl.store(p_value + i_b, total.to(p_value.dtype.element_ty))
    for t in range(length, n):
        tl.store(p_chart + t * 2 * s + o_i, b_zero, mask=m_i)
        tl.store(p_chart + t * 2 * s + s + o_i, b_zero, mask=m_i)
