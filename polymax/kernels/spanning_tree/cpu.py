"""Sums over trees for Numba: by weights in cpu_linear.py, by logarithms in cpu_log.py where weights are too far apart.

The row of pivots begins with the way a chart was made.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import parallel
from polymax.kernels.numba_math import inline, kernel
from polymax.kernels.spanning_tree import chart_like, cpu_linear, cpu_log
from polymax.kernels.spanning_tree.cpu_kbest import spanning_tree_kbest as spanning_tree_kbest
from polymax.kernels.spanning_tree.cpu_sample import EMPTY, LINEAR, LOG
from polymax.kernels.spanning_tree.cpu_sample import spanning_tree_sample as spanning_tree_sample
from polymax.kernels.spanning_tree.numba_scale import widened

_linear_inside, _linear_outside, _linear_tangent = cpu_linear.inside, cpu_linear.outside, cpu_linear.tangent
_log_inside, _log_outside, _log_tangent = cpu_log.inside, cpu_log.outside, cpu_log.tangent


def spanning_tree_inside(scores: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _run(_inside, scores, _array(scores), _array(lengths), chart.numpy(), value.numpy(), int(single_root))
    return value, chart


def spanning_tree_outside(scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    _run(_outside, scores, _array(lengths), _array(chart), _array(g), mu.numpy(), int(single_root))
    return mu


def spanning_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, single_root: bool
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    args = _array(lengths), _array(chart), _array(g), _array(d), dvalue.numpy(), dmu.numpy()
    _run(_tangent, scores, *args, int(single_root))
    return dvalue, dmu


def _run(function, scores, *args):
    batch, size = scores.shape[:2]
    parallel(function, torch.Size((batch, size * size)), 4 + size // 4, *args)


def _array(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy()


@kernel
def _inside(start, stop, scores, lengths, chart, value, first):
    for b in range(start, stop):
        m = lengths[b]
        how = chart[b, 0, chart.shape[2] - 1]
        how[0] = EMPTY
        value[b] = 0
        if m > 0:
            widened(scores[b], m, chart[b, 0])
            total, fine = _linear_inside(m, first, chart[b])
            how[0] = LINEAR
            if not fine:
                widened(scores[b], m, chart[b, 0])
                total = _log_inside(m, first, chart[b])
                how[0] = EMPTY if total == -np.inf else LOG
            value[b] = total


@kernel
def _outside(start, stop, lengths, chart, g, mu, first):
    size = mu.shape[1]
    o, e = np.empty((size, size)), np.empty((size, size))
    for b in range(start, stop):
        mu[b] = 0
        how = chart[b, 0, size, 0]
        if how == LINEAR:
            _linear_outside(lengths[b], first, chart[b], np.float64(g[b]), o, e)
        elif how == LOG:
            _log_outside(lengths[b], first, chart[b], np.float64(g[b]), o, e)
        if how != EMPTY:
            _narrow(e, lengths[b], mu[b])


@kernel
def _tangent(start, stop, lengths, chart, g, d, dvalue, dmu, first):
    size = dmu.shape[1]
    dx, e = np.empty((size, size)), np.empty((size, size))
    space = np.empty((4, size, size))
    for b in range(start, stop):
        dvalue[b] = 0
        dmu[b] = 0
        how = chart[b, 0, size, 0]
        if how != EMPTY:
            m = lengths[b]
            for i in range(m + 1):
                for j in range(m + 1):
                    dx[i, j] = d[b, i, j]
            if how == LINEAR:
                dvalue[b] = _linear_tangent(dx, m, first, chart[b], np.float64(g[b]), space, e)
            else:
                dvalue[b] = _log_tangent(dx, m, first, chart[b], np.float64(g[b]), space, e)
            if np.isnan(g[b]):
                e[:] = np.nan
            _narrow(e, m, dmu[b])


@inline
def _narrow(e, m, out):
    for i in range(m + 1):
        for j in range(1, m + 1):
            if i != j:
                out[i, j] = e[i, j]
