"""The runs of oscarmax by buckets of scores, for Numba: only buckets in which a run may begin or end are sorted.

Entries are put into buckets of equal width, in falling order. At the borders of buckets the points (b, C_b) are known
without a sort. Between two borders, with `size` entries in a bucket of some width, C_b is at most size width / 4 above
the line through both points: scores are a concave sum of increments that differ by no more than the width, ranks a
convex one. If the least concave function above all borders exceeds those two points by more than that, it passes above
the bucket. The bucket is then part of one run, in any order.
"""

import numpy as np

from polymax.backend.numba_math import within
from polymax.kernels.oscarmax.numba_sort import COUNTED, sort_entries

# SIZE: average entries of a bucket
# MOST: most buckets
SIZE, MOST = 16, 4096
# margin relative to the sums, far above their rounding
MARGIN = 1e-10
# rows of numbers and rows of places needed for a row of scores
NUMBERS, PLACES = 5, 7


@within
def ordered_runs(x, unit, base, lowest, count, bound, strength, scores, numbers, places):
    """Order the `count` entries in places[0] so that runs follow each other; return the number of runs.

    The order is written to places[1], sums and sizes of runs to numbers[0] and numbers[1]; other rows of numbers and
    places are workspace, for n + 1 or 256. No run that may have weight is left out; `bound` is a lower bound of the
    threshold. The entries of `scores`, as many and of the same type as x, are workspace, too.
    """
    totals, widths, values, sums = numbers[0], numbers[1], numbers[2], numbers[4]
    index, order, borders, whole = places[0], places[1], places[3], places[4]
    if count <= COUNTED:
        for r in range(count):
            order[r] = index[r]
        borders[0], borders[1], whole[0], buckets = 0, count, 0, 1
    else:
        buckets = min(MOST, count // SIZE + 1)
        scale = min(buckets / -lowest, 1e300)
        _fill(x, unit, base, scale, count, buckets, numbers, places)
        buckets = _judge(buckets, 1.001 / scale, bound, strength, unit, numbers, places)
    runs, total, width = -1, 0.0, 0.0
    for k in range(buckets):
        first, last = borders[k], borders[k + 1]
        if whole[k]:
            term = sums[k] + _raise(strength, first, last)
            runs, total, width = pushed(term, np.float64(last - first), runs, total, width, totals, widths)
            continue
        sort_entries(x, unit, base, first, last, scores, numbers, places)
        for r in range(first, last):
            runs, total, width = pushed(values[r] + strength * r, 1.0, runs, total, width, totals, widths)
    totals[runs], widths[runs] = total, width
    return runs + 1


@within
def _raise(strength, first, last):
    """Return the total by which a strength raises the entries from one rank to another."""
    return strength * (0.5 * (first + last - 1)) * (last - first)


@within
def pushed(term, size, runs, total, width, totals, widths):
    """Add entries to the runs; return the number of closed runs, and the sum and the size of the open run."""
    if total * size > term * width or runs < 0:
        if runs >= 0:
            totals[runs], widths[runs] = total, width
        return runs + 1, term, size
    total += term
    width += size
    while runs > 0 and totals[runs - 1] * width <= total * widths[runs - 1]:
        runs -= 1
        total += totals[runs]
        width += widths[runs]
    return runs, total, width


@within
def _fill(x, unit, base, scale, count, buckets, numbers, places):
    """Write entries by their buckets, and the sums and the borders of buckets."""
    sums = numbers[4]
    index, order, bucket, borders, ends = places[0], places[1], places[2], places[3], places[5]
    for k in range(buckets):
        sums[k] = 0
        ends[k] = 0
    for r in range(count):
        d = np.float64(x[index[r]]) * unit - base
        k = min(int(-d * scale), buckets - 1)
        bucket[r] = k
        ends[k] += 1
        sums[k] += d
    first = np.int32(0)
    for k in range(buckets):
        borders[k] = first
        size = ends[k]
        ends[k] = first
        first += size
    borders[buckets] = count
    for r in range(count):
        k = bucket[r]
        q = ends[k]
        order[q] = index[r]
        ends[k] = q + 1


@within
def _judge(buckets, width, bound, strength, unit, numbers, places):
    """Mark buckets that lie wholly within a run; return the number of buckets up to the last that may have weight."""
    totals, widths, sums = numbers[0], numbers[1], numbers[4]
    borders, whole = places[3], places[4]
    # the least concave function above the borders, as runs of buckets
    runs, total, size = -1, 0.0, 0.0
    height = reach = 0.0
    for k in range(buckets):
        first, last = borders[k], borders[k + 1]
        if first == last:
            continue
        term = sums[k] + _raise(strength, first, last)
        height += term
        reach += abs(term) + abs(sums[k])
        bound = max(bound, (height - unit) / last)
        runs, total, size = pushed(term, np.float64(last - first), runs, total, size, totals, widths)
    totals[runs], widths[runs] = total, size
    margin = MARGIN * (reach + unit)
    needed = 0
    run, end = -1, 0.0
    height = gap = level = 0.0
    for k in range(buckets):
        first, last = borders[k], borders[k + 1]
        whole[k] = False
        if first == last:
            continue
        if first >= end:
            run += 1
            end += widths[run]
            level = totals[run] / widths[run]
            gap = 0.0
        term = sums[k] + _raise(strength, first, last)
        before, above = gap, max(height - bound * first, height + term - bound * last)
        gap += level * (last - first) - term
        height += term
        between = 0.25 * (last - first) * width + margin
        whole[k] = min(before, gap) >= between
        needed = k + 1 if above + between >= unit else needed
    return needed
