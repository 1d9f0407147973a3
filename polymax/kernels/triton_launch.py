"""Launches of kernels for calls of one kind, prepared at the first of them.

Triton looks at each argument of each launch to find the kernel that was compiled for its type, its alignment and
whether it is 1: for kernels of fifty arguments that takes longer than many of them run. Calls of one kind, that is with
tensors of the same types, shapes, strides and alignments and with the same numbers, need to look once.
"""

from collections.abc import Hashable
from typing import Any

import triton
from torch import Tensor

# from here on, what was compiled takes all arguments in the order of the kernel, constants too
DIRECT = tuple(int(n) for n in triton.__version__.split(".")[:2]) >= (3, 3)
# kinds of calls that are remembered
MOST = 512


class Launches:
    """Kernels as they were compiled for a kind of calls."""

    def __init__(self) -> None:
        self.compiled: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    def launch(self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """kernel[grid](*args, **constants); the constants of a kernel come after its arguments."""
        found = self.compiled.get(kernel.__name__)
        if found is not None:
            compiled, values = found
            compiled[(*grid, 1, 1)[:3]](*args, *values)
            return
        compiled = kernel[grid](*args, **constants)
        # Triton's interpreter compiles nothing
        if DIRECT and hasattr(compiled, "packed_metadata"):
            names = kernel.arg_names[len(args) :]
            self.compiled[kernel.__name__] = compiled, tuple(constants[name] for name in names)


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
    return t.dtype, t.shape, t.stride(), t.data_ptr() % 16 == 0
