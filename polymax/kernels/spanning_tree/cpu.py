"""Sums over trees for Numba: by weights in cpu_linear.py, by logarithms in cpu_log.py if weights are too far apart.

The row of pivots begins with a code for the domain of the chart: weights or logarithms.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import array, memory
from polymax.backend.cpu_rows import run
from polymax.backend.numba_math import inline, kernel
from polymax.kernels.local_max.numba_max import by_smoothing, in_turn, linear, remaining
from polymax.kernels.spanning_tree import chart_like, cpu_linear, cpu_log
from polymax.kernels.spanning_tree.cpu_kbest import spanning_tree_kbest as spanning_tree_kbest
from polymax.kernels.spanning_tree.cpu_sample import EMPTY, LINEAR, LOG
from polymax.kernels.spanning_tree.cpu_sample import spanning_tree_sample as spanning_tree_sample
from polymax.kernels.spanning_tree.numba_scale import widened

_inside_sums = by_smoothing(*(cpu_log.inside,) * 4, cpu_linear.inside)
_outside_sums = by_smoothing(*(cpu_log.outside,) * 4, cpu_linear.outside)
_tangent_sums = by_smoothing(*(cpu_log.tangent,) * 4, cpu_linear.tangent)


def spanning_tree_inside(scores: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _run(_inside, scores, array(scores), array(lengths), memory(chart), memory(value), int(single_root))
    return value, chart


def spanning_tree_outside(scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    _run(_outside, scores, array(lengths), array(chart), array(g), memory(mu), int(single_root))
    return mu


def spanning_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, single_root: bool
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    args = array(lengths), array(chart), array(g), array(d), memory(dvalue), memory(dmu)
    _run(_tangent, scores, *args, int(single_root))
    return dvalue, dmu


def _run(function, scores, *args):
    batch, size = scores.shape[:2]
    in_turn(1, run, function, batch, size * size * (4 + size // 4), *args)


@kernel
def _inside(start, stop, scores, lengths, chart, value, first, odd, omega):
    for b in range(start, stop):
        m = lengths[b]
        how = chart[b, 0, chart.shape[2] - 1]
        if m == 0:
            how[0] = EMPTY
            value[b] = 0
        elif not remaining(omega) or how[0] == LOG:
            widened(scores[b], m, chart[b, 0])
            total, fine = _inside_sums(m, first, chart[b], omega)
            value[b] = total
            if linear(omega):
                how[0] = LINEAR if fine else LOG
                odd[0] |= not fine
            else:
                how[0] = EMPTY if total == -np.inf else LOG


@kernel
def _outside(start, stop, lengths, chart, g, mu, first, odd, omega):
    size = mu.shape[1]
    o, e = np.empty((size, size)), np.empty((size, size))
    for b in range(start, stop):
        how = chart[b, 0, size, 0]
        if how == EMPTY:
            mu[b] = 0
        elif (how == LINEAR) == linear(omega):
            mu[b] = 0
            _outside_sums(lengths[b], first, chart[b], np.float64(g[b]), o, e, omega)
            _narrow(e, lengths[b], mu[b])
        else:
            odd[0] |= how == LOG


@kernel
def _tangent(start, stop, lengths, chart, g, d, dvalue, dmu, first, odd, omega):
    size = dmu.shape[1]
    dx, e = np.empty((size, size)), np.empty((size, size))
    space = np.empty((4, size, size))
    for b in range(start, stop):
        how = chart[b, 0, size, 0]
        if how == EMPTY:
            dvalue[b] = 0
            dmu[b] = 0
        elif (how == LINEAR) == linear(omega):
            dmu[b] = 0
            m = lengths[b]
            for i in range(m + 1):
                for j in range(m + 1):
                    dx[i, j] = d[b, i, j]
            dvalue[b] = _tangent_sums(dx, m, first, chart[b], np.float64(g[b]), space, e, omega)
            if np.isnan(g[b]):
                e[:] = np.nan
            _narrow(e, m, dmu[b])
        else:
            odd[0] |= how == LOG


@inline
def _narrow(e, m, out):
    for i in range(m + 1):
        for j in range(1, m + 1):
            if i != j:
                out[i, j] = e[i, j]
