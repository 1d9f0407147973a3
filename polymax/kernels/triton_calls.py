"""Launches for calls of one kind, prepared at the first of them.

Kernels of fifty arguments take long to launch even where only the kinds of arguments are asked for. Calls with tensors
of the same types, shapes, strides and alignments, and with the same numbers, launch the same kernels: they ask once.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from polymax.kernels.triton_launch import KNOWN, compiled, hooked, stream

# kinds of calls that are remembered
MOST = 512


class Prepared:
    """A kernel with its grid and all that it takes after its tensors: numbers, then compile-time arguments."""

    def __init__(self, kernel: Any, grid: tuple[int, ...], numbers: tuple[Any, ...], constants: dict[str, Any]) -> None:
        self.kernel = kernel
        self.grid = grid
        self.numbers = numbers
        self.constants = constants
        self._run: Any = None
        self._sizes = (*grid, 1, 1)[:3]
        self._first: tuple[Any, ...] = ()
        self._last: tuple[Any, ...] = ()

    def __call__(self, *tensors: Any) -> None:
        """Run the kernel on the current device and stream, on tensors, or on their addresses where `ready` is true."""
        if type(tensors[0]) is not int:
            if not KNOWN or hooked():
                self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
                return
            if self._run is None:
                args = (*tensors, *self.numbers)
                self._run, function, metadata, values = compiled(self.kernel, self.grid, args, self.constants)
                self._first, self._last = (function, metadata, None, None, None), (*self.numbers, *values)
            # of an address the launcher does not ask the driver whose it is
            tensors = tuple([t.data_ptr() for t in tensors])
        self._run(*self._sizes, stream(torch._C._cuda_getDevice()), *self._first, *tensors, *self._last)

    def ready(self) -> bool:
        """True if the kernel was compiled, and runs on addresses."""
        return self._run is not None and not hooked()


class Remembered:
    """What was made for kinds of calls, by key; it forgets all when there are too many."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Any] = {}

    def get(self, key: Hashable) -> Any:
        return self.known.get(key)

    def put(self, key: Hashable, value: Any) -> Any:
        if len(self.known) >= MOST:
            self.known.clear()
        self.known[key] = value
        return value


def kind(t: Tensor | None) -> Hashable:
    """What a kernel is compiled for, and the numbers it is launched with, of a tensor."""
    if t is None:
        return None
    return t.dtype, t.shape, t.stride(), t.data_ptr() & 15 == 0
