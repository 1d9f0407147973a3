"""The best structure around mu, for Triton: what a SparseMAP program asks for at each turn.

Structures are lists of parts of the first tensor, in slots: what one structure may have in a slot, no other has in
another slot. A slot that is not used has -1. Each function gets a problem, the tensors of all instances, and
`arounds` (B, d), scores less mu; it writes to `p_fresh`, and gives the score of parts in other tensors, -inf where
there is no structure. The first tensor is (height, width).
"""

import triton
import triton.language as tl

from polymax.kernels.arborescence.cuda import _trees
from polymax.kernels.assignment.cuda import _assignment


@triton.jit
def best_tags(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """Viterbi: a slot for each position. SIZES of a tile of transitions."""
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


@triton.jit
def best_arcs(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """Chu-Liu/Edmonds: a slot for each token. SIZES are the constants of the kernel."""
    p_lengths, p_w, p_to, p_known, p_heads = problem
    size = width
    _trees(p_arounds, p_lengths, p_w, p_to, p_known, p_heads, size, SIZES[0], SIZES[1], SIZES[2])
    tl.debug_barrier()
    i_b = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, SIZES[2])
    b_head = tl.load(p_heads + i_b * (size - 1) + o, mask=o < size - 1, other=-1).to(tl.int32)
    tl.store(p_fresh + o, tl.where(b_head < 0, -1, b_head * size + o + 1), mask=o < size - 1)
    none = (tl.load(p_lengths + i_b) > 0) & (tl.max(b_head, 0) < 0)
    return tl.where(none, float("-inf"), 0.0).to(tl.float64)


@triton.jit
def best_cells(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """Jonker-Volgenant: a slot for each row, or for each column where these are fewer. SIZES of a row."""
    p_rows, p_columns, p_match, p_u, p_v = problem
    n, m = height, width
    _assignment(p_arounds, p_rows, p_columns, p_match, p_u, p_v, n, m, SIZES[0])
    i_b = tl.program_id(0).to(tl.int64)
    rows, columns = tl.load(p_rows + i_b), tl.load(p_columns + i_b)
    o = tl.arange(0, SIZES[0])
    tl.store(p_fresh + o, tl.full([SIZES[0]], -1, tl.int32), mask=o < tl.minimum(n, m))
    tl.debug_barrier()
    b_match = tl.load(p_match + i_b * n + o, mask=o < n, other=-1).to(tl.int32)
    tl.store(p_fresh + tl.where(rows > columns, b_match, o), o * m + b_match, mask=b_match >= 0)
    none = (tl.minimum(rows, columns) > 0) & (tl.max(b_match, 0) < 0)
    return tl.where(none, float("-inf"), 0.0).to(tl.float64)


@triton.jit
def best_given(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """A structure that is in `p_fresh` already, with the score of its other parts."""
    return tl.load(problem[0] + tl.program_id(0))
