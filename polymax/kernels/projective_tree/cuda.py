"""Projective trees for Triton: one program to a sentence, one launch to a pass, all spans of a width at once.

All arithmetic is in float64: a long sentence adds up many scores. A chart is three squares: R and L, symmetric, and I,
[head, modifier], so the choices of all three maxima lie along rows. Backwards, what a span (i, j) hears as the left
of two is summed at [i, j] of such squares and as the right at [j, i]: the spans of a width then write to rows of
their own, without atomics. The root symbol has no head: arcs to it have the score -inf.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.local_max.triton_max import smoothing, value_rows, weight_rows
from polymax.kernels.projective_tree import PADDING, chart_like
from polymax.kernels.projective_tree.cuda_arcs import arcs, heard, pick, roots, store_square
from polymax.kernels.projective_tree.cuda_tangent import tangent
from polymax.kernels.span_tree.cuda_chart import add_to, clear, load_sums, spans
from polymax.kernels.triton_math import ceil_power, on_device

_WARPS = 8


def projective_tree_inside(scores: Tensor, lengths: Tensor, single_root: bool, alpha: float) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _launch(_inside, scores, single_root, alpha, scores.contiguous(), lengths.contiguous(), chart, value)
    return value, chart


def projective_tree_outside(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool, alpha: float
) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    args = scores.contiguous(), lengths.contiguous(), chart.contiguous(), g.contiguous()
    _launch(_outside, scores, single_root, alpha, *args, torch.empty_like(chart), mu)
    return mu


def projective_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, single_root: bool, alpha: float
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    args = scores.contiguous(), lengths.contiguous(), chart.contiguous(), g.contiguous(), d.contiguous()
    space = torch.empty_like(chart), torch.empty_like(chart), torch.empty_like(chart)
    _launch(tangent, scores, single_root, alpha, *args, *space, dvalue, dmu)
    return dvalue, dmu


def tiles(size: int) -> dict[str, int]:
    """Spans and choices of a tile, the choices of a root, and the columns of a chart past the last."""
    choices = max(ceil_power(size), 16)
    # Triton 3.6 gives one row of 32 two layouts, and then refuses to compile
    return {"BI": min(max(1024 // choices, 1), choices), "BK": choices, "BR": max(choices, 64), "PAD": PADDING}


def _launch(kernel, scores, single_root, alpha, *args):
    batch, size = scores.shape[:2]
    if batch == 0:
        return
    sizes = {**smoothing(alpha), **tiles(size), "SINGLE": single_root}
    with on_device(scores):
        kernel[(batch,)](*args, size, **sizes, num_warps=_WARPS, num_stages=1)


@triton.jit
def _inside(
    p_scores,
    p_lengths,
    p_chart,
    p_value,
    size,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SINGLE: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
    BR: tl.constexpr,
    PAD: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    m = tl.load(p_lengths + i_b).to(tl.int32)
    s = size + PAD
    square = (size + 1) * s
    p_scores += i_b * size * size
    p_r = p_chart + i_b * 3 * square
    p_l = p_r + square
    p_v = p_l + square
    first = 1 if SINGLE else 0
    o_c = tl.arange(0, BK)[None, :]
    tl.store(p_r + tl.arange(0, BK) * (s + 1), tl.zeros([BK], tl.float64), mask=tl.arange(0, BK) <= m)
    tl.store(p_l + tl.arange(0, BK) * (s + 1), tl.zeros([BK], tl.float64), mask=tl.arange(0, BK) <= m)
    tl.debug_barrier()
    for width in range(1, m + 1 - first):
        for start in range(0, m + 1 - first - width, BI):
            o_i, o_j, m_in, o_left, o_right, m_on = spans(start, first, width, m, s, BI, BK)
            b_right, b_left = arcs(p_scores, o_i, o_j, size, m_in, float("-inf"))
            b_gap = value_rows(load_sums(p_r, o_left, p_l, o_right + 1, m_on, float("-inf")), KIND, ALPHA)
            b_right += b_gap
            b_left += b_gap
            tl.store(p_v + o_i * s + o_j, b_right, mask=m_in)
            tl.store(p_v + o_j * s + o_i, b_left, mask=m_in)
            # of the choices, only the arc (i, j) itself is new: it comes from registers, not from memory
            m_old = m_on & (o_c < width - 1)
            b_a = load_sums(p_v, o_left + 1, p_r, o_right + 1, m_old, float("-inf"))
            b_r = value_rows(tl.where(m_on & (o_c == width - 1), b_right[:, None], b_a), KIND, ALPHA)
            m_old = m_on & (o_c > 0)
            b_a = load_sums(p_l, o_left, p_v, o_right, m_old, float("-inf"))
            b_l = value_rows(tl.where(m_on & (o_c == 0), b_left[:, None], b_a), KIND, ALPHA)
            tl.store(p_r + o_i * s + o_j, b_r, mask=m_in)
            tl.store(p_r + o_j * s + o_i, b_r, mask=m_in)
            tl.store(p_l + o_i * s + o_j, b_l, mask=m_in)
            tl.store(p_l + o_j * s + o_i, b_l, mask=m_in)
        tl.debug_barrier()
    if SINGLE:
        b_value = value_rows(roots(p_scores, p_l, p_r, m, s, float("-inf"), BR), KIND, ALPHA)
        b_value = tl.sum(b_value, 0)
    else:
        b_value = tl.load(p_r + m)
    tl.store(p_value + i_b, tl.where(m > 0, b_value, 0))


@triton.jit
def _outside(
    p_scores,
    p_lengths,
    p_chart,
    p_g,
    p_space,
    p_mu,
    size,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SINGLE: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
    BR: tl.constexpr,
    PAD: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    m = tl.load(p_lengths + i_b).to(tl.int32)
    s = size + PAD
    square = (size + 1) * s
    p_scores += i_b * size * size
    p_r = p_chart + i_b * 3 * square
    p_l = p_r + square
    p_v = p_l + square
    p_to_r = p_space + i_b * 3 * square
    p_to_l = p_to_r + square
    p_to_v = p_to_l + square
    first = 1 if SINGLE else 0
    o_c = tl.arange(0, BK)[None, :]
    clear(p_to_r, 3 * square, BI * BK)
    tl.debug_barrier()
    g = tl.load(p_g + i_b).to(tl.float64)
    if SINGLE:
        b_root = g * weight_rows(roots(p_scores, p_l, p_r, m, s, float("-inf"), BR), KIND, ALPHA)
        o_r = tl.arange(0, BR)[None, :]
        m_roots = (o_r > 0) & (o_r <= m)
        tl.store(p_to_v + o_r, b_root, mask=m_roots)
        tl.store(p_to_l + s + o_r, b_root, mask=m_roots)
        tl.store(p_to_r + m * s + o_r, b_root, mask=m_roots)
    else:
        tl.store(p_to_r + m, tl.where(tl.load(p_r + m) == float("-inf"), 0, g), mask=m > 0)
    tl.debug_barrier()
    for step in range(0, m - first):
        width = m - first - step
        for start in range(0, step + 1, BI):
            o_i, o_j, m_in, o_left, o_right, m_on = spans(start, first, width, m, s, BI, BK)
            b_to_r = heard(p_to_r, o_i, o_j, s, m_in)
            b_to_l = heard(p_to_l, o_i, o_j, s, m_in)
            b_right = tl.load(p_to_v + o_i * s + o_j, mask=m_in, other=0)
            b_left = tl.load(p_to_v + o_j * s + o_i, mask=m_in, other=0)
            m_any = (b_to_r != 0) | (b_to_l != 0) | (b_right != 0) | (b_left != 0)
            # what was read above is written below, by other threads
            tl.debug_barrier()
            # the hard maximum reaches few spans
            if tl.max(m_any.to(tl.int32)) > 0:
                b_p = weight_rows(load_sums(p_v, o_left + 1, p_r, o_right + 1, m_on, float("-inf")), KIND, ALPHA)
                b_q = b_p * b_to_r[:, None]
                b_right += pick(b_q, o_c == width - 1)
                add_to(p_to_v + o_left + 1, b_q, m_on)
                add_to(p_to_r + o_right + 1, b_q, m_on & (o_c < width - 1))
                b_p = weight_rows(load_sums(p_l, o_left, p_v, o_right, m_on, float("-inf")), KIND, ALPHA)
                b_q = b_p * b_to_l[:, None]
                b_left += pick(b_q, o_c == 0)
                add_to(p_to_l + o_left, b_q, m_on & (o_c > 0))
                add_to(p_to_v + o_right, b_q, m_on)
                b_p = weight_rows(load_sums(p_r, o_left, p_l, o_right + 1, m_on, float("-inf")), KIND, ALPHA)
                b_q = b_p * (b_right + b_left)[:, None]
                add_to(p_to_r + o_left, b_q, m_on & (o_c > 0))
                add_to(p_to_l + o_right + 1, b_q, m_on & (o_c < width - 1))
        tl.debug_barrier()
    store_square(p_mu + i_b * size * size, p_to_v, m, size, s, BI * BK)
