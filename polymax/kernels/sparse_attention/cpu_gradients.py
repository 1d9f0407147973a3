"""Gradients of sparse attention, for Numba: the weights again, and from there on only keys that have one.

A work item is a part of the blocks of queries of one head of keys. Parts have gradients of keys of their own, so that
their sum does not depend on the number of threads. Heads that share entries of a mask are in one item, if the mask gets a
gradient.
"""

import math

import numpy as np

from polymax.kernels.numba_math import inline, kernel, row_dot
from polymax.kernels.sparse_attention.cpu_contexts import block_memory, row_memory, take_rows
from polymax.kernels.sparse_attention.cpu_scores import HEIGHT, TILE, block_scores, row_weights
from polymax.kernels.threshold.numba_support import response_weights


@kernel
def gradients(start, stop, inputs, panels, results, places, masks, alphas, sinks, scale, cap, learned, items):
    """Gradients of queries, keys, values, alpha, sinks and the mask, added up over parts of the blocks."""
    grad, q, k, v, mean = inputs
    dq, dk, dv, dalpha, dsink, dmask = results
    batch_run, head_run, parts = items
    heads, groups = alphas.size, q.shape[0] // k.shape[0]
    lanes, runs = panels.shape[3], heads // head_run
    a, x, tops, bad = block_memory(q, places, lanes)
    g = np.zeros((HEIGHT, grad.shape[2]), q.dtype)
    # for each row its keys, their p and p^(2 - alpha), and how many there are
    lists = np.empty(x.shape, np.int32), x, np.empty_like(x), np.zeros(HEIGHT, np.int64)
    scratch = row_memory(x)
    common, slant = np.empty(HEIGHT, q.dtype), np.empty(HEIGHT)
    for item in range(start, stop):
        part, run = item % parts, item // parts
        for inner in range(batch_run * head_run):
            b, h = run // runs * batch_run + inner // head_run, run % runs * head_run + inner % head_run
            of, head = b * heads + h, (b * heads + h) // groups
            at_mask = b * masks[2][0] + h * masks[2][1]
            for block in range(part, places[2].size, parts):
                base, begin = block * HEIGHT, places[2][block] // lanes * lanes
                rows = min(HEIGHT, q.shape[1] - base)
                take_rows(a, q[of], block, scale)
                take_rows(g, grad[of], block, 1.0)
                width = block_scores(x, tops, bad, a, panels, head, block, places, masks, at_mask, cap)
                for i in range(rows):
                    sees = places[0][base + i], places[1][base + i]
                    common[i] = row_dot(g[i], mean[of, base + i])
                    of_sink = _list_row(i, lists, width, tops[i], bad[i], lanes, begin, sinks[h], alphas[h], sees, scratch)
                    d, slant[i] = _sink_gradient(of_sink, common[i], alphas[h])
                    dsink[of, base + i] = d
                    dq[of, base + i] = 0 if of_sink == of_sink else np.nan
                to_mask = dmask[part % dmask.shape[0]], at_mask + base * masks[2][2], masks[2]
                to_rows = dq[of, base : base + rows], slant
                to_keys = dk[part, head], dv[part, head]
                keys = begin, width, TILE * lanes
                of_entries = alphas[h], scale, cap, learned
                _add_entries(lists, keys, a, g, common, k[head], v[head], to_rows, to_keys, to_mask, of_entries)
                for i in range(rows):
                    dalpha[of, base + i] = -slant[i] if learned else 0


@inline
def _list_row(i, lists, width, tops, bad, lanes, begin, sink, alpha, sees, scratch):
    """Write the keys of row i that have weight to the lists; the weight of the sink. NaN has all keys it sees."""
    index, powers, slopes, counts = lists
    z, power, slope, keys = scratch
    count, of_sink, _ = row_weights(powers[i, :width], tops, bad, lanes, begin, sink, alpha, z, power, keys)
    if count < 0:
        count = max(sees[1] - sees[0], 0)
        for j in range(count):
            keys[j] = sees[0] + j
            power[j] = np.nan
    counts[i] = count
    response_weights(power[:count], alpha, slope)
    index[i, :count] = keys[:count]
    powers[i, :count] = power[:count]
    slopes[i, :count] = slope[:count]
    return of_sink


@inline
def _sink_gradient(p, common, alpha):
    """The gradient of the score of the sink, and its term of the gradient of -alpha."""
    if p == 0:
        return 0.0, 0.0
    d = -(np.float64(p) ** (2 - alpha)) * common
    return d, d * _alpha_slope(np.float64(p), alpha)


@inline
def _alpha_slope(p, alpha):
    """The derivative of p^(alpha - 1) / (alpha - 1) in alpha."""
    return p ** (alpha - 1) * (math.log(p) - 1 / (alpha - 1)) / (alpha - 1)


@inline
def _add_entries(lists, keys, a, g, common, k, v, to_rows, to_keys, to_mask, options):
    """Add what the entries of a block give to all gradients, tile by tile, so that keys stay in the cache."""
    index, powers, slopes, counts = lists
    begin, width, step = keys
    alpha, scale, cap, learned = options
    dq, slant = to_rows
    dk, dv = to_keys
    dmask, at_mask, strides = to_mask
    real = a.dtype.type
    seen = np.zeros(dq.shape[0], np.int64)
    for stop in range(begin + step, begin + width + step, step):
        for i in range(dq.shape[0]):
            j = seen[i]
            while j < counts[i] and index[i, j] < stop:
                key, p = index[i, j], powers[i, j]
                d = slopes[i, j] * (row_dot(g[i], v[key]) - common[i])
                if learned:
                    slant[i] += np.float64(d) * _alpha_slope(np.float64(p), alpha)
                if dmask.size > 0:
                    dmask[at_mask + i * strides[2] + key * strides[3]] += d
                if cap > 0:
                    bent = math.tanh(row_dot(a[i], k[key]) / cap)
                    d *= real(1 - bent * bent)
                e = d * real(scale)
                for c in range(a.shape[1]):
                    dq[i, c] += e * k[key, c]
                    dk[key, c] += d * a[i, c]
                for c in range(g.shape[1]):
                    dv[key, c] += p * g[i, c]
                j += 1
            seen[i] = j
