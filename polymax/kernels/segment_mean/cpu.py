"""Segment mean, one run after the other, for Numba; sums in float64."""

import numpy as np
from torch import Tensor

from polymax.kernels.cpu_rows import parallel, rows, wide_like
from polymax.kernels.numba_math import inline, kernel


def segment_mean(z: Tensor, v: Tensor, order: Tensor | None = None) -> Tensor:
    out = wide_like(v)
    args = rows(z), rows(v), rows(out)
    if order is None:
        parallel(_segment_mean, z.shape, 3, *args)
    else:
        parallel(_segment_mean_in_order, z.shape, 4, *args, rows(order))
    return out.to(v.dtype)


@kernel
def _segment_mean(start, stop, z, v, out):
    index = np.arange(z.shape[1])
    point, direction = np.empty(z.shape[1], z.dtype), np.empty(z.shape[1], v.dtype)
    for i in range(start, stop):
        absent, bad = _census(z[i])
        if bad > 0:
            out[i] = np.nan
        elif absent > 0:
            _average_present(z[i], v[i], index, point, direction, out[i])
        else:
            _average(z[i], v[i], out[i])


@kernel
def _segment_mean_in_order(start, stop, z, v, out, order):
    point, direction = np.empty(z.shape[1], z.dtype), np.empty(z.shape[1], v.dtype)
    for i in range(start, stop):
        _, bad = _census(z[i])
        if bad > 0:
            out[i] = np.nan
        else:
            _average_present(z[i], v[i], order[i], point, direction, out[i])


@inline
def _census(z):
    absent = bad = 0
    for j in range(z.size):
        absent += z[j] == -np.inf
        bad += z[j] != z[j]
    return absent, bad


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
