"""Tag sequences that count a state, for SparseMAP on a GPU: Viterbi around mu, a slot for each position.

A tile covers some of the states and all counts; the loop runs over the states before them.
"""

import torch
import triton
import triton.language as tl

from polymax.backend.triton_math import ceil_power
from polymax.kernels.active_set.cuda_plan import Plan, own
from polymax.kernels.active_set.cuda_tags import listed as listed
from polymax.kernels.active_set.cuda_tags import slots as slots
from polymax.kernels.active_set.problem import Search
from polymax.kernels.chain.cuda_shapes import distinct

# numbers in a tile
_TILE = 2048


def plan(search: Search) -> Plan:
    """Return the plan for unary (B, n, s), transition (B or fewer, n - 1 or 1, s, s) and lengths (B,)."""
    unary, transition, lengths = search.tensors
    k, state, runs = search.options
    count, n, s = unary.shape
    w, stride_b, stride_t = distinct(transition)
    group = max(count // max(len(transition), 1), 1) if stride_b else 1
    values, back = own(unary, n, s, k + 1), own(unary, n, s, k + 1, dtype=torch.int32)
    counts = ceil_power(k + 1)
    states = min(ceil_power(s), max(_TILE // counts, 1))
    problem = w, stride_b, stride_t, group, lengths.contiguous(), values, back, k, state, int(runs)
    return Plan(best, problem, (states, counts), (n, s), n, min(max(states * counts // 128, 1), 8), s, w)


@triton.jit(noinline=True)
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """Write the best sequence; SIZES are those of a tile of states and counts."""
    p_w, stride_wb, stride_wt, group, p_lengths, p_values, p_back, k, state, runs = problem
    n, s = height, width
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b).to(tl.int32)
    p_w += (i_b // group) * stride_wb * s * s
    p_around = p_arounds + i_b * n * s
    p_values, p_back = p_values + i_b * n * s * (k + 1), p_back + i_b * n * s * (k + 1)
    o_c = tl.arange(0, SIZES[1])[None, :]
    for i_j in range(0, s, SIZES[0]):
        o_j = (i_j + tl.arange(0, SIZES[0]))[:, None]
        m_on = (o_j < s) & (o_c <= k)
        b_v = tl.load(p_around + o_j + o_c * 0, mask=m_on & (o_c == (o_j == state).to(tl.int32)), other=float("-inf"))
        tl.store(p_values + o_j * (k + 1) + o_c, b_v, mask=m_on)
    for t in range(1, length):
        # other threads wrote the rows of the step before
        tl.debug_barrier()
        p_before, p_step = p_values + (t - 1) * s * (k + 1), p_w + (t - 1) * stride_wt * s * s
        for i_j in range(0, s, SIZES[0]):
            o_j = (i_j + tl.arange(0, SIZES[0]))[:, None]
            m_on = (o_j < s) & (o_c <= k)
            b_best = tl.full([SIZES[0], SIZES[1]], float("-inf"), tl.float64)
            b_from = tl.full([SIZES[0], SIZES[1]], 0, tl.int32)
            for i in range(0, s):
                # a step that continues a run does not count
                o_i = o_c - ((o_j == state) & ((runs == 0) | (i != state))).to(tl.int32)
                b_v = tl.load(p_before + i * (k + 1) + o_i, mask=m_on & (o_i >= 0), other=float("-inf"))
                b_v += tl.load(p_step + i * s + o_j, mask=o_j < s, other=float("-inf"))
                # the first state that gives the value
                b_from = tl.where(b_v > b_best, i, b_from)
                b_best = tl.where(b_v > b_best, b_v, b_best)
            b_best += tl.load(p_around + t * s + o_j, mask=o_j < s, other=float("-inf"))
            p_now = (t * s + o_j) * (k + 1) + o_c
            tl.store(p_values + p_now, b_best, mask=m_on)
            tl.store(p_back + p_now, b_from, mask=m_on)
    tl.debug_barrier()
    last = tl.maximum(length - 1, 0)
    top = tl.full([], float("-inf"), tl.float64)
    place = last * 0
    for i_j in range(0, s, SIZES[0]):
        o_j = (i_j + tl.arange(0, SIZES[0]))[:, None]
        o_p = o_j * (k + 1) + o_c
        m_on = (o_j < s) & (o_c <= k)
        b_v = tl.load(p_values + last * s * (k + 1) + o_p, mask=m_on, other=float("-inf"))
        high = tl.max(b_v)
        first = tl.min(tl.where((b_v == high) & m_on, o_p, s * (k + 1) - 1))
        place = tl.where(high > top, first, place)
        top = tl.maximum(top, high)
    extra = tl.where((length > 0) & (top == float("-inf")), float("-inf"), 0.0).to(tl.float64)
    tag = place // (k + 1)
    count = place % (k + 1)
    for step in range(0, length):
        t = last - step
        tl.store(p_fresh + t, t * s + tag)
        before = tl.load(p_back + (t * s + tag) * (k + 1) + count, mask=t > 0, other=0)
        extra += tl.load(p_w + (t - 1) * stride_wt * s * s + before * s + tag, mask=t > 0, other=0.0)
        count -= ((tag == state) & ((runs == 0) | (before != state))).to(tl.int32)
        count = tl.maximum(count, 0)
        tag = before
    for t in range(length, n):
        tl.store(p_fresh + t, -1)
    return extra
