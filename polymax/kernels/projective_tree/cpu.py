"""Projective trees for Numba: by cpu_linear.py under Shannon entropy, by cpu_smooth.py under any smoothing.

All arithmetic is in float64. The chart's last row holds the shift of the linear chart, or inf if it holds values.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import array
from polymax.backend.cpu_rows import run
from polymax.backend.numba_math import inline, kernel
from polymax.kernels.local_max.numba_max import by_smoothing, in_turn, linear, remaining
from polymax.kernels.projective_tree import PADDING, chart_like, cpu_linear, cpu_smooth

_inside_tree = by_smoothing(*(cpu_smooth.inside,) * 4, cpu_linear.inside)
_forward_tree = by_smoothing(*(cpu_smooth.forward,) * 4, cpu_linear.forward)
_outside_tree = by_smoothing(*(cpu_smooth.outside,) * 4, cpu_linear.outside)


def projective_tree_inside(scores: Tensor, lengths: Tensor, single_root: bool, alpha: float) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _run(_inside, scores, alpha, array(scores), array(lengths), _flat(chart), array(value), int(single_root))
    return value, chart


def projective_tree_outside(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool, alpha: float
) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    _run(_outside, scores, alpha, array(scores), array(lengths), _flat(chart), array(g), array(mu), int(single_root))
    return mu


def projective_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, single_root: bool, alpha: float
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    args = array(scores), array(lengths), _flat(chart), array(g), array(dmu), int(single_root)
    _run(_outside, scores, alpha, *args, more=(array(d), array(dvalue)))
    return dvalue, dmu


def _run(function, scores, alpha, *args, more=()):
    batch, size = scores.shape[:2]
    in_turn(alpha, run, function, batch, size**3, *args, more=more)


def _flat(chart: Tensor) -> np.ndarray:
    return array(chart).reshape(chart.shape[0], 3, chart.shape[2] * chart.shape[3])


@kernel
def _inside(start, stop, scores, lengths, chart, value, first, odd, omega):
    size = scores.shape[1]
    s = size + PADDING
    x, a = np.empty(size * s), np.empty(size)
    for b in range(start, stop):
        m, c = lengths[b], chart[b]
        if m == 0:
            value[b] = c[0, size * s] = 0
        elif not remaining(omega) or c[0, size * s] == np.inf:
            _widen(scores[b], m, s, x)
            total, shift = _inside_tree(x, m, first, s, c, a, omega)
            value[b] = total
            c[0, size * s] = shift
            odd[0] |= shift == np.inf


@kernel
def _outside(start, stop, scores, lengths, chart, g, out, first, odd, omega, d=None, dvalue=None):
    """Write expected arcs or, unless d is None, their derivative along d, and the derivative of the value."""
    size = scores.shape[1]
    s = size + PADDING
    x, e, o, rows = np.empty(size * s), np.empty(size * s), np.empty((3, size * s)), np.empty((4, size))
    if d is not None:
        dx, de, dc, do = np.empty(size * s), np.empty(size * s), np.empty((3, size * s)), np.empty((3, size * s))
    else:
        dx = dc = do = de = None
    for b in range(start, stop):
        m, c = lengths[b], chart[b]
        shift = c[0, size * s]
        if m > 0 and (shift == np.inf) == linear(omega):
            odd[0] |= shift == np.inf
            continue
        out[b] = 0
        if d is not None:
            dvalue[b] = 0
        if m == 0:
            continue
        _widen(scores[b], m, s, x)
        if d is not None:
            _widen(d[b], m, s, dx)
            _forward_tree(x, dx, m, first, s, c, shift, dc, rows, omega)
            dvalue[b] = _outside_tree(x, m, first, s, c, shift, g[b], o, e, dx, dc, do, de, rows, omega)
            _narrow(de, m, s, out[b])
        else:
            _outside_tree(x, m, first, s, c, shift, g[b], o, e, dx, dc, do, de, rows, omega)
            _narrow(e, m, s, out[b])


@inline
def _widen(scores, m, s, x):
    """Write a square of scores as flat float64, with rows of s entries."""
    for i in range(m + 1):
        for j in range(m + 1):
            x[i * s + j] = scores[i, j]


@inline
def _narrow(e, m, s, out):
    """Write flat float64 rows of s entries back to a square, at the entries that are arcs."""
    for i in range(m + 1):
        for j in range(1, m + 1):
            if i != j:
                out[i, j] = e[i * s + j]
