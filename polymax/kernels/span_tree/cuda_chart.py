"""What tree kernels in Triton read from and add to charts, whose rows have s entries."""

import torch
import triton
import triton.language as tl
from torch import Tensor

INSIDE, OUTSIDE, TANGENT = (tl.constexpr(k) for k in range(3))


def pass_arguments(kind: tl.constexpr, chart: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """What a kernel of all three passes takes: the chart, work space of one or three charts, and tensors.

    Pointers that a pass does not use are those of the chart.
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
    """The spans (i, i + width) from first + start on, inside first..last, and their choices k < width.

    i, j and where they exist, (I,); the places of [i, i + k] and [j, i + k] and where they exist, (I, K).
    """
    o_i = first + start + tl.arange(0, BI)
    o_j = o_i + width
    o_k = tl.arange(0, BK)[None, :]
    m_in = o_j <= last
    m_choices = m_in[:, None] & (o_k < width)
    return o_i, o_j, m_in, (o_i * s + o_i)[:, None] + o_k, (o_j * s + o_i)[:, None] + o_k, m_choices


@triton.jit
def load_sums(p_x, o_x, p_y, o_y, m_x, absent):
    """x + y, or `absent` where masked."""
    b_sum = tl.load(p_x + o_x, mask=m_x, other=0) + tl.load(p_y + o_y, mask=m_x, other=0)
    return tl.where(m_x, b_sum, absent)


@triton.jit
def add_to(p_x, b_x, m_x):
    """Add to numbers in memory that nobody else touches until the next barrier."""
    tl.store(p_x, tl.load(p_x, mask=m_x, other=0) + b_x, mask=m_x)
