"""The mean of a solution that is in one piece of memory, and the gradient of its scores: launches by addresses.

Results are tensors of their own. Scores of parts that instances or steps share get the sum of their gradients, added
up in float64 and in one order.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.response.cuda import (
    mixing,
    options_of_mixture,
    options_of_response,
    responding,
    rooms_of_response,
)
from polymax.kernels.triton_calls import Remembered
from polymax.kernels.triton_launch import Entry
from polymax.kernels.triton_math import here
from polymax.kernels.triton_ready import Ready, Rooms, possible
from polymax.solvers.kept import KeptSolution

# entries that a program adds up, and terms that it adds at a time
_BLOCK, _TERMS = 32, 32
_MEANS, _RESPONSES, _SUMS = Remembered(), Remembered(), Remembered()


def mean(solution: KeptSolution, dtype: torch.dtype) -> tuple[Tensor, ...] | None:
    """mu, a tensor for each of the scores; None where it is to be had in another way."""
    memory, events = solution.memory, solution.events
    if memory is None or len(events) > 2 or not possible() or not here(memory):
        return None
    out = [torch.empty(solution.batch + event, dtype=dtype, device=memory.device) for event in events]
    count, k, parts, first, d = _sizes(solution)
    total = torch.empty((count, d), dtype=torch.float64, device=memory.device)
    numbers = k, parts, first, d
    key = count, parts, d, dtype, memory.device
    ready = _MEANS.get(key)
    if ready is None:
        places, probs = solution.found.places, solution.probs
        args = places, probs, total, out[0], out[-1], *numbers
        ready = _MEANS.put(key, Ready(mixing.prepared(**options_of_mixture(parts, d)), (count,), args))
    at, starts = memory.data_ptr(), solution.rooms.starts
    ready(at + starts[0], at + starts[1], total.data_ptr(), out[0].data_ptr(), out[-1].data_ptr(), *numbers)
    return tuple(out)


def gradient(
    solution: KeptSolution, g: tuple[Tensor | None, ...], shapes: list[torch.Size], wanted: tuple[bool, ...]
) -> list[Tensor | None] | None:
    """The gradient of scores of these shapes, as far as they are `wanted`; None where it is to be had in another way.

    `g` are those of mu, None for zeros.
    """
    memory, events = solution.memory, solution.events
    if memory is None or len(events) > 2 or not possible() or not here(memory):
        return None
    full = [solution.batch + event for event in events]
    given = [x if x is None or x.is_contiguous() else x.contiguous() for x in g]
    one = next((x for x in given if x is not None), None)
    shared = shapes[-1] != full[-1]
    if one is None or shapes[0] != full[0] or (shared and not _is_tail(shapes[-1], full[-1])):
        return None
    count, k, parts, first, d = _sizes(solution)
    rest = len(events) == 2 and wanted[1]
    aligned = tuple([x is None or x.data_ptr() & 15 == 0 for x in given])
    key = count, k, parts, first, d, one.dtype, memory.device, aligned
    found = _RESPONSES.get(key)
    device, dtype = memory.device, one.dtype
    out = torch.empty(shapes[0], dtype=dtype, device=device)
    after = torch.empty(shapes[1], dtype=dtype, device=device) if rest else out
    # scores that do not move have no numbers
    moved = [one if x is None else x for x in (given[0], given[-1])]
    sizes = 0 if given[0] is None else first, d - first if len(events) == 2 and given[1] is not None else 0
    numbers = k, parts, *sizes, first, d, 0, int(rest and not shared)
    if found is None:
        rooms = Rooms(rooms_of_response(count, k, d))
        own = rooms.tensors(rooms.memory(device))
        known = solution.found.places, solution.overlaps, solution.probs
        args = *known, *own, *moved, own[0], out, after, *numbers
        launch = responding.prepared(**options_of_response(k, parts, d))
        found = _RESPONSES.put(key, (rooms, Ready(launch, (count,), args)))
    rooms, ready = found
    own = rooms.memory(device)
    at, starts, to = memory.data_ptr(), solution.rooms.starts, own.data_ptr()
    q, gram, system, total = [to + start for start in rooms.starts]
    places, probs, overlaps = at + starts[0], at + starts[1], at + starts[2]
    ready(
        places, overlaps, probs, q, gram, system, total, moved[0].data_ptr(), moved[1].data_ptr(), q,
        out.data_ptr(), after.data_ptr(), *numbers,
    )  # fmt: skip
    if rest and shared:
        _sum(rooms, own, after, count, first, d)
    return [out, after if rest else None][: len(events)]


def _sizes(solution: KeptSolution) -> tuple[int, int, int, int, int]:
    """Instances, structures, parts of each, and parts of the first tensor, and of all."""
    (*_, k, parts), events = solution.rooms.arrays[0].shape, solution.events
    first = events[0].numel()
    return solution.batch.numel(), k, parts, first, first if len(events) == 1 else first + events[1].numel()


def _is_tail(shape: torch.Size, full: torch.Size) -> bool:
    """True if tensors of a shape are shared by all of the dims before its last ones."""
    last = tuple(shape)
    while last and last[0] == 1:
        last = last[1:]
    return len(last) <= len(full) and tuple(full[len(full) - len(last) :]) == last and math.prod(full) > 0


def _sum(rooms: Rooms, own: Tensor, out: Tensor, count: int, first: int, d: int) -> None:
    """Add up what instances and steps share, from the sums of parts."""
    size = out.numel()
    numbers = count * ((d - first) // size), (d - first) // size, size, first, d
    key = *numbers, out.dtype, out.device
    ready = _SUMS.get(key)
    if ready is None:
        args = rooms.tensors(own)[3], out, *numbers
        grid = (triton.cdiv(size, _BLOCK),)
        ready = _SUMS.put(key, Ready(_add_shared.prepared(B=_BLOCK, K=_TERMS, num_warps=4), grid, args))
    ready(own.data_ptr() + rooms.starts[3], out.data_ptr(), *numbers)


@Entry
@triton.jit(do_not_specialize=["terms", "steps", "size", "first", "d"])
def _add_shared(p_total, p_out, terms, steps, size, first, d, B: tl.constexpr, K: tl.constexpr):
    o_x, o_k = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, K)
    m_x = o_x < size
    b_sum = tl.zeros([B], tl.float64)
    for i_k in range(0, terms, K):
        o_t = i_k + o_k
        p_rows = p_total + (o_t // steps).to(tl.int64) * d + first + (o_t % steps) * size
        b_sum += tl.sum(tl.load(p_rows[:, None] + o_x[None, :], mask=(o_t < terms)[:, None] & m_x[None, :], other=0), 0)
    tl.store(p_out + o_x, b_sum.to(p_out.dtype.element_ty), mask=m_x)
