"""Tag sequences for SparseMAP on a GPU: Viterbi around mu, a slot for each position."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.active_set.cuda import Plan, places_of, room
from polymax.kernels.chain.cuda_shapes import distinct
from polymax.kernels.triton_math import ceil_power
from polymax.solvers.search import Search
from polymax.solvers.solution import UsedParts


def plan(search: Search) -> Plan:
    """Unary (B, n, s), transition (B or fewer, n - 1 or 1, s, s) and lengths (B,) as the program takes them."""
    unary, transition, lengths = search.tensors
    count, n, s = unary.shape
    w, stride_b, stride_t = distinct(transition.double())
    group = max(count // max(len(transition), 1), 1) if stride_b else 1
    values, back = room(unary, n, s), room(unary, n, s, dtype=torch.int32)
    height = max(ceil_power(s), 16)
    width = max(min(height, 4096 // height), 2)
    problem = w, stride_b, stride_t, group, lengths.contiguous(), values, back
    return Plan(best, problem, (height, width), (n, s), n, min(max(height * width // 512, 1), 8))


def slots(search: Search, vertices: Tensor) -> Tensor:
    """Sequences by their states, (*batch, k, n, s), as the program lists them: (*batch, k, n)."""
    return places_of(vertices, 2).amax(-1)


def listed(search: Search, places: Tensor) -> UsedParts:
    """Sequences in slots (*batch, k, n) as lists of states, then of steps."""
    n, s = search.events[0]
    before, after = places[..., :-1], places[..., 1:]
    steps = n * s + (torch.arange(max(n - 1, 0), device=places.device) * s + before % s) * s + after % s
    places = torch.cat([places, torch.where(after < 0, -1, steps).int()], -1)
    # nothing between the states of a shorter chain and its steps
    places = places.gather(-1, torch.sort((places < 0).byte(), dim=-1, stable=True).indices)
    return UsedParts(places, search.events)


@triton.jit
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """The best sequence; SIZES of a tile of transitions."""
    p_w, stride_wb, stride_wt, group, p_lengths, p_values, p_back = problem
    n, s = height, width
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b).to(tl.int32)
    p_w += (i_b // group) * stride_wb * s * s
    p_around, p_values, p_back = p_arounds + i_b * n * s, p_values + i_b * n * s, p_back + i_b * n * s
    o_i = tl.arange(0, SIZES[0])
    m_i = o_i < s
    tl.store(p_values + o_i, tl.load(p_around + o_i, mask=m_i), mask=m_i)
    for t in range(1, length):
        # the row of the step before is written by other threads
        tl.debug_barrier()
        b_v = tl.load(p_values + (t - 1) * s + o_i, mask=m_i, other=float("-inf"))
        for i_j in range(0, s, SIZES[1]):
            o_j = i_j + tl.arange(0, SIZES[1])
            p_step = p_w + (t - 1) * stride_wt * s * s + o_i[:, None] * s + o_j[None, :]
            b_c = b_v[:, None] + tl.load(p_step, mask=m_i[:, None] & (o_j < s)[None, :], other=float("-inf"))
            b_m = tl.max(b_c, 0)
            # the first that gives the value
            b_from = tl.min(tl.where(b_c == b_m[None, :], o_i[:, None], s - 1), 0)
            b_u = tl.load(p_around + t * s + o_j, mask=o_j < s, other=float("-inf"))
            tl.store(p_values + t * s + o_j, b_m + b_u, mask=o_j < s)
            tl.store(p_back + t * s + o_j, b_from, mask=o_j < s)
    tl.debug_barrier()
    last = tl.maximum(length - 1, 0)
    b_v = tl.load(p_values + last * s + o_i, mask=m_i, other=float("-inf"))
    top = tl.max(b_v, 0)
    tag = tl.min(tl.where((b_v == top) & m_i, o_i, s - 1), 0)
    extra = tl.where((length > 0) & (top == float("-inf")), float("-inf"), 0.0).to(tl.float64)
    b_from = tl.load(p_back + last * s + o_i, mask=m_i & (last > 0), other=0)
    for k in range(0, length):
        t = last - k
        tl.store(p_fresh + t, t * s + tag)
        # what comes next does not wait for the tag
        b_next = tl.load(p_back + (t - 1) * s + o_i, mask=m_i & (t > 1), other=0)
        before = tl.sum(tl.where(o_i == tag, b_from, 0), 0)
        extra += tl.load(p_w + (t - 1) * stride_wt * s * s + before * s + tag, mask=t > 0, other=0.0)
        tag = before
        b_from = b_next
    for t in range(length, n):
        tl.store(p_fresh + t, -1)
    return extra
