"""Contexts of blocks of queries, for Numba: scores, weights, and the values that have weight."""

import numpy as np

from polymax.kernels.numba_math import inline, kernel, row_sum
from polymax.kernels.sparse_attention.cpu_scores import HEIGHT, TILE, block_scores, row_weights
from polymax.kernels.threshold.numba_support import BLOCK, response_weights


@kernel
def contexts(start, stop, q, panels, v, results, places, masks, alphas, sinks, scale, cap):
    """Contexts, means, thresholds and sizes of supports of blocks, counted over all heads."""
    out, mean, tau, support = results
    low, first = places[0], places[2]
    heads, groups = alphas.size, q.shape[0] // v.shape[0]
    blocks, lanes = first.size, panels.shape[3]
    a, x, tops, bad = block_memory(q, places, lanes)
    z, power, slopes, index = row_memory(x)
    for item in range(start, stop):
        of, block = item // blocks, item % blocks
        h, head = of % heads, of // groups
        take_rows(a, q[of], block, scale)
        at_mask = of // heads * masks[2][0] + h * masks[2][1]
        width = block_scores(x, tops, bad, a, panels, head, block, places, masks, at_mask, cap)
        begin = first[block] // lanes * lanes
        for i in range(min(HEIGHT, low.size - block * HEIGHT)):
            row = block * HEIGHT + i
            count, of_sink, threshold = row_weights(
                x[i, :width], tops[i], bad[i], lanes, begin, sinks[h], alphas[h], z, power, index
            )
            tau[of, row] = threshold
            support[of, row] = max(count, 0) + (of_sink > 0)
            fill = np.nan if count < 0 else 0.0
            out[of, row] = fill
            mean[of, row] = fill
            if count > 0:
                # the sink has weight, but no value
                power[count] = of_sink
                response_weights(power[: count + 1], alphas[h], slopes)
                _sum_values(out[of, row], mean[of, row], v[head], power, slopes, index, count)


@inline
def _sum_values(out, mean, v, power, slopes, index, count):
    total = row_sum(slopes[: count + 1])
    for j in range(count):
        p, s, key = power[j], slopes[j], index[j]
        for c in range(out.size):
            out[c] += p * v[key, c]
            mean[c] += s * v[key, c]
    for c in range(out.size):
        mean[c] /= total


@inline
def block_memory(q, places, lanes):
    """Memory for a block: scaled queries, scores, maxima of lanes, and which rows have a NaN."""
    first, last = places[2], places[3]
    panels = 1
    for block in range(first.size):
        panels = max(panels, (last[block] + lanes - 1) // lanes - first[block] // lanes)
    x = np.empty((HEIGHT, panels * lanes), q.dtype)
    tops = np.empty((HEIGHT, -(-panels // TILE) * lanes), q.dtype)
    return np.zeros((HEIGHT, q.shape[2]), q.dtype), x, tops, np.zeros(HEIGHT, np.bool_)


@inline
def row_memory(x):
    """Memory for the entries of a row that can have weight: a key after all others is the sink."""
    n = x.shape[1] + 1 + BLOCK
    return np.empty(n, x.dtype), np.empty(n, x.dtype), np.empty(n, x.dtype), np.empty(n, np.int32)


@inline
def take_rows(a, rows, block, scale):
    """Copy the rows of a block, times scale, to a; what is left of a are zeros."""
    factor = a.dtype.type(scale)
    for i in range(HEIGHT):
        row = block * HEIGHT + i
        if row < rows.shape[0]:
            for c in range(a.shape[1]):
                a[i, c] = rows[row, c] * factor
        else:
            a[i] = 0
