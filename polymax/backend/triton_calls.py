"""Launches for calls of one kind, prepared at the first of them.

Kernels of fifty arguments take long to launch even where only the kinds of arguments are asked for. Calls with tensors
of the same types, shapes, strides and alignments, and with the same numbers, launch the same kernels: they ask once.
"""

import threading
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from polymax.backend.triton_ahead import apart, compile_for, here
from polymax.backend.triton_launch import KNOWN, compiled, hooked, stream

# kinds of calls that are remembered
MOST = 512


class Compiled:
    """A kernel with its compile-time arguments, for calls that Triton compiles the same for: it is asked once."""

    def __init__(self, kernel: Any, constants: dict[str, Any]) -> None:
        self.kernel = kernel
        self.constants = constants
        self._run: Any = None
        self._compiling = threading.Lock()
        self._first: tuple[Any, ...] = ()
        self._last: tuple[Any, ...] = ()

    def launch(self, grid: tuple[int, int, int], tensors: tuple[Any, ...], numbers: tuple[Any, ...]) -> None:
        """Run the kernel on the current device and stream, on tensors, or on their addresses where `ready` is true."""
        if type(tensors[0]) is not int:
            if here.rehearses:
                if KNOWN:
                    apart(self._compile, grid, (*tensors, *numbers))
                return
            if not KNOWN or hooked():
                self.kernel[grid](*tensors, *numbers, **self.constants)
                return
            if self._run is None:
                with self._compiling:
                    run, function, metadata, self._last = compiled(
                        self.kernel, grid, (*tensors, *numbers), self.constants
                    )
                self._run, self._first = run, (function, metadata, None, None, None)
            # of an address the launcher does not ask the driver whose it is
            tensors = tuple([t.data_ptr() for t in tensors])
        self._run(*grid, stream(torch._C._cuda_getDevice()), *self._first, *tensors, *numbers, *self._last)

    def _compile(self, grid: tuple[int, int, int], args: tuple[Any, ...]) -> None:
        with self._compiling:
            compile_for(self.kernel, grid, args, self.constants)

    def ready(self) -> bool:
        """True if the kernel was compiled, and runs on addresses."""
        return self._run is not None and not here.rehearses and not hooked()


class Prepared(Compiled):
    """A kernel with its grid and all that it takes after its tensors: numbers, then compile-time arguments."""

    def __init__(self, kernel: Any, grid: tuple[int, ...], numbers: tuple[Any, ...], constants: dict[str, Any]) -> None:
        super().__init__(kernel, constants)
        self.grid = (*grid, 1, 1)[:3]
        self.numbers = numbers

    def __call__(self, *tensors: Any) -> None:
        self.launch(self.grid, tensors, self.numbers)


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


def layout_kind(t: Tensor | None) -> Hashable:
    """What a kernel is compiled for of a tensor whose strides are numbers of a launch."""
    if t is None:
        return None
    return t.dtype, t.data_ptr() & 15 == 0, *[1 if n == 1 else n & 15 == 0 for n in t.stride()]
