"""Sums over the paths of a transducer with durations, frame by frame, for Numba; values are float64.

Only differences are exponentiated. The general hypergraph handles other smoothings and the tangent.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import array
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_math import inline, kernel
from polymax.kernels.duration_transducer import chart_like
from polymax.kernels.duration_transducer.reference import general


def duration_transducer_inside(*args: Any) -> tuple[Tensor, Tensor]:
    given, (durations, alpha) = args[:5], args[5:]
    blank = given[0]
    chart = chart_like(blank)
    if alpha != 1:
        return general.inside(*given, durations, alpha), chart.zero_()
    value = blank.new_empty(blank.shape[0])
    steps = np.array(durations, np.int64)
    parallel(_inside, _work(given[2]), 16, *map(array, given), steps, array(value), array(chart))
    return value, chart


def duration_transducer_outside(*args: Any) -> tuple[Tensor, ...]:
    given, (chart, g, durations, alpha) = args[:5], args[5:]
    if alpha != 1:
        return tuple(t.contiguous() for t in general.outside(*given, durations, g, alpha))
    out = tuple(torch.zeros(x.shape, dtype=x.dtype, device="cpu") for x in given[:3])
    steps = np.array(durations, np.int64)
    parallel(_outside, _work(given[2]), 24, *map(array, (*given, chart, g)), steps, *map(array, out))
    return out


def duration_transducer_tangent(*args: Any) -> tuple[Tensor, ...]:
    given, (_, g, *along), (durations, alpha) = args[:5], args[5:-2], args[-2:]
    value, *parts = general.tangent(*given, durations, g, *along, alpha)
    return value, *(t.contiguous() for t in parts)


def _work(duration):
    return torch.Size((duration.shape[0], duration[0].numel() if duration.shape[0] else 0))


@inline
def _sum(terms, count):
    """Return the log of the sum of exponentials of the first terms; -inf without a term, NaN with a NaN."""
    top = -np.inf
    for k in range(count):
        top = terms[k] if terms[k] > top else top
    base = top if top > -np.inf else 0.0
    total = 0.0
    for k in range(count):
        total += math.exp(terms[k] - base)
    return base + math.log(total) if total != 0 else -np.inf


@kernel
def _inside(start, stop, blank, label, duration, frames, tokens, steps, value, chart):
    terms = np.empty(2 * steps.size)
    for b in range(start, stop):
        n, m = frames[b], tokens[b]
        a = chart[b]
        value[b] = 0
        for t in range(n):
            for u in range(m + 1):
                count = 0
                for i in range(steps.size):
                    d = steps[i]
                    if d <= t:
                        if d > 0:
                            before = a[t - d + u, u] + np.float64(blank[b, t - d, u])
                            terms[count] = before + np.float64(duration[b, t - d, u, i])
                            count += 1
                        if u > 0:
                            before = a[t - d + u - 1, u - 1] + np.float64(label[b, t - d, u - 1])
                            terms[count] = before + np.float64(duration[b, t - d, u - 1, i])
                            count += 1
                a[t + u, u] = _sum(terms, count) if t + u > 0 else 0.0
        if n > 0:
            count = 0
            for i in range(steps.size):
                d = steps[i]
                if 0 < d <= n:
                    before = a[n - d + m, m] + np.float64(blank[b, n - d, m])
                    terms[count] = before + np.float64(duration[b, n - d, m, i])
                    count += 1
            a[-1, 0] = _sum(terms, count)
            value[b] = a[-1, 0]


@kernel
def _outside(start, stop, blank, label, duration, frames, tokens, chart, g, steps, d_blank, d_label, d_duration):
    terms = np.empty(2 * steps.size)
    states = blank.shape[2]
    # the sums over paths from each cell to the end
    z = np.empty((blank.shape[1], states))
    for b in range(start, stop):
        n, m = frames[b], tokens[b]
        a = chart[b]
        if n == 0 or a[-1, 0] == -np.inf:
            continue
        for t in range(n - 1, -1, -1):
            for u in range(m, -1, -1):
                here = a[t + u, u] - a[-1, 0]
                ends, emits = np.float64(blank[b, t, u]), np.float64(label[b, t, u]) if u < m else 0.0
                count = 0
                by_blank = by_label = 0.0
                for i in range(steps.size):
                    d = steps[i]
                    long = np.float64(duration[b, t, u, i])
                    both = 0.0
                    if d > 0 and (t + d < n or (t + d == n and u == m)):
                        terms[count] = ends + long + (z[t + d, u] if t + d < n else 0.0)
                        weight = _weight(here, terms[count])
                        by_blank += weight
                        both += weight
                        count += 1
                    if u < m and t + d < n:
                        terms[count] = emits + long + z[t + d, u + 1]
                        weight = _weight(here, terms[count])
                        by_label += weight
                        both += weight
                        count += 1
                    d_duration[b, t, u, i] = g[b] * both
                z[t, u] = _sum(terms, count)
                d_blank[b, t, u] = g[b] * by_blank
                if u < m:
                    d_label[b, t, u] = g[b] * by_label


@inline
def _weight(here, onwards):
    """Return the probability of a step: its cell's sum less the value, and the sum from there by the step."""
    return math.exp(here + onwards) if here != -np.inf and onwards != -np.inf else 0.0
