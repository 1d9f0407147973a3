"""The threads of torch's own OpenMP library, which run our kernels beside the calling thread.

After an operation, torch's threads wait for the next one in a busy loop, for a millisecond or so, and keep their cores.
Threads of another pool would share these cores with them and take twice as long. Torch's threads start at once if the
same library calls them, through `GOMP_parallel`, as compiled OpenMP code does. There is no team if torch uses another
library, nor in a forked process: the threads of its parent are missing there, and the library does not notice.
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
    """Return the team that runs a function in several threads, including the calling thread; None if there is no
    team.
    """
    return None if _forked else _team()


@cache
def _team() -> "Team | None":
    here = Path(torch.__file__).parent
    for place in (*here.glob("lib/libgomp*.so*"), *here.parent.glob("torch.libs/libgomp*.so*")):
        try:
            # the library that torch has loaded, not another copy
            return Team(ctypes.CDLL(str(place), mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
        except (AttributeError, OSError):
            continue
    return None


class Team:
    """The threads of an OpenMP library."""

    def __init__(self, library: Any) -> None:
        # lookups by name give separate function objects
        self._numbers, self._objects = library["GOMP_parallel"], library["GOMP_parallel"]
        task = ctypes.CFUNCTYPE(None, ctypes.py_object)
        self._numbers.argtypes, self._numbers.restype = (*[ctypes.c_void_p] * 2, *[ctypes.c_uint] * 2), None
        self._objects.argtypes, self._objects.restype = (task, ctypes.py_object, *[ctypes.c_uint] * 2), None
        self._call = task(lambda job: job.run())

    def run_code(self, address: int, memory: Any, threads: int) -> None:
        """Call the machine code at an address with the address of the memory, in every thread."""
        self._numbers(address, ctypes.addressof(memory), threads, 0)

    def run(self, work: Callable[[], None], threads: int) -> None:
        """Call a Python function in every thread."""
        job = _Job(work)
        self._objects(self._call, job, threads, 0)
        if job.error is not None:
            raise job.error


class _Job:
    """A function, and the error that it raised in one of the threads: exceptions cannot leave these threads."""

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
