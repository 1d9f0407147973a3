"""A number in memory by which a kernel tells its caller that something is left to do."""

import threading

import numpy as np


class _Flag(threading.local):
    """A number of each thread that calls kernels; those of its team write to it."""

    def __init__(self) -> None:
        self.number = np.zeros(1, np.int64)
        self.address = self.number.ctypes.data


_flag = _Flag()


def lowered_flag() -> int:
    """The address of the flag of this thread, which is 0."""
    _flag.number[0] = 0
    return _flag.address


def flag_is_up() -> bool:
    """True if a kernel raised the flag of this thread since it was lowered."""
    return bool(_flag.number[0])
