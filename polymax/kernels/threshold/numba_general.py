"""Entmax with any alpha between 1 and 2, for Numba: Halley's steps on the r-norm, by passes over rows.

With d = 1 + scale (x - max - t) and S_k = sum d_+^k, weights are d_+^r at the t with S_r = 1; r = 1 / (alpha - 1) and
scale = alpha - 1. The r-norm is convex and decreasing in t. Several rows take their steps together, as in
numba_short.py.
"""

import numpy as np

from polymax.backend.numba_math import (
    add,
    exp2,
    first_power_1p,
    inline,
    log2,
    log2_1p,
    rough_power_1p,
    row_max,
    row_sum,
    within,
)
from polymax.backend.numba_memory import array_at

# LONGEST: longest row whose entries are never packed
# SHORT: longest row for which one rough step comes near to the root
LONGEST, SHORT = 384, 96
# TOGETHER: rows taken together
# NEAREST: their entries at most, so that they stay in the nearest cache
TOGETHER, NEAREST = 32, 2048
# steps after which an unfinished row is left as it is
STEPS = 100


@within
def general_rows(jobs, count, alpha, guess, numbers, sizes, marks, powers):
    """Fill several rows with the weights of their scores, all rows together.

    Steps begin at `guess`, or at the t in numbers[0] if it is None; the final t are written to numbers[0].

    Shapes: jobs (4, TOGETHER): addresses and lengths of scores, addresses of weights, and offsets of rows in powers;
        numbers (4, TOGETHER), sizes (4, TOGETHER) of the type of scores, marks (2, TOGETHER) and powers: workspace
    """
    sources, widths, targets, before = jobs[0], jobs[1], jobs[2], jobs[3]
    ts, lows, highs, changes = numbers[0], numbers[1], numbers[2], numbers[3]
    tops, lowest, lower, total = sizes[0], sizes[1], sizes[2], sizes[3]
    going, settled = marks[0], marks[1]
    real = sizes.dtype.type
    none = real(0)
    scale, r = alpha - 1, 1 / (alpha - 1)
    tolerance = 4 * np.finfo(sizes.dtype).eps
    near = near_root(r, sizes.itemsize)
    left = count
    for i in range(count):
        top = row_max(array_at(sources[i], (widths[i],), none))
        tops[i] = top if top > -np.inf else none
        lows[i], highs[i], going[i], settled[i] = 0, 1 / scale, i, False
    if guess is not None:
        for i in range(count):
            x = array_at(sources[i], (widths[i],), none)
            lower[i], total[i] = first_sums(x, tops[i], real(scale), real(r))
        for i in range(count):
            ts[i] = rough_root(lower[i], total[i], 0.0, scale, r)
    # the longer a row, the further its root is from the guess
    for _ in range(1 if guess is None or widths[0] <= SHORT else 2):
        for i in range(count):
            x = array_at(sources[i], (widths[i],), none)
            lower[i], total[i] = rough_sums(x, tops[i], real(ts[i]), real(scale), real(r))
        for i in range(count):
            ts[i] = rough_root(lower[i], total[i], ts[i], scale, r)
    step = 0
    while left > 0 and step < STEPS:
        for k in range(left):
            i = going[k]
            x, power = array_at(sources[i], (widths[i],), none), powers[before[i] : before[i] + widths[i]]
            t = real(ts[i])
            for j in range(x.size):
                power[j] = real(scale) * ((x[j] - tops[i]) - t)
        # of all rows at once if none is finished: they lie one after the other
        for k in range(1 if left == count else left):
            first, last = (0, count - 1) if left == count else (going[k], going[k])
            raise_powers(powers[before[first] : before[last] + widths[last]], real(r))
        for k in range(left):
            i = going[k]
            x, power = array_at(sources[i], (widths[i],), none), powers[before[i] : before[i] + widths[i]]
            lowest[i], lower[i], total[i] = sums(x, tops[i], real(ts[i]), real(scale), power)
        # for all rows, finished or not: so many at a time
        for i in range(count):
            t = ts[i]
            lows[i], highs[i] = t if total[i] >= 1 else lows[i], highs[i] if total[i] >= 1 else t
            guessed = t + halley(lowest[i], lower[i], total[i], r) / scale
            guessed = guessed if lows[i] <= guessed <= highs[i] else 0.5 * (lows[i] + highs[i])
            change = (guessed - t) * scale
            # a sum of 0 is that of a row of -inf
            changes[i] = change if total[i] != 0 else 0.0
        kept = 0
        for k in range(left):
            i = going[k]
            size = abs(changes[i])
            # entries at the edge of the support change with the last step as well: compute powers again
            goes_on = size >= near and not settled[i] and total[i] == total[i]
            settled[i] = size <= tolerance
            ts[i] += changes[i] / scale if goes_on else 0.0
            going[kept] = i
            kept += goes_on
        left = kept
        step += 1
    for i in range(count):
        change = changes[i] if abs(changes[i]) < near else 0.0
        x, y = array_at(sources[i], (widths[i],), none), array_at(targets[i], (widths[i],), none)
        power = powers[before[i] : before[i] + widths[i]]
        _weights(x, tops[i], real(ts[i]), real(change), real(scale), real(r), power, y)
        ts[i] += change / scale
        if total[i] != total[i]:
            for j in range(y.size):
                y[j] = np.nan


@inline
def near_root(r, itemsize):
    """Return the step up to which the second-order expansion of y is exact to the precision of float32."""
    return min(6e-3 / r, 1e-7 ** (1 / r)) if r >= 2 and itemsize == 4 else 0.0


@within
def rough_sums(x, top, t, scale, r):
    """Return S_{r-1} and S_r, to about one per cent."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    lower = total = zero
    for j in range(x.size):
        s = scale * ((x[j] - top) - t)
        s = s if s > -one else -one
        p = rough_power_1p(s, r - one)
        lower = add(lower, p)
        total = add(total, p * (one + s))
    return lower, total


@within
def first_sums(x, top, scale, r):
    """Return S_{r-1} and S_r at t = 0, accurate enough for a first step."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    lower = total = zero
    for j in range(x.size):
        s = scale * (x[j] - top)
        s = s if s > -one else -one
        p = first_power_1p(s, r - one)
        lower = add(lower, p)
        total = add(total, p * (one + s))
    return lower, total


@within
def rough_root(lower, total, t, scale, r):
    """Return Newton's step on the r-norm, within the bounds of t."""
    new = t + (1 - exp2(-log2(total) / type(total)(r))) * total / (scale * lower)
    return min(max(new, 0.0), 1 / scale) if total > 0 and lower > 0 else t


@within
def set_powers(x, top, t, scale, r, power):
    """Fill power with d_+^(r-1)."""
    for j in range(x.size):
        power[j] = scale * ((x[j] - top) - t)
    raise_powers(power[: x.size], r)


@within
def raise_powers(power, r):
    """Replace d - 1 by d_+^(r-1), in two loops, since the polynomials of both functions do not fit the registers."""
    one, none = power.dtype.type(1), power.dtype.type(-np.inf)
    for j in range(power.size):
        s = power[j]
        power[j] = log2_1p(s if s > -one else -one) * (r - one) if s > -one else none
    for j in range(power.size):
        power[j] = exp2(power[j])


@within
def sums(x, top, t, scale, power):
    """Return S_{r-2}, S_{r-1} and S_r from d^(r-1); NaN if an entry is NaN."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    lowest = lower = total = zero
    for j in range(x.size):
        d = one + scale * ((x[j] - top) - t)
        inside = not d <= zero
        lowest = add(lowest, power[j] / (d if inside else one))
        lower = add(lower, power[j])
        total = add(total, power[j] * d if inside else zero)
    return lowest, lower, total


@within
def halley(lowest, lower, total, r):
    """Return Halley's step on the r-norm, in units of d."""
    newton = (1 - exp2(-log2(total) / type(total)(r))) * total / lower
    bend = (r - 1) * (lowest * total / (lower * lower) - 1) * lower / total
    return newton / (1 - 0.5 * newton * bend)


@within
def _weights(x, top, t, change, scale, r, power, y):
    """Fill y with the weights, (d - change)_+^r to second order in the change."""
    one, half, zero = x.dtype.type(1), x.dtype.type(0.5), x.dtype.type(0)
    linear, curved = r * change, half * r * (r - one) * change * change
    for j in range(x.size):
        d = one + scale * ((x[j] - top) - t)
        inside = d > max(change, zero)
        weight = power[j] * ((d - linear) + curved / (d if inside else one))
        y[j] = weight if inside and weight > zero else zero
    total = row_sum(y)
    factor = one / total if total != zero else one
    for j in range(x.size):
        y[j] *= factor
