"""The recursion in waves of nodes, for Triton: a program computes all nodes of a few instances, in one launch.

Expectations are gathered: a node sums the expectations of the edges it is a tail of, so that no two threads write to
the same place and sums have a fixed order. Parts and weights are computed from them in one more launch. All arithmetic
is in float64.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_math import on_device
from polymax.kernels.hypergraph import chart_of, chart_shape
from polymax.kernels.hypergraph.cuda_smooth import INF, put, row, smooth_max, total_of, weight
from polymax.kernels.hypergraph.cuda_walk import (
    hypergraph_count,
    hypergraph_kbest,
    hypergraph_sample,
    hypergraph_visits,
)
from polymax.kernels.hypergraph.cuda_waves import (
    Above,
    Below,
    everything,
    groups,
    heads,
    instances,
    span,
    tiles,
    wave_down,
    wave_up,
)
from polymax.kernels.local_max.triton_max import power

__all__ = [
    "hypergraph_count",
    "hypergraph_inside",
    "hypergraph_kbest",
    "hypergraph_outside",
    "hypergraph_sample",
    "hypergraph_tangent",
    "hypergraph_visits",
    "hypergraph_weights",
]


def hypergraph_inside(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    value = scores.new_empty(scores.shape[:1])
    shape = chart_shape(scores.shape[0], first.shape[0] - 1, alpha)
    problem = _Launches(scores, first, tails, part, roots, scores.new_zeros(shape, dtype=torch.float64), alpha)
    problem.rise(value, (problem.chart[0],) * 3, tangent=False)
    return value, problem.chart


def hypergraph_outside(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> Tensor:
    problem = _Launches(scores, first, tails, part, roots, chart_of(chart, scores.shape[0]), alpha)
    expected = torch.zeros_like(problem.chart[0])
    return problem.outside(expected, g, (expected,) * 4, tangent=False)


def hypergraph_tangent(
    scores: Tensor,
    first: Tensor,
    tails: Tensor,
    part: Tensor,
    roots: Tensor,
    chart: Tensor,
    g: Tensor,
    d: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor]:
    problem = _Launches(scores, first, tails, part, roots, chart_of(chart, scores.shape[0]), alpha)
    dvalue = scores.new_empty(scores.shape[:1])
    d = d.contiguous()
    expected, slopes, means, change = (torch.zeros_like(problem.chart[0]) for _ in range(4))
    problem.rise(dvalue, (d, slopes, means), tangent=True)
    # a hard maximum is locally constant
    if alpha == math.inf:
        return dvalue, torch.zeros_like(scores, memory_format=torch.contiguous_format)
    return dvalue, problem.outside(expected, g, (d, slopes, means, change), tangent=True)


def hypergraph_weights(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, alpha: float
) -> Tensor:
    problem = _Launches(scores, first, tails, part, roots, chart_of(chart, scores.shape[0]), alpha)
    expected = torch.zeros_like(problem.chart[0])
    problem.fall(expected, scores.new_ones(scores.shape[:1]), (expected,) * 4, tangent=False)
    p = scores.new_empty((scores.shape[0], tails.shape[0]))
    problem.spread(_weights, tails.shape[0], heads(first, tails), expected, p)
    return p


class _Launches:
    """The first arguments of every kernel, and its launches."""

    def __init__(
        self, scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, alpha: float
    ) -> None:
        self.scores, self.chart, self.alpha = scores, chart, float(alpha)
        self.first, self.tails, self.part = first.contiguous(), tails.contiguous(), part.contiguous()
        graph = (self.first, self.tails, self.part, roots.contiguous())
        self.tensors = (scores.contiguous(), *graph, chart[0].contiguous(), chart[-1].contiguous())
        self.sizes = (scores.shape[1], chart.shape[2])

    def walk(self, kernel, *tensors: Tensor, **options: bool) -> None:
        """Launch one program for each few instances."""
        count = self.scores.shape[0]
        if count:
            sizes = tiles(count)
            with on_device(self.scores):
                grid = (triton.cdiv(count, sizes["BB"]),)
                kernel[grid](*self.tensors, *tensors, count, *self.sizes, ALPHA=self.alpha, **sizes, **options)

    def spread(self, kernel, size: int, *tensors: Tensor, **options: bool) -> None:
        """Launch one program for each few of `size` columns of a few instances."""
        count = self.scores.shape[0]
        if size and count:
            sizes = tiles(count)
            blocks = triton.cdiv(size, sizes["BN"])
            columns = (count, size, blocks, *self.sizes)
            with on_device(self.scores):
                grid = (blocks * triton.cdiv(count, sizes["BB"]),)
                kernel[grid](*self.tensors, *tensors, *columns, ALPHA=self.alpha, **sizes, **options)

    def rise(self, value: Tensor, tangents: tuple[Tensor, ...], tangent: bool) -> None:
        """Write values of all nodes or, with tangents d, slopes and means, their derivatives."""
        deepest = Below.of(self.first, self.tails).deepest
        self.walk(_rise, deepest, value, *tangents, TANGENT=tangent)

    def fall(self, expected: Tensor, g: Tensor, tangents: tuple[Tensor, ...], tangent: bool) -> None:
        """Write expectations of all nodes and, with tangents d, slopes, means and change, their derivatives."""
        above = Above.of(self.first, self.tails)
        lists = (above.edges, above.offsets, above.nearest, heads(self.first, self.tails))
        self.walk(_fall, *lists, g.contiguous(), expected, *tangents, TANGENT=tangent)

    def outside(self, expected: Tensor, g: Tensor, tangents: tuple[Tensor, ...], tangent: bool) -> Tensor:
        """Return expectations of the parts, or their derivatives."""
        self.fall(expected, g, tangents, tangent)
        out = torch.empty_like(self.scores, memory_format=torch.contiguous_format)
        edges, offsets = groups(self.part, out.shape[1])
        lists = (edges, offsets, heads(self.first, self.tails))
        self.spread(_gather, out.shape[1], *lists, expected, *tangents, out, TANGENT=tangent)
        return out


@triton.jit
def _rise(
    p_scores,
    p_first,
    p_tails,
    p_part,
    p_roots,
    p_values,
    p_extra,
    p_deepest,
    p_value,
    p_d,
    p_slopes,
    p_means,
    count,
    parts,
    width,
    ALPHA: tl.constexpr,
    TANGENT: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
):
    """Write the nodes' values, or their derivatives along d and the means of the arguments' derivatives by p^(2 -
    alpha).
    """
    o_b, m_b, b_root, last = instances(p_roots, count, BB)
    at = (p_scores, p_tails, p_part, p_values, o_b, m_b, parts, width)
    start = last * 0
    while start <= last:
        o_h, m_h, size = wave_up(p_deepest, start, last, BN)
        o_begin, b_count, widest = span(p_first, o_h, m_h)
        if TANGENT:
            b_slope, b_mean = _slopes(p_first, p_extra, p_d, p_slopes, o_h, o_begin, b_count, widest, at, ALPHA)
            put(p_slopes, o_h, m_h, b_slope, o_b, m_b, width)
            put(p_means, o_h, m_h, b_mean, o_b, m_b, width)
        else:
            b_value, b_extra = smooth_max(o_begin, b_count, widest, at, ALPHA)
            put(p_values, o_h, m_h, b_value, o_b, m_b, width)
            if ALPHA != 1:
                put(p_extra, o_h, m_h, b_extra, o_b, m_b, width)
        tl.debug_barrier()
        start += size
    p_row = (p_slopes if TANGENT else p_values) + o_b * width
    b_value = tl.load(p_row + b_root, mask=m_b & (b_root >= 0), other=0)
    tl.store(p_value + o_b, b_value.to(p_value.dtype.element_ty), mask=m_b)


@triton.jit
def _slopes(p_first, p_extra, p_d, p_slopes, o_h, o_begin, b_count, widest, at, ALPHA: tl.constexpr):
    """Return derivatives of the values of nodes o_h, and the means of their arguments' derivatives by p^(2 - alpha)."""
    _, _, _, _, o_b, _, _, _ = at
    b_slope = tl.zeros([o_h.shape[0], o_b.shape[1]], tl.float64)
    b_mean = tl.zeros_like(b_slope)
    b_sum = tl.zeros_like(b_slope)
    for i in range(0, widest):
        b_p = weight(p_first, p_extra, o_begin + i, o_h, i < b_count, at, ALPHA)
        b_da = total_of(p_d, p_slopes, o_begin + i, i < b_count, at)
        b_da = tl.where(b_p == 0, 0, b_da)
        b_slope += b_p * b_da
        if ALPHA != INF:
            b_s = power(b_p, 2 - ALPHA)
            b_sum += b_s
            b_mean += b_s * b_da
    return b_slope, tl.where(b_sum == 0, 0, b_mean / b_sum)


@triton.jit
def _flow(
    p_first,
    p_extra,
    p_expected,
    p_d,
    p_slopes,
    p_means,
    p_change,
    o_e,
    o_h,
    m_e,
    at,
    ALPHA: tl.constexpr,
    TANGENT: tl.constexpr,
):
    """Return expectations of edges o_e, whose heads are o_h, and their derivatives."""
    _, _, _, _, o_b, m_b, _, width = at
    b_mass = row(p_expected, o_h, m_e, o_b, m_b, width)
    b_p = weight(p_first, p_extra, o_e, o_h, m_e, at, ALPHA)
    # nodes that the root does not reach may have NaN weights
    b_q = tl.where(b_mass != 0, b_p * b_mass, 0)
    b_dq = b_q
    if TANGENT:
        b_da = total_of(p_d, p_slopes, o_e, m_e, at) - row(p_means, o_h, m_e, o_b, m_b, width)
        b_dp = tl.where(b_p == 0, 0, power(b_p, 2 - ALPHA) * b_da)
        b_dq = tl.where(b_mass != 0, b_dp * b_mass + b_p * row(p_change, o_h, m_e, o_b, m_b, width), 0)
    return b_q, b_dq


@triton.jit
def _fall(
    p_scores,
    p_first,
    p_tails,
    p_part,
    p_roots,
    p_values,
    p_extra,
    p_edges,
    p_offsets,
    p_nearest,
    p_heads,
    p_g,
    p_expected,
    p_d,
    p_slopes,
    p_means,
    p_change,
    count,
    parts,
    width,
    ALPHA: tl.constexpr,
    TANGENT: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
):
    """Write expectations of the nodes, given those of the roots, and their derivatives along d."""
    o_b, m_b, b_root, start = instances(p_roots, count, BB)
    at = (p_scores, p_tails, p_part, p_values, o_b, m_b, parts, width)
    b_g = tl.load(p_g + o_b, mask=m_b, other=0).to(tl.float64)
    while start >= 0:
        o_h, m_h, size = wave_down(p_nearest, start, BN)
        o_begin, b_count, widest = span(p_offsets, o_h, m_h)
        b_mass = tl.where(o_h[:, None] == b_root, b_g, 0)
        b_dmass = tl.zeros([BN, BB], tl.float64)
        for i in range(0, widest):
            m_e = i < b_count
            o_e = tl.load(p_edges + o_begin + i, mask=m_e, other=0)
            o_head = tl.load(p_heads + o_e, mask=m_e, other=0)
            b_q, b_dq = _flow(
                p_first, p_extra, p_expected, p_d, p_slopes, p_means, p_change, o_e, o_head, m_e, at, ALPHA, TANGENT
            )
            b_mass += b_q
            b_dmass += b_dq
        put(p_expected, o_h, m_h, b_mass, o_b, m_b, width)
        if TANGENT:
            put(p_change, o_h, m_h, b_dmass, o_b, m_b, width)
        tl.debug_barrier()
        start -= size


@triton.jit
def _gather(
    p_scores,
    p_first,
    p_tails,
    p_part,
    p_roots,
    p_values,
    p_extra,
    p_edges,
    p_offsets,
    p_heads,
    p_expected,
    p_d,
    p_slopes,
    p_means,
    p_change,
    p_out,
    count,
    size,
    blocks,
    parts,
    width,
    ALPHA: tl.constexpr,
    TANGENT: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
):
    """Write expectations of the parts, or their derivatives."""
    o_b, m_b, o_n, m_n = everything(count, size, blocks, BN, BB)
    at = (p_scores, p_tails, p_part, p_values, o_b, m_b, parts, width)
    o_begin, b_count, widest = span(p_offsets, o_n, m_n)
    b_out = tl.zeros([BN, BB], tl.float64)
    for i in range(0, widest):
        m_e = i < b_count
        o_e = tl.load(p_edges + o_begin + i, mask=m_e, other=0)
        o_head = tl.load(p_heads + o_e, mask=m_e, other=0)
        _, b_dq = _flow(
            p_first, p_extra, p_expected, p_d, p_slopes, p_means, p_change, o_e, o_head, m_e, at, ALPHA, TANGENT
        )
        b_out += b_dq
    put(p_out, o_n, m_n, b_out, o_b, m_b, size)


@triton.jit
def _weights(
    p_scores,
    p_first,
    p_tails,
    p_part,
    p_roots,
    p_values,
    p_extra,
    p_heads,
    p_expected,
    p_p,
    count,
    size,
    blocks,
    parts,
    width,
    ALPHA: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
):
    """Write weights of the edges of nodes that are reached."""
    o_b, m_b, o_e, m_e = everything(count, size, blocks, BN, BB)
    at = (p_scores, p_tails, p_part, p_values, o_b, m_b, parts, width)
    o_head = tl.load(p_heads + o_e, mask=m_e, other=0)
    b_p = weight(p_first, p_extra, o_e, o_head, m_e, at, ALPHA)
    put(p_p, o_e, m_e, tl.where(row(p_expected, o_head, m_e, o_b, m_b, width) != 0, b_p, 0), o_b, m_b, size)
