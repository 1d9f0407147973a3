"""Span trees for Numba: labels here, trees in cpu_linear.py (Shannon) and cpu_smooth.py (any smoothing).

All arithmetic is in float64. The chart's last row holds the shift of the linear chart, or inf if w holds values.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import array
from polymax.backend.cpu_rows import run
from polymax.backend.numba_math import inline, kernel
from polymax.kernels.local_max.numba_max import (
    by_smoothing,
    in_turn,
    linear,
    max_and_weights,
    remaining,
    smooth_max,
    weight_changes,
)
from polymax.kernels.span_tree import PADDING, chart_like, cpu_linear, cpu_smooth

_inside_tree = by_smoothing(*(cpu_smooth.inside,) * 4, cpu_linear.inside)
_forward_tree = by_smoothing(*(cpu_smooth.forward,) * 4, cpu_linear.forward)
_outside_tree = by_smoothing(*(cpu_smooth.outside,) * 4, cpu_linear.outside)


def span_tree_inside(scores: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _run(_inside, scores, alpha, array(scores), array(lengths), _flat(chart), array(value))
    return value, chart


def span_tree_outside(scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    _run(_outside, scores, alpha, array(scores), array(lengths), _flat(chart), array(g), array(mu))
    return mu


def span_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    args = array(scores), array(lengths), _flat(chart), array(g), array(dmu)
    _run(_outside, scores, alpha, *args, more=(array(d), array(dvalue)))
    return dvalue, dmu


def _run(function, scores, alpha, *args, more=()):
    batch, n, _, labels = scores.shape
    in_turn(alpha, run, function, batch, n * n * (n // 4 + labels), *args, more=more)


def _flat(chart: Tensor) -> np.ndarray:
    return array(chart).reshape(chart.shape[0], chart.shape[1] * chart.shape[2])


@kernel
def _inside(start, stop, scores, lengths, chart, value, odd, omega):
    n, labels = scores.shape[1], scores.shape[3]
    s = n + PADDING
    lam, a = np.empty(n * s), np.empty(max(n, labels))
    for b in range(start, stop):
        m, w = lengths[b], chart[b]
        if m == 0:
            value[b] = w[n * s] = 0
        elif not remaining(omega) or w[n * s] == np.inf:
            _best_labels(scores[b], m, s, lam, a, None, None, omega)
            total, shift = _inside_tree(lam, m, s, w, a, omega)
            value[b] = total
            w[n * s] = shift
            odd[0] |= shift == np.inf


@kernel
def _outside(start, stop, scores, lengths, chart, g, out, odd, omega, d=None, dvalue=None):
    """Write expected parts or, unless d is None, their derivative along d, and the derivative of the value."""
    n, labels = scores.shape[1], scores.shape[3]
    s = n + PADDING
    lam, o, e = np.empty(n * s), np.empty(n * s), np.empty(n * s)
    rows = np.empty((4, max(n, labels)))
    a, p, da, dp = rows[0], rows[1], rows[2], rows[3]
    if d is not None:
        dlam, dw, do, de = np.empty(n * s), np.empty(n * s), np.empty(n * s), np.empty(n * s)
    else:
        dlam = dw = do = de = None
    for b in range(start, stop):
        m, w = lengths[b], chart[b]
        if m == 0:
            out[b] = 0
            if d is not None:
                dvalue[b] = 0
            continue
        shift = w[n * s]
        if (shift == np.inf) == linear(omega):
            odd[0] |= shift == np.inf
            continue
        out[b] = 0
        _best_labels(scores[b], m, s, lam, a, p, out[b], omega)
        if d is not None:
            for i in range(m):
                for j in range(i, m):
                    dlam[i * s + j] = _mean(out[b, i, j], d[b, i, j])
            dvalue[b] = _forward_tree(lam, dlam, m, s, w, shift, dw, a, p, omega)
        _outside_tree(lam, m, s, w, shift, g[b], o, e, a, p, dlam, dw, do, de, da, dp, omega)
        # the whole span is in every tree, so that a NaN score does not show in its derivative
        unknown = w[m - 1] if np.isnan(w[m - 1]) else 0.0
        for i in range(m):
            for j in range(i, m):
                if d is not None and labels == 1:
                    out[b, i, j, 0] = de[i * s + j] + unknown
                elif d is not None:
                    for k in range(labels):
                        p[k], da[k] = out[b, i, j, k], d[b, i, j, k]
                    weight_changes(p, da, labels, dp, omega)
                    for k in range(labels):
                        out[b, i, j, k] = de[i * s + j] * p[k] + e[i * s + j] * dp[k]
                else:
                    for k in range(labels):
                        out[b, i, j, k] *= e[i * s + j]


@inline
def _best_labels(scores, m, s, lam, a, p, out, omega):
    """Write smoothed maxima over labels and, unless out is None, their weights; a single label needs no maximum."""
    labels = scores.shape[2]
    for i in range(m):
        for j in range(i, m):
            if labels == 1:
                lam[i * s + j] = scores[i, j, 0]
                if out is not None:
                    out[i, j, 0] = 1
            else:
                for k in range(labels):
                    a[k] = scores[i, j, k]
                if out is not None:
                    lam[i * s + j] = max_and_weights(a, labels, p, omega)
                    for k in range(labels):
                        out[i, j, k] = p[k]
                else:
                    lam[i * s + j] = smooth_max(a, labels, omega)


@inline
def _mean(p, d):
    total = 0.0
    for k in range(p.size):
        # a label without weight may have an infinite tangent
        if p[k] != 0:
            total += p[k] * d[k]
    return total
