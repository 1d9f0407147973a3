"""Assignments for SparseMAP on a GPU: Jonker-Volgenant around mu, a slot for each row, or column if these are fewer."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_math import ceil_power
from polymax.kernels.active_set.cuda_plan import Plan, own, places_of
from polymax.kernels.active_set.problem import Search, UsedParts, vertices_of
from polymax.kernels.assignment.cuda import match_instance


def plan(search: Search) -> Plan:
    """Return the plan for scores (B, n, m), and numbers of rows and of columns, (B,) each."""
    x, rows, columns = search.tensors
    n, m = x.shape[1:]
    width = max(ceil_power(max(n, m)), 32)
    problem = rows.contiguous(), columns.contiguous(), own(x, n, dtype=torch.long), own(x, n), own(x, m)
    warps = min(max(width // 128, 1), 16)
    return Plan(best, problem, (width,), (n, m), min(n, m), warps, likely=2 * min(n, m))


def slots(search: Search, found: Tensor | UsedParts) -> Tensor:
    """Return assignments (*batch, k, n, m) as lists of slots: (*batch, k, the smaller of n and m)."""
    _, rows, columns = search.tensors
    places, fewer = places_of(vertices_of(found), 2), min(search.events[0])
    by_row, by_column = (places.amax(dim)[..., :fewer] for dim in (-1, -2))
    return torch.where((rows > columns).reshape(*search.batch, 1, 1), by_column, by_row)


def listed(search: Search, places: Tensor) -> UsedParts:
    """Return assignments in slots as lists of cells."""
    return UsedParts(places, search.events)


@triton.jit(noinline=True)
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """Write the best assignment; SIZES are those of a row."""
    p_rows, p_columns, p_match, p_u, p_v = problem
    n, m = height, width
    match_instance(p_arounds, p_rows, p_columns, p_match, p_u, p_v, n, m, SIZES[0])
    i_b = tl.program_id(0).to(tl.int64)
    rows, columns = tl.load(p_rows + i_b), tl.load(p_columns + i_b)
    o = tl.arange(0, SIZES[0])
    tl.store(p_fresh + o, tl.full([SIZES[0]], -1, tl.int32), mask=o < tl.minimum(n, m))
    tl.debug_barrier()
    b_match = tl.load(p_match + i_b * n + o, mask=o < n, other=-1).to(tl.int32)
    tl.store(p_fresh + tl.where(rows > columns, b_match, o), o * m + b_match, mask=b_match >= 0)
    none = (tl.minimum(rows, columns) > 0) & (tl.max(b_match, 0) < 0)
    return tl.where(none, float("-inf"), 0.0).to(tl.float64)
