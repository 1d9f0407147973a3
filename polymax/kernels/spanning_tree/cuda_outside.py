"""Expected arcs of sums over trees, and their derivatives along d, for Triton.

Derivatives are those of logarithms. The workspace is a square of the logs of derivatives by weights. For tangents it is
four squares: these logs, the eliminated scores, and the derivative of each.
"""

import triton
import triton.language as tl

from polymax.backend.triton_launch import Entry
from polymax.kernels.spanning_tree.cuda_rows import (
    LOST,
    fill,
    heads_of,
    log_add,
    log_subtract,
    log_sums,
    means,
    token_of,
)


@Entry
@triton.jit
def outside(
    p_lengths,
    p_chart,
    p_g,
    p_space,
    p_mu,
    p_d,
    p_dvalue,
    size,
    TANGENTS: tl.constexpr,
    FIRST: tl.constexpr,
    BI: tl.constexpr,
    BN: tl.constexpr,
):
    """Write g times the expected arcs or, with TANGENTS, its derivative."""
    i_b = tl.program_id(0).to(tl.int64)
    m = tl.load(p_lengths + i_b).to(tl.int32)
    square = size * size
    p_x = p_chart + i_b * 2 * (size + 1) * size
    p_pivots = p_x + square
    p_w = p_pivots + size
    p_ranks = p_w + square
    p_d += i_b * square
    p_o = p_space + i_b * square * (4 if TANGENTS else 1)
    p_do = p_o + square
    p_dx = p_do + square
    fill(p_o, square, float("-inf"), BI * BN)
    # without a tree there are no steps
    steps = tl.where(tl.load(p_pivots) == float("-inf"), 0, m)
    if TANGENTS:
        fill(p_do, square, 0.0, BI * BN)
        p_x = p_dx + square
        dvalue = _eliminate(p_w, p_d, p_x, p_dx, p_pivots, p_ranks, steps, size, FIRST, BI, BN)
        tl.store(p_dvalue + i_b, dvalue)
    else:
        tl.debug_barrier()
    _down(p_x, p_dx, p_o, p_do, p_pivots, p_ranks, steps, size, TANGENTS, FIRST, BI, BN)
    g = tl.load(p_g + i_b).to(tl.float64)
    for start in range(0, size, BI):
        o_x, m_in = _rows(start, size, BI, BN)
        b_w = tl.load(p_w + o_x, mask=m_in, other=float("-inf"))
        b_mu = tl.exp(b_w + tl.load(p_o + o_x, mask=m_in, other=float("-inf")))
        if TANGENTS:
            m_some = m_in & (b_w > float("-inf"))
            b_slope = tl.load(p_d + o_x, mask=m_some, other=0).to(tl.float64)
            b_mu *= b_slope + tl.load(p_do + o_x, mask=m_some, other=0)
        # a score of NaN is not -inf: its arc is not forbidden
        tl.store(p_mu + i_b * square + o_x, tl.where(b_w == float("-inf"), 0, g * b_mu), mask=m_in)


@triton.jit
def _rows(start, size, BI: tl.constexpr, BN: tl.constexpr):
    """Return the offsets of rows of a square from `start` on, and their mask."""
    o_i = start + tl.arange(0, BI)[:, None]
    o_n = tl.arange(0, BN)[None, :]
    return o_i * size + o_n, (o_i < size) & (o_n < size)


@triton.jit
def _slope_of_pivot(p_x, p_dx, k, p, m_heads, o_j, size):
    b_share = tl.exp(tl.load(p_x + o_j * size + k, mask=m_heads, other=float("-inf")) - p)
    return tl.sum(b_share * tl.load(p_dx + o_j * size + k, mask=m_heads, other=0), 0)


@triton.jit
def _eliminate(
    p_w,
    p_d,
    p_x,
    p_dx,
    p_pivots,
    p_ranks,
    steps,
    size,
    FIRST: tl.constexpr,
    BI: tl.constexpr,
    BN: tl.constexpr,
):
    """Eliminate again, from the scores w, with derivatives along d; return the derivative of the value."""
    for start in range(0, size, BI):
        o_x, m_in = _rows(start, size, BI, BN)
        b_w = tl.load(p_w + o_x, mask=m_in, other=float("-inf"))
        m_some = m_in & (b_w > float("-inf"))
        tl.store(p_x + o_x, b_w, mask=m_in)
        tl.store(p_dx + o_x, tl.load(p_d + o_x, mask=m_some, other=0).to(tl.float64), mask=m_in)
    tl.debug_barrier()
    o_j = tl.arange(0, BN)
    dvalue = tl.sum(tl.zeros([BN], tl.float64), 0)
    for step in range(0, steps):
        k = token_of(p_ranks, step, o_j, size)
        p = tl.load(p_pivots + k)
        m_heads, m_left = heads_of(p_ranks, step, k, step == steps - 1, o_j, size, FIRST)
        dp = _slope_of_pivot(p_x, p_dx, k, p, m_heads, o_j, size)
        dvalue += dp
        m_tokens = m_left & (o_j > 0)
        b_row = tl.load(p_x + k * size + o_j, mask=m_tokens, other=float("-inf")) - p
        b_drow = tl.load(p_dx + k * size + o_j, mask=m_tokens, other=0) - dp
        for start in range(0, size, BI):
            o_i = start + tl.arange(0, BI)
            m_on = (tl.load(p_ranks + o_i, mask=o_i < size, other=-1) > step) & (o_i != k)
            b_column = tl.load(p_x + o_i * size + k, mask=m_on, other=float("-inf"))
            b_dcolumn = tl.load(p_dx + o_i * size + k, mask=m_on, other=0)
            m_pair = m_on[:, None] & m_tokens[None, :] & (o_i[:, None] != o_j[None, :])
            o_x = o_i[:, None] * size + o_j[None, :]
            b_x = tl.load(p_x + o_x, mask=m_pair, other=float("-inf"))
            b_dx = tl.load(p_dx + o_x, mask=m_pair, other=0)
            b_through = b_column[:, None] + b_row[None, :]
            b_x = log_add(b_x, b_through)
            b_part = tl.where(b_x > float("-inf"), tl.exp(b_through - b_x), 0)
            b_dx += b_part * (b_dcolumn[:, None] + b_drow[None, :] - b_dx)
            tl.store(p_x + o_x, b_x, mask=m_pair)
            tl.store(p_dx + o_x, b_dx, mask=m_pair)
        tl.debug_barrier()
    return dvalue


@triton.jit
def _down(
    p_x,
    p_dx,
    p_o,
    p_do,
    p_pivots,
    p_ranks,
    steps,
    size,
    TANGENTS: tl.constexpr,
    FIRST: tl.constexpr,
    BI: tl.constexpr,
    BN: tl.constexpr,
):
    """Fill the logs of derivatives by weights and, with TANGENTS, their derivatives."""
    o_j = tl.arange(0, BN)
    for back in range(0, steps):
        step = steps - 1 - back
        k = token_of(p_ranks, step, o_j, size)
        p = tl.load(p_pivots + k)
        m_heads, m_left = heads_of(p_ranks, step, k, back == 0, o_j, size, FIRST)
        m_tokens = m_left & (o_j > 0)
        b_row = tl.load(p_x + k * size + o_j, mask=m_tokens, other=float("-inf"))
        b_mean = tl.full([BN], float("-inf"), tl.float64)
        if TANGENTS:
            dp = _slope_of_pivot(p_x, p_dx, k, p, m_heads, o_j, size)
            b_drow = tl.load(p_dx + k * size + o_j, mask=m_tokens, other=0)
            b_dmean = tl.zeros([BN], tl.float64)
        for start in range(0, size, BI):
            o_i = start + tl.arange(0, BI)
            m_on = (tl.load(p_ranks + o_i, mask=o_i < size, other=-1) > step) & (o_i != k)
            m_pair = m_on[:, None] & m_tokens[None, :]
            o_x = o_i[:, None] * size + o_j[None, :]
            b_o = tl.load(p_o + o_x, mask=m_pair, other=float("-inf"))
            b_column = tl.load(p_x + o_i * size + k, mask=m_on, other=float("-inf"))
            b_term = b_column[:, None] + b_o
            b_part = log_sums(b_term, 0)
            b_total = log_add(b_mean, b_part)
            if TANGENTS:
                b_do = tl.load(p_do + o_x, mask=m_pair, other=0)
                b_dcolumn = tl.load(p_dx + o_i * size + k, mask=m_on, other=0)
                b_dpart = means(b_term, b_dcolumn[:, None] + b_do, b_part, 0)
                b_share = tl.where(b_total > float("-inf"), tl.exp(b_part - b_total), 0)
                b_dmean += b_share * (b_dpart - b_dmean)
            b_mean = b_total
            b_term = b_o + b_row[None, :]
            b_passed = log_sums(b_term, 1)
            tl.store(p_o + o_i * size + k, b_passed - p, mask=m_on)
            if TANGENTS:
                b_dpassed = means(b_term, b_do + b_drow[None, :], b_passed, 1)
                tl.store(p_do + o_i * size + k, b_dpassed - dp, mask=m_on)
        tl.store(p_o + k * size + o_j, b_mean - p, mask=m_tokens)
        if TANGENTS:
            tl.store(p_do + k * size + o_j, b_dmean - dp, mask=m_tokens)
        tl.debug_barrier()
        b_column = tl.load(p_x + o_j * size + k, mask=m_left, other=float("-inf"))
        b_passed = tl.load(p_o + o_j * size + k, mask=m_left, other=float("-inf"))
        b_share = tl.exp(b_column + b_passed)
        rest = 1 - tl.sum(b_share, 0)
        counts = tl.abs(rest) > LOST
        b_rest = tl.zeros([BN], tl.float64) + tl.log(tl.abs(rest)) - p
        b_rest = tl.where(counts, b_rest, float("-inf"))
        b_new = tl.where(rest > 0, log_add(b_passed, b_rest), log_subtract(b_passed, b_rest))
        if TANGENTS:
            b_dcolumn = tl.load(p_dx + o_j * size + k, mask=m_left, other=0)
            b_dpassed = tl.load(p_do + o_j * size + k, mask=m_left, other=0)
            drest = -tl.sum(b_share * (b_dcolumn + b_dpassed), 0) - rest * dp
            # relative to the new sum, whose derivative is 0 if nothing is left
            m_some = b_new > float("-inf")
            b_safe = tl.where(m_some, b_new, 0)
            b_dnew = tl.exp(b_passed - b_safe) * b_dpassed + tl.where(counts, tl.exp(-p - b_safe), 0) * drest
            b_dnew = tl.where(m_some, b_dnew, 0)
        tl.debug_barrier()
        tl.store(p_o + o_j * size + k, b_new, mask=m_heads)
        if TANGENTS:
            tl.store(p_do + o_j * size + k, b_dnew, mask=m_heads)
        tl.debug_barrier()
