"""Sums over trees for Triton: by logarithms, one program to a sentence, one launch to a pass.

All arithmetic is in float64. A chart is two squares with a row below each: the eliminated scores and the pivots, the
initial scores and the ranks of tokens. Samples and the best trees are computed on the CPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.kernels.spanning_tree import chart_like
from polymax.kernels.spanning_tree.cuda_outside import outside
from polymax.kernels.spanning_tree.cuda_rows import heads_of, log_add, log_sum

_WARPS = 8
# entries of a tile of rows
_TILE = 2048


def spanning_tree_inside(scores: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _launch(_inside, scores, single_root, scores.contiguous(), lengths.contiguous(), chart, value)
    return value, chart


def spanning_tree_outside(scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    space = chart.new_empty(scores.shape)
    args = lengths.contiguous(), chart.contiguous(), g.contiguous(), space, mu, mu, mu
    _launch(outside, scores, single_root, *args, TANGENTS=False)
    return mu


def spanning_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, single_root: bool
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    space = chart.new_empty((scores.shape[0], 4, *scores.shape[1:]))
    args = lengths.contiguous(), chart.contiguous(), g.contiguous(), space, dmu, d.contiguous(), dvalue
    _launch(outside, scores, single_root, *args, TANGENTS=True)
    return dvalue, dmu


def spanning_tree_sample(scores: Tensor, lengths: Tensor, seeds: Tensor, single_root: bool) -> Tensor:
    args = (x.cpu() for x in (scores, lengths, seeds))
    return torch.ops.polymax.spanning_tree_sample(*args, single_root).to(scores.device)


def spanning_tree_kbest(scores: Tensor, lengths: Tensor, k: int, single_root: bool) -> tuple[Tensor, Tensor]:
    values, heads = torch.ops.polymax.spanning_tree_kbest(scores.cpu(), lengths.cpu(), k, single_root)
    return values.to(scores.device), heads.to(scores.device)


def _launch(kernel, scores, single_root, *args, **flags):
    batch, size = scores.shape[:2]
    if batch == 0:
        return
    columns = max(ceil_power(size), 16)
    rows = min(max(_TILE // columns, 1), columns)
    with on_device(scores):
        options = {"FIRST": int(single_root), "BI": rows, "BN": columns, **flags}
        kernel[(batch,)](*args, size, **options, num_warps=_WARPS, num_stages=1)


@Entry
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
        # the token of the best arc; any token if no arc is left
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
