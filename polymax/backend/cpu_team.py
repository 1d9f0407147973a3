"""The threads of torch's own OpenMP library, which run our kernels beside the calling thread.

After an operation, torch's threads wait for the next one in a busy loop, for a millisecond or so, and keep their cores.
Threads of another pool would share these cores with them, and take twice as long; torch's threads, asked for by the
same library, come at once. It is asked as compilers ask it, by `GOMP_parallel`. There is no team where torch has
another library, nor in a process that was forked: its parent's threads are not there, which the library does not know.
"""

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

_forked = False


def team() -> "Team | None":
    """What runs a function in several threads at once, the calling one among them; None where there is no team."""
    return None if _forked else _team()


@cache
def _team() -> "Team | None":
    here = Path(torch.__file__).parent
    for place in (*here.glob("lib/libgomp*.so*"), *here.parent.glob("torch.libs/libgomp*.so*")):
        try:
            # the library that torch has loaded, not another one
            return Team(ctypes.CDLL(str(place), mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
        except (AttributeError, OSError):
            continue
    return None


class Team:
    """The threads of an OpenMP library."""

    def __init__(self, library: Any) -> None:
        # looked up by name, each is a function of its own
        self._numbers, self._objects = library["GOMP_parallel"], library["GOMP_parallel"]
        task = ctypes.CFUNCTYPE(None, ctypes.py_object)
        self._numbers.argtypes, self._numbers.restype = (*[ctypes.c_void_p] * 2, *[ctypes.c_uint] * 2), None
        self._objects.argtypes, self._objects.restype = (task, ctypes.py_object, *[ctypes.c_uint] * 2), None
        self._call = task(lambda job: job.run())

    def run_code(self, address: int, memory: Any, threads: int) -> None:
        """Call the machine code at an address with the address of the memory, in every thread."""
        self._numbers(address, ctypes.addressof(memory), threads, 0)

    def run(self, work: Callable[[], None], threads: int) -> None:
        """Call a function of Python in every thread."""
        job = _Job(work)
        self._objects(self._call, job, threads, 0)
        if job.error is not None:
            raise job.error


class _Job:
    """A function, and the error that it raised in one of the threads, which cannot leave them by itself."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error


def _forget() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
