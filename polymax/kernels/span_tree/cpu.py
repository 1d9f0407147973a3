"""Span trees for Numba: labels here, trees in cpu_linear.py (Shannon) and cpu_smooth.py (any smoothing).

All arithmetic is in float64. The chart's last row holds the shift of the linear chart, or inf where w holds values.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.kernels.cpu_rows import parallel
from polymax.kernels.numba_math import inline, kernel
from polymax.kernels.numba_smooth import tangent_of_weights
from polymax.kernels.span_tree import PADDING, chart_like, cpu_linear, cpu_smooth

_linear_inside, _linear_outside, _linear_tangent = cpu_linear.inside, cpu_linear.outside, cpu_linear.tangent
_smooth_inside, _smooth_outside, _smooth_tangent = cpu_smooth.inside, cpu_smooth.outside, cpu_smooth.tangent
_smooth = cpu_smooth.smooth


def span_tree_inside(scores: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    value, chart = scores.new_empty(scores.shape[:1]), chart_like(scores)
    _run(_inside, scores, _array(scores), _array(lengths), _flat(chart), _array(value), alpha)
    return value, chart


def span_tree_outside(scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float) -> Tensor:
    mu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    _run(_outside, scores, _array(scores), _array(lengths), _flat(chart), _array(g), _array(mu), alpha)
    return mu


def span_tree_tangent(
    scores: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    dvalue = scores.new_empty(scores.shape[:1])
    dmu = torch.empty_like(scores, memory_format=torch.contiguous_format)
    args = _array(scores), _array(lengths), _flat(chart), _array(g), _array(d), _array(dvalue), _array(dmu)
    _run(_tangent, scores, *args, alpha)
    return dvalue, dmu


def _run(function, scores, *args):
    batch, n = scores.shape[:2]
    parallel(function, torch.Size((batch, n * n)), n // 4 + scores.shape[3], *args)


def _array(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy()


def _flat(chart: Tensor) -> np.ndarray:
    return _array(chart).reshape(chart.shape[0], chart.shape[1] * chart.shape[2])


@kernel
def _inside(start, stop, scores, lengths, chart, value, alpha):
    n, labels = scores.shape[1], scores.shape[3]
    s = n + PADDING
    lam, a, p = np.empty(n * s), np.empty(labels), np.empty(labels)
    for b in range(start, stop):
        m = lengths[b]
        w = chart[b]
        value[b] = 0
        if m == 0:
            continue
        _best_labels(scores[b], m, s, alpha, lam, a, p)
        if alpha == 1.0:
            total, shift, fine = _linear_inside(lam, m, s, w)
            if fine:
                value[b] = total
                w[n * s] = shift
                continue
        w[n * s] = np.inf
        value[b] = _smooth_inside(lam, m, s, w, alpha)


@kernel
def _outside(start, stop, scores, lengths, chart, g, mu, alpha):
    n, labels = scores.shape[1], scores.shape[3]
    s = n + PADDING
    lam, a, p = np.empty(n * s), np.empty(labels), np.empty(labels)
    o, e = np.empty(n * s), np.empty(n * s)
    for b in range(start, stop):
        m = lengths[b]
        w = chart[b]
        mu[b] = 0
        if m == 0:
            continue
        _label_weights(scores[b], m, s, alpha, lam, a, p, mu[b])
        shift = w[n * s]
        if shift < np.inf:
            _linear_outside(lam, m, s, w, shift, g[b], o, e)
        else:
            _smooth_outside(m, s, w, g[b], alpha, o, e)
        for i in range(m):
            for j in range(i, m):
                for k in range(labels):
                    mu[b, i, j, k] *= e[i * s + j]


@kernel
def _tangent(start, stop, scores, lengths, chart, g, d, dvalue, dmu, alpha):
    n, labels = scores.shape[1], scores.shape[3]
    s = n + PADDING
    a, p, da, dp = np.empty(labels), np.empty(labels), np.empty(labels), np.empty(labels)
    lam, dlam, dw = np.empty(n * s), np.empty(n * s), np.empty(n * s)
    o, do, e, de = np.empty(n * s), np.empty(n * s), np.empty(n * s), np.empty(n * s)
    for b in range(start, stop):
        m = lengths[b]
        w = chart[b]
        dvalue[b] = 0
        dmu[b] = 0
        if m == 0:
            continue
        _label_weights(scores[b], m, s, alpha, lam, a, p, dmu[b])
        for i in range(m):
            for j in range(i, m):
                dlam[i * s + j] = _mean(dmu[b, i, j], d[b, i, j])
        shift = w[n * s]
        if shift < np.inf:
            dvalue[b] = _linear_tangent(lam, dlam, m, s, w, shift, g[b], dw, o, do, e, de)
        else:
            dvalue[b] = _smooth_tangent(dlam, m, s, w, g[b], alpha, dw, o, do, e, de)
        for i in range(m):
            for j in range(i, m):
                p[:] = dmu[b, i, j]
                da[:] = d[b, i, j]
                tangent_of_weights(p, da, labels, alpha, dp)
                for k in range(labels):
                    dmu[b, i, j, k] = de[i * s + j] * p[k] + e[i * s + j] * dp[k]


@inline
def _best_labels(scores, m, s, alpha, lam, a, p):
    """Smoothed maxima over labels; for a single one, without a call."""
    if scores.shape[2] == 1:
        for i in range(m):
            for j in range(i, m):
                lam[i * s + j] = scores[i, j, 0]
        return
    for i in range(m):
        for j in range(i, m):
            a[:] = scores[i, j]
            lam[i * s + j] = _smooth(a, a.size, alpha, p)


@inline
def _label_weights(scores, m, s, alpha, lam, a, p, weights):
    """The same, and their weights."""
    if scores.shape[2] == 1:
        for i in range(m):
            for j in range(i, m):
                lam[i * s + j] = scores[i, j, 0]
                weights[i, j, 0] = 1
        return
    for i in range(m):
        for j in range(i, m):
            a[:] = scores[i, j]
            lam[i * s + j] = _smooth(a, a.size, alpha, p)
            weights[i, j] = p


@inline
def _mean(p, d):
    total = 0.0
    for k in range(p.size):
        # a label without weight may have an infinite tangent
        if p[k] != 0:
            total += p[k] * d[k]
    return total
