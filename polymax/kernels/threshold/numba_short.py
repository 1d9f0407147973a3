"""Sparsemax and entmax with alpha 1.5 of a short row, for Numba: passes over it are cheaper than packing its support.

An entry has weight if it lies less than `reach` below the maximum, by w = reach - (max - x) > 0. The reach falls from a
bound, by Newton's method, and what rounding leaves at the end is put right by a shift of all w: a sum of weights is
close to 1 then, and its error small, in the precision of the row.
"""

import numpy as np

from polymax.kernels.numba_math import add, inline, number_at, place, row_max

# longest row on which the threshold is found without gathering
SHORT = 1024
# with a sum above this, the rounding of the sum would show in the weights
NEAR = 4


@inline
def sparsemax_row(x, y):
    """Fill the row y with the weights of the scores x, without gathering."""
    real = x.dtype.type
    zero, one = real(0), real(1)
    top = row_max(x)
    top = top if top > -np.inf else zero
    reach = one
    before = x.size + 1
    while True:
        # Michelot: a superset of the support reaches too far
        count = np.int32(0)
        total = zero
        for j in range(x.size):
            w = reach - (top - x[j])
            # a NaN is not below anything, and makes the total NaN
            inside = not w <= zero
            w = w if inside else zero
            y[j] = w
            total = add(total, w)
            count = np.int32(count + np.int32(inside))
        shift = (one - total) / real(max(count, 1))
        # a count that does not fall any more ends it, whatever rounding does to an entry at the threshold
        if count == 0 or count >= before or total != total:
            break
        before = count
        reach += shift
    outside = zero if total == total else real(np.nan)
    for j in range(x.size):
        w = y[j] + shift
        y[j] = outside if y[j] == zero or w <= zero else w


@inline
def entmax15_row(x, y):
    """Fill the row y with the weights of the scores x for alpha 1.5, without gathering."""
    real = x.dtype.type
    zero, half, one = real(0), real(0.5), real(1)
    last = place(real(np.inf))
    top = row_max(x)
    top = top if top > -np.inf else zero
    reach = one
    shift = zero
    while True:
        count = np.int32(0)
        linear = square = zero
        least = last
        for j in range(x.size):
            w = reach - (top - x[j]) * half
            inside = not w <= zero
            here = place(w) if inside else last
            least = here if here < least else least
            w = w if inside else zero
            linear = add(linear, w)
            square = add(square, w * w)
            count = np.int32(count + np.int32(inside))
        if count == 0 or square != square:
            break
        # the sum of (w + shift)^2 is 1, if none of these entries leaves
        under = linear * linear - real(count) * (square - one)
        shift = (one - square) / (linear + np.sqrt(max(under, zero)))
        stays = number_at(least, one) + shift > zero
        if stays and square < NEAR:
            break
        # Newton on the square root of the sum otherwise
        new = reach + shift if stays else reach - (square - np.sqrt(square)) / linear
        if not new < reach:
            break
        reach = new
    total = zero
    for j in range(x.size):
        w = reach - (top - x[j]) * half
        w = zero if w <= zero else w + shift
        w = zero if w <= zero else w
        y[j] = w * w
        total = add(total, y[j])
    factor = one / total if total != zero else one
    for j in range(x.size):
        y[j] *= factor
