"""Capped simplex by Newton's method for the threshold, guarded by bisection, for Numba.

The sum of the clipped weights falls with the threshold, and is linear (entropic: exponential) between the points at
which an entry meets a bound: with the right free entries one step is exact. A bracket catches steps that go too far. It
is halved in the order of floating-point numbers, which ends however far apart the scores are. The threshold is stored
as the difference to a nearby score (the anchor), so that it has digits also for large scores. Entropic weights of
scores that are near each other are scaled instead: their exponentials are computed once.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_rows import REALS, SMALL, beside, plain, run
from polymax.backend.numba_math import add, exp2, inline, kernel, middle, row_max, row_sum, rows_at
from polymax.backend.numba_peaks import PEAKS, set_peaks
from polymax.kernels.capped.numba_few import lowest_score, pack_above, survey

# distance of the threshold from its anchor beyond which a nearer score becomes the anchor
FAR = 1e3
# most changes of the anchor
ROUNDS = 4
# steps after which every second step halves the bracket
PATIENCE = 12
LARGEST = np.finfo(np.float64).max
# distance below the maximum at which float32 exponentials underflow
DEEP = 80.0
LOG2_E = 1.4426950408889634


def capped(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, entropic: bool) -> Tensor:
    scores, n = x if x.dtype in REALS and x.is_contiguous() else plain(x), x.shape[-1]
    out, count = torch.empty_like(scores), x.numel() // max(n, 1)
    low, high, totals = beside(lower, x.shape), beside(upper, x.shape), beside(total.double(), x.shape[:-1])
    args = (
        n, scores.data_ptr(), low.data_ptr(), high.data_ptr(), out.data_ptr(), totals.data_ptr(), REALS[out.dtype],
        REALS[low.dtype], REALS[high.dtype], low.numel() > 1, high.numel() > 1, totals.numel() > 1,
        # arguments that are None are compiled out of the kernel: sums in float64 are exact enough for float32
        entropic, True if out.dtype == torch.float64 else None,
    )  # fmt: skip
    if 8 * n * count < SMALL:
        _capped(0, count, *args)
    else:
        run(_capped, count, 8 * n, *args)
    return out


def capped_backward(y: Tensor, v: Tensor, lower: Tensor, upper: Tensor, entropic: bool) -> Tensor:
    point, direction, n = plain(y), plain(v), y.shape[-1]
    out, count = torch.empty_like(point), y.numel() // max(n, 1)
    low, high = beside(lower, y.shape), beside(upper, y.shape)
    args = (
        n, point.data_ptr(), direction.data_ptr(), low.data_ptr(), high.data_ptr(), out.data_ptr(),
        REALS[point.dtype], REALS[direction.dtype], REALS[low.dtype], REALS[high.dtype], low.numel() > 1,
        high.numel() > 1, entropic,
    )  # fmt: skip
    if 2 * n * count < SMALL:
        _capped_backward(0, count, *args)
    else:
        run(_capped_backward, count, 2 * n, *args)
    return out if out.dtype == v.dtype else out.to(v.dtype)


@kernel
def _capped(
    start, stop, n, x_at, lower_at, upper_at, y_at, totals_at, real, real_low, real_high, many_low, many_high,
    many_totals, entropic, exact,
):  # fmt: skip
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    lower, upper = rows_at(lower_at, stop, n, real_low), rows_at(upper_at, stop, n, real_high)
    totals = rows_at(totals_at, 1, stop, 0.0)[0]
    # bounds reached far below the maximum need the digits of float64
    z, low, high = np.empty(n), np.empty(n), np.empty(n)
    index = np.empty(n, np.int32)
    peaks, ranks = np.empty(PEAKS, x.dtype), np.empty(PEAKS, np.int32)
    # an entry far below the others has weight 0, unless its lower bound is positive
    few = n > 0 and not (entropic or many_low or many_high) and lower[0, 0] == 0
    for i in range(start, stop):
        total = totals[i if many_totals else 0]
        y[i, :] = 0
        count, lowest = 0, -np.inf
        if few:
            present, good = survey(x[i])
            set_peaks(x[i], peaks)
            low_sum, high_sum = 0.0, present * np.float64(upper[0, 0])
            lowest = lowest_score(peaks, ranks, np.float64(upper[0, 0]), total)
        if few and lowest > -np.inf and low_sum < total < high_sum and good:
            count = pack_above(x[i], x.dtype.type(lowest), index)
            low[:count] = 0
            high[:count] = upper[0, 0]
            high_sum = count * np.float64(upper[0, 0])
        else:
            good = True
            for j in range(n):
                if x[i, j] > -np.inf:
                    low[count] = lower[i, j] if many_low else lower[0, 0]
                    high[count] = upper[i, j] if many_high else upper[0, 0]
                    index[count] = j
                    count += 1
                good &= x[i, j] < np.inf
            low_sum, high_sum = row_sum(low[:count]), row_sum(high[:count])
        slack = 1e-6 * max(total, 1.0)
        good &= total >= 0
        if not good or (count > 0 and not (low_sum <= total + slack and high_sum >= total - slack)):
            y[i, :] = np.nan
        elif count == 0:
            continue
        elif total <= low_sum or total >= high_sum:
            for k in range(count):
                y[i, index[k]] = low[k] if total <= low_sum else high[k]
        else:
            given = x[i], index[:count], z[:count], low[:count], high[:count], total
            if not (entropic and _scaled(*given, exact)):
                _anchored(*given, entropic, exact, lowest)
            for k in range(count):
                y[i, index[k]] = z[k]


@kernel
def _capped_backward(
    start, stop, n, y_at, v_at, lower_at, upper_at, out_at, real, real_v, real_low, real_high, many_low, many_high,
    entropic,
):  # fmt: skip
    y, v, out = rows_at(y_at, stop, n, real), rows_at(v_at, stop, n, real_v), rows_at(out_at, stop, n, real)
    lower, upper = rows_at(lower_at, stop, n, real_low), rows_at(upper_at, stop, n, real_high)
    zero = y.dtype.type(0)
    for i in range(start, stop):
        if many_low or many_high:
            for j in range(n):
                low, high = lower[i, j] if many_low else lower[0, 0], upper[i, j] if many_high else upper[0, 0]
                out[i, j] = _share_of(y[i, j], y.dtype.type(low), y.dtype.type(high), entropic)
        else:
            low, high = y.dtype.type(lower[0, 0]), y.dtype.type(upper[0, 0])
            for j in range(n):
                out[i, j] = _share_of(y[i, j], low, high, entropic)
        mass = moment = 0.0
        for j in range(n):
            mass = add(mass, np.float64(out[i, j]))
            moment = add(moment, np.float64(out[i, j]) * np.float64(v[i, j]))
        mean = moment / mass if mass != 0 else 0.0
        for j in range(n):
            d = y.dtype.type(np.float64(out[i, j]) * (np.float64(v[i, j]) - mean))
            out[i, j] = d if out[i, j] != zero else zero


@inline
def _share_of(weight, low, high, entropic):
    """Return the derivative of a weight in its score, less the mean: 0 at a bound; NaN for a NaN weight."""
    free = weight if entropic else weight * 0 + 1
    return weight * 0 if weight <= low or weight >= high else free


@inline
def _scaled(x, index, z, low, high, total, exact):
    """Write entropic weights z if no score is far below the maximum; return False if one is.

    Exponentials are computed once; the search is for the factor that gives the clipped weights the right sum.
    """
    top, least = -np.inf, np.inf
    for j in index:
        top, least = max(top, np.float64(x[j])), min(least, np.float64(x[j]))
    if not top - least < DEEP:
        return False
    mass = 0.0
    for k in range(z.size):
        power = (np.float64(x[index[k]]) - top) * LOG2_E
        if x.itemsize == 4:
            # a power of two is exact, and the remainder is small
            whole = np.floor(power)
            z[k] = np.float64(exp2(np.float32(whole)) * exp2(np.float32(power - whole)))
        else:
            z[k] = np.exp(np.float64(x[index[k]]) - top)
    for k in range(z.size):
        mass = add(mass, z[k])
    factor, below, above = total / mass, 0.0, np.inf
    for iteration in range(300):
        fixed = free = 0.0
        for k in range(z.size):
            weight = z[k] * factor
            inside = low[k] < weight < high[k]
            free = add(free, weight if inside else 0.0)
            fixed = add(fixed, 0.0 if inside else min(max(weight, low[k]), high[k]))
        if abs(fixed + free - total) <= 1e-13 * total:
            break
        if fixed + free > total:
            above = min(above, factor)
        else:
            below = max(below, factor)
        guess = factor * ((total - fixed) / free) if free > 0 else 0.0
        if not below < guess < above or (iteration >= PATIENCE and iteration % 2 == 1):
            guess = 16 * factor if above == np.inf else factor / 16 if below == 0 else np.sqrt(below * above)
        if guess == factor or not below < guess < above:
            break
        factor = guess
    if free == 0 and abs(fixed - total) > 1e-13 * total:
        return False
    for k in range(z.size):
        z[k] *= factor
    if exact is not None:
        fixed, free = _exact_parts(z, low, high)
    else:
        fixed, free = _parts(z, low, high)
    share = (total - fixed) / free if free > 0 else 1.0
    for k in range(z.size):
        weight = z[k] * share if low[k] < z[k] < high[k] else z[k]
        z[k] = min(max(weight, low[k]), high[k])
    return True


@inline
def _parts(z, low, high):
    """Return the sum of the weights at a bound, clipped, and the sum of the free weights."""
    fixed = free = 0.0
    for k in range(z.size):
        inside = low[k] < z[k] < high[k]
        free = add(free, z[k] if inside else 0.0)
        fixed = add(fixed, 0.0 if inside else min(max(z[k], low[k]), high[k]))
    return fixed, free


@inline
def _exact_parts(z, low, high):
    """Return the sums of `_parts`, with the rounding errors of the sums carried along."""
    fixed = free = fixed_error = free_error = 0.0
    for k in range(z.size):
        if low[k] < z[k] < high[k]:
            term = z[k] - free_error
            new = free + term
            free_error = (new - free) - term
            free = new
        else:
            term = min(max(z[k], low[k]), high[k]) - fixed_error
            new = fixed + term
            fixed_error = (new - fixed) - term
            fixed = new
    return fixed, free


@inline
def _anchored(x, index, z, low, high, total, entropic, exact, lowest):
    """Write weights z of the scores x at the indices; the search starts at `lowest`, a lower bound of the threshold."""
    anchor = -np.inf
    for j in index:
        anchor = max(anchor, np.float64(x[j]))
    for _ in range(ROUNDS):
        for k in range(z.size):
            z[k] = min(max(np.float64(x[index[k]]) - anchor, -LARGEST), LARGEST)
        tau, below, above = _threshold(z, low, high, total, entropic, lowest - anchor)
        if abs(tau) <= FAR:
            break
        # if differences of the largest scores are clipped, halves of them decide
        nearest, least, half = 0, np.inf, np.inf
        for k in range(z.size):
            distance = abs(z[k] - tau)
            halved = abs((np.float64(x[index[k]]) / 2 - anchor / 2) - tau / 2)
            if distance < least or (distance == least and halved < half):
                nearest, least, half = k, distance, halved
        if anchor == x[index[nearest]]:
            break
        anchor = np.float64(x[index[nearest]])
    _share(z, low, high, total, entropic, tau, below, above, exact)


@inline
def _threshold(z, low, high, total, entropic, lowest):
    """Return the threshold, and its bracket."""
    below, above = np.inf, -np.inf
    top = row_max(z)
    for k in range(z.size):
        below = min(below, z[k] - (np.log(high[k]) if entropic else high[k]))
        above = max(above, z[k] - (np.log(low[k]) if entropic else low[k]))
    # an upper or lower bound of 0 is met only at infinity; any threshold beyond the others is as good
    below = min(max(below, -LARGEST), LARGEST)
    above = min(above, top + 800.0) if entropic else above
    # margin for rounding
    below = max(below - 4e-16 * abs(below), -LARGEST)
    above = min(above + 4e-16 * abs(above), LARGEST)
    start = max(top - 1.0, lowest)
    if entropic:
        # the threshold without bounds
        start = 0.0
        for k in range(z.size):
            start = add(start, np.exp(z[k] - top))
        start = top + np.log(start / total)
    tau = min(max(start, below), above)
    for iteration in range(300):
        fixed, free, count = _sums(z, low, high, tau, entropic)
        value = fixed + free
        if value > total:
            below = max(below, tau)
        else:
            above = min(above, tau)
        if abs(value - total) <= 1e-13 * total:
            break
        guess = middle(below, above)
        if (iteration < PATIENCE or iteration % 2 == 0) and count > 0:
            if not entropic:
                newton = tau + (value - total) / count
            else:
                newton = tau + np.log(free / (total - fixed)) if total > fixed else guess
            if below < newton < above:
                guess = newton
        if guess == tau or not (below < guess < above):
            break
        tau = guess
    return tau, below, above


@inline
def _share(z, low, high, total, entropic, tau, below, above, exact):
    """Replace the scores z by their weights."""
    if exact is not None:
        fixed, free, count = _exact_sums(z, low, high, tau, entropic)
    else:
        fixed, free, count = _sums(z, low, high, tau, entropic)
    # the free entries share the rest of the total
    rest = total - fixed
    if count == 0 and abs(rest) > 1e-13 * total:
        # entries so far from 0 that they pass from one bound to the other between neighbouring thresholds share the
        # rest
        fixed, free, _ = _sums(z, low, high, above, entropic)
        more, most, _ = _sums(z, low, high, below, entropic)
        room = more + most - fixed - free
        share = (total - fixed - free) / room if room > 0 else 0.0
        for k in range(z.size):
            small, large = (
                _clipped(z[k], low[k], high[k], above, entropic),
                _clipped(z[k], low[k], high[k], below, entropic),
            )
            z[k] = small + share * (large - small)
        return
    for k in range(z.size):
        weight = _clipped(z[k], low[k], high[k], tau, entropic)
        if low[k] < weight < high[k]:
            weight = weight * (rest / free) if entropic else weight + (rest - free) / count
        z[k] = min(max(weight, low[k]), high[k])


@inline
def _clipped(z, low, high, tau, entropic):
    return min(max(np.exp(z - tau) if entropic else z - tau, low), high)


@inline
def _sums(z, low, high, tau, entropic):
    """Return the sum of the entries at a bound, the sum of the free entries, and the number of free entries."""
    fixed = free = 0.0
    count = 0
    for k in range(z.size):
        weight = _clipped(z[k], low[k], high[k], tau, entropic)
        inside = low[k] < weight < high[k]
        count += inside
        free = add(free, weight if inside else 0.0)
        fixed = add(fixed, 0.0 if inside else weight)
    return fixed, free, count


@inline
def _exact_sums(z, low, high, tau, entropic):
    """Return the sums of `_sums`, with their rounding errors carried along."""
    fixed = free = fixed_error = free_error = 0.0
    count = 0
    for k in range(z.size):
        weight = _clipped(z[k], low[k], high[k], tau, entropic)
        if low[k] < weight < high[k]:
            count += 1
            term = weight - free_error
            new = free + term
            free_error = (new - free) - term
            free = new
        else:
            term = weight - fixed_error
            new = fixed + term
            fixed_error = (new - fixed) - term
            fixed = new
    return fixed, free, count
