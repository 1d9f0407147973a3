"""A number in memory by which a kernel signals its caller that work is left to do."""

import threading

import numpy as np


class _Flag(threading.local):
    """A number for each thread that calls kernels; the threads that run the kernel write to it."""

    def __init__(self) -> None:
        self.number = np.zeros(1, np.int64)
        self.address = self.number.ctypes.data


# a caller sets the number to 0, passes its address to a kernel, and then checks that it is still 0
FLAG = _Flag()
