"""Segment mean, one run after the other, for Numba; sums in float64."""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import REALS, plain, run
from polymax.kernels.numba_math import inline, kernel, rows_at


def segment_mean(z: Tensor, v: Tensor, order: Tensor | None = None) -> Tensor:
    points, values, n = plain(z), plain(v), z.shape[-1]
    out, count = torch.empty_like(values), z.numel() // max(n, 1)
    at = n, points.data_ptr(), values.data_ptr(), out.data_ptr(), REALS[points.dtype], REALS[out.dtype]
    if order is None:
        run(_segment_mean, count, 3 * n, *at)
    else:
        ranks = order.contiguous()
        run(_segment_mean_in_order, count, 4 * n, *at, ranks.data_ptr())
    return out if out.dtype == v.dtype else out.to(v.dtype)


@kernel
def _segment_mean(start, stop, n, z_at, v_at, out_at, real, real_v):
    z, v, out = rows_at(z_at, stop, n, real), rows_at(v_at, stop, n, real_v), rows_at(out_at, stop, n, real_v)
    index = np.arange(n)
    point, direction = np.empty(n, z.dtype), np.empty(n, v.dtype)
    for i in range(start, stop):
        absent, bad = _census(z[i])
        if bad > 0:
            out[i] = np.nan
        elif absent > 0:
            _average_present(z[i], v[i], index, point, direction, out[i])
        else:
            _average(z[i], v[i], out[i])


@kernel
def _segment_mean_in_order(start, stop, n, z_at, v_at, out_at, real, real_v, order_at):
    z, v, out = rows_at(z_at, stop, n, real), rows_at(v_at, stop, n, real_v), rows_at(out_at, stop, n, real_v)
    order = rows_at(order_at, stop, n, np.int32(0))
    point, direction = np.empty(n, z.dtype), np.empty(n, v.dtype)
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
