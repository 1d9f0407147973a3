"""Entmax with any alpha between 1 and 2 of long rows, for Numba: steps on the few entries that can have weight.

The maxima of the parts of a row are a subset of its entries. Their r-norm is at most that of the row, and so is their
threshold; rough steps from the left come close to it. Only entries that have weight at that bound are packed. If the
threshold of the packed entries is not below the bound, it is the threshold of the row, since no other entry has weight
there. If it is below, because rough steps went too far, the row is solved as a whole, as are rows with most entries
packed.
"""

import numpy as np

from polymax.backend.numba_math import row_max, within
from polymax.backend.numba_pack import pack_above
from polymax.backend.numba_peaks import PEAKS, set_peaks
from polymax.kernels.threshold.numba_general import rough_root, rough_sums
from polymax.kernels.threshold.numba_support import BLOCK

# how far rough steps may overshoot the threshold of the maxima
ROUGH = 0.02


@within
def pack_row(x, y, alpha, whole, z, index, peaks):
    """Pack the scores of a row that can have weight into z, in blocks padded with -inf, with their indices.

    Returns their number and a lower bound of t, which the caller must check; the number 0 if y is already filled with
    zeros or NaN; or -1 and a t near the root if the row is to be solved as a whole: most entries would be packed, or
    `whole`. The peaks are workspace.
    """
    real = x.dtype.type
    set_peaks(x, peaks)
    top = row_max(peaks)
    # -inf if all entries are -inf or NaN
    top = top if top > -np.inf else real(0)
    near = _threshold_of_peaks(peaks, top, alpha - 1)
    bound = max(near - ROUGH, 0.0)
    lowest = real(bound - 1 / (alpha - 1))
    if whole or looks_full(x, top, lowest):
        return np.int64(-1), near
    # comparisons with NaN are False, so that a NaN is packed
    count = pack_above(x, top, lowest, index)
    if 2 * count > x.size:
        return np.int64(-1), near
    bad = 0
    for k in range(count):
        z[k] = x[index[k]] - top
        bad += z[k] != z[k]
    for j in range(y.size):
        y[j] = 0 if bad == 0 else np.nan
    for k in range(count, count + (-count) % BLOCK):
        z[k] = -np.inf
    return np.int64(count if bad == 0 else 0), bound


@within
def looks_full(x, top, lowest):
    """Return True if most of the first entries would be packed, which predicts that packing does not pay off."""
    first, many = x[:PEAKS], np.int32(0)
    for j in range(first.size):
        many = np.int32(many + np.int32(not first[j] - top <= lowest))
    return 4 * many > 3 * first.size


@within
def _threshold_of_peaks(peaks, top, scale):
    """Return about the threshold of the maxima; 0 if they are all -inf."""
    real, r = peaks.dtype.type, 1 / scale
    t = 0.0
    for _ in range(2):
        lower, total = rough_sums(peaks, top, real(t), real(scale), real(r))
        t = rough_root(lower, total, t, scale, r)
    return t
