"""Segment mean, one run after the other, for Numba; sums in float64."""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import REALS, plain, run
from polymax.kernels.numba_math import add, inline, kernel, rows_at


def segment_mean(z: Tensor, v: Tensor, order: Tensor | None = None, y: Tensor | None = None) -> Tensor:
    points, values, n = plain(z), plain(v), z.shape[-1]
    out, count = torch.empty_like(values), z.numel() // max(n, 1)
    # where there are no weights, the scores stand for them, and are not read as such
    weights = points if y is None else plain(y)
    at = (
        n, points.data_ptr(), values.data_ptr(), weights.data_ptr(), out.data_ptr(), REALS[points.dtype],
        REALS[out.dtype], REALS[weights.dtype], y is not None,
    )  # fmt: skip
    if order is None:
        run(_segment_mean, count, 3 * n, *at)
    else:
        ranks = order.contiguous()
        run(_segment_mean_in_order, count, 4 * n, *at, ranks.data_ptr())
    return out if out.dtype == v.dtype else out.to(v.dtype)


@kernel
def _segment_mean(start, stop, n, z_at, v_at, y_at, out_at, real, real_v, real_y, centred):
    z, v, out = rows_at(z_at, stop, n, real), rows_at(v_at, stop, n, real_v), rows_at(out_at, stop, n, real_v)
    y = rows_at(y_at, stop, n, real_y)
    index = np.arange(n)
    point, direction = np.empty(n, z.dtype), np.empty(n, v.dtype)
    for i in range(start, stop):
        absent, bad = _census(z[i])
        if bad > 0:
            out[i] = np.nan
            continue
        if centred:
            _centre(y[i], v[i], out[i])
        given = out[i] if centred else v[i]
        if absent > 0:
            _average_present(z[i], given, index, point, direction, out[i])
        else:
            _average(z[i], given, out[i])


@kernel
def _segment_mean_in_order(start, stop, n, z_at, v_at, y_at, out_at, real, real_v, real_y, centred, order_at):
    z, v, out = rows_at(z_at, stop, n, real), rows_at(v_at, stop, n, real_v), rows_at(out_at, stop, n, real_v)
    y = rows_at(y_at, stop, n, real_y)
    order = rows_at(order_at, stop, n, np.int32(0))
    point, direction = np.empty(n, z.dtype), np.empty(n, v.dtype)
    for i in range(start, stop):
        _, bad = _census(z[i])
        if bad > 0:
            out[i] = np.nan
            continue
        if centred:
            _centre(y[i], v[i], out[i])
        _average_present(z[i], out[i] if centred else v[i], order[i], point, direction, out[i])


@inline
def _census(z):
    absent = bad = 0
    for j in range(z.size):
        absent += z[j] == -np.inf
        bad += z[j] != z[j]
    return absent, bad


@inline
def _centre(y, v, out):
    """v less its mean where y is positive, and 0 elsewhere."""
    total = 0.0
    count = 0
    for j in range(y.size):
        inside = y[j] > 0
        total = add(total, np.float64(v[j]) if inside else 0.0)
        count += inside
    mean = total / max(count, 1)
    for j in range(y.size):
        out[j] = v[j] - mean if y[j] > 0 else 0.0


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
