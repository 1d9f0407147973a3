"""Contexts of blocks of queries, for Numba: scores, weights, and the values that have weight.

A row with weight on few of its keys adds up their values. Rows with weight on many keys use a matrix product.
"""

import numpy as np

from polymax.backend.numba_math import kernel, row_sum
from polymax.kernels.sparse_attention.cpu_dropout import kept, row_state
from polymax.kernels.sparse_attention.cpu_scores import HEIGHT, TILE, block_scores, row_weights
from polymax.kernels.sparse_attention.numba_vectors import ROWS, add_scaled, inner, product
from polymax.kernels.threshold.numba_support import BLOCK, response_weights

# the share of entries with weight from which on a matrix product is faster
FULL = 0.25


@kernel
def contexts(start, stop, q, panels, v, results, places, masks, alphas, sinks, scale, cap, finite, drop):
    """Write contexts, means, thresholds and sizes of supports of blocks start .. stop, counted over all heads."""
    out, mean, tau, support = results
    first = places[2]
    heads, groups = alphas.size, q.shape[0] // max(v.shape[0], 1)
    blocks, lanes = first.size, panels.shape[3]
    a, x, tops, bad = block_memory(q, places, lanes)
    s = np.empty(x.shape, x.dtype)
    z, power, slope, index = row_memory(x)
    full = np.zeros(HEIGHT, np.bool_)
    for item in range(start, stop):
        of, block = item // blocks, item % blocks
        h, head = of % heads, of // groups
        take_rows(a, q[of], block, scale)
        at_mask = of // heads * masks[2][0] + h * masks[2][1]
        width = block_scores(x, tops, bad, a, panels, head, block, places, masks, at_mask, cap)
        begin = first[block] // lanes * lanes
        any_full = False
        for i in range(HEIGHT):
            full[i] = False
        for i in range(min(HEIGHT, q.shape[1] - block * HEIGHT)):
            row = block * HEIGHT + i
            count, of_sink, peak, depth = row_weights(
                x[i, :width], tops[i], bad[i], lanes, begin, sinks[h], alphas[h], z, power, index
            )
            tau[0, of, row], tau[1, of, row] = peak, depth
            support[of, row] = max(count, 0) + (of_sink > 0)
            fill = np.nan if count < 0 else 0.0
            for c in range(v.shape[2]):
                out[of, row, c] = fill
                mean[of, row, c] = fill
            full[i] = count > FULL * width and finite
            if count > 0:
                # the sink has weight, but no value
                power[count] = of_sink
                response_weights(power[: count + 1], alphas[h], slope)
                total = row_sum(slope[: count + 1])
                for j in range(count):
                    slope[j] /= total
                if drop[1] > 0:
                    state = row_state(drop[0], of * q.shape[1] + row)
                    for j in range(count):
                        factor = kept(state, index[j], drop)
                        power[j] *= factor
                        slope[j] *= factor
                if full[i]:
                    any_full = True
                    _spread(x[i, :width], power, index, begin, count)
                    _spread(s[i, :width], slope, index, begin, count)
                else:
                    at = (of * q.shape[1] + row) * out.shape[2]
                    for j in range(count):
                        at_v = (head * v.shape[1] + index[j]) * v.shape[2]
                        add_scaled(out, at, power[j], v, at_v, v.shape[2])
                        add_scaled(mean, at, slope[j], v, at_v, v.shape[2])
        if any_full:
            _sum_full(out, x, v, of, head, block, full, begin, width)
            _sum_full(mean, s, v, of, head, block, full, begin, width)


@inner
def _spread(row, weights, index, begin, count):
    for j in range(row.size):
        row[j] = 0
    for j in range(count):
        row[index[j] - begin] = weights[j]


@inner
def _sum_full(out, weights, v, of, head, block, full, begin, width):
    """Fill the rows of out that `full` names, by matrix products of weights and values."""
    lanes = 64 // out.itemsize
    depth = min(width, v.shape[1] - begin)
    four = np.empty((ROWS, lanes), out.dtype)
    for i in range(0, HEIGHT, ROWS):
        found = 0
        for n in range(ROWS):
            found += full[i + n]
        for c in range(0, out.shape[2] if found > 0 else 0, lanes):
            at_v, step = (head * v.shape[1] + begin) * v.shape[2] + c, weights.shape[1]
            product(weights, i * step, step, 1, v, at_v, v.shape[2], four, 0, lanes, depth, False)
            for n in range(ROWS):
                for j in range(lanes if full[i + n] else 0):
                    out[of, block * HEIGHT + i + n, c + j] = four[n, j]


@inner
def block_memory(q, places, lanes):
    """Return memory for a block: scaled queries, scores, maxima of lanes, and a flag for each row that has a NaN."""
    first, last = places[2], places[3]
    panels = 1
    for block in range(first.size):
        panels = max(panels, (last[block] + lanes - 1) // lanes - first[block] // lanes)
    x = np.empty((HEIGHT, panels * lanes), q.dtype)
    tops = np.empty((HEIGHT, -(-panels // TILE) * lanes), q.dtype)
    return np.zeros((HEIGHT, q.shape[2]), q.dtype), x, tops, np.zeros(HEIGHT, np.bool_)


@inner
def row_memory(x):
    """Return memory for the entries of a row that can have weight: all keys, and the sink after them."""
    n = x.shape[1] + 1 + BLOCK
    return np.empty(n, x.dtype), np.empty(n, x.dtype), np.empty(n, x.dtype), np.empty(n, np.int32)


@inner
def take_rows(a, rows, block, scale):
    """Copy the rows of a block, times scale, to a; the remaining rows of a become 0."""
    factor = a.dtype.type(scale)
    for i in range(HEIGHT):
        row = block * HEIGHT + i
        if row < rows.shape[0]:
            for c in range(a.shape[1]):
                a[i, c] = rows[row, c] * factor
        else:
            for c in range(a.shape[1]):
                a[i, c] = 0
