"""Maxima of the parts of a row, for Numba: a few large entries that give a cheap bound of a threshold."""

import numpy as np

from polymax.backend.numba_math import inline

# number of parts of a row: part k holds the entries k, k + PEAKS, k + 2 PEAKS, ...
PEAKS = 64


@inline
def set_peaks(x, peaks):
    """Fill peaks with the maxima of the parts of a row; -inf if a part is empty or has only NaN."""
    peaks[:] = -np.inf
    whole = x.size - x.size % PEAKS
    for start in range(0, whole, PEAKS):
        part = x[start : start + PEAKS]
        for k in range(PEAKS):
            peaks[k] = part[k] if part[k] > peaks[k] else peaks[k]
    part = x[whole:]
    for k in range(part.size):
        peaks[k] = part[k] if part[k] > peaks[k] else peaks[k]
