"""The recursion with one thread per instance, for Triton: a program walks the nodes of 32 instances in one launch.

The batch is innermost in memory: scores are (P, B), node values (N + 1, width). A thread reads only what it wrote
itself, so no barrier stands between nodes, and sums are in the order of the edges. All arithmetic is in float64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.hypergraph import chart_shape
from polymax.kernels.hypergraph.cuda_smooth import (
    INF,
    argument,
    edges,
    increase,
    instances,
    inverse,
    power,
    row,
    threshold,
    top,
    total,
    total_of,
    tsallis,
    weight,
)
from polymax.kernels.hypergraph.cuda_walk import (
    hypergraph_count,
    hypergraph_kbest,
    hypergraph_sample,
    hypergraph_visits,
)
from polymax.kernels.triton_math import on_device

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

# one warp with a lane to each thread: the layout that lets a thread read what it wrote
BB = 32


def hypergraph_inside(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    value = scores.new_empty(scores.shape[:1])
    shape = chart_shape(scores.shape[0], first.shape[0] - 1, alpha)
    chart = torch.zeros(shape, dtype=torch.float64, device=scores.device)
    _launch(_inside, scores, first, tails, part, roots, chart, value, alpha=alpha)
    return value, chart


def hypergraph_outside(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> Tensor:
    mu = torch.zeros(scores.shape[::-1], dtype=torch.float64, device=scores.device)
    state = (chart, g.contiguous(), torch.zeros_like(chart[0]), mu)
    _launch(_outside, scores, first, tails, part, roots, *state, alpha=alpha)
    return mu.T.to(scores.dtype).contiguous()


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
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.zeros(scores.shape[::-1], dtype=torch.float64, device=scores.device)
    slopes, expected, change = (torch.zeros_like(chart[0]) for _ in range(3))
    state = (chart, g.contiguous(), d.T.contiguous(), slopes, expected, change, dvalue, dmu)
    _launch(_tangent, scores, first, tails, part, roots, *state, alpha=alpha)
    return dvalue, dmu.T.to(scores.dtype).contiguous()


def hypergraph_weights(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, alpha: float
) -> Tensor:
    p = scores.new_zeros((tails.shape[0], scores.shape[0]))
    reached = torch.zeros_like(chart[0], dtype=torch.int8)
    _launch(_weights, scores, first, tails, part, roots, chart, reached, p, alpha=alpha)
    return p.T.contiguous()


def _launch(
    kernel,
    scores: Tensor,
    first: Tensor,
    tails: Tensor,
    part: Tensor,
    roots: Tensor,
    chart: Tensor,
    *tensors: Tensor,
    alpha: float,
) -> None:
    count = scores.shape[0]
    if count:
        # the batch innermost, in the chart as well: its shape is a matter of size
        shared = (x.contiguous() for x in (scores.T, first, tails, part, roots, chart[0], chart[-1]))
        with on_device(scores):
            grid = (triton.cdiv(count, BB),)
            kernel[grid](*shared, *tensors, count, chart.shape[1], ALPHA=float(alpha), BB=BB, num_warps=1)


@triton.jit
def _inside(
    p_scores,
    p_first,
    p_tails,
    p_part,
    p_roots,
    p_values,
    p_taus,
    p_value,
    count,
    width,
    ALPHA: tl.constexpr,
    BB: tl.constexpr,
):
    o_b, m_b, b_root, last = instances(p_roots, count, BB)
    at = (p_scores, p_tails, p_part, p_values, o_b, m_b, count, width)
    for h in range(0, last + 1):
        begin, end = edges(p_first, h)
        b_top = top(begin, end, at)
        b_value = tl.where(begin == end, 0, b_top)
        if end - begin > 1:
            if ALPHA == 1:
                b_value = b_top + tl.log(total(begin, end, b_top, b_top, at, ALPHA))
            elif ALPHA != INF:
                b_tau = threshold(begin, end, b_top, at, ALPHA)
                tl.store(p_taus + h * width + o_b, b_tau, mask=m_b)
                b_value = b_top + tsallis(begin, end, b_top, b_tau, at, ALPHA)
        tl.store(p_values + h * width + o_b, b_value, mask=m_b)
    b_value = row(p_values, b_root, o_b, m_b, width)
    tl.store(p_value + o_b, b_value.to(p_value.dtype.element_ty), mask=m_b)


@triton.jit
def _node(p_taus, h, begin, end, at, ALPHA: tl.constexpr):
    """Largest argument, threshold, and one over the sum of the weights of node h."""
    b_top = top(begin, end, at)
    b_tau = b_top
    if ALPHA != 1 and ALPHA != INF:
        b_tau = row(p_taus, h, at[4], at[5], at[7])
    return b_top, b_tau, inverse(total(begin, end, b_top, b_tau, at, ALPHA))


@triton.jit
def _outside(
    p_scores,
    p_first,
    p_tails,
    p_part,
    p_roots,
    p_values,
    p_taus,
    p_g,
    p_expected,
    p_mu,
    count,
    width,
    ALPHA: tl.constexpr,
    BB: tl.constexpr,
):
    o_b, m_b, b_root, last = instances(p_roots, count, BB)
    at = (p_scores, p_tails, p_part, p_values, o_b, m_b, count, width)
    b_g = tl.load(p_g + o_b, mask=m_b, other=0).to(tl.float64)
    tl.store(p_expected + b_root * width + o_b, b_g, mask=m_b & (b_root >= 0))
    for i in range(0, last + 1):
        h = last - i
        begin, end = edges(p_first, h)
        b_mass = row(p_expected, h, o_b, m_b, width)
        if (end > begin) & (tl.max((b_mass != 0).to(tl.int32)) > 0):
            b_top, b_tau, b_scale = _node(p_taus, h, begin, end, at, ALPHA)
            b_before = tl.zeros_like(b_top)
            for e in range(begin, end):
                b_w = weight(argument(e, at), b_top, b_tau, b_before, end - begin, ALPHA)
                b_before += b_w
                # what the root does not reach may be NaN
                b_q = tl.where(b_mass != 0, b_w * (b_mass * b_scale), 0)
                increase(p_mu, tl.load(p_part + e), -1, b_q, o_b, m_b, count)
                increase(p_expected, tl.load(p_tails + 2 * e), tl.load(p_tails + 2 * e + 1), b_q, o_b, m_b, width)


@triton.jit
def _tangent(
    p_scores,
    p_first,
    p_tails,
    p_part,
    p_roots,
    p_values,
    p_taus,
    p_g,
    p_d,
    p_slopes,
    p_expected,
    p_change,
    p_dvalue,
    p_dmu,
    count,
    width,
    ALPHA: tl.constexpr,
    BB: tl.constexpr,
):
    o_b, m_b, b_root, last = instances(p_roots, count, BB)
    at = (p_scores, p_tails, p_part, p_values, o_b, m_b, count, width)
    for h in range(0, last + 1):
        begin, end = edges(p_first, h)
        b_top, b_tau, b_scale = _node(p_taus, h, begin, end, at, ALPHA)
        b_before = tl.zeros_like(b_top)
        b_slope = tl.zeros_like(b_top)
        for e in range(begin, end):
            b_w = weight(argument(e, at), b_top, b_tau, b_before, end - begin, ALPHA)
            b_before += b_w
            b_slope += tl.where(b_w != 0, b_w * b_scale * total_of(p_d, p_slopes, e, at), 0)
        tl.store(p_slopes + h * width + o_b, b_slope, mask=m_b)
    b_slope = row(p_slopes, b_root, o_b, m_b, width)
    tl.store(p_dvalue + o_b, b_slope.to(p_dvalue.dtype.element_ty), mask=m_b)
    # a hard maximum is locally constant
    if ALPHA != INF:
        b_g = tl.load(p_g + o_b, mask=m_b, other=0).to(tl.float64)
        tl.store(p_expected + b_root * width + o_b, b_g, mask=m_b & (b_root >= 0))
        for i in range(0, last + 1):
            h = last - i
            begin, end = edges(p_first, h)
            b_mass = row(p_expected, h, o_b, m_b, width)
            b_dmass = row(p_change, h, o_b, m_b, width)
            if (end > begin) & (tl.max((b_mass != 0).to(tl.int32)) > 0):
                b_top, b_tau, b_scale = _node(p_taus, h, begin, end, at, ALPHA)
                # the mean of the slopes, by p^(2 - alpha)
                b_sum = tl.zeros_like(b_top)
                b_mean = tl.zeros_like(b_top)
                for e in range(begin, end):
                    b_p = b_scale * weight(argument(e, at), b_top, b_tau, b_top, end - begin, ALPHA)
                    b_s = power(b_p, 2 - ALPHA)
                    b_sum += b_s
                    b_mean += tl.where(b_s == 0, 0, b_s * total_of(p_d, p_slopes, e, at))
                b_mean = tl.where(b_sum == 0, 0, b_mean / b_sum)
                for e in range(begin, end):
                    b_p = b_scale * weight(argument(e, at), b_top, b_tau, b_top, end - begin, ALPHA)
                    b_dp = power(b_p, 2 - ALPHA) * (total_of(p_d, p_slopes, e, at) - b_mean)
                    b_dp = tl.where(b_p == 0, 0, b_dp)
                    b_q = tl.where(b_mass != 0, b_p * b_mass, 0)
                    b_dq = tl.where(b_mass != 0, b_dp * b_mass + b_p * b_dmass, 0)
                    left, right = tl.load(p_tails + 2 * e), tl.load(p_tails + 2 * e + 1)
                    increase(p_dmu, tl.load(p_part + e), -1, b_dq, o_b, m_b, count)
                    increase(p_expected, left, right, b_q, o_b, m_b, width)
                    increase(p_change, left, right, b_dq, o_b, m_b, width)


@triton.jit
def _weights(
    p_scores,
    p_first,
    p_tails,
    p_part,
    p_roots,
    p_values,
    p_taus,
    p_reached,
    p_p,
    count,
    width,
    ALPHA: tl.constexpr,
    BB: tl.constexpr,
):
    o_b, m_b, b_root, last = instances(p_roots, count, BB)
    at = (p_scores, p_tails, p_part, p_values, o_b, m_b, count, width)
    tl.store(p_reached + b_root * width + o_b, tl.full(o_b.shape, 1, tl.int8), mask=m_b & (b_root >= 0))
    for i in range(0, last + 1):
        h = last - i
        begin, end = edges(p_first, h)
        b_here = row(p_reached, h, o_b, m_b, width) != 0
        b_top, b_tau, b_scale = _node(p_taus, h, begin, end, at, ALPHA)
        b_before = tl.zeros_like(b_top)
        for e in range(begin, end):
            b_w = weight(argument(e, at), b_top, b_tau, b_before, end - begin, ALPHA)
            b_before += b_w
            b_w = tl.where(b_here, b_w * b_scale, 0)
            tl.store(p_p + e * count + o_b, b_w.to(p_p.dtype.element_ty), mask=m_b)
            for side in tl.static_range(2):
                tail = tl.load(p_tails + 2 * e + side)
                o_x = p_reached + tail * width + o_b
                tl.store(o_x, tl.full(o_b.shape, 1, tl.int8), mask=m_b & (tail >= 0) & (b_w != 0))
