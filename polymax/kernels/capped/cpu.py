"""Capped simplex by Newton's method for the threshold, guarded by bisection, for Numba.

The sum of the clipped weights falls with the threshold, and is linear (entropic: exponential) between the points
where an entry meets a bound: with the right free entries one step is exact. A bracket catches steps that go too far;
it is halved in the order of floating-point numbers, which ends however far apart the scores are.
"""

import numpy as np
from torch import Tensor

from polymax.kernels.cpu_rows import parallel, rows, wide_like
from polymax.kernels.numba_math import add, inline, kernel, middle


def capped(x: Tensor, lower: Tensor, upper: Tensor, total: float, entropic: bool) -> Tensor:
    out = wide_like(x)
    parallel(_capped, x.shape, 8, rows(x), rows(lower), rows(upper), rows(out), total, entropic)
    return out.to(x.dtype)


@kernel
def _capped(start, stop, x, lower, upper, y, total, entropic):
    n = x.shape[1]
    # bounds reached far below the maximum need the digits
    z, low, high = np.empty(n), np.empty(n), np.empty(n)
    index = np.empty(n, np.int32)
    for i in range(start, stop):
        count = 0
        bad = False
        for j in range(n):
            y[i, j] = 0
            if x[i, j] > -np.inf:
                z[count], low[count], high[count] = x[i, j], lower[i, j], upper[i, j]
                index[count] = j
                count += 1
            bad |= not (x[i, j] < np.inf)
        slack = 1e-6 * max(total, 1.0)
        low_sum, high_sum = low[:count].sum(), high[:count].sum()
        if bad or (count > 0 and (low_sum > total + slack or high_sum < total - slack)):
            y[i, :] = np.nan
        elif count > 0:
            _solve(z[:count], low[:count], high[:count], total, entropic)
            for k in range(count):
                y[i, index[k]] = z[k]


@inline
def _solve(z, low, high, total, entropic):
    """Replace the scores z by their weights."""
    below, above = np.inf, -np.inf
    top = z.max()
    for k in range(z.size):
        below = min(below, z[k] - (np.log(high[k]) if entropic else high[k]))
        above = max(above, z[k] - (np.log(low[k]) if entropic else low[k]))
    # an upper bound of 0, or a lower one, is met only at infinity; any number beyond the others does
    below = max(below, -np.finfo(np.float64).max)
    above = min(above, top + 800.0) if entropic else above
    # beyond rounding
    below -= 4e-16 * abs(below)
    above += 4e-16 * abs(above)
    tau = min(max(top - (0.0 if entropic else 1.0), below), above)
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
        # every third step halves the bracket, whatever Newton says
        if iteration % 3 < 2 and count > 0:
            if not entropic:
                newton = tau + (value - total) / count
            else:
                newton = tau + np.log(free / (total - fixed)) if total > fixed else guess
            if below < newton < above:
                guess = newton
        if guess == tau or not (below < guess < above):
            break
        tau = guess
    fixed, free, count = _exact_sums(z, low, high, tau, entropic)
    # what is left of the total goes to the free entries
    rest = total - fixed
    if count == 0 and abs(rest) > 1e-13 * total:
        # entries so far from 0 that they pass from one bound to the other between neighbouring thresholds share it
        fixed, free, _ = _sums(z, low, high, above, entropic)
        more, most, _ = _sums(z, low, high, below, entropic)
        share = (total - fixed - free) / (more + most - fixed - free)
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
    """Sum of the entries at a bound, sum of the free ones, and how many are free."""
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
    """The same with the rounding error carried along."""
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
