"""The k best derivations, for Numba: a sorted list of at most k per node, merged from those of its tails.

The next best derivation of a node is the largest of a few candidates: for each edge, a rank in the list of each tail. A
candidate that is taken adds its neighbours, the next right rank and, at right rank 0, the next left rank, so that each
pair of ranks occurs once. Ties are broken by edge, then by ranks.
See: Huang and Chiang 2005, Section 4.2, Algorithm 2.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_math import inline, kernel


def hypergraph_kbest(
    weights: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, k: int, parts: int
) -> tuple[Tensor, Tensor]:
    count = weights.shape[0]
    values, y = weights.new_empty((count, k)), weights.new_zeros((count, k, parts))
    arrays = (memory(x.contiguous()) for x in (weights, first, tails, part, roots))
    work = torch.Size((count, tails.shape[0] + first.shape[0] * k))
    parallel(_kbest, work, 8, *arrays, memory(values), memory(y))
    return values, y


@kernel
def _kbest(start, stop, weights, first, tails, part, roots, values, y):
    nodes, k, widest = len(first) - 1, values.shape[1], 0
    for h in range(nodes):
        widest = max(widest, first[h + 1] - first[h])
    # lists of the nodes: values, and their edges with ranks; the last node stands for absent tails
    found, needed = np.empty(nodes + 1, np.int64), np.empty(nodes + 1, np.bool_)
    best, choice = np.empty((nodes + 1, max(k, 1))), np.empty((nodes + 1, max(k, 1), 3), np.int64)
    found[nodes], best[nodes, 0] = 1, 0.0
    # candidates at one node in order of arrival, and a heap of their indices
    room = widest + 2 * k
    pool, at, heap = np.empty(room), np.empty((room, 3), np.int64), np.empty(room, np.int64)
    waiting = np.empty((nodes + 1, 2), np.int64)
    for b in range(start, stop):
        root = roots[b]
        _reach(weights[b], first, tails, root, needed)
        for h in range(root + 1):
            if needed[h]:
                _merge(weights[b], first[h], first[h + 1], tails, h, k, found, best, choice, pool, at, heap)
        for r in range(k):
            values[b, r] = best[root, r] if r < found[root] else -np.inf
            if root >= 0 and r < found[root]:
                _derive(first, tails, part, choice, root, r, waiting, y[b, r])


@inline
def _merge(weights, begin, end, tails, h, k, found, best, choice, pool, at, heap):
    """Write the list of node h, whose edges are begin .. end - 1."""
    if begin == end:
        found[h], best[h, 0] = 1, 0.0
        return
    made = size = 0
    for e in range(begin, end):
        if weights[e] > -np.inf and found[tails[e, 0]] > 0 and found[tails[e, 1]] > 0:
            pool[made] = weights[e] + best[tails[e, 0], 0] + best[tails[e, 1], 0]
            at[made, 0], at[made, 1], at[made, 2] = e, 0, 0
            size = _push(heap, size, made, pool, at)
            made += 1
    found[h] = 0
    while size > 0 and found[h] < k:
        c = heap[0]
        size = _pop(heap, size, pool, at)
        best[h, found[h]], choice[h, found[h]] = pool[c], at[c]
        found[h] += 1
        e, i, j = at[c, 0], at[c, 1], at[c, 2]
        for turn in range(2):
            m, n = (i, j + 1) if turn == 0 else (i + 1, j)
            if (turn == 0 or j == 0) and m < found[tails[e, 0]] and n < found[tails[e, 1]]:
                pool[made] = weights[e] + best[tails[e, 0], m] + best[tails[e, 1], n]
                at[made, 0], at[made, 1], at[made, 2] = e, m, n
                size = _push(heap, size, made, pool, at)
                made += 1


@inline
def _reach(weights, first, tails, root, needed):
    """Mark the nodes that derivations of the root may visit."""
    needed[:] = False
    needed[root] = True
    for h in range(root, -1, -1):
        if needed[h]:
            for e in range(first[h], first[h + 1]):
                if weights[e] > -np.inf:
                    needed[tails[e, 0]] = needed[tails[e, 1]] = True


@inline
def _derive(first, tails, part, choice, root, r, waiting, y):
    """Count the parts of derivation r of the root."""
    waiting[0, 0], waiting[0, 1] = root, r
    size = 1
    while size > 0:
        size -= 1
        h, r = waiting[size, 0], waiting[size, 1]
        if first[h] < first[h + 1]:
            e = choice[h, r, 0]
            if part[e] >= 0:
                y[part[e]] += 1
            for side in range(2):
                if tails[e, side] >= 0:
                    waiting[size, 0], waiting[size, 1] = tails[e, side], choice[h, r, 1 + side]
                    size += 1


@inline
def _before(a, b, pool, at):
    if pool[a] != pool[b]:
        return pool[a] > pool[b]
    for field in range(3):
        if at[a, field] != at[b, field]:
            return at[a, field] < at[b, field]
    return False


@inline
def _push(heap, size, c, pool, at):
    """Insert candidate c into a heap; the caller increases its size by one."""
    i = size
    while i > 0 and _before(c, heap[(i - 1) // 2], pool, at):
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = c
    return size + 1


@inline
def _pop(heap, size, pool, at):
    """Remove and return the first of a heap; the caller decreases its size by one."""
    size -= 1
    c = heap[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and _before(heap[child + 1], heap[child], pool, at):
            child += 1
        if not _before(heap[child], c, pool, at):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = c
    return size
