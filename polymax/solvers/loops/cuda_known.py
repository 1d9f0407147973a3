"""SparseMAP on a GPU for calls of a kind that was met before: a few launches by addresses, in one piece of memory.

What a launch takes is written down at the first call, as places in what each call has: its own memory, what programs
tell the host, and the tensors of its search.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.backend.triton_ready import Ready, Recipe, Rooms, filled, recipe_of
from polymax.kernels.active_set.cuda_solution import options_of_order, order, rooms_of_solution
from polymax.kernels.active_set.problem import Search
from polymax.solvers.kept import KeptSolution

# the gaps among the arrays of a state, whose first three are held
_GAPS = 5
# so many numbers of a mean are added up by the launch that puts structures in order, for whoever asks; and bytes of
# solutions for which there is room before they are known
_SMALL, _SMALL_ROOM = 1 << 16, 1 << 20


class Memory(NamedTuple):
    """What a call has of its own, and what programs know (3, B), as cuda_loop.py has it; its results after these."""

    own: Tensor
    known: Tensor
    kept: Tensor | None = None
    mean: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, rooms: Rooms, count: int, device: torch.device) -> "Memory":
        return cls(rooms.memory(device), torch.empty((3, count), dtype=torch.int32, device=device))


class KnownCall:
    """The launches of calls of a kind; `rooms` begin with the arrays of a state."""

    # False once places for structures were too few
    suffices = True

    def __init__(
        self, rooms: Rooms, steps: list[tuple[Ready, Recipe]], search: Search, parts: int, states: int
    ) -> None:
        self._rooms, self._steps = rooms, steps
        self._batch, self._events, self._count = search.batch, search.events, search.batch.numel()
        self._parts, self._states = parts, states
        self._dtype, self._shapes = search.tensors[0].dtype, mean_shapes(search)
        self._orders: dict[int, tuple[Rooms, Ready, Recipe]] = {}
        # what the largest of small solutions so far takes
        self._room = 0

    @classmethod
    def of(
        cls, rooms: Rooms, memory: Memory, launches: Any, search: Search, parts: int, states: int
    ) -> "KnownCall | None":
        """For kernels, their options, and arguments in this memory; None where one has a tensor of its own."""
        steps = []
        for kernel, options, args in launches:
            recipe = recipe_of(args, (*memory[:2], *search.tensors))
            if recipe is None:
                return None
            steps.append((Ready(kernel.prepared(**options), (search.batch.numel(),), args), recipe))
        return cls(rooms, steps, search, parts, states)

    def run(self, search: Search) -> Memory:
        """Launch what finds the structures and their weights."""
        device = search.tensors[0].device
        memory = Memory.of(self._rooms, self._count, device)
        bases = 0, memory.own.data_ptr(), memory.known.data_ptr(), *[t.data_ptr() for t in search.tensors]
        for ready, recipe in self._steps:
            ready(*filled(recipe, bases))
        # while the device computes, the host makes room for what comes next
        kept = torch.empty(self._room, dtype=torch.uint8, device=device) if self._room else None
        return memory._replace(kept=kept, mean=self._means(device))

    def solution(self, memory: Memory, k: int) -> KeptSolution:
        """The structures in the first k places, heaviest first."""
        found = self._orders.get(k)
        if found is None:
            found = self._orders[k] = self._order(memory, k)
        rooms, ready, recipe = found
        kept, mean = memory.kept, memory.mean
        if kept is None or rooms.size > kept.numel():
            kept = rooms.memory(memory.own.device)
            self._room = max(rooms.size, self._room) if rooms.size <= _SMALL_ROOM else self._room
        bases = 0, memory.own.data_ptr(), memory.known.data_ptr(), kept.data_ptr(), *[t.data_ptr() for t in mean]
        ready(*filled(recipe, bases))
        return KeptSolution.of(kept, rooms, self._batch, self._events, mean)

    def _means(self, device: torch.device) -> tuple[Tensor, ...]:
        return tuple([torch.empty(shape, dtype=self._dtype, device=device) for shape in self._shapes])

    def _order(self, memory: Memory, k: int) -> tuple[Rooms, Ready, Recipe]:
        rooms, state = Rooms(rooms_of_solution(self._batch, k, self._parts)), self._rooms.tensors(memory.own)
        device, (room, slots) = memory.own.device, state[0].shape[1:]
        kept, mean = rooms.memory(device), self._means(device)
        # as `ordered` has it where there is no mean
        gaps = state[_GAPS]
        none = gaps if self._dtype == torch.float64 else state[1]
        sums, first, rest = (state[-1], mean[0], mean[-1]) if mean else (gaps, none, none)
        sizes = (first.numel() // self._count, sum(t.numel() for t in mean) // self._count) if mean else (0, 0)
        arrays = *state[:3], memory.known, gaps, *rooms.tensors(kept), sums, first, rest
        args = *arrays, slots, self._parts, k, self._states, *sizes
        recipe = recipe_of(args, (*memory[:2], kept, *mean))
        assert recipe is not None, "all arrays are in the memory of the call"
        options = options_of_order(room, self._parts, self._states)
        return rooms, Ready(order.prepared(**options), (self._count,), args), recipe


def mean_shapes(search: Search) -> list[torch.Size]:
    """The shapes of mu where it is added up with the solution: that of a small call, of two tensors at most."""
    count, events = search.batch.numel(), search.events
    small = len(events) <= 2 and count * sum(map(torch.Size.numel, events)) <= _SMALL
    return [search.batch + event for event in events] if small else []
