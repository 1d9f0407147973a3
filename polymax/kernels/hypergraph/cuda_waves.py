"""The order of nodes and edges for programs that compute many of them at once.

A wave is a run of nodes that do not depend on each other: going up, all their tails are below its first node; going
down, all heads of the edges they are tails of are above its last node. Programs find waves on the way, from one number
per node: its largest tail, or the smallest head above it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_math import INTERPRETED, ceil_power

# nodes by instances in a tile
TILE = 256


def tiles(count: int) -> dict[str, int]:
    """Return block sizes: one instance per program as long as the device has room, then up to eight."""
    # the interpreter runs programs one after the other
    bb = 8 if INTERPRETED else min(ceil_power(-(-count // 128)), 8)
    return {"BN": TILE // bb, "BB": bb, "num_warps": 8}


@dataclass(frozen=True)
class Below:
    """Data for going up: the largest tail of each node, -1 if it has none."""

    deepest: Tensor

    @classmethod
    def of(cls, first: Tensor, tails: Tensor) -> "Below":
        deepest = tails.new_full((first.shape[0] - 1,), -1)
        return cls(deepest.scatter_reduce_(0, heads(first, tails), tails.amax(1), "amax") if len(tails) else deepest)


@dataclass(frozen=True)
class Above:
    """Data for going down: lists of the edges that each node is a tail of, their offsets, and the smallest of their
    heads.

    An edge with the same node as both tails is twice in its list.
    """

    edges: Tensor
    offsets: Tensor
    nearest: Tensor

    @classmethod
    def of(cls, first: Tensor, tails: Tensor) -> "Above":
        nodes = first.shape[0] - 1
        edges, offsets = groups(tails.flatten(), nodes)
        edges = edges // 2
        # edges are sorted by their heads, so the first edge of a list has the smallest head
        padded = torch.cat([heads(first, tails)[edges], first.new_full((1,), nodes)])
        empty = offsets[:-1] == offsets[1:]
        return cls(edges, offsets, torch.where(empty, nodes, padded[offsets[:-1]]))


def heads(first: Tensor, tails: Tensor) -> Tensor:
    """Return the head of each edge."""
    nodes = torch.arange(first.shape[0] - 1, device=first.device)
    return torch.repeat_interleave(nodes, first.diff(), output_size=tails.shape[0])


def groups(key: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return positions sorted by key, and offsets of the keys 0 .. size - 1; positions with key -1 come before."""
    ordered, positions = torch.sort(key, stable=True)
    return positions, torch.searchsorted(ordered, torch.arange(size + 1, device=key.device))


@triton.jit
def everything(count, size, blocks, BN: tl.constexpr, BB: tl.constexpr):
    """Return the program's instances as a row with its mask, and columns of `size` in `blocks` with their mask."""
    i_b = tl.program_id(0).to(tl.int64)
    o_b = (i_b // blocks * BB + tl.arange(0, BB))[None, :]
    o_n = i_b % blocks * BN + tl.arange(0, BN)
    return o_b, o_b < count, o_n, o_n < size


@triton.jit
def instances(p_roots, count, BB: tl.constexpr):
    """Return the program's instances as a row, its mask, their roots, and the largest root."""
    o_b = (tl.program_id(0).to(tl.int64) * BB + tl.arange(0, BB))[None, :]
    m_b = o_b < count
    b_root = tl.load(p_roots + o_b, mask=m_b, other=-1)
    return o_b, m_b, b_root, tl.max(b_root)


@triton.jit
def wave_up(p_deepest, start, last, BN: tl.constexpr):
    """Return nodes from `start` on, the mask of the wave that begins there, and its size."""
    o_n = tl.arange(0, BN)
    o_h = start + o_n
    b_deepest = tl.load(p_deepest + o_h, mask=o_h <= last, other=start)
    size = tl.min(tl.where(b_deepest < start, BN, o_n))
    return o_h, o_n < size, size.to(tl.int64)


@triton.jit
def wave_down(p_nearest, start, BN: tl.constexpr):
    """Return nodes from `start` down, the mask of the wave that begins there, and its size."""
    o_n = tl.arange(0, BN)
    o_h = start - o_n
    b_nearest = tl.load(p_nearest + o_h, mask=o_h >= 0, other=start)
    size = tl.min(tl.where(b_nearest > start, BN, o_n))
    return o_h, o_n < size, size.to(tl.int64)


@triton.jit
def span(p_offsets, o_n, m_n):
    """Return the offsets of the lists of o_n, their lengths, and the largest length."""
    o_begin = tl.load(p_offsets + o_n, mask=m_n, other=0)
    b_count = tl.load(p_offsets + o_n + 1, mask=m_n, other=0) - o_begin
    return o_begin, b_count, tl.max(b_count)
