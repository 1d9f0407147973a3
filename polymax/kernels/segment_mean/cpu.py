"""Segment mean, run by run, for Numba; sums in float64.

With weights, a run either lies within their support or gets 0: only the few entries of the support are read.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_rows import REALS, plain, run
from polymax.backend.numba_math import add, inline, kernel, rows_at, within

# entries that are checked for support together
BLOCK = 32


def segment_mean(z: Tensor, v: Tensor, order: Tensor | None = None, y: Tensor | None = None) -> Tensor:
    points, values, n = plain(z), plain(v), z.shape[-1]
    out, count = torch.empty_like(values), z.numel() // max(n, 1)
    at = n, points.data_ptr(), values.data_ptr(), out.data_ptr(), REALS[points.dtype], REALS[out.dtype]
    ranks = None if order is None else order.contiguous()
    ranks_at = 0 if ranks is None else ranks.data_ptr()
    if y is None:
        run(_segment_mean, count, 3 * n, *at, ranks_at)
    else:
        weights = plain(y)
        run(_supported_mean, count, n, *at, ranks_at, weights.data_ptr(), REALS[weights.dtype])
    return out if out.dtype == v.dtype else out.to(v.dtype)


@kernel
def _segment_mean(start, stop, n, z_at, v_at, out_at, real, real_v, order_at):
    z, v, out = rows_at(z_at, stop, n, real), rows_at(v_at, stop, n, real_v), rows_at(out_at, stop, n, real_v)
    order = rows_at(order_at, stop if order_at else 0, n, np.int32(0))
    index = np.arange(n, dtype=np.int32)
    point, direction = np.empty(n, z.dtype), np.empty(n, v.dtype)
    for i in range(start, stop):
        absent = bad = 0
        for j in range(n):
            absent += z[i, j] == -np.inf
            bad += z[i, j] != z[i, j]
        if bad > 0:
            out[i] = np.nan
        elif absent > 0 or order_at:
            _average_present(z[i], v[i], order[i] if order_at else index, point, direction, out[i])
        else:
            _average(z[i], v[i], out[i])


@inline
def _average_present(z, v, index, point, direction, out):
    count = 0
    for j in index:
        point[count] = z[j]
        direction[count] = v[j]
        count += z[j] != -np.inf
    _average(point[:count], direction, direction)
    count = 0
    for j in index:
        present = z[j] != -np.inf
        out[j] = direction[count] if present else 0.0
        count += present


@inline
def _average(z, v, out):
    first = 0
    while first < z.size:
        total = np.float64(v[first])
        stop = first + 1
        while stop < z.size and z[stop] == z[first]:
            total += v[stop]
            stop += 1
        out[first:stop] = total / (stop - first)
        first = stop


@kernel
def _supported_mean(start, stop, n, z_at, v_at, out_at, real, real_v, order_at, y_at, real_y):
    """Write the segment mean of v less its mean over the support of y, and 0 outside it."""
    z, v, out = rows_at(z_at, stop, n, real), rows_at(v_at, stop, n, real_v), rows_at(out_at, stop, n, real_v)
    y, order = rows_at(y_at, stop, n, real_y), rows_at(order_at, stop if order_at else 0, n, np.int32(0))
    packed = np.empty(n, np.int32)
    for i in range(start, stop):
        bad = count = np.int32(0)
        total = 0.0
        out[i] = 0
        for j in range(n):
            bad = np.int32(bad + np.int32(z[i, j] != z[i, j]))
            count = np.int32(count + np.int32(y[i, j] > 0))
        for j in range(n):
            total = add(total, np.float64(v[i, j]) if y[i, j] > 0 else 0.0)
        if bad > 0:
            out[i] = np.nan
            continue
        mean = total / max(count, 1)
        # in the order of falling scores, entries that have weight come first
        support = order[i] if order_at else packed
        if not order_at:
            _pack(y[i], support)
        elif count > 0 and z[i, support[0]] == z[i, support[count - 1]] and abs(mean) < np.inf:
            # a single run, whose mean is the mean that is subtracted
            continue
        first = 0
        while first < count:
            total = v[i, support[first]] - mean
            last = first + 1
            while last < count and _fused(z[i], support[last - 1], support[last], order_at):
                total += v[i, support[last]] - mean
                last += 1
            for r in range(first, last):
                out[i, support[r]] = total / (last - first)
            first = last


@within
def _pack(y, support):
    """Fill `support` with the indices of the entries that have weight."""
    count = 0
    for start in range(0, y.size, BLOCK):
        part = y[start : start + BLOCK]
        some = np.int32(0)
        for k in range(part.size):
            some = np.int32(some + np.int32(part[k] > 0))
        if some > 0:
            for k in range(part.size):
                support[count] = start + k
                count += part[k] > 0


@within
def _fused(z, before, after, ordered):
    """Return True if two consecutive entries of the support are in one run: all entries between them are absent."""
    if z[before] != z[after]:
        return False
    if not ordered:
        for j in range(before + 1, after):
            if z[j] != -np.inf:
                return False
    return True
