"""Trees without crossing arcs for SparseMAP on a GPU: Eisner's algorithm around mu, a slot for each token.

A chart is three squares, as in kernels/projective_tree: R and L, symmetric, and I, [head, modifier], so that the
choices of all three maxima lie along rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_math import ceil_power
from polymax.kernels.active_set.cuda_plan import Plan, own, places_of
from polymax.kernels.active_set.cuda_spans import warps
from polymax.kernels.active_set.problem import Search, UsedParts, vertices_of
from polymax.kernels.active_set.triton_choices import best_labels, best_of, better_of, none_of

# _CHOICES: choices of a tile; its first six columns also write the results
# _SPANS: spans of a tile per warp
_CHOICES, _SPANS = 8, 8


def plan(search: Search) -> Plan:
    """Return the plan for scores (B, n + 1, n + 1) or (B, n + 1, n + 1, labels), and lengths (B,)."""
    (x, lengths), (single_root, _) = search.tensors, search.options
    n = x.shape[1]
    labels = search.events[0].numel() // n**2
    cells = (n, n) if labels != 1 else (0, 0)
    known = own(x, 3, n, n), own(x, 3, n, n, dtype=torch.int32), own(x, *cells), own(x, *cells, dtype=torch.int32)
    problem = lengths.contiguous(), *known
    return Plan(best, problem, sizes(n, labels, single_root), (n, n * labels), n - 1, warps(n), likely=2 * n)


def sizes(n: int, labels: int, single_root: bool) -> tuple[int, ...]:
    """Return spans and choices of a tile, tokens at once, cells and labels of a tile, and `single_root`.

    The number of labels is 0 if there is only one label.
    """
    tokens, names = min(ceil_power(max(n, 64)), 1024), min(ceil_power(labels), 64)
    return _SPANS * warps(n), _CHOICES, tokens, 512 // names, 0 if labels == 1 else names, int(single_root)


def slots(search: Search, found: Tensor | UsedParts) -> Tensor:
    """Return trees (*batch, k, n + 1, n + 1) or (..., labels) as lists of slots: (*batch, k, n)."""
    dims = len(search.events[0])
    places = places_of(vertices_of(found), dims)
    return (places.amax(-1) if dims == 3 else places).amax(-2)[..., 1:]


def listed(search: Search, places: Tensor) -> UsedParts:
    """Return trees in slots (*batch, k, n) as lists of arcs."""
    return UsedParts(places, search.events)


@triton.jit(noinline=True)
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """Write the best tree; SIZES are those of tiles."""
    p_lengths, p_charts, p_backs, p_lams, p_labels = problem
    n = height
    labels = width // n
    square = n * n
    i_b = tl.program_id(0).to(tl.int64)
    m = tl.load(p_lengths + i_b).to(tl.int32)
    p_around = p_arounds + i_b * n * width
    p_c, p_back, p_label = p_charts + i_b * 3 * square, p_backs + i_b * 3 * square, p_labels + i_b * square
    if SIZES[4] > 0:
        p_lam = p_lams + i_b * square
        best_labels(p_around, p_lam, p_label, square, labels, SIZES[3], SIZES[4])
        tl.debug_barrier()
    else:
        p_lam = p_around
    _fill(p_lam, p_c, p_back, m, n, SIZES[5], SIZES[0], SIZES[1], SIZES[2])
    root, value = _root(p_lam, p_c, m, n, SIZES[5], SIZES[2])
    none = (m > 0) & (value == float("-inf"))
    for start in range(0, n - 1, SIZES[2]):
        o_p = start + 1 + tl.arange(0, SIZES[2])
        b_head = _heads(p_back, tl.where(o_p <= tl.where(none, 0, m), o_p, 0), root, m, n, SIZES[5])
        o_arc = b_head * n + o_p
        b_part = o_arc
        if SIZES[4] > 0:
            b_part = o_arc * labels + tl.load(p_label + o_arc, mask=b_head >= 0, other=0)
        tl.store(p_fresh + o_p - 1, tl.where(b_head >= 0, b_part, -1), mask=o_p < n)
    return tl.where(none, float("-inf"), 0.0).to(tl.float64)


@triton.jit
def _fill(p_lam, p_c, p_back, m, n, SINGLE: tl.constexpr, BI: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr):
    """Write R, L and I of all spans, the splits of the gaps under arcs, and the ends of the outermost arcs of R and of
    L.
    """
    square = n * n
    o_c = tl.arange(0, BK)[None, :]
    p_r, p_l, p_v = p_c, p_c + square, p_c + 2 * square
    for start in range(0, m + 1, BP):
        o_p = start + tl.arange(0, BP)
        tl.store(p_r + o_p * (n + 1), tl.zeros([BP], tl.float64), mask=o_p <= m)
        tl.store(p_l + o_p * (n + 1), tl.zeros([BP], tl.float64), mask=o_p <= m)
    for wide in range(1, m + 1 - SINGLE):
        # other threads wrote the shorter spans
        tl.debug_barrier()
        for start in range(SINGLE, m + 1 - wide, BI):
            o_i = start + tl.arange(0, BI)[:, None]
            o_j = o_i + wide
            m_i = o_j <= m
            o_right, o_left = o_i * n + o_j, o_j * n + o_i
            # one layout for all tiles: values that stay in their threads need no shared memory
            b_right = tl.load(p_lam + o_right + o_c * 0, mask=m_i, other=float("-inf"))
            # the root symbol has no head
            b_left = tl.load(p_lam + o_left + o_c * 0, mask=m_i & (o_i > 0), other=float("-inf"))
            b_gap, b_gap_from = none_of(BI, BK)
            b_r, b_r_from = none_of(BI, BK)
            b_l, b_l_from = none_of(BI, BK)
            for first in range(0, wide, BK):
                o_k = first + o_c
                m_k = m_i & (o_k < wide)
                # arcs of shorter spans
                m_arc = m_k & (o_k > 0)
                o_x, o_y = o_i * (n + 1) + o_k, o_left + o_k
                b_rx = tl.load(p_r + o_x, mask=m_k, other=float("-inf"))
                b_ly = tl.load(p_l + o_y + 1, mask=m_k, other=float("-inf"))
                b_vx = tl.load(p_v + o_x, mask=m_arc, other=float("-inf"))
                b_ry = tl.load(p_r + o_y, mask=m_arc, other=float("-inf"))
                b_lx = tl.load(p_l + o_x, mask=m_arc, other=float("-inf"))
                b_vy = tl.load(p_v + o_y, mask=m_arc, other=float("-inf"))
                b_gap, b_gap_from = better_of(b_gap, b_gap_from, b_rx + b_ly, o_k)
                b_r, b_r_from = better_of(b_r, b_r_from, b_vx + b_ry, o_k)
                b_l, b_l_from = better_of(b_l, b_l_from, b_lx + b_vy, o_k)
            b_top, b_split = best_of(b_gap, b_gap_from)
            b_right += b_top[:, None]
            b_left += b_top[:, None]
            # the arc from i to j is the last of the choices of R, that from j to i the first of those of L
            b_top, b_end = best_of(b_r, b_r_from)
            b_most, b_end = better_of(b_top[:, None], b_end[:, None], b_right, wide)
            b_top, b_begin = best_of(b_l, b_l_from)
            b_first, b_zero = none_of(BI, BK)
            b_first, _ = better_of(b_first, b_zero, b_left, 0)
            b_first, b_begin = better_of(b_first, b_zero, b_top[:, None], b_begin[:, None])
            b_all = tl.where(o_c < 2, b_most, tl.where(o_c < 4, b_first, tl.where(o_c < 5, b_right, b_left)))
            p_all = p_c + (o_c // 2) * square + tl.where(o_c % 2 == 0, o_right, o_left)
            tl.store(p_all, b_all, mask=m_i & (o_c < 6))
            b_all = o_i + tl.where(o_c < 1, b_split[:, None], tl.where(o_c < 2, b_end, b_begin))
            tl.store(p_back + o_c * square + o_right, b_all, mask=m_i & (o_c < 3))
    tl.debug_barrier()


@triton.jit
def _root(p_lam, p_c, m, n, SINGLE: tl.constexpr, BP: tl.constexpr):
    """Return the single root, or 0 if several are allowed, and the value of the best tree."""
    root = m * 0
    if SINGLE:
        value = tl.full([], float("-inf"), tl.float64)
        for start in range(1, m + 1, BP):
            o_p = start + tl.arange(0, BP)
            m_p = o_p <= m
            b_value = tl.load(p_lam + o_p, mask=m_p, other=float("-inf"))
            b_value += tl.load(p_c + n * n + n + o_p, mask=m_p, other=float("-inf"))
            b_value += tl.load(p_c + m * n + o_p, mask=m_p, other=float("-inf"))
            b_value = tl.where(b_value > float("-inf"), b_value, float("-inf"))
            top = tl.max(b_value, 0)
            first = tl.min(tl.where((b_value == top) & m_p, o_p, n), 0)
            root = tl.where(top > value, first, root)
            value = tl.maximum(top, value)
    else:
        value = tl.load(p_c + m)
    return root, value


@triton.jit
def _heads(p_back, o_p, root, m, n, SINGLE: tl.constexpr):
    """Return the head of each token p, by a walk down from the root to the arc that ends in p; -1 for p = 0.

    A token is below R(i, j), whose head is i, or L(i, j), whose head is j.
    """
    square = n * n
    b_head = tl.full(o_p.shape, -1, tl.int32)
    b_i, b_j, b_side = o_p * 0, o_p * 0 + m, o_p * 0
    b_on = (o_p > 0).to(tl.int32)
    if SINGLE:
        b_side = (o_p < root).to(tl.int32)
        b_i = tl.where(o_p < root, 1, root)
        b_j = tl.where(o_p < root, root, m)
        b_head = tl.where((o_p == root) & (o_p > 0), 0, b_head)
        b_on = b_on * (o_p != root).to(tl.int32)
    # each step leads to a shorter span
    left = m
    while (left > 0) & (tl.max(b_on, 0) > 0):
        left -= 1
        m_on, m_left = b_on > 0, b_side > 0
        b_k = tl.load(p_back + (1 + b_side) * square + b_i * n + b_j, mask=m_on, other=0)
        m_found = m_on & (o_p == b_k)
        b_head = tl.where(m_found, tl.where(m_left, b_j, b_i), b_head)
        b_on = tl.where(m_found, 0, b_on)
        # under the arc, or beyond it
        b_from, b_to = tl.where(m_left, b_k, b_i), tl.where(m_left, b_j, b_k)
        m_under = (b_on > 0) & ((o_p > b_k) == m_left)
        b_split = tl.load(p_back + b_from * n + b_to, mask=m_under, other=0)
        m_after = o_p > b_split
        b_i = tl.where(m_under, tl.where(m_after, b_split + 1, b_from), tl.where(m_left, b_i, b_k))
        b_j = tl.where(m_under, tl.where(m_after, b_to, b_split), tl.where(m_left, b_k, b_j))
        b_side = tl.where(m_under, m_after.to(tl.int32), b_side)
    return b_head
