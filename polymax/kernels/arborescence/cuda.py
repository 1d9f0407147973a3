"""The maximum spanning arborescence for Triton: one warp per sentence, one launch per batch.

The walk is that of numba_tree.py, O(n) steps on a row each, whose entries are the lanes. The state of nodes is in
memory, with a barrier after every store that other threads read.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device

# fields of a node: the node it is merged into, its state, its row, the arc into it (two fields); and the walk
FIELDS = 6


def arborescence(scores: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    batch, size = scores.shape[:2]
    heads = torch.full((batch, size - 1), -1, dtype=torch.long, device=scores.device)
    if batch == 0 or size == 1:
        return heads
    w = torch.empty((batch, size, size), dtype=torch.float64, device=scores.device)
    to = torch.empty((batch, size, size), dtype=torch.int32, device=scores.device)
    known = torch.empty((batch, FIELDS, 2 * size), dtype=torch.int32, device=scores.device)
    args = scores.contiguous(), lengths.contiguous(), w, to, known, heads
    with on_device(scores):
        _entry[(batch,)](*args, size, SINGLE=single_root, FIELDS=FIELDS, BN=max(ceil_power(size), 32), num_warps=1)
    return heads


@triton.jit
def trees(
    p_scores,
    p_lengths,
    p_w,
    p_to,
    p_known,
    p_heads,
    size,
    SINGLE: tl.constexpr,
    FIELDS: tl.constexpr,
    BN: tl.constexpr,
):
    i_b = tl.program_id(0).to(tl.int64)
    m = tl.load(p_lengths + i_b).to(tl.int32)
    p_scores += i_b * size * size
    p_w += i_b * size * size
    p_to += i_b * size * size
    p_above = p_known + i_b * FIELDS * 2 * size
    p_state = p_above + 2 * size
    p_row = p_state + 2 * size
    p_head = p_row + 2 * size
    p_modifier = p_head + 2 * size
    p_walk = p_modifier + 2 * size
    o_j = tl.arange(0, BN)
    m_in = o_j <= m
    b_nan = tl.zeros([BN], tl.int32)
    for v in range(1, m + 1):
        b_s = tl.load(p_scores + o_j * size + v, mask=m_in & (o_j != v), other=float("-inf")).to(tl.float64)
        b_nan = tl.where(b_s != b_s, 1, b_nan)
        tl.store(p_w + v * size + o_j, b_s, mask=m_in)
        tl.store(p_to + v * size + o_j, tl.zeros([BN], tl.int32) + v, mask=m_in)
    # states: 0 waiting, 1 on the walk, 2 done; -1 later for a token whose arc is replaced
    tl.store(p_state + o_j, tl.where(o_j == 0, 2, 0), mask=m_in)
    tl.store(p_state + m + 1 + o_j, tl.zeros([BN], tl.int32), mask=m_in)
    tl.store(p_row + o_j, o_j, mask=m_in)
    tl.store(p_above + o_j, tl.zeros([BN], tl.int32) - 1, mask=m_in)
    tl.store(p_above + m + 1 + o_j, tl.zeros([BN], tl.int32) - 1, mask=o_j < m)
    tl.debug_barrier()
    # position -> node
    b_node = o_j
    nodes = m + 1
    roots = m * 0
    length = m * 0
    v = m * 0 + 1
    defined = tl.max(b_nan, 0) == 0
    active = (m > 0) & defined
    found = defined
    while active:
        r = tl.load(p_row + v)
        u = _best_head(tl.load(p_w + r * size + o_j, mask=m_in, other=float("-inf")), b_node, v, o_j, SINGLE)
        if u < 0:
            found = m < 0
            active = m < 0
        else:
            tl.store(p_head + v, u)
            tl.store(p_modifier + v, tl.load(p_to + r * size + u))
            tl.store(p_walk + length, v)
            tl.store(p_state + v, 1)
            tl.debug_barrier()
            length += 1
            roots += (u == 0).to(tl.int32)
            u = tl.sum(tl.where(o_j == u, b_node, 0), 0)
            state = tl.load(p_state + u)
            if state == 0:
                v = u
            if state == 1:
                v = nodes
                length = _merge(p_w, p_to, p_above, p_row, p_head, p_walk, u, v, length, size, o_j, m_in)
                b_node = tl.where(tl.load(p_above + b_node, mask=m_in, other=-1) == v, v, b_node)
                nodes += 1
            if state == 2:
                m_on = o_j < length
                tl.store(p_state + tl.load(p_walk + o_j, mask=m_on, other=0), tl.zeros([BN], tl.int32) + 2, mask=m_on)
                tl.debug_barrier()
                m_open = m_in & (tl.load(p_state + b_node, mask=m_in, other=2) != 2)
                start = tl.min(tl.where(m_open, o_j, BN), 0)
                active = start < BN
                v = tl.sum(tl.where(o_j == start, b_node, 0), 0)
                length = m * 0
    if SINGLE:
        found = found & (roots <= 1)
    p_heads += i_b * (size - 1)
    if defined == 0:
        tl.store(p_heads + o_j, tl.zeros([BN], tl.int64) - 2, mask=o_j < m)
    if found:
        _expand(p_above, p_state, p_head, p_modifier, p_heads, nodes)


# SparseMAP's programs call the function without Entry
_entry = Entry(trees)


@triton.jit
def _best_head(b_w, b_node, v, o_j, SINGLE: tl.constexpr):
    """Return the position outside node v of the best arc into it, -1 for none; the root symbol comes last if single."""
    root = tl.sum(tl.where((o_j == 0) & (b_w > float("-inf")), 1, 0), 0)
    b_w = tl.where(b_node != v, b_w, float("-inf"))
    if SINGLE:
        b_w = tl.where(o_j == 0, float("-inf"), b_w)
    u = tl.argmax(b_w, 0)
    u = tl.where(tl.max(b_w, 0) > float("-inf"), u, -1)
    if SINGLE:
        u = tl.where((u < 0) & (root > 0), 0, u)
    return u


@triton.jit
def _merge(p_w, p_to, p_above, p_row, p_head, p_walk, u, whole, length, size, o_j, m_in):
    """Merge the cycle, the walk from u on, into the node `whole`; return the length of the walk before it."""
    m_here = tl.load(p_walk + o_j, mask=o_j < length, other=-1) == u
    first = tl.sum(tl.where(m_here, o_j, 0), 0)
    into = tl.load(p_row + u)
    b_best = tl.load(p_w + into * size + o_j, mask=m_in, other=float("-inf"))
    b_best -= tl.load(p_w + into * size + tl.load(p_head + u))
    b_to = tl.load(p_to + into * size + o_j, mask=m_in, other=0)
    for step in range(0, length - first - 1):
        c = tl.load(p_walk + length - 1 - step)
        r = tl.load(p_row + c)
        b_gain = tl.load(p_w + r * size + o_j, mask=m_in, other=float("-inf"))
        b_gain -= tl.load(p_w + r * size + tl.load(p_head + c))
        m_better = b_gain > b_best
        b_best = tl.where(m_better, b_gain, b_best)
        b_to = tl.where(m_better, tl.load(p_to + r * size + o_j, mask=m_in, other=0), b_to)
        tl.store(p_above + c, whole)
    tl.debug_barrier()
    tl.store(p_w + into * size + o_j, b_best, mask=m_in)
    tl.store(p_to + into * size + o_j, b_to, mask=m_in)
    tl.store(p_above + u, whole)
    tl.store(p_row + whole, into)
    tl.debug_barrier()
    return first


@triton.jit
def _expand(p_above, p_state, p_head, p_modifier, p_heads, nodes):
    """Write heads: an arc into a merged node replaces the arc into the token that it enters."""
    for step in range(1, nodes):
        v = nodes - step
        if tl.load(p_state + v) >= 0:
            token = tl.load(p_modifier + v)
            tl.store(p_heads + token - 1, tl.load(p_head + v).to(tl.int64))
            while token != v:
                tl.store(p_state + token, -1)
                token = tl.load(p_above + token)
            tl.debug_barrier()
