"""Projective trees for Numba: by cpu_linear.py under Shannon entropy, by cpu_smooth.py under any smoothing.

All arithmetic is in float64. The chart's last row holds the shift of the linear chart, or inf where it holds values.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import parallel
from polymax.kernels.numba_math import inline, kernel
from polymax.kernels.projective_tree import PADDING, chart_like, cpu_linear, cpu_smooth

_linear_inside, _linear_outside, _linear_tangent = cpu_linear.inside, cpu_linear.outside, cpu_linear.tangent
_smooth_inside, _smooth_outside, _smooth_tangent = cpu_smooth.inside, cpu_smooth.outside, cpu_smooth.tangent


def projective_tree_inside(scores: Tensor, lengths: Tensor, single_root: bool, alpha: float) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _run(_inside, scores, _array(scores), _array(lengths), _flat(chart), _array(value), int(single_root), alpha)
    return value, chart


def projective_tree_outside(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool, alpha: float
) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    args = _array(scores), _array(lengths), _flat(chart), _array(g), _array(mu)
    _run(_outside, scores, *args, int(single_root), alpha)
    return mu


def projective_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, single_root: bool, alpha: float
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    args = _array(scores), _array(lengths), _flat(chart), _array(g), _array(d), _array(dvalue), _array(dmu)
    _run(_tangent, scores, *args, int(single_root), alpha)
    return dvalue, dmu


def _run(function, scores, *args):
    batch, size = scores.shape[:2]
    parallel(function, torch.Size((batch, size * size)), size, *args)


def _array(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy()


def _flat(chart: Tensor) -> np.ndarray:
    return _array(chart).reshape(chart.shape[0], 3, chart.shape[2] * chart.shape[3])


@kernel
def _inside(start, stop, scores, lengths, chart, value, first, alpha):
    size = scores.shape[1]
    s = size + PADDING
    x = np.empty(size * s)
    for b in range(start, stop):
        m = lengths[b]
        c = chart[b]
        value[b] = 0
        if m == 0:
            continue
        _widen(scores[b], m, s, x)
        if alpha == 1.0:
            total, shift, fine = _linear_inside(x, m, first, s, c)
            if fine:
                value[b] = total
                c[0, size * s] = shift
                continue
        c[0, size * s] = np.inf
        value[b] = _smooth_inside(x, m, first, s, c, alpha)


@kernel
def _outside(start, stop, scores, lengths, chart, g, mu, first, alpha):
    size = scores.shape[1]
    s = size + PADDING
    x, e = np.empty(size * s), np.empty(size * s)
    o = np.empty((3, size * s))
    for b in range(start, stop):
        m = lengths[b]
        c = chart[b]
        mu[b] = 0
        if m == 0:
            continue
        _widen(scores[b], m, s, x)
        shift = c[0, size * s]
        if shift < np.inf:
            _linear_outside(x, m, first, s, c, shift, g[b], o, e)
        else:
            _smooth_outside(x, m, first, s, c, g[b], alpha, o, e)
        _narrow(e, m, s, mu[b])


@kernel
def _tangent(start, stop, scores, lengths, chart, g, d, dvalue, dmu, first, alpha):
    size = scores.shape[1]
    s = size + PADDING
    x, dx, e, de = np.empty(size * s), np.empty(size * s), np.empty(size * s), np.empty(size * s)
    dc, o, do = np.empty((3, size * s)), np.empty((3, size * s)), np.empty((3, size * s))
    for b in range(start, stop):
        m = lengths[b]
        c = chart[b]
        dvalue[b] = 0
        dmu[b] = 0
        if m == 0:
            continue
        _widen(scores[b], m, s, x)
        _widen(d[b], m, s, dx)
        shift = c[0, size * s]
        if shift < np.inf:
            dvalue[b] = _linear_tangent(x, dx, m, first, s, c, shift, g[b], dc, o, do, e, de)
        else:
            dvalue[b] = _smooth_tangent(x, dx, m, first, s, c, g[b], alpha, dc, o, do, e, de)
        _narrow(de, m, s, dmu[b])


@inline
def _widen(scores, m, s, x):
    """A square of scores as flat float64, with rows of s entries."""
    for i in range(m + 1):
        for j in range(m + 1):
            x[i * s + j] = scores[i, j]


@inline
def _narrow(e, m, s, out):
    """Back, where there are arcs."""
    for i in range(m + 1):
        for j in range(1, m + 1):
            if i != j:
                out[i, j] = e[i * s + j]
