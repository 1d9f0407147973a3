"""Walks down from the root by given weights, for Triton: expected visits and counts in waves, a thread to a sample.

The k best derivations use lists and heaps, which a warp cannot share: they are computed on the CPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_math import on_device
from polymax.kernels.hypergraph.cuda_smooth import put, row
from polymax.kernels.hypergraph.cuda_waves import (
    Above,
    Below,
    heads,
    instances,
    span,
    tiles,
    wave_down,
    wave_up,
)

BB = 32
# nodes that wait in all walks of a launch
WAITING = 2**28
STEP, MIX_1, MIX_2 = (tl.constexpr(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def hypergraph_visits(p: Tensor, first: Tensor, tails: Tensor, roots: Tensor) -> Tensor:
    count, nodes = p.shape[0], first.shape[0] - 1
    visits = torch.zeros((count, nodes), dtype=torch.float64, device=p.device)
    above = Above.of(first, tails)
    tensors = (p, above.edges, above.offsets, above.nearest, heads(first, tails), roots, visits)
    _launch(_visits, count, *tensors, tails.shape[0], nodes, **tiles(count))
    return visits.to(p.dtype)


def hypergraph_count(p: Tensor, first: Tensor, tails: Tensor, roots: Tensor) -> Tensor:
    count, nodes = p.shape[0], first.shape[0] - 1
    counts = torch.ones(count, dtype=torch.float64, device=p.device)
    trees = torch.empty((count, nodes), dtype=torch.float64, device=p.device)
    tensors = (p, first, tails, Below.of(first, tails).deepest, roots, trees, counts)
    _launch(_count, count, *tensors, tails.shape[0], nodes, **tiles(count))
    return counts


def hypergraph_sample(
    p: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, seeds: Tensor, parts: int
) -> Tensor:
    y = p.new_zeros((*seeds.shape, parts))
    # number of walks that fit: each needs room for as many waiting nodes as the graph has
    room = min(seeds.numel(), max(BB, WAITING // first.shape[0]))
    waiting = torch.empty((first.shape[0], room), dtype=torch.int32, device=p.device)
    tensors = (p, first, tails, part, roots, seeds, waiting, y, seeds.shape[1], p.shape[1], parts, room)
    for start in range(0, seeds.numel(), max(room, 1)):
        _launch(_sample, min(room, seeds.numel() - start), *tensors, start, BB=BB, num_warps=1)
    return y


def hypergraph_kbest(
    weights: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, k: int, parts: int
) -> tuple[Tensor, Tensor]:
    tensors = (x.cpu() for x in (weights, first, tails, part, roots))
    values, y = torch.ops.polymax.hypergraph_kbest(*tensors, k, parts)
    return values.to(weights.device), y.to(weights.device)


def _launch(kernel, count: int, *args: Tensor | int, **sizes: int) -> None:
    if count:
        args = tuple(x.contiguous() if isinstance(x, Tensor) else x for x in args)
        with on_device(args[0]):
            kernel[(triton.cdiv(count, sizes["BB"]),)](*args, count, **sizes)


@triton.jit
def _visits(
    p_p,
    p_edges,
    p_offsets,
    p_nearest,
    p_heads,
    p_roots,
    p_visits,
    edge_count,
    nodes,
    count,
    BN: tl.constexpr,
    BB: tl.constexpr,
):
    o_b, m_b, b_root, start = instances(p_roots, count, BB)
    while start >= 0:
        o_h, m_h, size = wave_down(p_nearest, start, BN)
        o_begin, b_count, widest = span(p_offsets, o_h, m_h)
        b_mass = tl.where(o_h[:, None] == b_root, tl.full([BN, BB], 1, tl.float64), 0)
        for i in range(0, widest):
            m_e = i < b_count
            o_e = tl.load(p_edges + o_begin + i, mask=m_e, other=0)
            b_head = row(p_visits, tl.load(p_heads + o_e, mask=m_e, other=0), m_e, o_b, m_b, nodes)
            b_mass += tl.where(b_head != 0, b_head * row(p_p, o_e, m_e, o_b, m_b, edge_count), 0)
        put(p_visits, o_h, m_h, b_mass, o_b, m_b, nodes)
        tl.debug_barrier()
        start -= size


@triton.jit
def _count(
    p_p,
    p_first,
    p_tails,
    p_deepest,
    p_roots,
    p_trees,
    p_counts,
    edge_count,
    nodes,
    count,
    BN: tl.constexpr,
    BB: tl.constexpr,
):
    o_b, m_b, b_root, last = instances(p_roots, count, BB)
    start = last * 0
    while start <= last:
        o_h, m_h, size = wave_up(p_deepest, start, last, BN)
        o_begin, b_count, widest = span(p_first, o_h, m_h)
        b_trees = tl.where(b_count[:, None] == 0, tl.full([BN, BB], 1, tl.float64), 0)
        for i in range(0, widest):
            m_e = i < b_count
            o_left = tl.load(p_tails + 2 * (o_begin + i), mask=m_e, other=-1)
            o_right = tl.load(p_tails + 2 * (o_begin + i) + 1, mask=m_e, other=-1)
            b_left = tl.where(o_left[:, None] < 0, 1, row(p_trees, o_left, m_e, o_b, m_b, nodes))
            b_right = tl.where(o_right[:, None] < 0, 1, row(p_trees, o_right, m_e, o_b, m_b, nodes))
            # counts beyond float64 are inf, and 0 times inf would be NaN
            m_some = (row(p_p, o_begin + i, m_e, o_b, m_b, edge_count) > 0) & (b_left > 0) & (b_right > 0)
            b_trees += tl.where(m_some, b_left * b_right, 0)
        put(p_trees, o_h, m_h, b_trees, o_b, m_b, nodes)
        tl.debug_barrier()
        start += size
    m_b = m_b & (b_root >= 0)
    tl.store(p_counts + o_b, tl.load(p_trees + o_b * nodes + b_root, mask=m_b), mask=m_b)


@triton.jit
def _mix(b_z):
    """Return splitmix64 of a counter."""
    b_z = (b_z ^ (b_z >> 30)) * MIX_1
    b_z = (b_z ^ (b_z >> 27)) * MIX_2
    return b_z ^ (b_z >> 31)


@triton.jit
def _sample(
    p_p,
    p_first,
    p_tails,
    p_part,
    p_roots,
    p_seeds,
    p_waiting,
    p_y,
    samples,
    edge_count,
    parts,
    room,
    start,
    count,
    BB: tl.constexpr,
):
    o_w = tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB)
    m_r = o_w < count
    o_r = start + o_w
    o_b = o_r // samples
    b_root = tl.load(p_roots + o_b, mask=m_r, other=-1)
    b_state = _mix(tl.load(p_seeds + o_r, mask=m_r, other=0).to(tl.uint64, bitcast=True))
    tl.store(p_waiting + o_w, b_root.to(tl.int32), mask=m_r)
    b_size = (b_root >= 0).to(tl.int64)
    while tl.max(b_size) > 0:
        m_x = b_size > 0
        b_size = tl.where(m_x, b_size - 1, 0)
        o_h = tl.load(p_waiting + b_size * room + o_w, mask=m_x, other=0).to(tl.int64)
        o_begin = tl.load(p_first + o_h, mask=m_x, other=0)
        o_end = tl.load(p_first + o_h + 1, mask=m_x, other=0)
        widest = tl.max(o_end - o_begin)
        b_total = tl.zeros(o_r.shape, tl.float64)
        for i in range(0, widest):
            m_e = m_x & (o_begin + i < o_end)
            b_w = tl.load(p_p + o_b * edge_count + o_begin + i, mask=m_e, other=0).to(tl.float64)
            b_total += tl.where(b_w > 0, b_w, 0)
        b_state = tl.where(o_end - o_begin > 1, b_state + STEP, b_state)
        # the upper 53 bits, as a fraction
        b_target = b_total * ((_mix(b_state) >> 11).to(tl.float64) * 1.1102230246251565e-16)
        o_e = tl.full(o_r.shape, -1, tl.int64)
        for i in range(0, widest):
            m_e = m_x & (o_begin + i < o_end) & (b_target >= 0)
            b_w = tl.load(p_p + o_b * edge_count + o_begin + i, mask=m_e, other=0).to(tl.float64)
            # rounding may leave the target at or beyond the last sum: then the last edge with weight is chosen
            o_e = tl.where(b_w > 0, o_begin + i, o_e)
            b_target -= tl.where(b_w > 0, b_w, 0)
        m_x = m_x & (o_e >= 0)
        o_part = tl.load(p_part + o_e, mask=m_x, other=-1)
        m_y = m_x & (o_part >= 0)
        p_cell = p_y + o_r * parts + o_part
        tl.store(p_cell, tl.load(p_cell, mask=m_y, other=0) + 1, mask=m_y)
        for side in tl.static_range(2):
            o_tail = tl.load(p_tails + 2 * o_e + side, mask=m_x, other=-1)
            m_t = m_x & (o_tail >= 0)
            tl.store(p_waiting + b_size * room + o_w, o_tail.to(tl.int32), mask=m_t)
            b_size += m_t.to(b_size.dtype)
