"""Samples of trees by their probability, for Numba: elimination run backwards, token by token.

First a tree is drawn over the tokens that remained when k was eliminated. Each of its arcs (i, j) stands for the arc
itself, for the path through k, or for paths through tokens eliminated before k: one of these is drawn, by its share of
w_ij. The arcs through k make their modifiers children of k, and the head of k is drawn by w_ik from the tokens that are
not below these. This has the probability of the larger tree, since

    sum over the heads i_c of children c, such that a tree results, of prod q_(i_c, k) = sum over such heads h of q_hk

With a single root, k is below it if the arc from the root symbol goes through k. No weight is ever subtracted and no
draw is ever rejected, so that peaked distributions take no longer than flat ones.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_draws import STEP, choose, mix
from polymax.backend.numba_math import inline, kernel

# codes for the domain of a chart: no trees, weights, or logarithms of weights
EMPTY, LINEAR, LOG = 0.0, 1.0, 2.0


def spanning_tree_sample(scores: Tensor, lengths: Tensor, seeds: Tensor, single_root: bool) -> Tensor:
    if seeds.shape[0] != scores.shape[0]:
        raise ValueError(f"seeds must be ({scores.shape[0]}, samples); got {tuple(seeds.shape)}")
    _, chart = torch.ops.polymax.spanning_tree_inside(scores, lengths, single_root)
    heads = torch.empty((*seeds.shape, scores.shape[1] - 1), dtype=torch.long, device="cpu")
    args = memory(lengths.contiguous()), memory(chart), memory(seeds.contiguous()), memory(heads), int(single_root)
    parallel(_sample, torch.Size((seeds.numel(), scores.shape[1] ** 2)), 4, *args)
    return heads


@kernel
def _sample(start, stop, lengths, chart, seeds, heads, first):
    size = chart.shape[3]
    head, through, state = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    terms = np.empty(size)
    for row in range(start, stop):
        b, s = row // seeds.shape[1], row % seeds.shape[1]
        heads[b, s] = -1
        if chart[b, 0, size, 0] != EMPTY:
            _tree(lengths[b], first, chart[b], np.uint64(seeds[b, s]), head, through, state, terms)
            order = chart[b, 1, size]
            for j in range(1, lengths[b] + 1):
                heads[b, s, int(order[j]) - 1] = int(order[head[j]])


@inline
def _tree(m, first, c, seed, head, through, state, terms):
    """Fill head[1..m], by positions; `through` is the token that an arc goes through, 0 if none."""
    x, w = c[0], c[1]
    pivots, order = x[x.shape[0] - 1], w[w.shape[0] - 1]
    log = pivots[0] == LOG
    bits = mix(seed)
    head[1] = 0
    bits += STEP
    through[1] = _way(x, w, pivots, order, 0, 1, m, log, bits, terms)
    for k in range(2, m + 1):
        h = -1
        _below(head, through, state, k)
        for j in range(1, k):
            if through[j] == k and head[j] == 0 and first == 1:
                h = 0
        if h < 0:
            for i in range(k):
                terms[i] = x[i, k] if state[i] == 0 and i >= first else (-np.inf if log else 0.0)
            bits += STEP
            h = _choose(terms, k, log, bits)
        for j in range(1, k):
            if through[j] == k:
                head[j] = k
                bits += STEP
                through[j] = _way(x, w, pivots, order, k, j, m, log, bits, terms)
        head[k] = h
        bits += STEP
        through[k] = _way(x, w, pivots, order, h, k, m, log, bits, terms)


@inline
def _below(head, through, state, k):
    """Set state[0..k-1] to 1 for tokens below an arc through k, to 0 for the rest."""
    state[:k] = -1
    state[0] = 0
    for start in range(1, k):
        i = start
        while state[i] < 0 and through[i] != k:
            i = head[i]
        mark = state[i] if state[i] >= 0 else 1
        i = start
        while state[i] < 0:
            state[i] = mark
            if through[i] == k:
                break
            i = head[i]


@inline
def _way(x, w, pivots, order, i, j, m, log, bits, terms):
    """Draw the meaning of an arc (i, j) among the tokens up to the later of the two: 0 for itself, or l for a path
    through l.
    """
    last = max(i, j)
    terms[0] = w[int(order[i]), int(order[j])]
    for l in range(last + 1, m + 1):
        terms[l - last] = x[i, l] + (x[l, j] - pivots[l]) if log else x[i, l] / pivots[l] * x[l, j]
    l = _choose(terms, m - last + 1, log, bits)
    return last + l if l > 0 else 0


@inline
def _choose(terms, count, log, bits):
    """Return a number below count, drawn by weights or by their logarithms, which are overwritten."""
    if log:
        top = -np.inf
        for i in range(count):
            top = max(top, terms[i])
        for i in range(count):
            terms[i] = np.exp(terms[i] - top)
    return max(choose(terms, 0, count, bits), 0)
