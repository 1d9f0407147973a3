"""The recursion for LANES instances side by side, for Numba: the value of a node is one vector, in float64.

The last row of a block stands for absent tails and parts: the index -1 in `tails` and `part` reads zeros there and
writes values that are never read. The weights of a node are normalised by their sum, so that expectations keep their
mass through any number of levels.
"""

import numpy as np

from polymax.backend.numba_math import inline, kernel
from polymax.kernels.local_max.numba_lanes import LANES, fill, load, select, some, store
from polymax.kernels.local_max.numba_max import (
    inverse,
    searched,
    slope_mean,
    smooth,
    threshold,
    value,
    weigh,
    weight_change,
)


@kernel
def inside(first, tails, part, scores, values, taus, last, omega):
    """Write values of nodes 0 .. last; for Gini and Tsallis also their thresholds, relative to the largest argument."""
    a = _room(first)
    for h in range(last + 1, len(values)):
        store(values, h, 0.0)
    for h in range(last + 1):
        count = first[h + 1] - first[h]
        top = _arguments(first, tails, part, scores, values, h, a)
        found = top if count > 0 else fill(a, 0.0)
        if count > 1:
            tau = threshold(a, count, top, omega)
            if searched(omega):
                store(taus, h, tau)
            found = value(a, count, top, tau, omega)
        store(values, h, found)


@kernel
def outside(first, tails, part, scores, values, taus, expected, mu, last, omega):
    """Write the expectations of all nodes, given those of the roots, and of the parts, summed over their edges."""
    a = _room(first)
    mu[:] = 0.0
    for h in range(last, -1, -1):
        count = first[h + 1] - first[h]
        mass = load(expected, h)
        if count == 0 or not some(mass != 0.0):
            continue
        top = _arguments(first, tails, part, scores, values, h, a)
        scale = mass * inverse(weigh(a, count, top, load(taus, h), a, omega))
        for e in range(first[h], first[h + 1]):
            # nodes that the root does not reach may have NaN weights
            q = select(mass != 0.0, load(a, e - first[h]) * scale, 0.0)
            _increase(mu, part[e], q)
            _increase(expected, tails[e, 0], q)
            _increase(expected, tails[e, 1], q)


@kernel
def tangent(first, tails, part, scores, values, taus, d, slopes, expected, change, out, last, omega):
    """Write derivatives along d of the values to `slopes`, and of the results of `outside` to `out`."""
    a, da = _room(first), _room(first)
    out[:] = 0.0
    for h in range(last + 1):
        count = first[h + 1] - first[h]
        top = _arguments(first, tails, part, scores, values, h, a)
        scale = inverse(weigh(a, count, top, load(taus, h), a, omega))
        total = fill(a, 0.0)
        for e in range(first[h], first[h + 1]):
            p = load(a, e - first[h]) * scale
            total += select(p != 0.0, p * _sum(tails, part, d, slopes, e), 0.0)
        store(slopes, h, total)
    for h in range(last if smooth(omega) else -1, -1, -1):
        count = first[h + 1] - first[h]
        mass, dmass = load(expected, h), load(change, h)
        if count == 0 or not some(mass != 0.0):
            continue
        top = _arguments(first, tails, part, scores, values, h, a)
        scale = inverse(weigh(a, count, top, load(taus, h), a, omega))
        for e in range(first[h], first[h + 1]):
            store(da, e - first[h], _sum(tails, part, d, slopes, e))
        mean = slope_mean(a, scale, da, count, omega)
        for e in range(first[h], first[h + 1]):
            p = load(a, e - first[h]) * scale
            dp = weight_change(p, load(da, e - first[h]), mean, omega)
            q = select(mass != 0.0, p * mass, 0.0)
            dq = select(mass != 0.0, dp * mass + p * dmass, 0.0)
            _increase(out, part[e], dq)
            for side in range(2):
                _increase(expected, tails[e, side], q)
                _increase(change, tails[e, side], dq)


@kernel
def weights(first, tails, part, scores, values, taus, reached, p, last, omega):
    """Write weights of the edges of nodes that are reached from those marked in `reached`; 0 elsewhere."""
    a = _room(first)
    for e in range(first[last + 1], len(p)):
        store(p, e, 0.0)
    for h in range(last, -1, -1):
        count = first[h + 1] - first[h]
        here = load(reached, h) != 0.0
        top = _arguments(first, tails, part, scores, values, h, a)
        scale = inverse(weigh(a, count, top, load(taus, h), a, omega))
        for e in range(first[h], first[h + 1]):
            x = select(here, load(a, e - first[h]) * scale, 0.0)
            store(p, e, x)
            for side in range(2):
                store(reached, tails[e, side], select(x != 0.0, 1.0, load(reached, tails[e, side])))


@inline
def _room(first):
    """Return workspace for the edges of any node."""
    widest = 1
    for h in range(len(first) - 1):
        widest = max(widest, first[h + 1] - first[h])
    return np.empty((widest, LANES))


@inline
def _increase(array, row, x):
    store(array, row, load(array, row) + x)


@inline
def _sum(tails, part, scores, values, e):
    score = load(scores, part[e])
    # a forbidden edge stays forbidden whatever the values of its tails
    return select(score == -np.inf, score, score + load(values, tails[e, 0]) + load(values, tails[e, 1]))


@inline
def _arguments(first, tails, part, scores, values, h, a):
    """Write the arguments of node h to a; return their maximum, NaN if one is NaN."""
    top = fill(a, -np.inf)
    for e in range(first[h], first[h + 1]):
        x = _sum(tails, part, scores, values, e)
        store(a, e - first[h], x)
        top = select((x > top) | (x != x), x, top)
    return top
