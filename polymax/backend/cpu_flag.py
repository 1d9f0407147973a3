"""A number in memory by which a kernel tells its caller that something is left to do."""

import threading

import numpy as np


class _Flag(threading.local):
    """A number of each thread that calls kernels; those of its team write to it."""

    def __init__(self) -> None:
        self.number = np.zeros(1, np.int64)
        self.address = self.number.ctypes.data


# a caller sets the number to 0, gives a kernel its address, and looks whether it is still 0
FLAG = _Flag()
