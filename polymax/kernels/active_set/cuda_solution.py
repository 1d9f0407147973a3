"""The solution of SparseMAP on a GPU, from the final state of cuda_loop.py: one launch for all instances.

Structures are sorted by weight, heaviest first, those of weight 0 after them; free places come last. The rank of a
place is the number of places that come before it. The same launch computes the mean of the structures, if d > 0.

Shapes:
    shapes as in cuda_loop.py; results are those of Solution, k of the places, for B instances
    the mean is (B, d); d is 0 if the mean is not needed
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.backend.triton_memory import Array, new
from polymax.kernels.active_set.cuda_loop import INFEASIBLE
from polymax.kernels.active_set.triton_lists import spread
from polymax.kernels.active_set.triton_rows import write_row

_WARPS = 4
# _TILE: entries of a tile
# _ROW: entries of a row of sums that are added at once
_TILE, _ROW = 2048, 512


def ordered(
    held: tuple[Tensor, Tensor, Tensor],
    known: Tensor,
    gaps: Tensor,
    batch: torch.Size,
    k: int,
    parts: int,
    states: int,
    d: int = 0,
) -> tuple[Tensor, ...]:
    """Return lists of parts, weights, overlaps, value, iterations and gap of the first k structures in order, and their
    mean.

    Sequences of so many `states` list their steps after their states. The mean is of d parts.
    """
    count, room, slots = held[0].shape
    shapes = (*batch, k, parts), (*batch, k), (*batch, k, k), batch, batch, batch, (count, d)
    dtypes = torch.int32, torch.float64, torch.int32, torch.float64, torch.long, torch.float64, torch.float64
    out = new([Array(dtype, tuple(shape)) for dtype, shape in zip(dtypes, shapes, strict=True)], known.device)
    with on_device(known):
        order[(count,)](*held, known, gaps, *out, slots, parts, k, states, d, **_options(room, parts, states))
    return out


def _options(room: int, parts: int, states: int) -> dict[str, int | bool]:
    width = min(max(ceil_power(parts), 32), 256)
    rows, some = (max(min(_TILE // n, room), 2) for n in (room, width))
    sizes = {"STEPS": states > 0, "K": room, "BR": rows, "BP": some, "BU": width, "BD": _ROW}
    return {**sizes, "num_warps": _WARPS, "num_stages": 1}


@Entry
@triton.jit(do_not_specialize=["slots", "parts", "k", "states", "d"])
def order(
    p_places, p_gram, p_system, p_known, p_gaps, p_lists, p_probs, p_overlaps, p_value, p_iterations, p_gap,
    p_total, slots, parts, k, states, d,
    STEPS: tl.constexpr, K: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    p_places += i_b * K * slots
    p_gram += i_b * K * K
    p_system += i_b * (K + 3) * K
    p_lists += i_b * k * parts
    p_overlaps += i_b * k * k
    p_p, p_rank = p_system + (K + 1) * K, p_system + (K + 2) * K
    o_k = tl.arange(0, K)
    b_p = tl.load(p_p + o_k)
    m_on = b_p >= 0
    b_p = tl.where(m_on, b_p, -1.0)
    for i_r in range(0, K, BR):
        o_r = i_r + tl.arange(0, BR)
        b_r = tl.load(p_p + o_r)
        b_r = tl.where(b_r >= 0, b_r, -1.0)[:, None]
        m_before = (b_p[None, :] > b_r) | ((b_p[None, :] == b_r) & (o_k[None, :] < o_r[:, None]))
        tl.store(p_rank + o_r, tl.sum(m_before.to(tl.int32), 1).to(tl.float64))
    tl.debug_barrier()
    b_rank = tl.load(p_rank + o_k).to(tl.int32)
    # a single structure has weight exactly 1
    b_w = tl.maximum(b_p, 0.0)
    total = tl.sum(b_w, 0)
    total = tl.where(total > 0, total, 1.0)
    b_w = b_w / total
    value = tl.sum(b_w * tl.where(m_on, tl.load(p_system + K * K + o_k), 0.0), 0)
    for i_r in range(0, K, BR):
        o_r = i_r + tl.arange(0, BR)
        b_r = tl.load(p_p + o_r)
        b_to = tl.load(p_rank + o_r).to(tl.int32)
        m_both = (b_r >= 0)[:, None] & m_on[None, :]
        b_g = tl.load(p_gram + o_r[:, None] * K + o_k[None, :], mask=m_both, other=0)
        m_to = (b_to < k)[:, None] & (b_rank < k)[None, :]
        tl.store(p_overlaps + b_to[:, None] * k + b_rank[None, :], b_g.to(tl.int32), mask=m_to)
        b_pull = tl.sum(b_g.to(tl.float64) * b_w[None, :], 1)
        value -= tl.sum(tl.maximum(b_r, 0.0) / total * b_pull, 0) / 2
    # MAP skips NaN, unless all scores left are NaN
    gap = tl.load(p_gaps + i_b)
    nan = gap != gap
    value = tl.where(tl.load(p_known + i_b) == INFEASIBLE, float("-inf"), value)
    tl.store(p_value + i_b, tl.where(nan, float("nan"), value))
    tl.store(p_gap + i_b, tl.where(gap < 0, 0.0, gap))
    taken = tl.load(p_known + tl.num_programs(0) + i_b)
    tl.store(p_iterations + i_b, tl.maximum(taken, 0).to(tl.int64))
    tl.store(p_probs + i_b * k + b_rank, tl.where(m_on, tl.where(nan, float("nan"), b_w), 0.0), mask=b_rank < k)
    for i_r in range(0, K, BP):
        o_r = i_r + tl.arange(0, BP)
        m_r = tl.load(p_p + o_r) >= 0
        b_to = tl.load(p_rank + o_r).to(tl.int32)
        p_rows = p_places + o_r[:, None] * slots
        b_size = tl.zeros([BP], tl.int32)
        if STEPS:
            b_size += _used(p_rows, m_r, slots, BP, BU)
        for i_u in range(0, parts, BU):
            o_u = (i_u + tl.arange(0, BU))[None, :]
            if STEPS:
                b_at = _states_and_steps(p_rows, m_r[:, None], b_size[:, None], o_u, slots, states)
            else:
                b_at = tl.load(p_rows + o_u, mask=m_r[:, None] & (o_u < slots), other=-1)
            tl.store(p_lists + b_to[:, None] * parts + o_u, b_at, mask=(b_to < k)[:, None] & (o_u < parts))
    if d > 0:
        p_total += i_b * d
        write_row(p_probs, p_total, 0, d, BD)
        spread(p_lists, p_probs + i_b * k, p_total, k, parts, BU)


@triton.jit
def _used(p_rows, m_r, slots, BP: tl.constexpr, BU: tl.constexpr):
    """Return the number of slots that structures use."""
    b_size = tl.zeros([BP, BU], tl.int32)
    for i_u in range(0, slots, BU):
        o_u = (i_u + tl.arange(0, BU))[None, :]
        b_size += (tl.load(p_rows + o_u, mask=m_r[:, None] & (o_u < slots), other=-1) >= 0).to(tl.int32)
    return tl.sum(b_size, 1)


@triton.jit
def _states_and_steps(p_rows, m_r, b_size, o_u, slots, states):
    """Return the states of sequences, directly followed by their steps."""
    b_t = o_u - b_size
    m_step = m_r & (b_t >= 0) & (b_t + 1 < b_size)
    b_at = tl.load(p_rows + tl.where(b_t < 0, o_u, b_t), mask=m_step | (m_r & (b_t < 0)), other=-1)
    b_next = tl.load(p_rows + b_t + 1, mask=m_step, other=0)
    return tl.where(m_step, (slots + b_at) * states + b_next % states, b_at)
