"""Structures of any kind for SparseMAP on a GPU: `map` finds them, and each iteration is a launch.

A structure has a slot for each part of the first tensor.
"""

import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.active_set.cuda_plan import Plan, places_of
from polymax.kernels.active_set.problem import Search, UsedParts, vertices_of


def plan(search: Search) -> Plan:
    """Return a plan without tensors: solvers/loops/questions.py passes the structures."""
    d = search.events[0].numel()
    return Plan(best, (), (512,), (1, d), d, 4)


def slots(search: Search, found: Tensor | UsedParts) -> Tensor:
    """Return structures (*batch, k, *event) as lists of slots: (*batch, k, d)."""
    dims = len(search.events[0])
    return places_of(vertices_of(found), dims).flatten(-dims)


def listed(search: Search, places: Tensor) -> Tensor:
    """Return structures in slots (*batch, k, d) as indicators (*batch, k, *event)."""
    return (places >= 0).double().reshape(*places.shape[:-1], *search.events[0])


@triton.jit(noinline=True)
def best(problem, p_arounds, p_fresh, height, width, SIZES: tl.constexpr):
    """Write the parts of the given structure; return the score of its parts in other tensors."""
    p_ys, p_others = problem
    i_b = tl.program_id(0).to(tl.int64)
    for start in range(0, width, SIZES[0]):
        o_d = start + tl.arange(0, SIZES[0])
        b_y = tl.load(p_ys + i_b * width + o_d, mask=o_d < width, other=0)
        tl.store(p_fresh + o_d, tl.where(b_y != 0, o_d, -1), mask=o_d < width)
    return tl.load(p_others + i_b)
