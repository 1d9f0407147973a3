"""Projective trees for Triton: one program per sentence, one launch per pass, all spans of a width at once.

All arithmetic is in float64: a long sentence adds up many scores. A chart is three squares: R and L, symmetric, and I,
[head, modifier], so the choices of all three maxima lie along rows. In the backward pass the gradient that span (i, j)
receives as a left child is accumulated at [i, j], as a right child at [j, i]: the spans of a width then write to
separate rows, without atomics. The root symbol has no head: arcs to it have the score -inf.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.local_max.triton_max import mean_rows, smoothing, tangent_rows, value_rows, weight_rows
from polymax.kernels.projective_tree import PADDING, chart_like
from polymax.kernels.projective_tree.cuda_arcs import (
    all_heard,
    arcs,
    pick,
    roots,
    store_square,
)
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


def projective_tree_inside(scores: Tensor, lengths: Tensor, single_root: bool, alpha: float) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _launch(INSIDE, scores, lengths, chart, single_root, alpha, value=value)
    return value, chart


def projective_tree_outside(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool, alpha: float
) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    _launch(OUTSIDE, scores, lengths, chart, single_root, alpha, g=g, mu=mu)
    return mu


def projective_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, single_root: bool, alpha: float
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    _launch(TANGENT, scores, lengths, chart, single_root, alpha, value=dvalue, g=g, d=d, mu=dmu)
    return dvalue, dmu


def tiles(size: int) -> dict[str, int]:
    """Return spans and choices of a tile, the choices of a root, and the columns of a chart past the last."""
    choices = max(ceil_power(size), 16)
    # Triton 3.6 gives one row of 32 two layouts, and then fails to compile
    return {"BI": min(max(1024 // choices, 1), choices), "BK": choices, "BR": max(choices, 64), "PAD": PADDING}


def _launch(kind, scores, lengths, chart, single_root, alpha, value=None, g=None, d=None, mu=None):
    batch, size = scores.shape[:2]
    if batch == 0:
        return
    args = pass_arguments(kind, chart, scores, lengths, value, g, d, mu)
    options = {"PASS": kind.value, **smoothing(alpha), **tiles(size), "SINGLE": single_root}
    with on_device(scores):
        _pass[(batch,)](*args, size, **options, num_warps=_WARPS, num_stages=1)


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
    size,
    PASS: tl.constexpr,
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
    p_c = p_chart + i_b * 3 * square
    if PASS == INSIDE:
        o_d = tl.arange(0, BK)
        tl.store(p_c + o_d * (s + 1), tl.zeros([BK], tl.float64), mask=o_d <= m)
        tl.store(p_c + square + o_d * (s + 1), tl.zeros([BK], tl.float64), mask=o_d <= m)
        tl.debug_barrier()
        _up(p_scores, p_c, p_c, m, size, s, square, False, KIND, ALPHA, SINGLE, BI, BK)
        if SINGLE:
            b_value = value_rows(roots(p_scores, p_c + square, p_c, m, s, float("-inf"), BR), KIND, ALPHA)
            b_value = tl.sum(b_value, 0)
        else:
            b_value = tl.load(p_c + m)
        tl.store(p_value + i_b, tl.where(m > 0, b_value, 0))
    else:
        p_d += i_b * size * size
        p_to = p_space + i_b * 3 * square * (3 if PASS == TANGENT else 1)
        p_dto = p_to + 3 * square
        p_dc = p_dto + 3 * square
        clear(p_to, 3 * square * (3 if PASS == TANGENT else 1), BI * BK)
        tl.debug_barrier()
        if PASS == TANGENT:
            _up(p_d, p_c, p_dc, m, size, s, square, True, KIND, ALPHA, SINGLE, BI, BK)
        g = tl.load(p_g + i_b).to(tl.float64)
        dvalue = _begin(
            p_scores, p_d, p_c, p_dc, p_to, p_dto, g, m, s, square, PASS == TANGENT, KIND, ALPHA, SINGLE, BR
        )
        if PASS == TANGENT:
            tl.store(p_value + i_b, tl.where(m > 0, dvalue, 0))
        tl.debug_barrier()
        _down(p_c, p_dc, p_to, p_dto, m, s, square, PASS == TANGENT, KIND, ALPHA, SINGLE, BI, BK)
        p_arcs = (p_dto if PASS == TANGENT else p_to) + 2 * square
        store_square(p_mu + i_b * size * size, p_arcs, m, size, s, BI * BK)


@triton.jit(noinline=True)
def _up(
    p_x,
    p_c,
    p_out,
    m,
    size,
    s,
    square,
    TANGENTS: tl.constexpr,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SINGLE: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
):
    """Fill the chart p_out (then also p_c) from scores x; with TANGENTS, its derivative along x."""
    p_r, p_l, p_v = p_c, p_c + square, p_c + 2 * square
    p_to_r, p_to_l, p_to_v = p_out, p_out + square, p_out + 2 * square
    first = 1 if SINGLE else 0
    o_c = tl.arange(0, BK)[None, :]
    for width in range(1, m + 1 - first):
        for start in range(0, m + 1 - first - width, BI):
            o_i, o_j, m_in, o_left, o_right, m_on = spans(start, first, width, m, s, BI, BK)
            b_right, b_left = arcs(p_x, o_i, o_j, size, m_in, 0 if TANGENTS else float("-inf"))
            b_gap = values_or_slopes(
                p_r, p_l, p_to_r, p_to_l, o_left, o_right + 1, m_on, False, 0.0, TANGENTS, KIND, ALPHA
            )
            b_right += b_gap
            b_left += b_gap
            tl.store(p_to_v + o_i * s + o_j, b_right, mask=m_in)
            tl.store(p_to_v + o_j * s + o_i, b_left, mask=m_in)
            # only the arc (i, j) itself is a new choice: it is added from registers, not from memory
            b_new, m_new = b_right[:, None], o_c == width - 1
            b_r = values_or_slopes(
                p_v, p_r, p_to_v, p_to_r, o_left + 1, o_right + 1, m_on, m_new, b_new, TANGENTS, KIND, ALPHA
            )
            b_new, m_new = b_left[:, None], o_c == 0
            b_l = values_or_slopes(p_l, p_v, p_to_l, p_to_v, o_left, o_right, m_on, m_new, b_new, TANGENTS, KIND, ALPHA)
            tl.store(p_to_r + o_i * s + o_j, b_r, mask=m_in)
            tl.store(p_to_r + o_j * s + o_i, b_r, mask=m_in)
            tl.store(p_to_l + o_i * s + o_j, b_l, mask=m_in)
            tl.store(p_to_l + o_j * s + o_i, b_l, mask=m_in)
        tl.debug_barrier()


@triton.jit(noinline=True)
def _begin(
    p_scores,
    p_d,
    p_c,
    p_dc,
    p_to,
    p_dto,
    g,
    m,
    s,
    square,
    TANGENTS: tl.constexpr,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SINGLE: tl.constexpr,
    BR: tl.constexpr,
):
    """Write the gradients of the roots from g, and with TANGENTS their derivatives; return the derivative of the
    value.
    """
    dvalue = g * 0
    if SINGLE:
        o_r = tl.arange(0, BR)[None, :]
        m_roots = (o_r > 0) & (o_r <= m)
        b_p = weight_rows(roots(p_scores, p_c + square, p_c, m, s, float("-inf"), BR), KIND, ALPHA)
        tl.store(p_to + m * s + o_r, b_p * g, mask=m_roots)
        tl.store(p_to + square + s + o_r, b_p * g, mask=m_roots)
        if TANGENTS:
            b_da = roots(p_d, p_dc + square, p_dc, m, s, 0, BR)
            b_dp = tangent_rows(b_p, b_da, KIND, ALPHA) * g
            tl.store(p_dto + m * s + o_r, b_dp, mask=m_roots)
            tl.store(p_dto + square + s + o_r, b_dp, mask=m_roots)
            tl.store(p_dto + 2 * square + o_r, b_dp, mask=m_roots)
            dvalue = tl.sum(mean_rows(b_p, b_da), 0)
        else:
            tl.store(p_to + 2 * square + o_r, b_p * g, mask=m_roots)
    else:
        reached = (m > 0) & (tl.load(p_c + m) != float("-inf"))
        tl.store(p_to + m, tl.where(reached, g, 0))
        if TANGENTS:
            dvalue = tl.where(reached, tl.load(p_dc + m), 0)
    return dvalue


@triton.jit(noinline=True)
def _down(
    p_c,
    p_dc,
    p_to,
    p_dto,
    m,
    s,
    square,
    TANGENTS: tl.constexpr,
    KIND: tl.constexpr,
    ALPHA: tl.constexpr,
    SINGLE: tl.constexpr,
    BI: tl.constexpr,
    BK: tl.constexpr,
):
    """Fill the gradients of all spans and, with TANGENTS, their derivatives."""
    p_r, p_l, p_v = p_c, p_c + square, p_c + 2 * square
    p_dr, p_dl, p_dv = p_dc, p_dc + square, p_dc + 2 * square
    p_to_r, p_to_l, p_to_v = p_to, p_to + square, p_to + 2 * square
    p_dto_r, p_dto_l, p_dto_v = p_dto, p_dto + square, p_dto + 2 * square
    first = 1 if SINGLE else 0
    o_c = tl.arange(0, BK)[None, :]
    for step in range(0, m - first):
        width = m - first - step
        for start in range(0, step + 1, BI):
            o_i, o_j, m_in, o_left, o_right, m_on = spans(start, first, width, m, s, BI, BK)
            b_r, b_l, b_right, b_left = all_heard(p_to, square, o_i, o_j, s, m_in)
            b_dr, b_dl, b_dright, b_dleft = b_r, b_l, b_right, b_left
            m_any = (b_r != 0) | (b_l != 0) | (b_right != 0) | (b_left != 0)
            if TANGENTS:
                b_dr, b_dl, b_dright, b_dleft = all_heard(p_dto, square, o_i, o_j, s, m_in)
                m_any |= (b_dr != 0) | (b_dl != 0) | (b_dright != 0) | (b_dleft != 0)
            # other threads overwrite below what was read above
            tl.debug_barrier()
            # with the hard maximum few spans have a gradient
            if tl.max(m_any.to(tl.int32)) > 0:
                b_q, b_dq = shares(
                    p_v, p_dv, o_left + 1, p_r, p_dr, o_right + 1, m_on, b_r, b_dr, TANGENTS, KIND, ALPHA
                )
                b_right += pick(b_q, o_c == width - 1)
                b_dright += pick(b_dq, o_c == width - 1)
                add_both(p_to_v, p_dto_v, o_left + 1, b_q, b_dq, m_on, TANGENTS)
                add_both(p_to_r, p_dto_r, o_right + 1, b_q, b_dq, m_on & (o_c < width - 1), TANGENTS)
                b_q, b_dq = shares(p_l, p_dl, o_left, p_v, p_dv, o_right, m_on, b_l, b_dl, TANGENTS, KIND, ALPHA)
                b_left += pick(b_q, o_c == 0)
                b_dleft += pick(b_dq, o_c == 0)
                add_both(p_to_l, p_dto_l, o_left, b_q, b_dq, m_on & (o_c > 0), TANGENTS)
                add_both(p_to_v, p_dto_v, o_right, b_q, b_dq, m_on, TANGENTS)
                b_gap, b_dgap = b_right + b_left, b_dright + b_dleft
                b_q, b_dq = shares(
                    p_r, p_dr, o_left, p_l, p_dl, o_right + 1, m_on, b_gap, b_dgap, TANGENTS, KIND, ALPHA
                )
                add_both(p_to_r, p_dto_r, o_left, b_q, b_dq, m_on & (o_c > 0), TANGENTS)
                add_both(p_to_l, p_dto_l, o_right + 1, b_q, b_dq, m_on & (o_c < width - 1), TANGENTS)
        tl.debug_barrier()
