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


class Launches:
    """Kernels as they were compiled for a kind of calls."""

    def __init__(self) -> None:
        self.compiled: dict[str, tuple[Any, ...]] = {}

    def launch(self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """kernel[grid](*args, **constants); the constants of a kernel come after its arguments."""
        if not KNOWN or hooked():
            kernel[grid](*args, **constants)
            return
        found = self.compiled.get(kernel.__name__)
        if found is None:
            found = self.compiled[kernel.__name__] = compiled(kernel, grid, args, constants)
        run, function, metadata, values = found
        x, y, z = (*grid, 1, 1)[:3]
        run(x, y, z, stream(torch._C._cuda_getDevice()), function, metadata, None, None, None, *args, *values)


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
