"""Scores of a block of queries, and the few of them that can have weight, for Numba.

Keys come in panels, as many keys as a vector has lanes, and panels in tiles of TILE. The maximum over a tile is kept
for each lane. These maxima are a subset of the row, so that their threshold is a lower bound of the threshold of the
row; lanes whose maximum does not exceed it are skipped.
"""

import math

import numpy as np

from polymax.backend.numba_math import exp2, row_max, row_sum
from polymax.kernels.sparse_attention.numba_vectors import ROWS, inner, lane_maxima, product
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold.numba_general import set_powers, sums
from polymax.kernels.threshold.numba_support import pad, support_powers

# queries of a block, a multiple of ROWS and of the lanes of a vector
HEIGHT = 64
# panels of a tile
TILE = 16


@inner
def block_scores(x, tops, bad, q, panels, head, block, places, masks, at_mask, cap):
    """Fill x (HEIGHT, width) with the scores of the scaled queries q of a block, and tops with the maxima of lanes.

    The columns of x are the keys from the first panel that the block sees on. Returns the number of columns filled.
    """
    low, high, first, last = places
    depth, lanes = panels.shape[2], panels.shape[3]
    start, stop = first[block] // lanes, (last[block] + lanes - 1) // lanes
    width = max(stop - start, 0) * lanes
    for p in range(start, stop):
        at = (head * panels.shape[1] + p) * depth * lanes
        for i in range(0, HEIGHT, ROWS):
            at_x, step = i * x.shape[1] + (p - start) * lanes, q.shape[1]
            product(q, i * step, step, 1, panels, at, lanes, x, at_x, x.shape[1], depth, False)
    for i in range(min(HEIGHT, low.size - block * HEIGHT)):
        row, base = block * HEIGHT + i, start * lanes
        begin = min(max(low[row] - base, 0), width)
        end = max(min(high[row] - base, width), begin)
        if cap > 0:
            _bend(x[i, begin:end], x.dtype.type(cap))
        _mask(x[i, begin:end], masks, at_mask + row * masks[2][2] + (base + begin) * masks[2][3])
        for j in range(begin):
            x[i, j] = -np.inf
        for j in range(end, width):
            x[i, j] = -np.inf
        bad[i] = False
        for t in range(0, stop - start, TILE):
            count = min(TILE, stop - start - t)
            at = i * x.shape[1] + t * lanes
            bad[i] |= lane_maxima(x, at, count, tops, i * tops.shape[1] + t // TILE * lanes)
    return width


@inner
def _mask(x, masks, at):
    keep, bias, strides = masks
    step = strides[3]
    if keep.size > 0:
        for j in range(x.size):
            x[j] = x[j] if keep[at + j * step] else -np.inf
    elif bias.size > 0:
        for j in range(x.size):
            x[j] += bias[at + j * step]


@inner
def _bend(x, cap):
    """Replace x by cap tanh(x / cap)."""
    real = x.dtype.type
    one = real(1)
    if x.itemsize == 8:
        for j in range(x.size):
            x[j] = cap * math.tanh(x[j] / cap)
        return
    for j in range(x.size):
        y = x[j] / cap
        size = y if y >= 0 else -y
        e = exp2(size * real(-2 / np.log(2)))
        far = (one - e) / (one + e)
        # near 0 that formula loses digits, the series of tanh keeps them
        s = y * y
        series = one + s * (real(-1 / 3) + s * (real(2 / 15) + s * (real(-17 / 315) + s * real(62 / 2835))))
        far = far if y >= 0 else -far
        x[j] = cap * (y * series if s < real(0.04) else far)


@inner
def row_weights(x, tops, bad, lanes, begin, sink, alpha, z, power, index):
    """Return how many keys of a row have weight, or -1 for NaN; the weight of the sink; and tau, two numbers.

    The keys are index[:count] in their order by tile, and their weights power[:count]; `begin` is the key of x[0].
    """
    real = x.dtype.type
    count_tops = -(-x.size // (TILE * lanes)) * lanes
    top = max(row_max(tops[:count_tops]), sink)
    # inf - inf is NaN
    if bad or top == np.inf or sink != sink or alpha != alpha:
        return -1, real(np.nan), real((alpha - 1) * top), real(np.nan)
    if top == -np.inf:
        return 0, real(0), real(np.inf), real(0)
    for j in range(count_tops):
        z[j] = tops[j] - top
    edge = _bound(z, count_tops, power, alpha)
    count = _gather(x, tops, count_tops, top, edge, lanes, begin, z, index)
    # the sink comes after all keys
    z[count] = sink - top
    index[count] = np.iinfo(np.int32).max
    count += sink - top > edge
    count = support_powers(z, index, count, power, alpha, TSALLIS)
    total = row_sum(power[:count])
    kept = 0
    largest = real(0)
    for j in range(count):
        p = power[j] / total
        power[kept] = p
        index[kept] = index[j]
        kept += p > 0
        largest = max(largest, p)
    peak, depth = real((alpha - 1) * top), real(np.float64(largest) ** (alpha - 1))
    if kept > 0 and index[kept - 1] == np.iinfo(np.int32).max:
        return kept - 1, power[kept - 1], peak, depth
    return kept, real(0), peak, depth


@inner
def _gather(x, tops, count_tops, top, edge, lanes, begin, z, index):
    """Pack the entries with x - top > edge to the front of z, with their keys; return how many there are."""
    above = 0
    for j in range(count_tops):
        above += tops[j] - top > edge
    count = 0
    if 2 * above > count_tops:
        # if most lanes have such an entry, a pass over all entries in their order is faster
        for c in range(x.size):
            d = x[c] - top
            z[count] = d
            index[count] = begin + c
            count += d > edge
        return count
    for j in range(count_tops):
        if tops[j] - top > edge:
            tile, lane = j // lanes * TILE * lanes, j % lanes
            for c in range(tile + lane, min(tile + TILE * lanes, x.size), lanes):
                d = x[c] - top
                z[count] = d
                index[count] = begin + c
                count += d > edge
    return count


@inner
def _bound(z, count, power, alpha):
    """Return a lower bound of the support's entries from a part z of the row: Newton from below, ended a little
    short.
    """
    real = z.dtype.type
    r = 1 / (alpha - 1)
    padded = pad(z, count)
    t = 0.0
    for _ in range(4):
        set_powers(z[:padded], real(0), real(t), real(alpha - 1), real(r), power)
        _, lower, total = sums(z[:padded], real(0), real(t), real(alpha - 1), power)
        norm = np.float64(total) ** (1 - alpha)
        step = (1 - norm) * np.float64(total) / np.float64(lower)
        if not step > 1e-2:
            break
        t += 0.999 * step * r
    return real(t - 1.00001 * r)
