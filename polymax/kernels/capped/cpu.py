"""Capped simplex by variable fixing (Bitran and Hax 1981), for Numba.

Solve without bounds over the free entries; of the two kinds of bound, one is violated by more in total, and all its
violators are at that bound in the solution: fix them and repeat. Finite, and exact.
"""

import numpy as np
from torch import Tensor

from polymax.kernels.cpu_rows import parallel, rows, wide_like
from polymax.kernels.numba_math import inline, kernel


def capped(x: Tensor, lower: Tensor, upper: Tensor, total: float, entropic: bool) -> Tensor:
    out = wide_like(x)
    args = (rows(x), rows(lower.to(x.dtype)), rows(upper.to(x.dtype)), rows(out))
    parallel(_capped, x.shape, 8 if entropic else 3, *args, total, entropic)
    return out.to(x.dtype)


@kernel
def _capped(start, stop, x, lower, upper, y, total, entropic):
    free = np.empty(x.shape[1], np.int32)
    inner = np.empty(x.shape[1])
    for i in range(start, stop):
        _row(x[i], lower[i], upper[i], y[i], total, entropic, free, inner)


@inline
def _row(x, lower, upper, y, total, entropic, free, inner):
    count = 0
    low_sum, high_sum = 0.0, 0.0
    bad = False
    for j in range(x.size):
        y[j] = 0
        if x[j] > -np.inf:
            free[count] = j
            count += 1
            low_sum += lower[j]
            high_sum += upper[j]
        bad |= not (x[j] < np.inf)
    slack = 1e-6 * max(total, 1.0)
    if bad or (count > 0 and (low_sum > total + slack or high_sum < total - slack)):
        y[:] = np.nan
        return
    rest = total
    while count > 0:
        _unbounded(x, free, count, rest, entropic, inner)
        over, under = 0.0, 0.0
        for k in range(count):
            over += max(inner[k] - upper[free[k]], 0.0)
            under += max(lower[free[k]] - inner[k], 0.0)
        if over == 0 and under == 0:
            for k in range(count):
                y[free[k]] = inner[k]
            return
        kept = 0
        for k in range(count):
            j = free[k]
            if over >= under and inner[k] > upper[j]:
                y[j] = upper[j]
                rest -= upper[j]
            elif under >= over and inner[k] < lower[j]:
                y[j] = lower[j]
                rest -= lower[j]
            else:
                free[kept] = j
                kept += 1
        count = kept


@inline
def _unbounded(x, free, count, rest, entropic, inner):
    """The solution over the free entries without bounds, with sum `rest`."""
    if entropic:
        top = -np.inf
        for k in range(count):
            top = max(top, x[free[k]])
        mass = 0.0
        for k in range(count):
            inner[k] = np.exp(np.float64(x[free[k]]) - top)
            mass += inner[k]
        for k in range(count):
            inner[k] *= max(rest, 0.0) / mass
    else:
        mean = 0.0
        for k in range(count):
            mean += x[free[k]]
        mean /= count
        for k in range(count):
            inner[k] = x[free[k]] - mean + rest / count
