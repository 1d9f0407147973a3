"""Spanning trees for SparseMAP on a GPU: Chu-Liu/Edmonds around mu, a slot for each token."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_math import ceil_power
from polymax.kernels.active_set.cuda_plan import Plan, own, places_of
from polymax.kernels.active_set.problem import Search, UsedParts, vertices_of
from polymax.kernels.arborescence.cuda import FIELDS, trees


def plan(search: Search) -> Plan:
    """Return the plan for scores (B, n + 1, n + 1) and lengths (B,), with `single_root`."""
    (x, lengths), (single_root,) = search.tensors, search.options
    n = x.shape[1]
    known = own(x, n, n), own(x, n, n, dtype=torch.int32), own(x, FIELDS, 2 * n, dtype=torch.int32)
    problem = lengths.contiguous(), *known, own(x, n - 1, dtype=torch.long)
    return Plan(best, problem, (single_root, FIELDS, max(ceil_power(n), 32)), (n, n), n - 1, 1, likely=2 * n)


def slots(search: Search, found: Tensor | UsedParts) -> Tensor:
    """Return trees (*batch, k, n + 1, n + 1) as lists of slots: (*batch, k, n)."""
    return places_of(vertices_of(found), 2).amax(-2)[..., 1:]


def listed(search: Search, places: Tensor) -> UsedParts:
    """Return trees in slots (*batch, k, n) as lists of arcs."""
    return UsedParts(places, search.events)


@triton.jit(noinline=True)
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """Write the best tree; SIZES are the constants of the kernel of trees."""
    p_lengths, p_w, p_to, p_known, p_heads = problem
    size = width
    i_b = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, SIZES[2])
    # without a tree the search writes no heads
    tl.store(p_heads + i_b * (size - 1) + o, tl.full([SIZES[2]], -1, tl.int64), mask=o < size - 1)
    tl.debug_barrier()
    trees(p_arounds, p_lengths, p_w, p_to, p_known, p_heads, size, SIZES[0], SIZES[1], SIZES[2])
    tl.debug_barrier()
    b_head = tl.load(p_heads + i_b * (size - 1) + o, mask=o < size - 1, other=-1).to(tl.int32)
    tl.store(p_fresh + o, tl.where(b_head < 0, -1, b_head * size + o + 1), mask=o < size - 1)
    none = (tl.load(p_lengths + i_b) > 0) & (tl.max(b_head, 0) < 0)
    return tl.where(none, float("-inf"), 0.0).to(tl.float64)
