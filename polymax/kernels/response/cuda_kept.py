"""The mean of a solution that is in one piece of memory, and the gradient of its scores: launches by addresses.

Results are tensors of their own. Scores of parts that instances or steps share get the sum of their gradients, added
up in float64 and in one order.
"""

import math
from typing import Any, NamedTuple, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_calls import Remembered
from polymax.backend.triton_launch import Entry, Launch
from polymax.backend.triton_math import here
from polymax.backend.triton_ready import Ready, Rooms, possible
from polymax.kernels.response.cuda import (
    mixing,
    options_of_mixture,
    options_of_response,
    responding,
    rooms_of_response,
)

# entries that a program adds up, and terms that it adds at a time
_BLOCK, _TERMS = 32, 32
_MEANS, _CALLS = Remembered(), Remembered()


class Kept(Protocol):
    """A solution in one piece of memory, None where a tensor was replaced; `rooms` tell where its tensors are."""

    memory: Tensor | None
    rooms: Any
    batch: torch.Size
    events: tuple[torch.Size, ...]
    found: Any
    probs: Tensor
    overlaps: Tensor


def mean(solution: Kept, dtype: torch.dtype) -> tuple[Tensor, ...] | None:
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
    solution: Kept, g: tuple[Tensor | None, ...], shapes: list[torch.Size], wanted: tuple[bool, ...]
) -> list[Tensor | None] | None:
    """The gradient of scores of these shapes, as far as they are `wanted`; None where it is to be had in another way.

    `g` are those of mu, None for zeros.
    """
    memory = solution.memory
    if memory is None or len(g) > 2 or not possible() or not here(memory):
        return None
    first, rest = g[0], g[-1] if len(g) == 2 else None
    one = rest if first is None else first
    if one is None:
        return None
    if not one.is_contiguous() or (rest is not None and not rest.is_contiguous()):
        return gradient(solution, tuple(None if x is None else x.contiguous() for x in g), shapes, wanted)
    # scores that do not move have no numbers
    at_first, at_rest = one.data_ptr(), one.data_ptr() if rest is None else rest.data_ptr()
    kinds = first is None, rest is None, at_first & 15 == 0, at_rest & 15 == 0
    key = solution.rooms, one.dtype, kinds, wanted, *shapes
    found = _CALLS.get(key)
    if found is None:
        found = _CALLS.put(key, (_Call.of(solution, first, rest, shapes, wanted),))
    (call,) = found
    return None if call is None else call(memory, at_first, at_rest)


class _Call(NamedTuple):
    """The launches of a gradient, for solutions and cotangents of a kind."""

    # of the solution, and of the call itself
    starts: tuple[int, ...]
    rooms: Rooms
    respond: Ready
    numbers: tuple[int, ...]
    # of the results, and those of one that is summed over what is shared
    shapes: list[torch.Size]
    dtype: torch.dtype
    add: Ready | None
    terms: tuple[int, ...]
    wanted: bool

    @classmethod
    def of(
        cls,
        solution: Kept,
        first: Tensor | None,
        rest: Tensor | None,
        shapes: list[torch.Size],
        wanted: tuple[bool, ...],
    ) -> "_Call | None":
        one = first if first is not None else rest
        assert one is not None, "one of them moves"
        full, dtype, device = [solution.batch + event for event in solution.events], one.dtype, one.device
        shared = shapes[-1] != full[-1]
        if shapes[0] != full[0] or (shared and not _is_tail(shapes[-1], full[-1])):
            return None
        two = len(full) == 2 and wanted[1]
        count, k, parts, size, d = _sizes(solution)
        rooms = Rooms(rooms_of_response(count, k, d))
        own = rooms.tensors(rooms.memory(device))
        out = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        moved = one if first is None else first, one if rest is None else rest
        sizes = 0 if first is None else size, 0 if rest is None else d - size
        numbers = k, parts, *sizes, size, d, 0, int(two and not shared)
        args = solution.found.places, solution.overlaps, solution.probs, *own, *moved, own[0], out[0], out[-1], *numbers
        respond = Ready(responding.prepared(**options_of_response(k, parts, d)), (count,), args)
        add, terms = None, ()
        if two and shared:
            length = out[1].numel()
            steps = (d - size) // length
            terms = count * steps, steps, length, size, d
            grid = (triton.cdiv(length, _BLOCK),)
            add = Ready(_summing(), grid, (own[3], out[1], *terms))
        return cls(solution.rooms.starts, rooms, respond, numbers, shapes, dtype, add, terms, two)

    def __call__(self, memory: Tensor, at_first: int, at_rest: int) -> list[Tensor | None]:
        starts, shapes, device = self.starts, self.shapes, memory.device
        own = self.rooms.memory(device)
        first = torch.empty(shapes[0], dtype=self.dtype, device=device)
        rest = torch.empty(shapes[1], dtype=self.dtype, device=device) if self.wanted else None
        at, to = memory.data_ptr(), own.data_ptr()
        q, gram, system, total = [to + start for start in self.rooms.starts]
        out = first.data_ptr()
        after = out if rest is None else rest.data_ptr()
        self.respond(
            at + starts[0], at + starts[2], at + starts[1], q, gram, system, total, at_first, at_rest, q, out, after,
            *self.numbers,
        )  # fmt: skip
        if self.add is not None:
            self.add(total, after, *self.terms)
        return [first] if len(shapes) == 1 else [first, rest]


def _sizes(solution: Kept) -> tuple[int, int, int, int, int]:
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


def add_shared(total: Tensor, out: Tensor, terms: tuple[int, ...]) -> None:
    """Add up what instances and steps share, from the sums of parts (B, d): the numbers are those of the kernel."""
    _summing()((triton.cdiv(terms[2], _BLOCK),), total, out, *terms)


def _summing() -> Launch:
    return _add_shared.prepared(B=_BLOCK, K=_TERMS, num_warps=4)


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
