"""Alignment by wavefronts over strips of rows, for Numba.

The lanes of a strip are its rows; at step t lane r is at column t - r, so that all lanes are on one anti-diagonal and
every predecessor is known. Values are float64, because they grow with the path; only differences of neighbours are
exponentiated, for which float32 is enough. Cells outside the problem have score -inf: they get value -inf and weights
0, and the steps need no masks.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import array
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_math import inline, kernel, within
from polymax.kernels.alignment import STRIP, chart_shape
from polymax.kernels.alignment.cpu_shannon import inside_shannon
from polymax.kernels.alignment.cpu_tangent import tangent
from polymax.kernels.alignment.numba_local import smooth_lanes
from polymax.kernels.alignment.strips import clear_padding, skew, unskew
from polymax.kernels.local_max.numba_lanes import LANES
from polymax.kernels.local_max.numba_max import smoothing


def alignment_inside(scores: Tensor, rows: Tensor, columns: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    value = torch.empty(scores.shape[:1], dtype=scores.dtype, device="cpu")
    chart = torch.empty(chart_shape(scores), dtype=scores.dtype, device="cpu")
    args = array(scores), array(rows), array(columns), array(value), _flat(chart)
    if alpha == 1 and scores.dtype == torch.float32:
        odd = np.empty(len(value), np.bool_)
        parallel(inside_shannon, _work(scores), 8, *args, odd)
        for b in odd.nonzero()[0].tolist():
            _inside(b, b + 1, *args, smoothing(alpha))
    else:
        parallel(_inside, _work(scores), 16, *args, smoothing(alpha))
    return value, chart


def alignment_outside(scores: Tensor, rows: Tensor, columns: Tensor, chart: Tensor, g: Tensor, alpha: float) -> Tensor:
    mu = torch.empty(scores.shape, dtype=scores.dtype, device="cpu")
    args = array(rows), array(columns), _flat(chart), array(g), array(mu)
    parallel(_path if alpha == np.inf else _outside, _work(scores), 4, *args)
    return mu


def alignment_tangent(
    scores: Tensor, rows: Tensor, columns: Tensor, chart: Tensor, g: Tensor, d: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    if alpha == np.inf:
        # the hard maximum has one path, which does not change
        y = alignment_outside(scores, rows, columns, chart, torch.ones_like(g), alpha)
        return torch.where(y == 0, 0, y * d).sum((1, 2), dtype=torch.float64).to(d.dtype), torch.zeros_like(y)
    value = torch.empty(scores.shape[:1], dtype=scores.dtype, device="cpu")
    out = torch.empty(scores.shape, dtype=scores.dtype, device="cpu")
    args = array(rows), array(columns), _flat(chart), array(g), array(d), array(value), array(out)
    parallel(tangent, _work(scores), 16, *args, alpha)
    return value, out


def _flat(chart):
    return array(chart.flatten(2))


def _work(scores):
    count, n, m = scores.shape
    return torch.Size((count, n * m))


@kernel
def _inside(start, stop, scores, rows, columns, value, chart, omega):
    lines = np.empty((scores.shape[2] + STRIP) * STRIP, scores.dtype)
    # values of the row above the strip, by column + 1
    above = np.empty(scores.shape[2] + 1, np.float64)
    wide = np.empty(3 * STRIP, np.float64)
    line, space = np.empty(4 * STRIP), np.empty((2, 3, LANES))
    lanes = line.reshape((4 * STRIP // LANES, LANES))
    for b in range(start, stop):
        n, m = rows[b], columns[b]
        value[b] = 0
        strips = (n + STRIP - 1) // STRIP if m > 0 else 0
        chart[b, strips:] = 0
        if strips == 0:
            continue
        above[:] = -np.inf
        # the cell diagonally before the first cell has value 0
        above[0] = 0
        bad = False
        for k in range(strips):
            bad |= skew(scores[b], k * STRIP, n, m, -np.inf, lines)
            tail = min(STRIP, n - k * STRIP) - 1
            _walk(lines, m, tail, above, wide, line, lanes, space, chart[b, k], omega)
            chart[b, k, (m + STRIP - 1) * 3 * STRIP :] = 0
            above[0] = -np.inf
        value[b] = np.nan if bad else above[m]
        chart[b, 0, 0] = np.nan if bad else (1 if above[m] > -np.inf else 0)


@inline
def _walk(lines, m, tail, above, wide, line, lanes, space, chart, omega):
    """Compute one strip: write its weights to the chart, and replace the values of the row above by those of its row
    `tail`.
    """
    # wide: values at the last step, values diagonally before, maxima
    wide[:] = -np.inf
    wide[STRIP] = above[0]
    for t in range(m + STRIP - 1):
        _differences(wide, above[t + 1] if t < m else -np.inf, line)
        smooth_lanes(line, lanes, chart[3 * t * STRIP : 3 * (t + 1) * STRIP], space, omega)
        _advance(wide, line, lines[t * STRIP : (t + 1) * STRIP])
        if 0 <= t - tail < m:
            above[t - tail + 1] = wide[tail]


@within
def _differences(wide, above, line):
    """Write the values of the three predecessors less their maximum."""
    # passed from lane to lane in registers: a load that spans two recent vector stores would stall
    before = above
    for r in range(STRIP):
        diagonal, down, right = wide[STRIP + r], before, wide[r]
        before = right
        wide[STRIP + r] = down
        top = diagonal if diagonal > down else down
        top = top if top > right else right
        wide[2 * STRIP + r] = top
        top = top if top > -np.inf else 0.0
        line[STRIP + r] = diagonal - top
        line[2 * STRIP + r] = down - top
        line[3 * STRIP + r] = right - top


@within
def _advance(wide, line, scores):
    for r in range(STRIP):
        wide[r] = wide[2 * STRIP + r] + (np.float64(scores[r]) + np.float64(line[r]))


@kernel
def _outside(start, stop, rows, columns, chart, g, mu):
    lines = np.empty((mu.shape[2] + STRIP) * STRIP, mu.dtype)
    # expectations that the strip passes to the row above it, by column
    given = np.empty(mu.shape[2], mu.dtype)
    flow = np.empty(3 * STRIP, mu.dtype)
    for b in range(start, stop):
        n, m = rows[b], columns[b]
        n = n if m > 0 else 0
        clear_padding(mu[b], n, m)
        given[:] = 0
        if n > 0:
            given[m - 1] = g[b] * chart[b, 0, 0]
        for k in range((n + STRIP - 1) // STRIP - 1, -1, -1):
            tail = min(STRIP, n - k * STRIP) - 1
            _walk_back(chart[b, k], m, tail, given, flow, lines)
            unskew(lines, k * STRIP, tail + 1, m, mu[b])


@inline
def _walk_back(chart, m, tail, given, flow, lines):
    """Process one strip from its end: write expectations to lines; replace `given` by the strip's expectations for the
    row above.
    """
    flow[:] = 0
    zero = given.dtype.type(0)
    for t in range(m + STRIP - 2, -1, -1):
        j = t - tail
        line, weights = lines[t * STRIP : (t + 1) * STRIP], chart[3 * t * STRIP : 3 * (t + 1) * STRIP]
        _split(flow, given[j] if 0 <= j < m else zero, tail, weights, line)
        if t < m:
            given[t] = flow[2 * STRIP - 1]


@within
def _split(flow, given, tail, weights, line):
    """Write the expectations of a line, with `given` for lane `tail`, and split them over the predecessors of each
    cell.

    flow, from the last lane to the first: expectations to the right, to the row above, and diagonally, one step later.
    """
    zero = type(given)(0)
    below = zero
    for q in range(STRIP):
        # unsigned: LLVM gathers for an index that might be negative
        r = np.uint64(STRIP - 1 - q)
        expectation = flow[q] + below + (given if r == tail else zero)
        below = flow[STRIP + q]
        line[r] = expectation
        flow[q] = expectation * weights[np.uint64(2 * STRIP) + r]
        flow[STRIP + q] = flow[2 * STRIP + q] + expectation * weights[np.uint64(STRIP) + r]
        flow[2 * STRIP + q] = expectation * weights[r]


@kernel
def _path(start, stop, rows, columns, chart, g, mu):
    """Write g along the single best path, from its end."""
    for b in range(start, stop):
        i, j = rows[b] - 1, columns[b] - 1
        mu[b] = 0
        if i < 0 or j < 0:
            continue
        weight = g[b] * chart[b, 0, 0]
        if weight != weight:
            mu[b, : i + 1, : j + 1] = weight
        while weight == weight and i >= 0 and j >= 0:
            mu[b, i, j] = weight
            r = i % STRIP
            start = (r + j) * 3 * STRIP
            edges = chart[b, i // STRIP, start : start + 3 * STRIP]
            right = edges[2 * STRIP + r] > 0
            down = edges[STRIP + r] > 0 and not right
            i -= not right
            j -= not down
