"""Span trees for SparseMAP on a GPU: CKY around mu, a slot for spans of one width that share a leaf.

Spans of one width that share a leaf cross, so that a tree has one of them at most: starts in groups of the width make
n + n/2 + n/3 + ... slots. The chart is symmetric, W[i, j] = W[j, i], so that the splits of a span lie along two rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_math import ceil_power
from polymax.kernels.active_set.cuda_plan import Plan, own, places_of
from polymax.kernels.active_set.problem import Search, UsedParts, vertices_of
from polymax.kernels.active_set.triton_choices import best_labels, best_of, better_of, none_of

# _SPLITS: splits of a tile
# _SPANS: spans of a tile per warp
_SPLITS, _SPANS = 8, 8


def plan(search: Search) -> Plan:
    """Return the plan for scores (B, n, n, labels) and lengths (B,)."""
    x, lengths = search.tensors
    _, n, _, labels = x.shape
    cells = (n, n) if labels != 1 else (0, 0)
    known = own(x, n, n), own(x, n, n, dtype=torch.int32), own(x, *cells), own(x, *cells, dtype=torch.int32)
    problem = lengths.contiguous(), _first_slots(n, x.device), *known
    return Plan(best, problem, sizes(n, labels), (n, n * labels), _slot_count(n), warps(n))


def warps(n: int) -> int:
    """Return the warps of a program: with few warps the weights are found sooner, with more the trees over many
    leaves.
    """
    return 4 if n <= 64 else 8


def sizes(n: int, labels: int) -> tuple[int, ...]:
    """Return spans and splits of a tile, leaves at once, and cells and labels of a tile; 0 labels if there is only
    one.
    """
    leaves, names = min(ceil_power(max(n, 64)), 1024), min(ceil_power(labels), 64)
    return _SPANS * warps(n), _SPLITS, leaves, 512 // names, 0 if labels == 1 else names


def slots(search: Search, found: Tensor | UsedParts) -> Tensor:
    """Return trees (*batch, k, n, n) or (*batch, k, n, n, labels) as lists of slots: (*batch, k, slots)."""
    dims, n = len(search.events[0]), search.events[0][0]
    places = places_of(vertices_of(found), dims)
    if dims == 3:
        places = places.flatten(2 - dims).amax(-1)
    i, j = torch.triu_indices(n, n, device=places.device)
    before = torch.nn.functional.pad(_first_slots(n, places.device), (1, 0))
    mine = before[j - i] + i // (j - i + 1)
    empty = places.new_full((*places.shape[:-2], _slot_count(n)), -1)
    return empty.scatter_reduce(-1, mine.expand(*empty.shape[:-1], -1), places[..., i, j], "amax")


def listed(search: Search, places: Tensor) -> UsedParts:
    """Return trees in slots as lists of spans, (*batch, k, at most 2 n)."""
    # unused slots come last
    places = torch.sort(places, dim=-1, descending=True).values
    return UsedParts(places[..., : search.most].contiguous(), search.events)


def _slot_count(n: int) -> int:
    return sum(n // size for size in range(1, n + 1))


def _first_slots(n: int, device: torch.device) -> Tensor:
    """Return the first slot of spans (i, i + width), for each width from 1 on, and the number of slots; leaves come
    first.
    """
    return (n // torch.arange(1, n + 1, device=device)).cumsum(0)


@triton.jit(noinline=True)
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """Write the best tree; SIZES are those of tiles."""
    p_lengths, p_slots, p_charts, p_backs, p_lams, p_labels = problem
    n = height
    labels = width // n
    i_b = tl.program_id(0).to(tl.int64)
    m = tl.load(p_lengths + i_b).to(tl.int32)
    p_around = p_arounds + i_b * n * width
    p_w, p_back, p_label = p_charts + i_b * n * n, p_backs + i_b * n * n, p_labels + i_b * n * n
    if SIZES[4] > 0:
        p_lam = p_lams + i_b * n * n
        best_labels(p_around, p_lam, p_label, n * n, labels, SIZES[3], SIZES[4])
        tl.debug_barrier()
    else:
        p_lam = p_around
    _fill(p_lam, p_w, p_back, m, n, SIZES[0], SIZES[1], SIZES[2])
    none = (m > 0) & (tl.load(p_w + m - 1, mask=m > 0, other=0) == float("-inf"))
    o_p = tl.arange(0, SIZES[2])
    count = tl.load(p_slots + n - 1).to(tl.int32)
    for start in range(0, count, SIZES[2]):
        tl.store(p_fresh + start + o_p, tl.full([SIZES[2]], -1, tl.int32), mask=start + o_p < count)
    tl.debug_barrier()
    for start in range(0, tl.where(none, 0, m), SIZES[2]):
        _walk(p_back, p_label, p_slots, p_fresh, start + o_p, m, n, labels, SIZES[4])
    return tl.where(none, float("-inf"), 0.0).to(tl.float64)


@triton.jit
def _fill(p_lam, p_w, p_back, m, n, BI: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr):
    """Write the values of all spans, and for each wider span the last leaf of the left part of its best split."""
    o_c = tl.arange(0, BK)[None, :]
    for start in range(0, m, BP):
        o_p = start + tl.arange(0, BP)
        tl.store(p_w + o_p * (n + 1), tl.load(p_lam + o_p * (n + 1), mask=o_p < m), mask=o_p < m)
    for wide in range(1, m):
        # other threads wrote the shorter spans
        tl.debug_barrier()
        for start in range(0, m - wide, BI):
            o_i = start + tl.arange(0, BI)[:, None]
            o_j = o_i + wide
            m_i = o_j < m
            # one layout for all tiles: values that stay in their threads need no shared memory
            b_score = tl.load(p_lam + o_i * n + o_j + o_c * 0, mask=m_i, other=float("-inf"))
            b_best, b_from = none_of(BI, BK)
            for first in range(0, wide, BK):
                o_k = first + o_c
                m_k = m_i & (o_k < wide)
                b_left = tl.load(p_w + o_i * (n + 1) + o_k, mask=m_k, other=float("-inf"))
                b_right = tl.load(p_w + o_j * n + o_i + 1 + o_k, mask=m_k, other=float("-inf"))
                b_best, b_from = better_of(b_best, b_from, b_left + b_right, o_k)
            b_top, b_split = best_of(b_best, b_from)
            o_both = tl.where(o_c == 0, o_i * n + o_j, o_j * n + o_i)
            tl.store(p_w + o_both, b_top[:, None] + b_score, mask=m_i & (o_c < 2))
            tl.store(p_back + o_both, o_i + b_split[:, None] + o_c * 0, mask=m_i & (o_c == 0))
    tl.debug_barrier()


@triton.jit
def _walk(p_back, p_label, p_slots, p_fresh, o_p, m, n, labels, LABELS: tl.constexpr):
    """Walk from the whole sentence down to each leaf and write the spans on the way; the first leaf of a span writes
    it.
    """
    b_lo = o_p * 0
    b_hi = tl.where(o_p < m, m - 1, 0)
    b_on = (o_p < m).to(tl.int32)
    # each step leads to a shorter span
    left = m
    while (left > 0) & (tl.max(b_on, 0) > 0):
        left -= 1
        b_wide = b_hi - b_lo
        o_span = b_lo * n + b_hi
        m_first = (b_on > 0) & (o_p == b_lo)
        b_slot = tl.load(p_slots + b_wide - 1, mask=m_first & (b_wide > 0), other=0).to(tl.int32)
        b_slot += b_lo // (b_wide + 1)
        b_part = o_span
        if LABELS > 0:
            b_part = o_span * labels + tl.load(p_label + o_span, mask=m_first, other=0)
        tl.store(p_fresh + b_slot, b_part, mask=m_first)
        b_on = b_on * (b_wide > 0).to(tl.int32)
        b_split = tl.load(p_back + o_span, mask=b_on > 0, other=0)
        m_left = o_p <= b_split
        b_hi = tl.where((b_on > 0) & m_left, b_split, b_hi)
        b_lo = tl.where((b_on > 0) & (m_left == 0), b_split + 1, b_lo)
