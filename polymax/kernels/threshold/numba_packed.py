"""Entmax with any alpha between 1 and 2 of long rows, for Numba: steps on the few entries that can have weight.

The maxima of the parts of a row are some of its entries. Their r-norm is smaller than that of all, and so is their
threshold; rough steps from the left come close to it. Only entries that have weight there are packed. Where the threshold
of the packed entries is no lower, it is that of the row, since the others have no weight at it either. Where it is, because
rough steps went too far, entries are packed again, by the bound that needs no steps. Rows of which most entries would be
packed are taken as a whole.
"""

import numpy as np

from polymax.kernels.numba_math import add, row_max, row_sum, within
from polymax.kernels.numba_pack import pack_above
from polymax.kernels.numba_peaks import PEAKS, set_peaks
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold.numba_general import first_sums, rough_root, rough_sums
from polymax.kernels.threshold.numba_support import general_powers, response_weights

# how far rough steps may go beyond the threshold of the maxima
ROUGH = 0.02


@within
def packed_row(x, y, alpha, z, power, index, peaks):
    """Fill the row y with the weights of the scores x; the other arrays are room.

    Returns -1; or, where most entries would be packed, a t near the root, and nothing is filled.
    """
    real, n = x.dtype.type, x.size
    set_peaks(x, peaks)
    top = row_max(peaks)
    # -inf if all entries are -inf or NaN
    top = top if top > -np.inf else real(0)
    near = _threshold_of_peaks(peaks, top, alpha - 1)
    bound = max(near - ROUGH, 0.0)
    if looks_full(x, top, real(bound - 1 / (alpha - 1))):
        return near
    while True:
        # a NaN is not below anything, and so is found among the few
        count = pack_above(x, top, real(bound - 1 / (alpha - 1)), index)
        if 2 * count > n:
            return near
        bad = 0
        for k in range(count):
            z[k] = x[index[k]] - top
            bad += z[k] != z[k]
        for j in range(n):
            y[j] = 0 if bad == 0 else np.nan
        if bad > 0:
            return -1.0
        kept, t = count, 0.0
        if count > 0:
            kept, t = general_powers(z, index, count, power, alpha, TSALLIS, bound)
        if t >= bound:
            break
        bound = 0.0
    factor = 1 / row_sum(power[:kept])
    for k in range(kept):
        y[index[k]] = power[k] * factor
    return -1.0


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
    lower, total = first_sums(peaks, top, real(scale), real(r))
    t = rough_root(lower, total, 0.0, scale, r)
    lower, total = rough_sums(peaks, top, real(t), real(scale), real(r))
    return rough_root(lower, total, t, scale, r)


@within
def packed_response(y, v, alpha, index, count, w, values, out):
    """Fill `out` with J v at the weights y, of which `count` listed ones alone are other than 0; w and values are room."""
    for j in range(out.size):
        out[j] = 0
    for k in range(count):
        values[k] = y[index[k]]
    response_weights(values[:count], alpha, w)
    for k in range(count):
        values[k] = v[index[k]]
    mean = weighted_mean(w[:count], values[:count])
    for k in range(count):
        d = w[k] * (values[k] - mean)
        out[index[k]] = 0 if w[k] == 0 else d


@within
def respond(w, v, out):
    """w (v - the mean of v by w), and 0 where w is."""
    mean = weighted_mean(w, v)
    for j in range(w.size):
        d = w[j] * (v[j] - mean)
        out[j] = 0 if w[j] == 0 else d


@within
def weighted_mean(w, v):
    """The mean of v by weights w; 0 without any."""
    total = mean = w.dtype.type(0)
    for j in range(w.size):
        total = add(total, w[j])
        mean = add(mean, w[j] * v[j])
    return mean / total if total != 0 else total
