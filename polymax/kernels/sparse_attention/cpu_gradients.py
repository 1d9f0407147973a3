"""Gradients of sparse attention, for Numba: weights are recomputed, then only keys with weight are visited.

A work item is a part of the blocks of queries of one head of keys. Each part has its own gradients of keys, so that
their sum does not depend on the number of threads. Heads that share entries of a mask are in one item, if the mask
needs a gradient.
"""

import numpy as np

from polymax.backend.numba_math import kernel
from polymax.kernels.sparse_attention.cpu_contexts import FULL, block_memory, row_memory, take_rows
from polymax.kernels.sparse_attention.cpu_dropout import row_state
from polymax.kernels.sparse_attention.cpu_entries import add_entries, add_tile, alpha_slope
from polymax.kernels.sparse_attention.cpu_scores import HEIGHT, TILE, block_scores, row_weights
from polymax.kernels.sparse_attention.numba_vectors import dot, inner
from polymax.kernels.threshold.numba_support import response_weights


@kernel
def gradients(
    start, stop, inputs, panels, results, places, masks, alphas, sinks, scale, cap, learned, finite, items, drop
):
    """Write gradients of queries, keys, values, alpha, sinks and the mask, added up over parts of the blocks."""
    grad, q, mean, k, v = inputs
    dq, dk, dv, dalpha, dsink, dmask = results
    batch_run, head_run, parts = items
    heads, groups = alphas.size, q.shape[0] // max(k.shape[0], 1)
    lanes, runs = panels.shape[3], heads // max(head_run, 1)
    a, x, tops, bad = block_memory(q, places, lanes)
    g, of_rows = np.zeros((HEIGHT, grad.shape[2]), q.dtype), np.empty(a.shape, a.dtype)
    # for each row its keys with weight, their p and their p^(2 - alpha)
    lists = np.empty(x.shape, np.int32), x, np.empty(x.shape, x.dtype)
    counts, seen, until = np.zeros(HEIGHT, np.int64), np.zeros(HEIGHT, np.int64), np.zeros(HEIGHT, np.int64)
    common, slant, states = np.zeros(HEIGHT, q.dtype), np.empty(HEIGHT), np.zeros(HEIGHT, np.uint64)
    scratch = row_memory(x)
    shape = TILE * lanes, HEIGHT
    tile = (
        np.empty(shape, q.dtype),
        np.empty(shape, q.dtype),
        np.empty(shape, q.dtype),
        np.empty((g.shape[1], HEIGHT), q.dtype),
    )
    for item in range(start, stop):
        part, run = item % parts, item // parts
        of_mask = dmask[part % dmask.shape[0]]
        for turn in range(batch_run * head_run):
            b, h = run // runs * batch_run + turn // head_run, run % runs * head_run + turn % head_run
            of, head = b * heads + h, (b * heads + h) // groups
            at_mask = b * masks[2][0] + h * masks[2][1]
            for block in range(part, places[2].size, parts):
                base, begin = block * HEIGHT, places[2][block] // lanes * lanes
                rows = min(HEIGHT, q.shape[1] - base)
                take_rows(a, q[of], block, scale)
                take_rows(g, grad[of], block, 1.0)
                width = block_scores(x, tops, bad, a, panels, head, block, places, masks, at_mask, cap)
                for i in range(rows):
                    row = base + i
                    sees = places[0][row], places[1][row]
                    common[i] = dot(g, i * g.shape[1], mean, (of * q.shape[1] + row) * g.shape[1], g.shape[1])
                    counts[i], p = _list_row(
                        i, lists, width, tops[i], bad[i], lanes, begin, sinks[h], alphas[h], sees, scratch
                    )
                    # the sink is a key whose value is 0
                    s = np.float64(p) ** (2 - alphas[h])
                    d = -s * common[i] if p != 0 else 0.0
                    dsink[of, row] = d
                    slant[i] = d * alpha_slope(p, alphas[h]) if p != 0 else 0.0
                    for c in range(a.shape[1]):
                        of_rows[i, c] = 0 if p == p else np.nan
                    seen[i] = 0
                    states[i] = row_state(drop[0], of * q.shape[1] + row)
                strides = at_mask + base * masks[2][2], masks[2][2], masks[2][3]
                of_keys = part * dk.shape[1] + head
                settings = alphas[h], cap, learned, states, drop
                for at in range(begin, begin + width, TILE * lanes):
                    keys = at, min(TILE * lanes, begin + width - at), head, of_keys
                    entries = 0
                    for i in range(rows):
                        until[i] = seen[i]
                        while until[i] < counts[i] and lists[0][i, until[i]] < at + TILE * lanes:
                            until[i] += 1
                        entries += until[i] - seen[i]
                    bounds = rows, seen, until
                    to = of_rows, dk, dv, slant, of_mask
                    if finite and entries > FULL * rows * keys[1]:
                        add_tile(lists, bounds, keys, a, g, common, k, v, to, strides, settings, tile)
                    elif entries > 0:
                        add_entries(lists, bounds, keys, a, g, common, k, v, to, strides, settings)
                    for i in range(rows):
                        seen[i] = until[i]
                for i in range(rows):
                    dalpha[of, base + i] = -slant[i] if learned else 0
                    for c in range(dq.shape[2]):
                        dq[of, base + i, c] = of_rows[i, c] * q.dtype.type(scale)


@inner
def _list_row(i, lists, width, tops, bad, lanes, begin, sink, alpha, sees, scratch):
    """Write the keys of row i that have weight to the lists; return how many there are, and the weight of the sink.

    A row with NaN gets the weight NaN for all keys that it sees.
    """
    index, powers, slopes = lists
    z, power, slope, keys = scratch
    count, of_sink, _, _ = row_weights(powers[i, :width], tops, bad, lanes, begin, sink, alpha, z, power, keys)
    if count < 0:
        count = max(sees[1] - sees[0], 0)
        for j in range(count):
            keys[j] = sees[0] + j
            power[j] = np.nan
    response_weights(power[:count], alpha, slope)
    for j in range(count):
        index[i, j] = keys[j]
        powers[i, j] = power[j]
        slopes[i, j] = slope[j]
    return count, of_sink
