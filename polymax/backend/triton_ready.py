"""Launches by addresses: for calls that are known by their kind, a kernel runs on numbers alone.

A call has memory of its own in one piece, and an array is an address in it: torch takes longer for each tensor, made
or looked at, than a launch takes. What keeps a ready kernel has to tell apart all that Triton compiles for: dtypes,
alignments of what is given, and numbers; arrays of a call are aligned.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.backend.triton_launch import KNOWN, Launch, hooked, stream

# what a launch takes: the number of a source and the distance from its address; 0 and a number; lists of these
Recipe = list[Any]
# arrays begin at multiples of so many bytes
_ALIGNED = 128


class Room(NamedTuple):
    """An array that a call needs for itself."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def new(self, device: torch.device) -> Tensor:
        """The array as a tensor of its own."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


class Rooms:
    """Several arrays in one piece of memory, and the byte at which each begins."""

    def __init__(self, arrays: Sequence[Room]) -> None:
        self.arrays = tuple(arrays)
        starts, at = [], 0
        for dtype, shape in arrays:
            starts.append(at)
            at += -(-math.prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED
        self.starts, self.size = tuple(starts), at

    def memory(self, device: torch.device) -> Tensor:
        return torch.empty(self.size, dtype=torch.uint8, device=device)

    def tensors(self, memory: Tensor) -> tuple[Tensor, ...]:
        """The arrays as views of their memory."""
        return tuple(
            memory[at : at + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for at, (dtype, shape) in zip(self.starts, self.arrays, strict=True)
        )


class Ready:
    """A kernel as it was compiled for arguments of a kind, on the current device."""

    def __init__(self, launch: Launch, grid: tuple[int, ...], args: tuple[Any, ...]) -> None:
        """`args` are those of a call: tensors and numbers, and tuples of them."""
        self._device = torch._C._cuda_getDevice()
        found = launch.found(self._device, grid, args)
        assert found is not None, "tensors and numbers, Triton need not look at"
        self._run, function, metadata, self._last = found
        self._first = function, metadata, None, None, None
        self._grid = (*grid, 1, 1)[:3]

    def __call__(self, *args: Any) -> None:
        """Run the kernel on addresses and numbers, on the current stream of the device it was compiled for."""
        self._run(*self._grid, stream(self._device), *self._first, *args, *self._last)


def recipe_of(args: tuple[Any, ...], sources: Sequence[Tensor]) -> Recipe | None:
    """Where the tensors of a launch are in its sources, which are numbered from 1; None where one is in none of them.

    The first of the sources is memory that holds arrays. A tensor without numbers is nowhere, at 0.
    """
    found: Recipe = []
    for a in args:
        place: Any = (0, a)
        if isinstance(a, tuple):
            place = recipe_of(a, sources)
        elif isinstance(a, Tensor):
            place = _place(a, sources) if a.numel() else (0, 0)
        if place is None:
            return None
        found.append(place)
    return found


def _place(t: Tensor, sources: Sequence[Tensor]) -> tuple[int, int] | None:
    for i, source in enumerate(sources, 1):
        distance = t.data_ptr() - source.data_ptr()
        if distance == 0 or (source.dtype == torch.uint8 and 0 < distance < source.numel()):
            return i, distance
    return None


def filled(recipe: Recipe, bases: Sequence[int]) -> list[Any]:
    """The arguments of a launch, for the addresses of its sources; the first base is 0."""
    return [tuple([bases[i] + x for i, x in a]) if type(a) is list else bases[a[0]] + a[1] for a in recipe]


def possible() -> bool:
    """True if kernels may be launched by addresses: this Triton is known, and no profiler asks."""
    return KNOWN and not hooked()


def alike(t: Tensor) -> tuple[Any, ...]:
    """What launches by the address of a tensor depend on."""
    return t.dtype, t.shape, t.stride(), t.data_ptr() & 15 == 0
