"""Trees that score pairs of arcs, for Numba: sentence by sentence, with values in float64.

A chart is flat cubes: R and L, symmetric, I, [head, modifier], and S, symmetric, each a square for every g. The choices
of all maxima then lie along rows. In the backward pass the gradient that a span (i, j) receives as a left child is
accumulated at [i, j], as a right child at [j, i]. Spans without a gradient are skipped, so the hard maximum visits only
its best tree.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import array
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_math import inline, kernel
from polymax.kernels.head_automaton import GRANDPARENTS, SIBLINGS, chart_like
from polymax.kernels.head_automaton.tangent import head_automaton_tangent
from polymax.kernels.local_max.numba_max import max_and_weights, smoothing
from polymax.kernels.span_tree.cpu_smooth import best, push, shares

__all__ = ["head_automaton_inside", "head_automaton_outside", "head_automaton_tangent"]


def head_automaton_inside(
    arcs: Tensor, pairs: Tensor, lengths: Tensor, single_root: bool, order: int, alpha: float
) -> tuple[Tensor, Tensor]:
    value, chart = arcs.new_empty(arcs.shape[:1]), chart_like(arcs, pairs, lengths, single_root, order)
    scores = array(arcs.double()), *_pairs(pairs, order)
    args = *scores, array(lengths), _flat(chart), array(value), int(single_root), order
    _run(_inside, arcs, order, *args, smoothing(alpha))
    return value, chart


def head_automaton_outside(
    arcs: Tensor, pairs: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, single_root: bool, order: int, alpha: float
) -> tuple[Tensor, Tensor]:
    mu_arcs = torch.zeros(arcs.shape, dtype=torch.float64, device="cpu")
    mu_pairs = torch.zeros(pairs.shape, dtype=torch.float64, device="cpu")
    scores = array(arcs.double()), *_pairs(pairs, order)
    outputs = array(mu_arcs), array(mu_pairs)
    args = *scores, array(lengths), _flat(chart), array(g.double()), *outputs, int(single_root), order
    _run(_outside, arcs, order, *args, smoothing(alpha))
    if order & SIBLINGS:
        # [head, modifier, sibling] in the kernel
        mu_pairs[:, 0] = mu_pairs[:, 0].mT.clone()
    return mu_arcs.to(arcs.dtype), mu_pairs.to(arcs.dtype)


def _pairs(pairs: Tensor, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of siblings as [head, modifier, sibling], and scores of grandparents."""
    siblings = pairs[:, 0].mT if order & SIBLINGS else pairs[:, 0]
    return array(siblings.double()), array(pairs[:, -1].double())


def _run(function, arcs, order, *args):
    batch, size = arcs.shape[:2]
    lanes = size if order & GRANDPARENTS else 1
    parallel(function, torch.Size((batch, size * size * lanes)), 4 * size, *args)


def _flat(chart: Tensor) -> np.ndarray:
    return array(chart).reshape(*chart.shape[:2], chart.shape[2:].numel())


@inline
def _has(g, i, j):
    """Return True if g may be the head of the head of a span; the root symbol is its own g."""
    return g == 0 if i == 0 else g < i or g > j


@inline
def _right(siblings, l, p_s, i, j, s, lane, t):
    """Write the terms without g of the choices below an arc from i to j: the sibling i + c, no sibling at c = 0."""
    t[0] = siblings[i, j, i] + l[i * lane + j * s + i + 1]
    for c in range(1, j - i):
        t[c] = siblings[i, j, i + c] + p_s[i * lane + j * s + i + c]


@inline
def _left(siblings, r, p_s, i, j, s, lane, t):
    t[0] = siblings[j, i, j] + r[j * lane + i * s + j - 1]
    for c in range(1, j - i):
        t[c] = siblings[j, i, i + c] + p_s[j * lane + i * s + i + c]


@inline
def _after(v, at, t, count, a, p, omega):
    """Return the smoothed maximum of t[0] and of v[at + c] + t[c]."""
    a[0] = t[0]
    for c in range(1, count):
        a[c] = v[at + c] + t[c]
    return max_and_weights(a, count, p, omega)


@inline
def _roots(arcs, siblings, r, l, m, s, order, a, p, omega):
    for k in range(m):
        a[k] = arcs[0, k + 1] + (l[s + 1 + k] + r[m * s + 1 + k])
        if order & SIBLINGS:
            a[k] += siblings[0, k + 1, 0]
    return max_and_weights(a, m, p, omega)


@kernel
def _inside(start, stop, arcs, siblings, grandparents, lengths, chart, value, first, order, omega):
    s = arcs.shape[1]
    lanes = s if order & GRANDPARENTS else 1
    lane = s * s if order & GRANDPARENTS else 0
    a, p, right, left = np.empty(s), np.empty(s), np.empty(s), np.empty(s)
    for b in range(start, stop):
        m = lengths[b]
        value[b] = 0
        if m == 0:
            continue
        c = chart[b]
        r, l, v, between = c[0], c[1], c[2], c[c.shape[0] - 1]
        for g in range(lanes):
            for i in range(m + 1):
                r[g * lane + i * s + i] = l[g * lane + i * s + i] = 0
        for j in range(first, m + 1):
            for i in range(j - 1, first - 1, -1):
                if order & SIBLINGS:
                    _right(siblings[b], l, between, i, j, s, lane, right)
                    if i > 0:
                        _left(siblings[b], r, between, i, j, s, lane, left)
                for g in range(min(lanes, m + 1)):
                    if lanes > 1 and not _has(g, i, j):
                        continue
                    o = g * lane
                    above, below = o + i * s + i, o + j * s + i
                    if order & SIBLINGS:
                        gap = _after(v, above, right, j - i, a, p, omega)
                    else:
                        gap = best(r, above, l, i * lane + j * s + i + 1, j - i, a, omega)
                    gap += arcs[b, i, j]
                    if lanes > 1 and i > 0:
                        gap += grandparents[b, g, i, j]
                    v[o + i * s + j] = gap
                    found = best(v, above + 1, r, i * lane + j * s + i + 1, j - i, a, omega)
                    r[o + i * s + j] = r[o + j * s + i] = found
                    if i == 0:
                        continue
                    if order & SIBLINGS:
                        gap = _after(v, below, left, j - i, a, p, omega)
                    else:
                        gap = best(r, j * lane + i * s + i, l, below + 1, j - i, a, omega)
                    gap += arcs[b, j, i]
                    if lanes > 1:
                        gap += grandparents[b, g, j, i]
                    v[o + j * s + i] = gap
                    found = best(l, j * lane + i * s + i, v, below, j - i, a, omega)
                    l[o + i * s + j] = l[o + j * s + i] = found
                    if order & SIBLINGS:
                        found = best(r, above, l, below + 1, j - i, a, omega)
                        between[o + i * s + j] = between[o + j * s + i] = found
        value[b] = r[m] if first == 0 else _roots(arcs[b], siblings[b], r, l, m, s, order, a, p, omega)


@inline
def _hand(o_v, at, total, count, here, p):
    """Add the gradients of the choices c > 0 to v[at + c], and to the sums over all g."""
    total[0] += p[0] * here
    for c in range(1, count):
        o_v[at + c] += p[c] * here
        total[c] += p[c] * here


@kernel
def _outside(
    start, stop, arcs, siblings, grandparents, lengths, chart, g_value, mu_arcs, mu_pairs, first, order, omega
):
    s = arcs.shape[1]
    lanes = s if order & GRANDPARENTS else 1
    lane = s * s if order & GRANDPARENTS else 0
    a, p, right, left = np.empty(s), np.empty(s), np.empty(s), np.empty(s)
    sum_right, sum_left = np.empty(s), np.empty(s)
    heard = np.empty(chart.shape[1:])
    for b in range(start, stop):
        m = lengths[b]
        if m == 0:
            continue
        c = chart[b]
        r, l, v, between = c[0], c[1], c[2], c[c.shape[0] - 1]
        heard[:] = 0
        to_r, to_l, to_v, to_s = heard[0], heard[1], heard[2], heard[heard.shape[0] - 1]
        taken, mu = mu_pairs[b, 0], mu_arcs[b]
        if first == 0:
            to_r[m] = g_value[b] if r[m] != -np.inf else 0.0
        else:
            _roots(arcs[b], siblings[b], r, l, m, s, order, a, p, omega)
            push(to_l, s + 1, to_r, m * s + 1, m, g_value[b], p)
            for k in range(m):
                mu[0, k + 1] = p[k] * g_value[b]
                if order & SIBLINGS:
                    taken[0, k + 1, 0] = p[k] * g_value[b]
        for j in range(m, first - 1, -1):
            for i in range(first, j):
                if order & SIBLINGS:
                    _right(siblings[b], l, between, i, j, s, lane, right)
                    if i > 0:
                        _left(siblings[b], r, between, i, j, s, lane, left)
                    sum_right[: j - i] = 0
                    sum_left[: j - i] = 0
                for g in range(min(lanes, m + 1)):
                    if lanes > 1 and not _has(g, i, j):
                        continue
                    o = g * lane
                    above, below = o + i * s + i, o + j * s + i
                    if i > 0 and order & SIBLINGS:
                        here = to_s[o + i * s + j] + to_s[o + j * s + i]
                        if here != 0:
                            shares(r, above, l, below + 1, j - i, a, p, omega)
                            push(to_r, above, to_l, below + 1, j - i, here, p)
                    here = to_r[o + i * s + j] + to_r[o + j * s + i]
                    if here != 0:
                        shares(v, above + 1, r, i * lane + j * s + i + 1, j - i, a, p, omega)
                        push(to_v, above + 1, to_r, i * lane + j * s + i + 1, j - i, here, p)
                    here = to_v[o + i * s + j]
                    mu[i, j] += here
                    if lanes > 1 and i > 0:
                        mu_pairs[b, mu_pairs.shape[1] - 1, g, i, j] = here
                    if here != 0:
                        if order & SIBLINGS:
                            _after(v, above, right, j - i, a, p, omega)
                            _hand(to_v, above, sum_right, j - i, here, p)
                        else:
                            shares(r, above, l, i * lane + j * s + i + 1, j - i, a, p, omega)
                            push(to_r, above, to_l, i * lane + j * s + i + 1, j - i, here, p)
                    if i == 0:
                        continue
                    here = to_l[o + i * s + j] + to_l[o + j * s + i]
                    if here != 0:
                        shares(l, j * lane + i * s + i, v, below, j - i, a, p, omega)
                        push(to_l, j * lane + i * s + i, to_v, below, j - i, here, p)
                    here = to_v[o + j * s + i]
                    mu[j, i] += here
                    if lanes > 1:
                        mu_pairs[b, mu_pairs.shape[1] - 1, g, j, i] = here
                    if here != 0:
                        if order & SIBLINGS:
                            _after(v, below, left, j - i, a, p, omega)
                            _hand(to_v, below, sum_left, j - i, here, p)
                        else:
                            shares(r, j * lane + i * s + i, l, below + 1, j - i, a, p, omega)
                            push(to_r, j * lane + i * s + i, to_l, below + 1, j - i, here, p)
                if order & SIBLINGS:
                    to_l[i * lane + j * s + i + 1] += sum_right[0]
                    taken[i, j, i] += sum_right[0]
                    for k in range(1, j - i):
                        taken[i, j, i + k] += sum_right[k]
                        to_s[i * lane + j * s + i + k] += sum_right[k]
                    if i > 0:
                        to_r[j * lane + i * s + j - 1] += sum_left[0]
                        taken[j, i, j] += sum_left[0]
                        for k in range(1, j - i):
                            taken[j, i, i + k] += sum_left[k]
                            to_s[j * lane + i * s + i + k] += sum_left[k]
