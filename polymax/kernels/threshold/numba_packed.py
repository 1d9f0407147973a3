"""Entmax with any alpha between 1 and 2 of long rows, for Numba: steps on the few entries that can have weight.

The maxima of the parts of a row are some of its entries. Their r-norm is smaller than that of all, and so is their
threshold; rough steps from the left come close to it. Only entries that have weight there are packed. Where the
threshold of the packed entries is no lower, it is that of the row, since the others have no weight at it either. Where
it is, because rough steps went too far, the row is taken as a whole, as are rows of which most entries would be packed.
"""

import numpy as np

from polymax.backend.numba_math import row_max, within
from polymax.backend.numba_pack import pack_above
from polymax.backend.numba_peaks import PEAKS, set_peaks
from polymax.kernels.threshold.numba_general import rough_root, rough_sums
from polymax.kernels.threshold.numba_support import BLOCK

# how far rough steps may go beyond the threshold of the maxima
ROUGH = 0.02


@within
def pack_row(x, y, alpha, whole, z, index, peaks):
    """Pack the scores of a row that can have weight into z, in blocks filled up with -inf, with their index.

    Returns how many there are, 0 where y is filled with zeros or NaN already, and a bound from below on t that is to be
    seen to hold; or -1 and a t near the root where the row is to be taken as a whole: most entries are packed, or it is
    asked for. The peaks are room.
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
    # a NaN is not below anything, and so is found among the few
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
    """True if most of the first entries would be packed, so that most of all may be: they are not worth packing."""
    first, many = x[:PEAKS], np.int32(0)
    for j in range(first.size):
        many = np.int32(many + np.int32(not first[j] - top <= lowest))
    return 4 * many > 3 * first.size


@within
def _threshold_of_peaks(peaks, top, scale):
    """About the threshold of the maxima; 0 where there is none."""
    real, r = peaks.dtype.type, 1 / scale
    t = 0.0
    for _ in range(2):
        lower, total = rough_sums(peaks, top, real(t), real(scale), real(r))
        t = rough_root(lower, total, t, scale, r)
    return t
