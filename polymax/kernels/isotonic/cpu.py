"""Isotonic regression by pooling adjacent violators, for Numba; float64 inside, O(n) a row."""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_rows import parallel, rows
from polymax.backend.numba_math import inline, kernel, row_max, row_sum
from polymax.backend.widen import UNITS, wide_like

# rows with a larger range than WIDEST are computed in the unit SMALL_UNIT, so that sums stay finite
WIDEST, SMALL_UNIT = UNITS[torch.float64]


def isotonic(x: Tensor) -> Tensor:
    out = wide_like(x)
    parallel(_isotonic, x.shape, 5, rows(x), rows(out))
    return out.to(x.dtype)


@kernel
def _isotonic(start, stop, x, out):
    n = x.shape[1]
    y = np.empty(n)
    sums = np.empty(n)
    widths = np.empty(n)
    for i in range(start, stop):
        row = out[i]
        top = np.float64(row_max(x[i]))
        base = top if top > -np.inf else 0.0
        count = 0
        for j in range(n):
            y[j] = x[i, j] - base
            count += x[i, j] != -np.inf
        total = row_sum(y[:count])
        if total != total:
            row[:] = np.nan
            continue
        unit = 1.0
        if total < -WIDEST:
            unit = SMALL_UNIT
            for j in range(count):
                y[j] = x[i, j] * unit - base * unit
        if count > 0:
            pool(y[:count], sums, widths)
        for j in range(count):
            row[j] = y[j] * (1 / unit) + base
        row[count:] = -np.inf


@inline
def pool(y, sums, widths):
    """Replace y, not empty, by the nearest non-increasing row."""
    blocks = 0
    # the block being built stays in registers
    total, width = y[0], 1.0
    for j in range(1, y.size):
        if total > y[j] * width:
            sums[blocks], widths[blocks] = total, width
            blocks += 1
            total, width = y[j], 1.0
            continue
        total += y[j]
        width += 1
        while blocks > 0 and sums[blocks - 1] * width <= total * widths[blocks - 1]:
            blocks -= 1
            total += sums[blocks]
            width += widths[blocks]
    sums[blocks], widths[blocks] = total, width
    stop = y.size
    for b in range(blocks, -1, -1):
        first = stop - int(widths[b])
        y[first:stop] = sums[b] / widths[b]
        stop = first
