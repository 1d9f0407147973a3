"""Total-variation prox by the taut string, for Numba; float64 inside, O(n) a row.

The partial sums of z are a string pulled tight through a tube of half-width `strength` around the partial sums of x.
Since |z - x| <= 2 strength, neighbours further apart than 4 strength are never fused: cutting there first leaves
mostly entries alone or in pairs, which have a closed form.

See: Davies and Kovac 2001, Section 2 (the string); Condat 2013 (the walk along it).
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import parallel, rows, wide_like
from polymax.kernels.numba_math import inline, kernel, row_max, row_sum


def tv_prox(x: Tensor, strength: Tensor, shifted: bool = False) -> Tensor:
    out = wide_like(x)
    strengths = strength.detach().to(torch.float64).reshape(-1).numpy()
    parallel(_tv_prox, x.shape, 8, rows(x), strengths, rows(out), shifted)
    return out.to(x.dtype)


@kernel
def _tv_prox(start, stop, x, strengths, out, shifted):
    n = x.shape[1]
    y = np.empty(n)
    z = np.empty(n)
    pull = np.empty(n)
    edges = np.empty(n, np.int32)
    hulls = np.empty((4, n))
    for i in range(start, stop):
        row = out[i]
        top = np.float64(row_max(x[i]))
        base = top if top > -np.inf else 0.0
        count = _gather(x[i], base, y)
        spread = -row_sum(y[:count])
        strength = strengths[i]
        if not (spread >= 0 and strength >= 0):
            row[:] = np.nan
            continue
        if count > 0:
            # a tube this wide leaves the string straight; a wider one only loses digits
            _solve(y, count, min(strength, 2 * spread), z, pull, edges, hulls)
        back = 0.0 if shifted else base
        if count == n:
            for j in range(n):
                row[j] = z[j] + back
            continue
        count = 0
        for j in range(n):
            row[j] = -np.inf
            if x[i, j] > -np.inf:
                row[j] = z[count] + back
                count += 1


@inline
def _gather(x, base, y):
    """Pack entries other than -inf, less base, to the front of y; their count."""
    count = 0
    for j in range(x.size):
        y[count] = x[j] - base
        count += x[j] != -np.inf
    return count


@inline
def _solve(y, n, strength, z, pull, edges, hulls):
    # pull[j] is the dual variable between j and j + 1 where it is certain, else 0
    far = 4 * strength
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
            _taut_string(z[first : last + 1], strength, hulls)


@inline
def _taut_string(y, strength, hulls):
    """Replace y by the slopes of its string.

    From the last bend, `high / high_width` is the steepest slope that stays below the upper wall and
    `-low / low_width` the flattest above the lower wall. Once they cross, the string follows the wall that was
    touched first, up to there; the hull of what follows on that wall, built lazily, gives the next slope.
    """
    bend = 0
    total = 0.0
    upper, lower = strength, strength
    high = high_width = low = low_width = 0.0
    high_head = high_tail = high_next = 0
    low_head = low_tail = low_next = 0
    for k in range(y.size):
        # both walls end in the same point
        end = strength if k == y.size - 1 else 0.0
        total += y[k]
        width = float(k + 1 - bend)
        reach = total + upper - end
        if reach * high_width <= high * width:
            high, high_width = reach, width
            high_head, high_tail, high_next = 0, 0, k + 1
        reach = lower - total - end
        if reach * low_width <= low * width:
            low, low_width = reach, width
            low_head, low_tail, low_next = 0, 0, k + 1
        while high * low_width + low * high_width < 0:
            if high_width < width:
                high_tail = _push(y, 1.0, high_next, k, end, hulls[0], hulls[1], high_head, high_tail)
                high_next = k + 1
                bend = _lay(y, bend, high, high_width, 1.0)
                total -= high - upper
                upper, lower = 0.0, 2 * strength
                low, low_width = low + high, low_width - high_width
                high, high_width = hulls[0, high_head], hulls[1, high_head]
                high_head += 1
                width = low_width
            elif low_width < width:
                low_tail = _push(y, -1.0, low_next, k, end, hulls[2], hulls[3], low_head, low_tail)
                low_next = k + 1
                bend = _lay(y, bend, low, low_width, -1.0)
                total -= lower - low
                upper, lower = 2 * strength, 0.0
                high, high_width = high + low, high_width - low_width
                low, low_width = hulls[2, low_head], hulls[3, low_head]
                low_head += 1
                width = high_width
            else:
                break
    _lay(y, bend, high, high_width, 1.0)


@inline
def _push(y, sign, start, last, end, sums, widths, head, tail):
    """Extend the convex hull of the partial sums of sign * y by entries start..last; its new tail."""
    for j in range(start, last + 1):
        total = sign * y[j] - (end if j == last else 0.0)
        width = 1.0
        while tail > head and sums[tail - 1] * width >= total * widths[tail - 1]:
            tail -= 1
            total += sums[tail]
            width += widths[tail]
        sums[tail], widths[tail] = total, width
        tail += 1
    return tail


@inline
def _lay(y, bend, total, width, sign):
    """Let the string run straight over the next `width` entries; the place of the next bend."""
    slope = sign * (total / width)
    stop = bend + int(width)
    for j in range(bend, stop):
        y[j] = slope
    return stop
