"""Kernels compiled side by side: what a first call launches later is compiled by threads meanwhile.

Triton spends most of its time in passes and programs that do not hold Python's lock. A rehearsal calls a function with
tensors that have no memory, in a thread in which a launch compiles its kernel, and does no more; whoever launches that
kernel waits until it is compiled. So nothing that a call computes depends on a rehearsal. One that fails is forgotten:
the launch itself compiles again, and says what is wrong.

Threads end with what they compile, and Python waits for them when it ends.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from triton.compiler import code_generator
from triton.runtime.driver import driver


class _Here(threading.local):
    """What the current thread is for."""

    rehearses = False


here = _Here()
# what any first launch waits for
_begun: list[threading.Thread] = []
# what launchers of Triton 3.6 are told of a kernel; later versions have one for all kernels
_PLAIN = {"num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": False, "tensordesc_meta": None}
_NO_ROOM = {f"{kind}_scratch_{what}": 0 for kind in ("global", "profile") for what in ("size", "align")}
_METADATA = SimpleNamespace(**_PLAIN, **_NO_ROOM)


class _Warnings:
    """`warnings` for Triton, which silences them for a while, for all threads: two at once would not end as they began.

    None of what it silences is said by the versions of Python that polymax runs on.
    """

    def __init__(self, whole: Any) -> None:
        self.warn, self.warn_explicit = whole.warn, whole.warn_explicit

    def catch_warnings(self) -> Any:
        return threading.Lock()

    def simplefilter(self, *_: Any) -> None:
        pass


def begin() -> None:
    """Start what every first launch needs: Triton's module in C, a hash of all its files, what it imports late."""
    if torch.cuda.is_initialized():
        _begun.append(_start(lambda: driver.active))
        _begun.append(_start(lambda: import_module("triton.runtime.cache").triton_key()))
        _begun.append(_start(import_module, "triton.experimental.gluon.nvidia.hopper"))


def rehearse(function: Callable[..., Any], *args: Any) -> None:
    """Compile the kernels that function(*args) launches, in a thread; it reads no numbers of tensors."""
    if isinstance(code_generator.warnings, ModuleType):
        code_generator.warnings = _Warnings(code_generator.warnings)
    device = torch.cuda.current_device()
    given = [shape_of(a) for a in args]

    def play() -> None:
        here.rehearses = True
        with torch.cuda.device(device), torch.no_grad():
            function(*given)

    _start(play)


def shape_of(x: Any) -> Any:
    """A tensor without memory, in the shape of another, also in tuples; anything else as it is."""
    if isinstance(x, Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return tuple(map(shape_of, x)) if type(x) is tuple else x


def compile_for(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The kernel that Triton compiles for arguments like these; meanwhile, a thread compiles what launches it."""
    for thread in tuple(_begun):
        thread.join()
    _begun.clear()
    launcher = None
    if hasattr(sys.modules[driver.active.launcher_cls.__module__], "make_launcher"):
        # what Triton compiles for: the device's cache ends with the function that tells
        *_, bind = kernel.device_caches[driver.active.get_current_device()]
        launcher = _start(_launch_by, bind, kernel, args, options)
    found = kernel.warmup(*args, grid=grid, **options)
    if launcher is not None:
        launcher.join()
    return found


def _launch_by(bind: Any, kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Have Triton compile what launches the kernel: it is found on the disk later."""
    _, kinds, _ = bind(*args, **options)
    signature = {p.name: kind[0] for p, kind in zip(kernel.params, kinds, strict=True)}
    driver.active.launcher_cls(SimpleNamespace(fn=kernel, constants={}, signature=signature), _METADATA)


def _start(function: Callable[..., Any], *args: Any) -> threading.Thread:
    def run() -> None:
        # who needs what failed does it again
        with suppress(Exception):
            function(*args)

    thread = threading.Thread(target=run, name="polymax compiles ahead")
    thread.start()
    return thread
