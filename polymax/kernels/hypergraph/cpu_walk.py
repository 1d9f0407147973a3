"""Walks down from the root by given weights, for Numba: expected visits of nodes, samples, and the number of
derivations.
"""

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.cpu_rows import parallel
from polymax.backend.numba_draws import STEP, choose, mix
from polymax.backend.numba_math import kernel


def hypergraph_visits(p: Tensor, first: Tensor, tails: Tensor, roots: Tensor) -> Tensor:
    visits = p.new_empty((p.shape[0], first.shape[0] - 1))
    arrays = (memory(x.contiguous()) for x in (p, first, tails, roots))
    parallel(_visits, _work(p, visits), 2, *arrays, memory(visits))
    return visits


def hypergraph_count(p: Tensor, first: Tensor, tails: Tensor, roots: Tensor) -> Tensor:
    counts = p.new_empty(p.shape[:1], dtype=torch.float64)
    arrays = (memory(x.contiguous()) for x in (p, first, tails, roots))
    parallel(_count, _work(p, first), 2, *arrays, memory(counts))
    return counts


def hypergraph_sample(
    p: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, seeds: Tensor, parts: int
) -> Tensor:
    y = p.new_zeros((*seeds.shape, parts))
    arrays = (memory(x.contiguous()) for x in (p, first, tails, part, roots, seeds))
    parallel(_sample, torch.Size((seeds.numel(), parts + first.shape[0])), 2, *arrays, memory(y))
    return y


def _work(*tensors: Tensor) -> torch.Size:
    return torch.Size((tensors[0].shape[0], sum(x.shape[-1] for x in tensors)))


@kernel
def _visits(start, stop, p, first, tails, roots, visits):
    nodes = len(first) - 1
    # visits of absent tails are counted in the last entry
    expected = np.empty(nodes + 1)
    for b in range(start, stop):
        expected[:] = 0.0
        expected[roots[b]] = 1.0
        for h in range(roots[b], -1, -1):
            if expected[h] != 0.0:
                for e in range(first[h], first[h + 1]):
                    q = p[b, e] * expected[h]
                    expected[tails[e, 0]] += q
                    expected[tails[e, 1]] += q
        visits[b] = expected[:nodes]


@kernel
def _count(start, stop, p, first, tails, roots, counts):
    nodes = len(first) - 1
    trees = np.ones(nodes + 1)
    for b in range(start, stop):
        for h in range(roots[b] + 1):
            if first[h] < first[h + 1]:
                trees[h] = 0.0
            for e in range(first[h], first[h + 1]):
                left, right = trees[tails[e, 0]], trees[tails[e, 1]]
                # counts beyond float64 are inf, and 0 times inf would be NaN
                if p[b, e] > 0 and left > 0.0 and right > 0.0:
                    trees[h] += left * right
        counts[b] = trees[roots[b]]


@kernel
def _sample(start, stop, p, first, tails, part, roots, seeds, y):
    samples = seeds.shape[1]
    waiting = np.empty(len(first), np.int64)
    for row in range(start, stop):
        b, s = row // samples, row % samples
        state = mix(np.uint64(seeds[b, s]))
        size = 0
        if roots[b] >= 0:
            waiting[0] = roots[b]
            size = 1
        while size > 0:
            size -= 1
            h = waiting[size]
            if first[h + 1] - first[h] > 1:
                state += STEP
            e = choose(p[b], first[h], first[h + 1], state)
            if e < 0:
                continue
            if part[e] >= 0:
                y[b, s, part[e]] += 1
            for side in range(2):
                # at most one node waits on each level of the tree above, so the room is enough
                if tails[e, side] >= 0:
                    waiting[size] = tails[e, side]
                    size += 1
