"""Kernels compiled side by side: what a first call launches later is compiled by threads meanwhile.

Triton spends most of its time in passes and programs that do not hold Python's lock. A rehearsal calls a function with
tensors that have no memory, in a thread in which a launch has its kernel compiled by another thread, and does no more;
whoever launches that kernel waits until it is compiled. So nothing that a call computes depends on a rehearsal. What
fails is forgotten: the launch itself compiles again, and says what is wrong.

The first step of a compilation is written in Python: threads take turns at it, and rehearsals come last. While threads
compile, Python's lock changes hands sooner: each asks for it hundreds of times, for moments. Threads end with what they
compile, and Python waits for them when it ends.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from triton.compiler import code_generator
from triton.runtime.driver import driver

# seconds after which a thread that holds Python's lock lets another one have it
SOON = 1e-4
# what launchers of Triton 3.6 are told of a kernel; later versions have one for all kernels
_PLAIN = {"num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": False, "tensordesc_meta": None}
_NO_ROOM = {f"{kind}_scratch_{what}": 0 for kind in ("global", "profile") for what in ("size", "align")}
_METADATA = SimpleNamespace(**_PLAIN, **_NO_ROOM)


class _Here(threading.local):
    """What the current thread is for."""

    rehearses = False


class _Quick:
    """Threads that are at work, while which Python's lock changes hands sooner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._usual = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._count:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, SOON))
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                sys.setswitchinterval(self._usual)


class _Turns:
    """Whose turn it is at what Triton does in Python."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._change = threading.Condition()
        # threads that somebody waits for, and that have not had their turn
        self._urgent: set[int] = set()

    def ask(self) -> None:
        """Before its turn comes, no rehearsal begins one."""
        with self._change:
            self._urgent.add(threading.get_ident())

    def leave(self) -> None:
        with self._change:
            self._urgent.discard(threading.get_ident())
            self._change.notify_all()

    def taking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, which one thread calls at a time."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if here.rehearses:
                with self._change:
                    self._change.wait_for(lambda: not self._urgent)
            with self._turn:
                try:
                    return function(*args, **kwargs)
                finally:
                    self.leave()

        return call


here = _Here()
_quick = _Quick()
_turns = _Turns()
# what any first launch waits for: launchers, and after them kernels
_for_launchers: list[threading.Thread] = []
_for_kernels: list[threading.Thread] = []
# threads that compile launchers, or have done so, by the types of arguments
_launchers: dict[tuple[Any, ...], threading.Thread] = {}
_asking = threading.Lock()


def begin() -> None:
    """Start what every first launch needs: Triton's module in C, a hash of all its files, what it imports late."""
    code_generator.ast_to_ttir = _turns.taking(code_generator.ast_to_ttir)
    if torch.cuda.is_initialized():
        _for_kernels.append(_start(lambda: import_module("triton.runtime.cache").triton_key()))
        _for_launchers.append(_start(lambda: driver.active))
        _for_launchers.append(_start(import_module, "triton.experimental.gluon.nvidia.hopper"))


def rehearse(function: Callable[..., Any], *args: Any) -> None:
    """Have the kernels that function(*args) launches compiled; it is one that reads no numbers of tensors."""
    apart(function, *map(shape_of, args))


def apart(function: Callable[..., Any], *args: Any) -> None:
    """Call a function in a thread that rehearses, for the current device."""
    device = torch.cuda.current_device()

    def play() -> None:
        here.rehearses = True
        with torch.cuda.device(device), torch.no_grad(), _Shapes():
            function(*args)

    _start(play)


@contextmanager
def rehearsal() -> Iterator[None]:
    """Launches within have their kernels compiled by threads, and nothing is launched."""
    before, here.rehearses = here.rehearses, True
    try:
        yield
    finally:
        here.rehearses = before


class _Shapes(TorchFunctionMode):
    """Gives `torch.empty_like` of tensors without memory, for which torch would import sympy: a second of Python."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.empty_like:
            return _empty_like(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _empty_like(x: Tensor, dtype: torch.dtype | None = None, memory_format: Any = torch.preserve_format) -> Tensor:
    dtype = dtype or x.dtype
    if x.is_contiguous() or memory_format == torch.contiguous_format:
        return x.new_empty(x.shape, dtype=dtype)
    return torch.empty_strided(x.shape, x.stride(), dtype=dtype, device=x.device)


def shape_of(x: Any) -> Any:
    """A tensor without memory, in the shape of another, also in tuples; anything else as it is."""
    if isinstance(x, Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return tuple(map(shape_of, x)) if type(x) is tuple else x


def compile_for(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The kernel that Triton compiles for arguments like these; meanwhile, a thread compiles what launches it."""
    if not here.rehearses:
        _turns.ask()
    try:
        _end(*_for_launchers)
        launcher = None
        if hasattr(sys.modules[driver.active.launcher_cls.__module__], "make_launcher"):
            launcher = _launcher(kernel, args, options)
        _end(*_for_kernels)
        found = kernel.warmup(*args, grid=grid, **options)
        if launcher is not None:
            _end(launcher)
    finally:
        _turns.leave()
    return found


def _launcher(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> threading.Thread:
    """A thread in which Triton compiles what launches the kernel, to be found on the disk later."""
    # the last of what Triton keeps for a device tells what it compiles for
    *_, bind = kernel.device_caches[driver.active.get_current_device()]
    _, kinds, _ = bind(*args, **options)
    signature = {p.name: kind[0] for p, kind in zip(kernel.params, kinds, strict=True)}
    # a launcher does not tell pointers apart
    types = tuple("*" if str(kind).startswith("*") else kind for kind in signature.values())
    with _asking:
        if types not in _launchers:
            source = SimpleNamespace(fn=kernel, constants={}, signature=signature)
            _launchers[types] = _start(driver.active.launcher_cls, source, _METADATA)
        return _launchers[types]


def _start(function: Callable[..., Any], *args: Any) -> threading.Thread:
    def run() -> None:
        # who needs what failed does it again
        with _quick, suppress(Exception):
            function(*args)

    thread = threading.Thread(target=run, name="polymax compiles")
    # there may be too many, or Python ends
    with suppress(RuntimeError):
        thread.start()
    return thread


def _end(*threads: threading.Thread) -> None:
    """Wait for threads that were started."""
    for thread in threads:
        if thread.ident is not None:
            thread.join()
