"""Entries of a row that can have weight, if lower bounds do not give weight to all entries, for Numba.

With one upper bound for all entries, k entries can hold the total, and the threshold is at least the k-th largest score
less the bound: lower entries have weight 0. The k-th largest of some maxima, each over a part of the row, is a cheap
lower bound of the k-th largest score.
"""

import numpy as np

from polymax.backend.numba_math import inline
from polymax.backend.numba_peaks import PEAKS

# maxima that are compared if few entries can hold the total
FEW = 16
# entries that are skipped together if none of them can have weight
PASSED = 64


@inline
def survey(x):
    """Return the number of entries other than -inf, and True if all are below inf."""
    present = below = np.int32(0)
    for j in range(x.size):
        present = np.int32(present + np.int32(x[j] > -np.inf))
        below = np.int32(below + np.int32(x[j] < np.inf))
    return present, below == x.size


@inline
def lowest_score(peaks, ranks, upper, total):
    """Return a score below which entries have weight 0, or -inf if the row's maxima (overwritten) give no such
    bound.
    """
    k = int(min(np.ceil(total / upper), PEAKS)) if upper > 0 else PEAKS
    # one more entry, for rounding
    k += k * upper < total
    parts = FEW if 2 * k <= FEW else PEAKS
    if 2 * k > PEAKS:
        return -np.inf
    if parts == FEW:
        for start in range(FEW, PEAKS, FEW):
            for j in range(FEW):
                peaks[j] = peaks[start + j] if peaks[start + j] > peaks[j] else peaks[j]
    ranks[:] = 0
    for i in range(parts):
        for j in range(parts):
            ranks[j] += np.int32(peaks[i] > peaks[j])
    # fewer than k maxima are larger than this one
    found = np.inf
    for j in range(parts):
        found = min(found, peaks[j]) if ranks[j] < k else found
    # margin for rounding
    return found - upper - 4 * np.finfo(peaks.dtype).eps * (abs(found) + upper)


@inline
def pack_above(x, lowest, index):
    """Fill index with the indices of entries that are at least `lowest`; return their count."""
    count = 0
    for start in range(0, x.size, PASSED):
        part = x[start : start + PASSED]
        some = np.int32(0)
        for k in range(part.size):
            some = np.int32(some + np.int32(part[k] >= lowest))
        if some > 0:
            for k in range(part.size):
                index[count] = start + k
                count += part[k] >= lowest
    return count
