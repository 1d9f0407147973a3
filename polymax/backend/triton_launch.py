"""Launches of Triton kernels at a third of their cost: compiled kernels are cached by the kind of their arguments.

Triton inspects every argument of every launch in Python code, to find the kernel compiled for such arguments. This
takes some 30 us, more than a small kernel. Here a short key suffices: the dtypes and the alignment of tensors, and for
integers whether they are 1, multiples of 16, or need 64 bits. The first launch of a kind compiles through Triton's
`warmup`. Tuples of such arguments are keyed by their elements. If two threads launch a kernel that is not compiled yet,
one waits for the other.

    Entry    a kernel, above `triton.jit`
    Launch   an entry with its compile-time arguments; it makes a key of all arguments at each call
    Bound    a launch with its grid and its numbers; it only checks that its tensors are aligned

The way a compiled kernel is run is internal to Triton and may change: TRIED lists the versions known to run it this
way, which tests/backend/test_price.py compares with Triton's own launch. Other versions, hooks, the interpreter, and
arguments other than tensors and numbers use Triton's own launch.
"""

import logging
import os
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from polymax.backend.triton_straight import straight

# versions in which a compiled kernel is run by `run(x, y, z, stream, function, metadata, None, None, None, *arguments)`
TRIED = ("3.6.", "3.7.")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
KNOWN = triton.__version__.startswith(TRIED) and not INTERPRETED

# kinds of calls whose launches are kept; all are dropped when there are more
MOST = 512
Kept = TypeVar("Kept")


def say_slower(version: str) -> None:
    """Log a line if launches of a version of Triton take the slow way."""
    if not version.startswith(TRIED):
        logging.getLogger("polymax").warning(
            "Triton %s launches kernels of polymax in some 30 us more than with Triton %s, where polymax launches them",
            version,
            " or ".join(f"{known}x" for known in TRIED),
        )


# this file is imported at the first call that launches
say_slower(triton.__version__)


class Entry:
    """A kernel that is launched from the host; a decorator above `triton.jit`."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._launches: dict[Any, Launch] = {}
        self.__doc__ = kernel.__doc__

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return partial(self.launch, grid) if KNOWN else self.kernel[grid]

    def launch(self, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        """Run the kernel on the current device and stream."""
        self.prepared(**options)(grid, *args)

    def prepared(self, **options: Any) -> "Launch":
        """Return the kernel with its compile-time arguments; a caller that keeps it saves the lookup."""
        kind = tuple(options.items())
        found = self._launches.get(kind)
        if found is None:
            found = self._launches[kind] = Launch(self.kernel, options)
        return found


class Launch:
    """A kernel with its compile-time arguments, called with a grid and the other arguments."""

    def __init__(self, kernel: Any, options: dict[str, Any]) -> None:
        self.kernel = kernel
        self.options = options
        self._compiled: dict[Any, Any] = {}
        self._compiling = threading.Lock()

    def __call__(self, grid: tuple[int, ...], *args: Any) -> None:
        """Run the kernel on the current device and stream."""
        if not KNOWN:
            self.kernel[grid](*args, **self.options)
            return
        device = torch._C._cuda_getDevice()
        found = self.found(device, grid, args)
        if found is None or self.kernel.pre_run_hooks or hooked():
            self.kernel[grid](*args, **self.options)
            return
        run, function, metadata, constants = found
        x, y, z = (*grid, 1, 1)[:3]
        run(x, y, z, stream(device), function, metadata, None, None, None, *args, *constants)

    def found(self, device: int, grid: tuple[int, ...], args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the kernel compiled for arguments like these; None for arguments that only Triton can handle."""
        key: list[Any] = [device]
        if not told(args, key):
            return None
        kind = tuple(key)
        found = self._compiled.get(kind)
        if found is None:
            with self._compiling:
                found = self._compiled[kind] = compiled(self.kernel, grid, args, self.options)
        return found


class Bound:
    """A launch with its grid and its numbers, called with tensors whose dtypes never change.

    The compiled kernel then depends only on the device and on the alignment of the tensors, which each call checks; no
    other argument is inspected. A caller that caches a bound launch must use the dtypes as its key, and the kinds of
    the numbers if it passes other numbers to `on`. Launches that are `ready` also take addresses, multiples of 16.
    """

    def __init__(self, launch: Launch, grid: tuple[int, ...], *numbers: float) -> None:
        self.launch = launch
        self.grid = grid
        self.numbers = numbers
        self._aligned: dict[int, tuple[Any, ...]] = {}

    def __call__(self, *tensors: Tensor | int) -> None:
        """Run the kernel on the current device and stream."""
        self.on(self.grid, tensors, self.numbers)

    def on(self, grid: tuple[int, ...], tensors: tuple[Any, ...], numbers: tuple[float, ...]) -> None:
        """Run the kernel with another grid, and with other numbers of the same kinds as its own."""
        if KNOWN:
            # with an address the launcher skips its query of the driver about the pointer
            places = [t if type(t) is int else t.data_ptr() for t in tensors]
            together = 0
            for place in places:
                together |= place
            if together and not together & 15:
                device = torch._C._cuda_getDevice()
                found = self._aligned.get(device)
                if found is not None and not self.launch.kernel.pre_run_hooks and not hooked():
                    run, function, metadata, constants = found
                    x, y, z = (*grid, 1, 1)[:3]
                    run(x, y, z, stream(device), function, metadata, None, None, None, *places, *numbers, *constants)
                    return
                if not any(type(t) is int for t in tensors):
                    found = self.launch.found(device, grid, (*tensors, *numbers))
                    if found is not None:
                        self._aligned[device] = found
        if any(type(t) is int for t in tensors):
            raise TypeError(
                f"a launch takes tensors until it is ready, then addresses of multiples of 16; got {tensors}"
            )
        self.launch(grid, *tensors, *numbers)


def ready(*launches: Bound) -> bool:
    """Return True if bound launches take addresses on the current device: each was called there with aligned
    tensors.
    """
    if not KNOWN or hooked():
        return False
    device = torch._C._cuda_getDevice()
    return all(device in launch._aligned for launch in launches)


def told(args: tuple[Any, ...], key: list[Any]) -> bool:
    """Append to the key the properties of arguments that Triton compiles for; return False for an unsupported
    argument.
    """
    for a in args:
        if isinstance(a, Tensor):
            key.append(a.dtype)
            key.append(a.data_ptr() & 15 == 0)
        elif type(a) is int:
            key.append(1 if a == 1 else (a & 15 == 0, -0x80000000 <= a < 0x80000000))
        elif type(a) is float or type(a) is bool:
            key.append(type(a))
        elif type(a) is tuple:
            key.append(len(a))
            if not told(a, key):
                return False
        else:
            return False
    return True


def compiled(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """Return the launcher for arguments like these, its function and metadata, and the compile-time arguments."""
    found = kernel.warmup(*args, grid=grid, **options)
    found._init_handles()
    # a kernel also takes its compile-time arguments, which are already in its code
    constants = tuple(options[p.name] for p in kernel.params[len(args) :])
    return straight(found.run), found.function, found.packed_metadata, constants


def hooked() -> bool:
    """Return True if a profiler has installed a launch hook."""
    hook = triton.knobs.runtime.launch_enter_hook
    return hook is not None and bool(getattr(hook, "calls", True))


def stream(device: int) -> int:
    return torch._C._cuda_getCurrentRawStream(device)


def remembered(known: dict[Hashable, Kept], key: Hashable, make: Callable[[], Kept]) -> Kept:
    """Return the cached value of a key, made at its first call."""
    found = known.get(key)
    if found is None:
        if len(known) >= MOST:
            known.clear()
        found = known[key] = make()
    return found


def kind(t: Tensor | None) -> Hashable:
    """Return the properties of a tensor that a kernel is compiled for and launched with."""
    if t is None:
        return None
    return t.dtype, t.shape, t.stride(), t.data_ptr() & 15 == 0
