"""Loads from and additions to charts, whose rows have s entries, for tree kernels in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.local_max.triton_max import mean_rows, tangent_rows, value_rows, weight_rows

INSIDE, OUTSIDE, TANGENT = (tl.constexpr(k) for k in range(3))


def pass_arguments(kind: tl.constexpr, chart: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """Return the arguments of a kernel of all three passes: the chart, workspace of one or three charts, and tensors.

    Arguments that a pass does not use are replaced by the chart.
    """
    chart = chart.contiguous()
    charts = {OUTSIDE.value: 1, TANGENT.value: 3}.get(kind.value, 0)
    space = torch.empty((charts, *chart.shape), dtype=chart.dtype, device=chart.device) if charts else chart
    return [chart, space, *(chart if x is None else x.contiguous() for x in tensors)]


@triton.jit
def clear(p_x, size, BLOCK: tl.constexpr):
    """Fill the first `size` entries with 0."""
    for start in range(0, size, BLOCK):
        o_x = start + tl.arange(0, BLOCK)
        tl.store(p_x + o_x, tl.zeros([BLOCK], tl.float64), mask=o_x < size)


@triton.jit
def spans(start, first, width, last, s, BI: tl.constexpr, BK: tl.constexpr):
    """Return the spans (i, i + width) from first + start on, inside first..last, and their choices k < width.

    Returns i, j and their mask, (I,); the offsets of [i, i + k] and [j, i + k] and their mask, (I, K).
    """
    o_i = first + start + tl.arange(0, BI)
    o_j = o_i + width
    o_k = tl.arange(0, BK)[None, :]
    m_in = o_j <= last
    m_choices = m_in[:, None] & (o_k < width)
    return o_i, o_j, m_in, (o_i * s + o_i)[:, None] + o_k, (o_j * s + o_i)[:, None] + o_k, m_choices


@triton.jit
def load_sums(p_x, o_x, p_y, o_y, m_x, absent):
    """Return x + y, or `absent` outside the mask."""
    b_sum = tl.load(p_x + o_x, mask=m_x, other=0) + tl.load(p_y + o_y, mask=m_x, other=0)
    return tl.where(m_x, b_sum, absent)


@triton.jit
def add_to(p_x, b_x, m_x):
    """Add to numbers in memory that no other thread accesses before the next barrier."""
    tl.store(p_x, tl.load(p_x, mask=m_x, other=0) + b_x, mask=m_x)


@triton.jit
def add_both(p_x, p_dx, o_x, b_x, b_dx, m_x, TANGENTS: tl.constexpr):
    """Add to numbers in memory and, with TANGENTS, to their derivatives."""
    add_to(p_x + o_x, b_x, m_x)
    if TANGENTS:
        add_to(p_dx + o_x, b_dx, m_x)


@triton.jit
def values_or_slopes(
    p_x,
    p_y,
    p_to_x,
    p_to_y,
    o_x,
    o_y,
    m_x,
    m_new,
    b_new,
    TANGENTS: tl.constexpr,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
):
    """Return smoothed maxima of rows x + y or, with TANGENTS, their derivatives; b_new are entries not yet in memory.

    Entries are loaded from `to`, the array that the pass fills: the chart (then also x and y), or its derivative.
    """
    if TANGENTS:
        b_p = weight_rows(load_sums(p_x, o_x, p_y, o_y, m_x, float("-inf")), KIND, ALPHA)
        b_a = load_sums(p_to_x, o_x, p_to_y, o_y, m_x & (m_new == 0), 0)
        return mean_rows(b_p, tl.where(m_x & m_new, b_new, b_a))
    else:
        b_a = load_sums(p_to_x, o_x, p_to_y, o_y, m_x & (m_new == 0), float("-inf"))
        return value_rows(tl.where(m_x & m_new, b_new, b_a), KIND, ALPHA)


@triton.jit
def shares(
    p_x,
    p_dx,
    o_x,
    p_y,
    p_dy,
    o_y,
    m_x,
    b_here,
    b_dhere,
    TANGENTS: tl.constexpr,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
):
    """Return weights of the smoothed maxima of rows x + y times b_here and, with TANGENTS, their derivatives."""
    b_p = weight_rows(load_sums(p_x, o_x, p_y, o_y, m_x, float("-inf")), KIND, ALPHA)
    b_q = b_p * b_here[:, None]
    b_dq = b_q
    if TANGENTS:
        b_dp = tangent_rows(b_p, load_sums(p_dx, o_x, p_dy, o_y, m_x, 0), KIND, ALPHA)
        b_dq = b_dp * b_here[:, None] + b_p * b_dhere[:, None]
    return b_q, b_dq
