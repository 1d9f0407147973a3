"""Sums over trees for Triton: by logarithms, one program to a sentence, one launch to a pass.

All arithmetic is in float64. A chart is two squares and a row below each: what elimination left and its pivots, the
scores it began with and the ranks of tokens. Samples and the best trees are found on the CPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.spanning_tree import chart_like
from polymax.kernels.spanning_tree.cuda_rows import (
    LOST,
    fill,
    heads_of,
    log_add,
    log_subtract,
    log_sum,
    log_sums,
    token_of,
)
from polymax.kernels.spanning_tree.cuda_tangent import tangent
from polymax.kernels.triton_math import ceil_power, on_device

_WARPS = 8
# entries of a tile of rows
_TILE = 2048


def spanning_tree_inside(scores: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _launch(_inside, scores, single_root, scores.contiguous(), lengths.contiguous(), chart, value)
    return value, chart


def spanning_tree_outside(scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    space = chart.new_empty((scores.shape[0], 2, *scores.shape[1:]))
    _launch(_outside, scores, single_root, lengths.contiguous(), chart.contiguous(), g.contiguous(), space, mu)
    return mu


def spanning_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, single_root: bool
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    space = chart.new_empty((scores.shape[0], 4, *scores.shape[1:]))
    args = lengths.contiguous(), chart.contiguous(), g.contiguous(), d.contiguous(), space, dvalue, dmu
    _launch(tangent, scores, single_root, *args)
    return dvalue, dmu


def spanning_tree_sample(scores: Tensor, lengths: Tensor, seeds: Tensor, single_root: bool) -> Tensor:
    args = (x.cpu() for x in (scores, lengths, seeds))
    return torch.ops.polymax.spanning_tree_sample(*args, single_root).to(scores.device)


def spanning_tree_kbest(scores: Tensor, lengths: Tensor, k: int, single_root: bool) -> tuple[Tensor, Tensor]:
    values, heads = torch.ops.polymax.spanning_tree_kbest(scores.cpu(), lengths.cpu(), k, single_root)
    return values.to(scores.device), heads.to(scores.device)


def _launch(kernel, scores, single_root, *args):
    batch, size = scores.shape[:2]
    if batch == 0:
        return
    columns = max(ceil_power(size), 16)
    rows = min(max(_TILE // columns, 1), columns)
    with on_device(scores):
        kernel[(batch,)](
            *args, size, FIRST=int(single_root), BI=rows, BN=columns, num_warps=_WARPS, num_stages=1
        )  # fmt: skip


@triton.jit
def _inside(
    p_scores,
    p_lengths,
    p_chart,
    p_value,
    size,
    FIRST: tl.constexpr,
    BI: tl.constexpr,
    BN: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    m = tl.load(p_lengths + i_b).to(tl.int32)
    p_scores += i_b * size * size
    p_x = p_chart + i_b * 2 * (size + 1) * size
    p_pivots = p_x + size * size
    p_w = p_pivots + size
    p_ranks = p_w + size * size
    o_j = tl.arange(0, BN)
    o_n = o_j[None, :]
    m_token = (o_j > 0) & (o_j <= m)
    tl.store(p_ranks + o_j, tl.where(o_j <= m, size, -1).to(tl.float64), mask=o_j < size)
    tl.store(p_pivots + o_j, tl.zeros([BN], tl.float64), mask=o_j < size)
    b_top = tl.full([BN], float("-inf"), tl.float64)
    for start in range(0, size, BI):
        o_i = start + tl.arange(0, BI)[:, None]
        m_arc = (o_i <= m) & (o_n <= m) & (o_n > 0) & (o_i != o_n)
        b_x = tl.load(p_scores + o_i * size + o_n, mask=m_arc, other=float("-inf")).to(tl.float64)
        m_in = (o_i < size) & (o_n < size)
        tl.store(p_x + o_i * size + o_n, b_x, mask=m_in)
        tl.store(p_w + o_i * size + o_n, b_x, mask=m_in)
        b_top = tl.maximum(b_top, tl.max(tl.where((o_i >= FIRST) & (b_x > float("-inf")), b_x, float("-inf")), 0))
    tl.debug_barrier()
    value = tl.sum(tl.zeros([BN], tl.float64), 0)
    for step in range(0, m):
        # the token of the best arc; any, where none is left
        b_top = tl.where(m_token, b_top, float("-inf"))
        best = tl.argmax(b_top, 0)
        k = tl.where(tl.max(b_top, 0) > float("-inf"), best, tl.max(tl.where(m_token, o_j, 0), 0))
        m_heads, _ = heads_of(p_ranks, step, k, step == m - 1, o_j, size, FIRST)
        p = log_sum(tl.load(p_x + o_j * size + k, mask=m_heads, other=float("-inf")))
        value += p
        tl.store(p_pivots + k, p)
        m_token = m_token & (o_j != k)
        b_row = tl.load(p_x + k * size + o_j, mask=m_token, other=float("-inf")) - tl.where(p > float("-inf"), p, 0)
        b_top = tl.full([BN], float("-inf"), tl.float64)
        for start in range(0, size, BI):
            o_i = start + tl.arange(0, BI)
            m_on = (tl.load(p_ranks + o_i, mask=o_i < size, other=-1) > step) & (o_i != k)
            b_column = tl.load(p_x + o_i * size + k, mask=m_on, other=float("-inf"))
            m_pair = m_on[:, None] & m_token[None, :] & (o_i[:, None] != o_n)
            o_x = o_i[:, None] * size + o_n
            b_x = tl.load(p_x + o_x, mask=m_pair, other=float("-inf"))
            b_x = log_add(b_x, b_column[:, None] + b_row[None, :])
            tl.store(p_x + o_x, b_x, mask=m_pair)
            m_seen = m_pair & (o_i[:, None] >= FIRST) & (b_x > float("-inf"))
            b_top = tl.maximum(b_top, tl.max(tl.where(m_seen, b_x, float("-inf")), 0))
        tl.debug_barrier()
        tl.store(p_ranks + k, step)
        tl.debug_barrier()
    tl.store(p_value + i_b, value)
    tl.store(p_pivots, value)


@triton.jit
def _outside(
    p_lengths,
    p_chart,
    p_g,
    p_space,
    p_mu,
    size,
    FIRST: tl.constexpr,
    BI: tl.constexpr,
    BN: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    m = tl.load(p_lengths + i_b).to(tl.int32)
    p_x = p_chart + i_b * 2 * (size + 1) * size
    p_pivots = p_x + size * size
    p_w = p_pivots + size
    p_ranks = p_w + size * size
    # logs of derivatives by weights
    p_o = p_space + i_b * 2 * size * size
    o_j = tl.arange(0, BN)
    o_n = o_j[None, :]
    fill(p_o, p_o + size * size, size * size, float("-inf"), BI * BN)
    tl.debug_barrier()
    # without a tree nothing is left to do
    steps = tl.where(tl.load(p_pivots) == float("-inf"), 0, m)
    for back in range(0, steps):
        step = m - 1 - back
        k = token_of(p_ranks, step, o_j, size)
        p = tl.load(p_pivots + k)
        m_heads, m_left = heads_of(p_ranks, step, k, back == 0, o_j, size, FIRST)
        m_tokens = m_left & (o_j > 0)
        b_row = tl.load(p_x + k * size + o_j, mask=m_tokens, other=float("-inf"))
        b_mean = tl.full([BN], float("-inf"), tl.float64)
        for start in range(0, size, BI):
            o_i = start + tl.arange(0, BI)
            m_on = (tl.load(p_ranks + o_i, mask=o_i < size, other=-1) > step) & (o_i != k)
            b_o = tl.load(p_o + o_i[:, None] * size + o_n, mask=m_on[:, None] & m_tokens[None, :], other=float("-inf"))
            b_column = tl.load(p_x + o_i * size + k, mask=m_on, other=float("-inf"))
            b_mean = log_add(b_mean, log_sums(b_column[:, None] + b_o, 0))
            tl.store(p_o + o_i * size + k, log_sums(b_o + b_row[None, :], 1) - p, mask=m_on)
        tl.store(p_o + k * size + o_j, b_mean - p, mask=m_tokens)
        tl.debug_barrier()
        b_column = tl.load(p_x + o_j * size + k, mask=m_left, other=float("-inf"))
        b_passed = tl.load(p_o + o_j * size + k, mask=m_left, other=float("-inf"))
        rest = 1 - tl.sum(tl.exp(b_column + b_passed), 0)
        b_rest = tl.zeros([BN], tl.float64) + tl.log(tl.abs(rest)) - p
        b_rest = tl.where(tl.abs(rest) > LOST, b_rest, float("-inf"))
        b_new = tl.where(rest > 0, log_add(b_passed, b_rest), log_subtract(b_passed, b_rest))
        tl.debug_barrier()
        tl.store(p_o + o_j * size + k, b_new, mask=m_heads)
        tl.debug_barrier()
    g = tl.load(p_g + i_b).to(tl.float64)
    for start in range(0, size, BI):
        o_i = start + tl.arange(0, BI)[:, None]
        m_in = (o_i < size) & (o_n < size)
        b_w = tl.load(p_w + o_i * size + o_n, mask=m_in, other=float("-inf"))
        b_o = tl.load(p_o + o_i * size + o_n, mask=m_in, other=float("-inf"))
        b_mu = tl.where(b_w == float("-inf"), 0, g * tl.exp(b_w + b_o))
        tl.store(p_mu + i_b * size * size + o_i * size + o_n, b_mu, mask=m_in)
