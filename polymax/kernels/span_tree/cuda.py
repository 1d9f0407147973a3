"""Span trees for Triton: one program per sentence, one launch per pass, all spans of a width at once.

All arithmetic is in float64: a long sentence adds up many scores. The chart W is a square with W[i, j] = W[j, i] =
T(i, j), so the splits of a span lie along two rows. In the backward pass the gradient that span (i, k) receives as a
left child is accumulated at [i, k] of a square, as a right child at [k, i - 1]: the spans of a width then write to
separate rows, without atomics.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.local_max.triton_max import mean_rows, smoothing, tangent_rows, value_rows, weight_rows
from polymax.kernels.span_tree import PADDING, chart_like
from polymax.kernels.span_tree.cuda_chart import (
    INSIDE,
    OUTSIDE,
    TANGENT,
    add_both,
    clear,
    pass_arguments,
    shares,
    spans,
    values_or_slopes,
)

_WARPS = 8


def span_tree_inside(scores: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _launch(INSIDE, scores, lengths, chart, alpha, value=value)
    return value, chart


def span_tree_outside(scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    _launch(OUTSIDE, scores, lengths, chart, alpha, g=g, mu=mu)
    return mu


def span_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    _launch(TANGENT, scores, lengths, chart, alpha, value=dvalue, g=g, d=d, mu=dmu)
    return dvalue, dmu


def tiles(n: int, labels: int) -> dict[str, int]:
    """Return spans and splits of a tile, spans and labels of a tile, and the columns of a chart past the last."""
    splits, names = max(ceil_power(n), 16), ceil_power(labels)
    spans = min(max(1024 // splits, 1), splits)
    return {"BI": spans, "BK": splits, "BS": max(1024 // names, 1), "BL": names, "PAD": PADDING}


def _launch(kind, scores, lengths, chart, alpha, value=None, g=None, d=None, mu=None):
    batch, n, _, labels = scores.shape
    if batch == 0:
        return
    args = pass_arguments(kind, chart, scores, lengths, value, g, d, mu)
    with on_device(scores):
        options = {"PASS": kind.value, **smoothing(alpha), **tiles(n, labels)}
        _pass[(batch,)](*args, n, labels, **options, num_warps=_WARPS, num_stages=1)


@Entry
@triton.jit
def _pass(
    p_chart,
    p_space,
    p_scores,
    p_lengths,
    p_value,
    p_g,
    p_d,
    p_mu,
    n,
    labels,
    PASS: tl.constexpr,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
    BS: tl.constexpr,
    BL: tl.constexpr,
    PAD: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    m = tl.load(p_lengths + i_b).to(tl.int32)
    s = n + PAD
    square = (n + 1) * s
    p_scores += i_b * n * n * labels
    p_w = p_chart + i_b * square
    if PASS == INSIDE:
        _up(p_scores, p_scores, p_w, p_w, m, n, s, labels, False, KIND, ALPHA, BI, BK, BS, BL)
        tl.store(p_value + i_b, tl.load(p_w + m - 1, mask=m > 0, other=0))
    else:
        p_d += i_b * n * n * labels
        p_mu += i_b * n * n * labels
        p_o = p_space + i_b * square * (3 if PASS == TANGENT else 1)
        p_do = p_o + square
        p_dw = p_do + square
        clear(p_o, m * s, BI * BK)
        if PASS == TANGENT:
            clear(p_do, m * s, BI * BK)
            _up(p_scores, p_d, p_w, p_dw, m, n, s, labels, True, KIND, ALPHA, BI, BK, BS, BL)
        else:
            tl.debug_barrier()
        reached = (m > 0) & (tl.load(p_w + m - 1, mask=m > 0, other=0) != float("-inf"))
        if PASS == TANGENT:
            b_dvalue = tl.load(p_dw + m - 1, mask=m > 0, other=0)
            tl.store(p_value + i_b, tl.where(reached, b_dvalue, 0))
        tl.store(p_o + m - 1, tl.where(reached, tl.load(p_g + i_b), 0).to(tl.float64), mask=m > 0)
        tl.debug_barrier()
        _down(p_w, p_dw, p_o, p_do, m, s, PASS == TANGENT, KIND, ALPHA, BI, BK)
        _parts(p_scores, p_d, p_o, p_do, p_mu, m, n, s, labels, PASS == TANGENT, KIND, ALPHA, BS, BL)


@triton.jit
def _up(
    p_scores,
    p_d,
    p_w,
    p_out,
    m,
    n,
    s,
    labels,
    TANGENTS: tl.constexpr,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
    BS: tl.constexpr,
    BL: tl.constexpr,
):
    """Fill the chart (then also p_w) from the scores or, with TANGENTS, its derivative along d."""
    # lam overwrites T in memory
    for start in range(0, m * m, BS):
        o_i, o_j, m_square = _square(start, m, BS)
        m_in = m_square & (o_i <= o_j)
        o_s = o_i * n + o_j
        b_a = _labels(p_scores, o_s, m_in, labels, float("-inf"), BL)
        if TANGENTS:
            b_lam = mean_rows(weight_rows(b_a, KIND, ALPHA), _labels(p_d, o_s, m_in, labels, 0, BL))
        else:
            b_lam = value_rows(b_a, KIND, ALPHA)
        tl.store(p_out + o_i * s + o_j, b_lam, mask=m_in)
    tl.debug_barrier()
    for width in range(1, m):
        for start in range(0, m - width, BI):
            o_i, o_j, m_in, o_left, o_right, m_splits = spans(start, 0, width, m - 1, s, BI, BK)
            b_t = values_or_slopes(
                p_w, p_w, p_out, p_out, o_left, o_right + 1, m_splits, False, 0.0, TANGENTS, KIND, ALPHA
            )
            b_t += tl.load(p_out + o_i * s + o_j, mask=m_in, other=0)
            tl.store(p_out + o_i * s + o_j, b_t, mask=m_in)
            tl.store(p_out + o_j * s + o_i, b_t, mask=m_in)
        tl.debug_barrier()


@triton.jit
def _down(
    p_w,
    p_dw,
    p_o,
    p_do,
    m,
    s,
    TANGENTS: tl.constexpr,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
):
    """Fill the gradients of all spans and, with TANGENTS, their derivatives."""
    for step in range(1, m):
        width = m - step
        for start in range(0, m - width, BI):
            o_i, o_j, m_in, o_left, o_right, m_splits = spans(start, 0, width, m - 1, s, BI, BK)
            b_here = _heard(p_o, o_i, o_j, s, m_in)
            b_dhere = b_here
            m_any = b_here != 0
            if TANGENTS:
                b_dhere = _heard(p_do, o_i, o_j, s, m_in)
                m_any |= b_dhere != 0
            # the hard maximum reaches few spans
            if tl.max(m_any.to(tl.int32)) > 0:
                b_q, b_dq = shares(
                    p_w, p_dw, o_left, p_w, p_dw, o_right + 1, m_splits, b_here, b_dhere, TANGENTS, KIND, ALPHA
                )
                add_both(p_o, p_do, o_left, b_q, b_dq, m_splits, TANGENTS)
                add_both(p_o, p_do, o_right, b_q, b_dq, m_splits, TANGENTS)
        tl.debug_barrier()


@triton.jit
def _parts(
    p_scores,
    p_d,
    p_o,
    p_do,
    p_mu,
    m,
    n,
    s,
    labels,
    TANGENTS: tl.constexpr,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    BS: tl.constexpr,
    BL: tl.constexpr,
):
    """Store the expected parts, gradients of spans times weights of labels; with TANGENTS, their derivatives."""
    for start in range(0, n * n, BS):
        o_i, o_j, m_square = _square(start, n, BS)
        m_in = (o_i <= o_j) & (o_j < m)
        b_e = _heard(p_o, o_i, o_j, s, m_in)
        o_s = o_i * n + o_j
        b_p = weight_rows(_labels(p_scores, o_s, m_in, labels, float("-inf"), BL), KIND, ALPHA)
        if TANGENTS:
            b_de = _heard(p_do, o_i, o_j, s, m_in)
            b_dp = tangent_rows(b_p, _labels(p_d, o_s, m_in, labels, 0, BL), KIND, ALPHA)
            b_mu = b_dp * b_e[:, None] + b_p * b_de[:, None]
        else:
            b_mu = b_p * b_e[:, None]
        _store_labels(p_mu, o_s, m_square, labels, b_mu)


@triton.jit
def _square(start, n, BS: tl.constexpr):
    """Return rows and columns of the cells of an n x n square from number `start` on, and their mask."""
    o_s = start + tl.arange(0, BS)
    return o_s // n, o_s % n, o_s < n * n


@triton.jit
def _heard(p_o, o_i, o_j, s, m_in):
    """Return the gradients of spans (i, j), the sums of those received as left and as right children."""
    b_left = tl.load(p_o + o_i * s + o_j, mask=m_in, other=0)
    return b_left + tl.load(p_o + o_j * s + o_i - 1, mask=m_in & (o_i > 0), other=0)


@triton.jit
def _labels(p_x, o_s, m_in, labels, absent, BL: tl.constexpr):
    """Return scores of the labels of spans o_s in float64, `absent` outside the mask."""
    o_l = tl.arange(0, BL)[None, :]
    m_x = m_in[:, None] & (o_l < labels)
    b_x = tl.load(p_x + o_s.to(tl.int64)[:, None] * labels + o_l, mask=m_x, other=0).to(tl.float64)
    return tl.where(m_x, b_x, absent)


@triton.jit
def _store_labels(p_x, o_s, m_in, labels, b_x):
    o_l = tl.arange(0, b_x.shape[1])[None, :]
    tl.store(p_x + o_s.to(tl.int64)[:, None] * labels + o_l, b_x, mask=m_in[:, None] & (o_l < labels))
