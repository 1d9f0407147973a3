"""Contributions of a tile's entries to the gradients, for Numba: entry by entry, or as matrix products.

Lists hold the key, p and s = p^(2 - alpha) of each entry of a block's rows; those of row i in the tile are seen[i] ..
until[i].

    dx = s (grad . v - common)        dq += dx k        dk += dx q        dv += p grad

in which grad . v and p of a dropped weight are 0, and those of a kept weight are divided by the probability to be kept.
"""

import math

import numpy as np

from polymax.kernels.sparse_attention.cpu_dropout import kept
from polymax.kernels.sparse_attention.cpu_scores import HEIGHT
from polymax.kernels.sparse_attention.numba_vectors import ROWS, add_scaled, dot, inner, product
from polymax.kernels.tsallis_slope.cpu import SERIES


@inner
def alpha_slope(p, alpha):
    """Return the derivative of p^a / a in a = alpha - 1, plus 1 / a^2: its factors sum to 0, so that the constant
    cancels.

    It is log(p)^2 f(a log p) with f(t) = (exp(t) (t - 1) + 1) / t^2.
    """
    log = math.log(np.float64(p))
    t = (alpha - 1) * log
    if not -0.5 < t < 0.5:
        return (math.exp(t) * (t - 1) + 1) / ((alpha - 1) * (alpha - 1))
    # near 0 the formula cancels
    series = 0.0
    for k in range(SERIES.size):
        series = series * t + SERIES[k]
    return log * log * series


@inner
def _cap_slope(a, i, k, at_k, cap):
    """Return the derivative of cap tanh(x / cap) at the score of query i and a key."""
    bent = math.tanh(dot(a, i * a.shape[1], k, at_k, a.shape[1]) / cap)
    return a.dtype.type(1 - bent * bent)


@inner
def add_entries(lists, bounds, keys, a, g, common, k, v, to, strides, settings):
    """Add the contributions of a tile's entries, one by one."""
    index, powers, slopes = lists
    rows, seen, until = bounds
    _, _, head, of_keys = keys
    alpha, cap, learned, states, drop = settings
    dq, dk, dv, slant, dmask = to
    depth, size = a.shape[1], g.shape[1]
    for i in range(rows):
        for j in range(seen[i], until[i]):
            key, p, s = index[i, j], powers[i, j], slopes[i, j]
            at_k, at_v = (head * k.shape[1] + key) * depth, (head * k.shape[1] + key) * size
            to_k, to_v = (of_keys * k.shape[1] + key) * depth, (of_keys * k.shape[1] + key) * size
            factor = a.dtype.type(kept(states[i], key, drop) if drop[1] > 0 else 1.0)
            d = s * (factor * dot(g, i * size, v, at_v, size) - common[i])
            if learned:
                slant[i] += d * alpha_slope(p, alpha)
            if dmask.size > 0:
                dmask[strides[0] + i * strides[1] + key * strides[2]] += d
            if cap > 0:
                d *= _cap_slope(a, i, k, at_k, cap)
            add_scaled(dq, i * depth, d, k, at_k, depth)
            add_scaled(dk, to_k, d, a, i * depth, depth)
            add_scaled(dv, to_v, factor * p, g, i * size, size)


@inner
def add_tile(lists, bounds, keys, a, g, common, k, v, to, strides, settings, memory):
    """Add the contributions of a tile most of whose entries have weight, by matrix products; the tile is (keys,
    queries).
    """
    index, powers, slopes = lists
    rows, seen, until = bounds
    begin, count, head, of_keys = keys
    alpha, cap, learned, states, drop = settings
    dq, dk, dv, slant, dmask = to
    depth, size = a.shape[1], g.shape[1]
    p, s, d, turned = memory
    lanes = 64 // a.itemsize
    for n in range(count):
        for i in range(HEIGHT):
            p[n, i] = 0
            s[n, i] = 0
    for i in range(rows):
        for j in range(seen[i], until[i]):
            p[index[i, j] - begin, i] = powers[i, j]
            s[index[i, j] - begin, i] = slopes[i, j]
    for i in range(HEIGHT):
        for c in range(size):
            turned[c, i] = g[i, c]
    at_k, at_v = (head * k.shape[1] + begin) * depth, (head * k.shape[1] + begin) * size
    to_k, to_v = (of_keys * k.shape[1] + begin) * depth, (of_keys * k.shape[1] + begin) * size
    for n in range(0, count, ROWS):
        for i in range(0, HEIGHT, lanes):
            product(v, at_v + n * size, size, 1, turned, i, HEIGHT, d, n * HEIGHT + i, HEIGHT, size, False)
    if drop[1] > 0:
        for i in range(rows):
            for j in range(seen[i], until[i]):
                factor = kept(states[i], index[i, j], drop)
                d[index[i, j] - begin, i] *= factor
                p[index[i, j] - begin, i] *= factor
    for n in range(count):
        for i in range(HEIGHT):
            d[n, i] = s[n, i] * (d[n, i] - common[i]) if s[n, i] != 0 else 0
    if learned or dmask.size > 0 or cap > 0:
        for i in range(rows):
            for j in range(seen[i], until[i]):
                key = index[i, j]
                e = d[key - begin, i]
                if learned:
                    slant[i] += e * alpha_slope(powers[i, j], alpha)
                if dmask.size > 0:
                    dmask[strides[0] + i * strides[1] + key * strides[2]] += e
                if cap > 0:
                    d[key - begin, i] = e * _cap_slope(a, i, k, at_k + (key - begin) * depth, cap)
    for c in range(0, depth, lanes):
        for i in range(0, HEIGHT, ROWS):
            product(d, i, 1, HEIGHT, k, at_k + c, depth, dq, i * depth + c, depth, count, True)
        for n in range(0, count, ROWS):
            product(d, n * HEIGHT, HEIGHT, 1, a, c, depth, dk, to_k + n * depth + c, depth, HEIGHT, True)
    for c in range(0, size, lanes):
        for n in range(0, count, ROWS):
            product(p, n * HEIGHT, HEIGHT, 1, g, c, size, dv, to_v + n * size + c, size, HEIGHT, True)
