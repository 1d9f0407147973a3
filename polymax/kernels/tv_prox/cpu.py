"""Total-variation prox by dynamic programming, for Numba; float64 inside, O(n) per row.

Since |z - x| <= 2 strength, neighbours further apart than 4 strength are never fused: cutting there first leaves mostly
entries alone or in pairs, which have a closed form. For longer runs, the derivative of the best cost of the entries so
far, as a function of the last entry, is piecewise linear: at the points at which it reaches -strength and strength, the
entry before separates from its follower. Backwards from the last entry, each entry is its follower's value, clipped to
those points, so that a rounding error anywhere moves z by no more than itself.

See: Johnson 2013, A dynamic programming algorithm for the fused lasso and L0-segmentation, Section 2.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_rows import REALS, SMALL, beside, plain, run
from polymax.backend.numba_math import inline, kernel, row_max, row_sum, rows_at, within
from polymax.backend.widen import UNITS

# rows with a larger range are computed in a smaller unit, so that sums stay finite
WIDEST, SMALL_UNIT = UNITS[torch.float64]
# distance in strengths beyond which neighbours are never fused: more than 4, so that rounding does not split a tie
CERTAIN = 4.0001


def tv_prox(x: Tensor, strength: Tensor, shifted: bool = False) -> Tensor:
    scores, n = plain(x), x.shape[-1]
    out, strengths = torch.empty_like(scores), beside(strength, x.shape[:-1])
    count = x.numel() // max(n, 1)
    args = (
        n, scores.data_ptr(), strengths.data_ptr(), out.data_ptr(), REALS[out.dtype], REALS[strengths.dtype],
        strengths.numel() > 1, shifted, torch.finfo(x.dtype).min,
    )  # fmt: skip
    if 8 * n * count < SMALL:
        _tv_prox(0, count, *args)
    else:
        run(_tv_prox, count, 8 * n, *args)
    return out if out.dtype == x.dtype else out.to(x.dtype)


@kernel
def _tv_prox(start, stop, n, x_at, strengths_at, out_at, real, real_strength, many, shifted, lowest):
    x, out = rows_at(x_at, stop, n, real), rows_at(out_at, stop, n, real)
    strengths = rows_at(strengths_at, 1, stop, real_strength)[0]
    room = prox_room(n)
    for i in range(start, stop):
        prox_row(x[i], np.float64(strengths[i if many else 0]), shifted, lowest, out[i], room)


@inline
def prox_room(n):
    """Return workspace for the prox of a row of n numbers."""
    knots = np.empty(2 * n), np.empty(2 * n), np.empty(2 * n)
    return np.empty(n), np.empty(n), np.empty(n), np.empty(n, np.int32), knots, (np.empty(n), np.empty(n))


@inline
def prox_row(x, strength, shifted, lowest, row, room):
    """Fill a row with the prox of x, less its maximum if `shifted`."""
    y, z, pull, edges, knots, limits = room
    top = np.float64(row_max(x))
    base = top if top > -np.inf else 0.0
    unit = 1.0
    count = _gather(x, base, unit, y)
    spread = -row_sum(y[:count])
    if not (spread >= 0 and strength >= 0 and base < np.inf):
        row[:] = np.nan
        return
    if spread > WIDEST:
        unit = SMALL_UNIT
        count = _gather(x, base, unit, y)
        spread = -row_sum(y[:count])
        strength *= unit
    if count > 0:
        # beyond this the solution is constant; a larger strength only loses digits
        _solve(y, count, min(strength, 2 * spread), z, pull, edges, knots, limits)
    back, away = base, 0.0
    if shifted:
        back, away = 0.0, row_max(z[:count])
    for j in range(count):
        # a shifted entry may be lower than any finite number
        z[j] = max((z[j] - away) * (1 / unit) + back, lowest)
    if count == x.size:
        for j in range(count):
            row[j] = z[j]
        return
    count = 0
    for j in range(x.size):
        row[j] = -np.inf
        if x[j] > -np.inf:
            row[j] = z[count]
            count += 1


@inline
def _gather(x, base, unit, y):
    """Pack entries other than -inf, less base and in a unit, to the front of y; return their count."""
    count = 0
    for j in range(x.size):
        y[count] = x[j] * unit - base * unit
        count += x[j] != -np.inf
    return count


@within
def _solve(y, n, strength, z, pull, edges, knots, limits):
    # pull[j] is the dual variable between j and j + 1 if it is certain, else 0
    far = CERTAIN * strength
    for j in range(n - 1):
        step = y[j + 1] - y[j]
        pull[j] = strength if step > far else (-strength if step < -far else 0.0)
    pull[n - 1] = 0
    z[0] = y[0] + pull[0]
    for j in range(1, n):
        z[j] = y[j] + (pull[j] - pull[j - 1])
    if strength == 0:
        return
    count = 0
    for j in range(n - 1):
        edges[count] = j
        count += pull[j] == 0
    k = 0
    while k < count:
        first = edges[k]
        last = first + 1
        k += 1
        while k < count and edges[k] == last:
            k += 1
            last += 1
        if last == first + 1:
            middle, half = 0.5 * (z[first] + z[last]), 0.5 * (z[last] - z[first])
            half -= min(max(half, -strength), strength)
            z[first], z[last] = middle - half, middle + half
        else:
            _fuse(z[first : last + 1], strength, knots, limits)


@within
def _fuse(y, strength, knots, limits):
    """Replace y, of at least two entries, by its prox.

    With the entries 0..k chosen optimally, the slope of the cost in z_k is piecewise linear: from the left, each knot
    adds its slope and intercept. It is clipped to -strength and strength, at the points low[k] and high[k].
    """
    at, slope, intercept = knots
    low, high = limits
    n = y.size
    # relative to the first entry, nearby entries keep more digits than relative to the row's maximum
    base = y[0]
    size = 0.0
    for k in range(n):
        y[k] -= base
        size = max(size, abs(y[k]))
    left, right = n - 1, n
    low[0], high[0] = y[0] - strength, y[0] + strength
    at[left], slope[left], intercept[left] = low[0], 1.0, strength - y[0]
    at[right], slope[right], intercept[right] = high[0], -1.0, strength + y[0]
    for k in range(1, n - 1):
        a, b, left = _rise(at, slope, intercept, left, right, y[k] + strength, -strength)
        low[k] = (-strength - b) / a
        a_high, b_high = -1.0, y[k] - strength
        while right >= left and -a_high * at[right] - b_high >= strength:
            a_high += slope[right]
            b_high += intercept[right]
            right -= 1
        high[k] = (strength + b_high) / -a_high
        left -= 1
        right += 1
        at[left], slope[left], intercept[left] = low[k], a, b + strength
        at[right], slope[right], intercept[right] = high[k], a_high, b_high + strength
    a, b, left = _rise(at, slope, intercept, left, right, y[n - 1] + strength, 0.0)
    value = -b / a
    # a tie up to rounding is fused
    noise = 8 * np.finfo(np.float64).eps * (strength + size)
    y[n - 1] = value + base
    for k in range(n - 2, -1, -1):
        if value < low[k] - noise:
            value = low[k]
        elif value > high[k] + noise:
            value = high[k]
        y[k] = value + base


@within
def _rise(at, slope, intercept, left, right, score, level):
    """Return slope and intercept at which the derivative, which begins as z - score, reaches the level; and the next
    knot.
    """
    a, b = 1.0, -score
    while left <= right and a * at[left] + b <= level:
        a += slope[left]
        b += intercept[left]
        left += 1
    return a, b, left
