"""Sums over alignments with gaps in float32, for Numba: strips of rows in vector lanes, numbers with exponents.

The chart keeps the row above each strip. The outside pass processes strips from the last: each strip once more
forwards, for the weights of its choices, and then backwards. The general hypergraph handles scores outside the range of
float32 with exponents, and other smoothings.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import array
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_exponents import LARGEST, WIDEST
from polymax.backend.numba_math import _bits, kernel
from polymax.kernels.gapped import STRIP, chart_like
from polymax.kernels.gapped.numba_back import collect, collect_border, walk_back
from polymax.kernels.gapped.numba_strip import border, exponentials, single, walk, walk_with_weights
from polymax.kernels.gapped.reference import general


def gapped_inside(
    pairs: Tensor, opened: Tensor, extended: Tensor, rows: Tensor, columns: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    given = pairs, opened, extended, rows, columns
    chart = chart_like(pairs)
    if alpha != 1 or pairs.dtype != torch.float32:
        return general.inside(*given, alpha), chart.zero_()
    value = pairs.new_empty(pairs.shape[0])
    parallel(_inside, _work(pairs), 16, *map(array, given), array(value), array(chart))
    odd = chart[:, -1, 0, 0] != 1
    if bool(odd.any()):
        value[odd] = general.inside(*(t[odd] for t in given), alpha)
    return value, chart


def gapped_outside(
    pairs: Tensor,
    opened: Tensor,
    extended: Tensor,
    rows: Tensor,
    columns: Tensor,
    chart: Tensor,
    g: Tensor,
    alpha: float,
) -> tuple[Tensor, ...]:
    given = pairs, opened, extended, rows, columns
    out = tuple(torch.empty(x.shape, dtype=x.dtype, device="cpu") for x in given[:3])
    odd = chart[:, -1, 0, 0] != 1
    if not bool(odd.all()):
        parallel(_outside, _work(pairs), 32, *map(array, (*given, chart, g, *out)))
    if bool(odd.any()):
        found = general.outside(*(t[odd] for t in given), g[odd], alpha)
        for whole, part in zip(out, found, strict=True):
            whole[odd] = part
    return out


def gapped_tangent(*args: Any) -> tuple[Tensor, ...]:
    return general.tangent(*args[:5], *args[6:])


def _work(pairs):
    count, n, m = pairs.shape
    return torch.Size((count, n * m))


@kernel
def _inside(start, stop, pairs, opened, extended, rows, columns, value, chart):
    steps = pairs.shape[2] + STRIP + 2
    one = single(opened[0], extended[0]) if start < stop else True
    lines, gaps = np.empty(steps * 2 * STRIP, np.float32), np.empty((1 if one else steps) * 4 * STRIP, np.float32)
    stride = 0 if one else 4 * STRIP
    state = np.empty(12 * STRIP, np.float32)
    for b in range(start, stop):
        n, m = rows[b], columns[b]
        value[b] = 0
        chart[b, -1, 0, 0] = 1
        if n == 0 or m == 0:
            continue
        most = border(opened[b], extended[b], m, chart[b, 0])
        for k in range((n + STRIP - 1) // STRIP):
            size = exponentials(pairs[b], opened[b], extended[b], k * STRIP, n, m, lines, gaps, k == 0)
            # a NaN stays
            most = size if size > most or size != size else most
            tail = min(STRIP, n - k * STRIP) - 1
            walk(lines, gaps, stride, m, tail, chart[b, k], chart[b, k + 1], state)
        last = chart[b, (n + STRIP - 1) // STRIP]
        number, power = last[4, m], _bits(last[5, m])
        value[b] = math.log(np.float64(number)) + power * math.log(2) if number > 0 else -np.inf
        chart[b, -1, 0, 1] = 1 if number > 0 else 0
        chart[b, -1, 0, 0] = 1 if most <= min(LARGEST, WIDEST / (n + m)) else 0


@kernel
def _outside(start, stop, pairs, opened, extended, rows, columns, chart, g, d_pairs, d_open, d_extend):
    width = pairs.shape[2] + 1
    steps = width + STRIP + 1
    one = single(opened[0], extended[0]) if start < stop else True
    lines, gaps = np.empty(steps * 2 * STRIP, np.float32), np.empty((1 if one else steps) * 4 * STRIP, np.float32)
    stride = 0 if one else 4 * STRIP
    weights = np.empty(steps * 8 * STRIP, np.float32)
    state = np.empty(12 * STRIP, np.float32)
    flow = np.empty(6 * STRIP, np.float32)
    found = np.empty(steps * 3 * STRIP, np.float32)
    # expectations from the strip below, and to the strip above: of M, X and P of each column
    given, gives = np.empty((3, width + 1), np.float32), np.empty((3, width + 1), np.float32)
    for b in range(start, stop):
        d_open[b] = 0
        d_extend[b] = 0
        n, m = rows[b], columns[b]
        if n == 0 or m == 0 or chart[b, -1, 0, 0] != 1 or chart[b, -1, 0, 1] == 0:
            d_pairs[b] = 0
            continue
        d_pairs[b, n:] = 0
        d_pairs[b, :n, m:] = 0
        given[:] = 0
        given[2, m] = g[b]
        strips = (n + STRIP - 1) // STRIP
        for k in range(strips - 1, -1, -1):
            exponentials(pairs[b], opened[b], extended[b], k * STRIP, n, m, lines, gaps, k == strips - 1)
            tail = min(STRIP, n - k * STRIP) - 1
            walk_with_weights(lines, gaps, stride, m, tail, chart[b, k], weights, state)
            walk_back(weights, m, tail, given, gives, flow, found)
            given, gives = gives, given
            collect(found, k * STRIP, tail + 1, m, d_pairs[b], d_open[b], d_extend[b])
        collect_border(given[2], m, d_open[b], d_extend[b])
