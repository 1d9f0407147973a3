"""Sparsemax and entmax with alpha 1.5 of short rows, for Numba: passes over a row cost less than packing its support.

An entry has weight if it lies less than `reach` below the maximum, with w = reach - (max - x) > 0. The reach decreases
from a bound, by Newton's method, and a last shift of all w corrects the rounding: the sum of weights is then close to
1, and its error small, in the precision of the row.

A step of a short row ends before its sums are available. Therefore several rows take their steps in turn: the processor
begins the next row while it waits for the sums of the last.
"""

import numpy as np

from polymax.backend.numba_math import add, inline, number_at, positive_place, row_max, row_sum, within

# longest row whose threshold is found without gathering
SHORT = 1024
# TOGETHER: rows taken together
# NEAREST: their entries at most, so that they stay in the nearest cache
TOGETHER, NEAREST = 64, 4096
# above this sum, its rounding would show in the weights
NEAR = 4


@inline
def room(real):
    """Return workspace for rows taken together: maxima, reaches and shifts; counts of entries with weight, and
    unfinished rows.
    """
    return np.empty((3, TOGETHER), real), np.empty((2, TOGETHER), np.int32)


@inline
def sparsemax_rows(x, y, space):
    """Fill the rows y with the weights of the scores x, without gathering."""
    (tops, reaches, shifts), (counts, going) = space
    together = min(TOGETHER, max(NEAREST // max(x.shape[1], 1), 1))
    for first in range(0, len(x), together):
        group, weights = x[first : first + together], y[first : first + together]
        left = len(group)
        for i in range(left):
            tops[i], reaches[i], counts[i], going[i] = _top(group[i]), 1, x.shape[1] + 1, i
        while left > 0:
            kept = 0
            for k in range(left):
                i = going[k]
                count, shift = _sparsemax_step(group[i], tops[i], reaches[i])
                shifts[i] = shift
                # stop as soon as the count does not fall, whatever rounding does to an entry at the threshold
                goes_on = count > 0 and count < counts[i] and shift == shift
                counts[i] = count
                reaches[i] += shift if goes_on else x.dtype.type(0)
                going[kept] = i
                kept += goes_on
            left = kept
        for i in range(len(group)):
            _sparsemax_weights(group[i], tops[i], reaches[i], shifts[i], weights[i])


@inline
def entmax15_rows(x, y, space):
    """Fill the rows y with the weights of the scores x for alpha 1.5, without gathering."""
    (tops, reaches, shifts), (_, going) = space
    together = min(TOGETHER, max(NEAREST // max(x.shape[1], 1), 1))
    for first in range(0, len(x), together):
        group, weights = x[first : first + together], y[first : first + together]
        left = len(group)
        for i in range(left):
            tops[i], reaches[i], going[i] = _top(group[i]), 1, i
        while left > 0:
            kept = 0
            for k in range(left):
                i = going[k]
                reach, shifts[i] = _entmax15_step(group[i], tops[i], reaches[i])
                going[kept] = i
                kept += reach < reaches[i]
                reaches[i] = reach
            left = kept
        for i in range(len(group)):
            _entmax15_weights(group[i], tops[i], reaches[i], shifts[i], weights[i])


@within
def _top(x):
    top = row_max(x)
    return top if top > -np.inf else x.dtype.type(0)


@within
def _sparsemax_step(x, top, reach):
    """Return the number of entries within reach, and the shift that makes their weights sum to 1; NaN if an entry is
    NaN.
    """
    zero, one = x.dtype.type(0), x.dtype.type(1)
    # Michelot: the reach of a superset of the support is too large
    count = np.int32(0)
    total = zero
    for j in range(x.size):
        w = reach - (top - x[j])
        # comparisons with NaN are False: a NaN counts as inside, and makes the total NaN
        inside = not w <= zero
        total = add(total, w if inside else zero)
        count = np.int32(count + np.int32(inside))
    return count, (one - total) / x.dtype.type(max(count, 1))


@within
def _sparsemax_weights(x, top, reach, shift, y):
    zero = x.dtype.type(0)
    outside = zero if shift == shift else x.dtype.type(np.nan)
    for j in range(x.size):
        w = reach - (top - x[j])
        y[j] = outside if w <= zero or w + shift <= zero else w + shift


@within
def _entmax15_step(x, top, reach):
    """Return a smaller reach, or the same reach at the end, and the shift that makes the squares of w sum to 1."""
    real = x.dtype.type
    zero, half, one = real(0), real(0.5), real(1)
    last = positive_place(real(np.inf))
    count = np.int32(0)
    linear = square = zero
    least = last
    for j in range(x.size):
        w = reach - (top - x[j]) * half
        inside = not w <= zero
        here = positive_place(w) if inside else last
        least = here if here < least else least
        w = w if inside else zero
        linear = add(linear, w)
        square = add(square, w * w)
        count = np.int32(count + np.int32(inside))
    # all entries keep weight if the least w exceeds -shift, for the shift that makes the sum of (w + shift)^2 1
    under = linear * linear - real(count) * (square - one)
    smallest = number_at(least, one)
    excess = (square - one) - smallest * linear
    stays = excess < zero or smallest * smallest * under > excess * excess
    # that shift, or Newton's step on the square root of the sum: with one root, one division and no branch
    root = np.sqrt(max(under if stays else square, zero))
    step = ((one if stays else root) - square) / (linear + (root if stays else zero))
    ends = count == 0 or (stays and square < NEAR) or not step < zero
    return reach if ends else reach + step, step if count > 0 else zero


@within
def _entmax15_weights(x, top, reach, shift, y):
    real = x.dtype.type
    zero, half, one = real(0), real(0.5), real(1)
    for j in range(x.size):
        w = reach - (top - x[j]) * half
        w = zero if w <= zero else w + shift
        w = zero if w <= zero else w
        y[j] = w * w
    total = row_sum(y)
    factor = one / total if total != zero else one
    for j in range(x.size):
        y[j] *= factor
