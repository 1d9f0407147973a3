"""Entries of a row in the order of falling scores, for Numba: few by insertion, some by counting, many by digits."""

import numpy as np

from polymax.backend.numba_math import inline, positive_place, within

# FEW: most entries that are sorted by insertion
# COUNTED: most entries that are sorted by counting the larger ones, which vectorises
FEW, COUNTED = 8, 96


@within
def sort_entries(x, unit, base, first, last, scores, numbers, places):
    """Sort the entries in places[1] from `first` to `last`, and set numbers[2] to unit x - base of them.

    Other rows of numbers and places, and `scores`, are workspace.
    """
    values, order = numbers[2], places[1]
    if FEW < last - first <= COUNTED:
        _sort_by_counts(x, unit, base, first, last, scores, numbers, places)
        return
    for r in range(first, last):
        values[r] = np.float64(x[order[r]]) * unit - base
    if last - first <= FEW:
        _insert(values, order, first, last)
    else:
        _sort_digits(first, last, numbers, places)


@within
def _insert(values, order, first, last):
    for r in range(first + 1, last):
        value, entry = values[r], order[r]
        q = r
        while q > first and values[q - 1] < value:
            values[q], order[q] = values[q - 1], order[q - 1]
            q -= 1
        values[q], order[q] = value, entry


@within
def _sort_by_counts(x, unit, base, first, last, scores, numbers, places):
    values, order, entries, larger, seen = numbers[2], places[1], places[2], places[5], places[6]
    count = last - first
    for r in range(count):
        entries[r] = order[first + r]
        scores[r] = x[entries[r]]
        larger[r] = 0
        seen[r] = 0
    # a few entries at a time, compared with all: the sums stay in vectors
    fours = count - count % 4
    for k in range(0, fours, 4):
        a, b, c, d = scores[k], scores[k + 1], scores[k + 2], scores[k + 3]
        for r in range(count):
            e = scores[r]
            larger[r] += np.int32(a > e) + np.int32(b > e) + np.int32(c > e) + np.int32(d > e)
    for k in range(fours, count):
        a = scores[k]
        for r in range(count):
            larger[r] += np.int32(a > scores[r])
    for r in range(count):
        q = first + larger[r] + seen[larger[r]]
        order[q], values[q] = entries[r], np.float64(scores[r]) * unit - base
        seen[larger[r]] += 1


@inline
def _sort_digits(first, last, numbers, places):
    """Sort by the bits of distances from 0, which are positive: a byte at a time, the lowest first."""
    values, spare_values = numbers[2], numbers[3]
    order, spare, digits = places[1], places[2], places[5]
    for byte in range(0, 64, 8):
        for k in range(256):
            digits[k] = 0
        for r in range(first, last):
            digits[(positive_place(0.0 - values[r]) >> byte) & 255] += 1
        if digits[(positive_place(0.0 - values[first]) >> byte) & 255] == last - first:
            # all entries have this digit
            continue
        place = np.int32(first)
        for k in range(256):
            size = digits[k]
            digits[k] = place
            place += size
        for r in range(first, last):
            k = (positive_place(0.0 - values[r]) >> byte) & 255
            spare_values[digits[k]], spare[digits[k]] = values[r], order[r]
            digits[k] += 1
        for r in range(first, last):
            values[r], order[r] = spare_values[r], spare[r]
