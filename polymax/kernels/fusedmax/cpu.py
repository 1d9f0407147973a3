"""Fusedmax for Numba: the prox of a group of rows, sparsemax of the result, and marks of how rows are divided."""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_rows import REALS, SMALL, beside, plain, run
from polymax.backend.numba_math import add, inline, kernel, rows_at, within
from polymax.kernels.fusedmax import ABOVE, ABSENT, BAD, BELOW, FIRST, SAME, WITHOUT
from polymax.kernels.threshold.cpu import long_room, sparsemax_row
from polymax.kernels.threshold.numba_short import NEAREST, SHORT, TOGETHER, room, sparsemax_rows
from polymax.kernels.tv_prox.cpu import prox_room, prox_row

# marks that are skipped together if none of their entries has weight
BLOCK = 32


def fusedmax(x: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    scores, n = plain(x), x.shape[-1]
    y, mark = torch.empty_like(scores), torch.empty_like(scores, dtype=torch.int8)
    strengths, count = beside(strength, x.shape[:-1]), x.numel() // max(n, 1)
    args = (
        n, scores.data_ptr(), strengths.data_ptr(), y.data_ptr(), mark.data_ptr(), REALS[y.dtype],
        REALS[strengths.dtype], strengths.numel() > 1, torch.finfo(x.dtype).min,
    )  # fmt: skip
    if 11 * n * count < SMALL:
        _fusedmax(0, count, *args)
    else:
        run(_fusedmax, count, 11 * n, *args)
    return y if y.dtype == x.dtype else y.to(x.dtype), mark


def fusedmax_backward(mark: Tensor, v: Tensor) -> Tensor:
    marks, values, n = mark.contiguous(), plain(v), v.shape[-1]
    out, count = torch.empty_like(values), v.numel() // max(n, 1)
    args = n, marks.data_ptr(), values.data_ptr(), out.data_ptr(), REALS[out.dtype]
    if n * count < SMALL:
        _fusedmax_backward(0, count, *args)
    else:
        run(_fusedmax_backward, count, n, *args)
    return out if out.dtype == v.dtype else out.to(v.dtype)


@kernel
def _fusedmax(start, stop, n, x_at, strengths_at, y_at, mark_at, real, real_strength, many, lowest):
    x, y = rows_at(x_at, stop, n, real), rows_at(y_at, stop, n, real)
    marks, strengths = rows_at(mark_at, stop, n, np.int8(0)), rows_at(strengths_at, 1, stop, real_strength)[0]
    together = min(TOGETHER, max(NEAREST // max(n, 1), 1))
    z, prox = np.empty((together, n), x.dtype), prox_room(n)
    short, long = room(x.dtype), long_room(n if n > SHORT else 0, x.dtype)
    for first in range(start, stop, together):
        count = min(together, stop - first)
        for k in range(count):
            prox_row(x[first + k], np.float64(strengths[first + k if many else 0]), True, lowest, z[k], prox)
        if n <= SHORT:
            sparsemax_rows(z[:count], y[first : first + count], short)
        else:
            for k in range(count):
                sparsemax_row(z[k], y[first + k], long)
        for k in range(count):
            _mark(z[k], y[first + k], marks[first + k])


@inline
def _mark(z, y, mark):
    """Fill the marks of a row, given its prox and its weights."""
    bad, seen = np.int32(0), False
    before = z.dtype.type(0)
    for j in range(z.size):
        bad = np.int32(bad + np.int32(z[j] != z[j]))
        if z[j] == -np.inf:
            mark[j] = ABSENT
            continue
        if not y[j] > 0:
            mark[j] = WITHOUT
        elif not seen:
            mark[j] = FIRST
        elif z[j] == before:
            mark[j] = SAME
        else:
            mark[j] = ABOVE if z[j] > before else BELOW
        before, seen = z[j], True
    if bad > 0:
        mark[:] = BAD


@kernel
def _fusedmax_backward(start, stop, n, mark_at, v_at, out_at, real):
    v, out = rows_at(v_at, stop, n, real), rows_at(out_at, stop, n, real)
    marks = rows_at(mark_at, stop, n, np.int8(0))
    support = np.empty(n, np.int32)
    for i in range(start, stop):
        mark = marks[i]
        out[i] = 0
        if n > 0 and mark[0] == BAD:
            out[i] = np.nan
            continue
        count = _pack(mark, support)
        total = 0.0
        for r in range(count):
            total = add(total, np.float64(v[i, support[r]]))
        mean, last = total / max(count, 1), 0
        while last < count:
            first, total = last, v[i, support[last]] - mean
            last += 1
            while last < count and mark[support[last]] == SAME:
                total += v[i, support[last]] - mean
                last += 1
            level = total / (last - first)
            for r in range(first, last):
                out[i, support[r]] = level


@within
def _pack(mark, support):
    """Fill `support` with the indices of the entries that have weight; return their count."""
    count = 0
    for start in range(0, mark.size, BLOCK):
        part = mark[start : start + BLOCK]
        some = np.int32(0)
        for k in range(part.size):
            some = np.int32(some + np.int32(part[k] > WITHOUT))
        if some > 0:
            for k in range(part.size):
                support[count] = start + k
                count += part[k] > WITHOUT
    return count
