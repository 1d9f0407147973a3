"""Maxima of the parts of a row, for Numba: a few large entries, from which a bound of a threshold is cheap to find."""

import numpy as np

from polymax.backend.numba_math import inline

# parts of a row: the first has every PEAKS-th entry from the first on
PEAKS = 64


@inline
def set_peaks(x, peaks):
    """Fill peaks with the maxima of the parts of a row; -inf where a part is empty, or has NaN alone."""
    peaks[:] = -np.inf
    whole = x.size - x.size % PEAKS
    for start in range(0, whole, PEAKS):
        part = x[start : start + PEAKS]
        for k in range(PEAKS):
            peaks[k] = part[k] if part[k] > peaks[k] else peaks[k]
    part = x[whole:]
    for k in range(part.size):
        peaks[k] = part[k] if part[k] > peaks[k] else peaks[k]
