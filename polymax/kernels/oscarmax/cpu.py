"""Oscarmax for Numba: a bound finds rows that are one cluster, the others need a sort of the few entries that matter.

With d_r the r-th largest score less the largest, the strength raises d_r by r - 1 strengths; C_b is the sum of the b
largest, raised. Runs of equal weight are the segments of the least concave function above the points (b, C_b), their
levels are its slopes, and the threshold is the largest of (C_b - 1) / b. Neither depends on the order within a run, nor
on entries outside the support.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_rows import REALS, SMALL, beside, plain, run
from polymax.backend.numba_math import add, number_at, place, within
from polymax.backend.numba_memory import array_at, give_back, lean_kernel, taken_as_is
from polymax.kernels.isotonic.cpu import SMALL_UNIT, WIDEST
from polymax.kernels.oscarmax import BAD, BEGINS, HEAVY
from polymax.kernels.oscarmax.numba_buckets import NUMBERS, PLACES, ordered_runs
from polymax.kernels.oscarmax.numba_sort import FEW

# relative margin for rounding: it can only enlarge the set of candidates, at a cost in time
SLACK = 1e-12
# searches for a smaller set that holds the support
NARROWINGS = 8


def oscarmax(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    scores, n = plain(x), x.shape[-1]
    y, code = torch.empty_like(scores), torch.empty_like(scores, dtype=torch.int32)
    strengths, count = beside(strength, x.shape[:-1]), x.numel() // max(n, 1)
    args = (
        n, scores.data_ptr(), strengths.data_ptr(), y.data_ptr(), code.data_ptr(), REALS[y.dtype],
        REALS[strengths.dtype], strengths.numel() > 1,
    )  # fmt: skip
    if 6 * n * count < SMALL:
        _oscarmax(0, count, *args)
    else:
        run(_oscarmax, count, 6 * n, *args)
    return y if y.dtype == x.dtype else y.to(x.dtype), code


def oscarmax_backward(code: Tensor, v: Tensor) -> Tensor:
    codes, values, n = code.contiguous(), plain(v), v.shape[-1]
    out, count = torch.empty_like(values), v.numel() // max(n, 1)
    args = n, codes.data_ptr(), values.data_ptr(), out.data_ptr(), REALS[out.dtype]
    if 2 * n * count < SMALL:
        _oscarmax_backward(0, count, *args)
    else:
        run(_oscarmax_backward, count, 2 * n, *args)
    return out if out.dtype == v.dtype else out.to(v.dtype)


@lean_kernel
def _oscarmax(start, stop, n, x_at, strengths_at, y_at, code_at, real, real_strength, many):
    x, y = array_at(x_at, (stop, n), real), array_at(y_at, (stop, n), real)
    code, strengths = array_at(code_at, (stop, n), np.int32(0)), array_at(strengths_at, (stop,), real_strength)
    room = max(n, 255) + 1
    memory = taken_as_is((8 * NUMBERS + 4 * PLACES) * room)
    numbers = array_at(memory, (NUMBERS, room), 0.0)
    places = array_at(memory + 8 * NUMBERS * room, (PLACES, room), np.int32(0))
    index = places[0]
    for i in range(start, stop):
        row, weights, codes = x[i], y[i], code[i]
        strength = np.float64(strengths[i if many else 0])
        top, low, present, bad = _extent(row)
        if bad > 0 or not strength >= 0:
            weights[:] = np.nan
            codes[:] = BAD
            continue
        if present == 0:
            weights[:] = 0
            for j in range(n):
                codes[j] = 4 * j
            continue
        # in a smaller unit, sums of the largest numbers stay finite
        unit = SMALL_UNIT if top - low > WIDEST else 1.0
        base, lowest = top * unit, low * unit - top * unit
        # beyond this all entries are one cluster; a larger strength only loses digits
        strength = min(strength * unit, -lowest)
        count, total = _above(row, unit, base, -np.inf)
        if _one_cluster(row, unit, base, lowest, count, total, strength):
            if count == n:
                weights[:] = 1 / n
                for j in range(n):
                    codes[j] = 4 * j + HEAVY
            else:
                _divide(row, unit, base, -np.inf, count, index)
                for j in range(n):
                    weights[j] = 1 / count if row[j] > -np.inf else 0
                for r in range(n):
                    codes[r] = 4 * index[r] + (HEAVY if r < count else 0)
            codes[0] += BEGINS
            continue
        # of the largest score alone
        bound = _threshold_bound(count, total, strength, unit, -unit)
        least = -np.inf
        for _ in range(NARROWINGS):
            # the last entry of the support ends a run, so that its raised score is at least the run's level: above the
            # threshold, which is not below the bound. It is raised by less than `count` strengths
            lower = bound - strength * (count - 1) - SLACK * (unit + abs(bound) + strength * count)
            fewer, total = _above(row, unit, base, lower)
            least = lower
            falls = 8 * fewer < 7 * count and fewer > FEW
            count = fewer
            bound = _threshold_bound(count, total, strength, unit, bound)
            if not falls:
                break
        _divide(row, unit, base, least, count, index)
        runs = ordered_runs(row, unit, base, max(least, lowest), count, bound, strength, weights, numbers, places)
        _write_runs(runs, count, unit, numbers, places, weights, codes)
    give_back(memory)


@within
def _extent(x):
    """Return the largest and the smallest number, the number of present entries, and of those that are not below
    infinity.
    """
    first, last = place(x.dtype.type(-np.inf)), place(x.dtype.type(np.inf))
    top, low = first, last
    present = bad = np.int32(0)
    for j in range(x.size):
        here = place(x[j])
        top = here if here > top else top
        here = here if here > first else last
        low = here if here < low else low
        present = np.int32(present + np.int32(x[j] > -np.inf))
        bad = np.int32(bad + np.int32(not x[j] < np.inf))
    return np.float64(number_at(top, x.dtype.type(0))), np.float64(number_at(low, x.dtype.type(0))), present, bad


@within
def _above(x, unit, base, lower):
    """Return how many entries d are above a bound, and their sum."""
    count = np.int32(0)
    total = 0.0
    for j in range(x.size):
        d = np.float64(x[j]) * unit - base
        inside = d > lower
        total = add(total, d if inside else 0.0)
        count = np.int32(count + np.int32(inside))
    return np.int64(count), total


@within
def _one_cluster(x, unit, base, lowest, count, total, strength):
    """Return True if all entries are one run: no sum of the b largest, raised, is more than b times the mean of all.

    For every v, the sum of the b largest is at most b v plus the sum of (d - v)_+. That leaves a quadratic in b, which
    is negative between its roots: with the largest, the mean and the smallest d for v, each rules out a range of b.
    """
    mean = total / count
    if lowest == 0:
        return True
    if -2 * mean > strength * (count - 1):
        return False
    excess = 0.0
    for j in range(x.size):
        d = np.float64(x[j]) * unit - base
        excess = add(excess, d - mean if d > mean else 0.0)
    first, third = count + 2 * mean / strength, 2 * (mean - lowest) / strength
    half = 0.5 * count
    square = half * half - 2 * excess / strength
    root = np.sqrt(max(square, 0.0))
    # far from a tie, so that rounding does not matter
    margin = 1 + 1e-6 * count
    if third + margin <= first:
        return True
    return square > 0 and half - root + margin <= first and third + margin <= half + root


@within
def _threshold_bound(count, total, strength, unit, bound):
    """Return a lower bound of the threshold: the largest quotient (C_b - unit) / b, over any number b of largest
    scores.
    """
    return max(bound, (total + 0.5 * strength * count * (count - 1) - unit) / count)


@within
def _divide(x, unit, base, lower, count, index):
    """List all entries, the `count` entries above a bound first."""
    front, back = 0, count
    for j in range(x.size):
        inside = np.float64(x[j]) * unit - base > lower
        index[front if inside else back] = j
        front += inside
        back += not inside


@within
def _write_runs(runs, count, unit, numbers, places, weights, codes):
    """Write the weights and the codes of runs with falling levels, of which the first have weight."""
    totals, widths, index, order = numbers[0], numbers[1], places[0], places[1]
    highest = totals[0] / widths[0]
    size, total, threshold = 0.0, 0.0, -np.inf
    for k in range(runs):
        level = totals[k] / widths[k] - highest
        if not level > threshold:
            break
        size += widths[k]
        total += widths[k] * level
        threshold = (total - unit) / size
    weights[:] = 0
    r = 0
    for k in range(runs):
        weight = (totals[k] / widths[k] - highest - threshold) * (1 / unit)
        if not weight > 0:
            break
        first, last = r, r + int(widths[k])
        for r in range(first, last):
            weights[order[r]] = weight
            codes[r] = 4 * order[r] + HEAVY
        codes[first] += BEGINS
        r = last
    for q in range(r, count):
        codes[q] = 4 * order[q]
    for q in range(count, codes.size):
        codes[q] = 4 * index[q]


@lean_kernel
def _oscarmax_backward(start, stop, n, code_at, v_at, out_at, real):
    v, out = array_at(v_at, (stop, n), real), array_at(out_at, (stop, n), real)
    code = array_at(code_at, (stop, n), np.int32(0))
    memory = taken_as_is(12 * n)
    totals, lasts = array_at(memory, (n,), 0.0), array_at(memory + 8 * n, (n,), np.int32(0))
    for i in range(start, stop):
        codes, values, row = code[i], v[i], out[i]
        row[:] = 0 if codes[0] != BAD else np.nan
        count = _heavy(codes) if codes[0] != BAD else 0
        if count > 0:
            _average(codes, values, row, count, totals, lasts)
    give_back(memory)


@within
def _heavy(codes):
    """Return how many entries have weight: they come first."""
    low, high = 0, codes.size
    if codes[high - 1] & HEAVY:
        return high
    while low < high:
        half = (low + high) // 2
        if codes[half] & HEAVY:
            low = half + 1
        else:
            high = half
    return low


@within
def _average(codes, v, out, count, totals, lasts):
    begun = np.int32(0)
    for r in range(count):
        begun = np.int32(begun + np.int32((codes[r] & BEGINS) != 0))
    if begun == 1 and count == v.size:
        # the mean of the single run is the mean that is subtracted
        total = 0.0
        for j in range(count):
            total = add(total, np.float64(v[j]))
        if not abs(total) < np.inf:
            out[:] = np.nan
        return
    runs, last, whole = 0, 0, 0.0
    while last < count:
        first, last = last, last + 1
        while last < count and not codes[last] & BEGINS:
            last += 1
        part = codes[first:last]
        total = 0.0
        for r in range(part.size):
            total = add(total, np.float64(v[part[r] >> 2]))
        totals[runs], lasts[runs] = total, last
        whole += total
        runs += 1
    mean, first = whole / count, 0
    for k in range(runs):
        level = totals[k] / (lasts[k] - first) - mean
        for r in range(first, lasts[k]):
            out[codes[r] >> 2] = level
        first = lasts[k]
