"""SparseMAP over derivations of a hypergraph: the best one around mu.

Hyperedges get the scores  part + values of the tails - value of the head,  with the values of the best derivations of
nodes: a derivation then has its score less that of the best one, without the rounding of large sums.
"""

import numpy as np
from torch import Tensor

from polymax.kernels.active_set.cpu_loop import Found, Settings, memory, run, settle
from polymax.kernels.numba_math import inline, kernel


def solve_derivations(
    scores: Tensor,
    first: Tensor,
    tails: Tensor,
    part: Tensor,
    roots: Tensor,
    penalised: int,
    settings: Settings,
) -> Found:
    """Derivations that use a part once at most, the first `penalised` parts being those of the first tensor."""
    arrays = [x.contiguous().numpy() for x in (scores.double(), first, tails, part, roots)]
    return run(_derivations, (*arrays, penalised), part.shape[0], settings)


@kernel
def _derivations(start, stop, parts, first_edge, tails, part, roots, penalised, settings, out):
    nodes = first_edge.size - 1
    space = memory(out, penalised)
    values, back, waiting = np.empty(nodes + 1), np.empty(nodes + 1, np.int64), np.empty(nodes + 1, np.int64)
    needed, edges = np.zeros(nodes + 1, np.bool_), np.empty(part.size)
    for i in range(start, stop):
        _reach(first_edge, tails, roots[i], needed)
        base = _reduce(parts[i], first_edge, tails, part, roots[i], needed, values, edges)
        problem = edges, first_edge, tails, part, roots[i], needed, values, back, waiting
        settle(_best_tree, problem, base, i, settings, space, out)


@kernel
def _reach(first_edge, tails, root, needed):
    """The nodes that a derivation of the root may use."""
    needed[:] = False
    if root >= 0:
        needed[root] = True
    for h in range(root, -1, -1):
        if needed[h]:
            for e in range(first_edge[h], first_edge[h + 1]):
                for t in tails[e]:
                    if t >= 0:
                        needed[t] = True


@kernel
def _reduce(parts, first_edge, tails, part, root, needed, values, edges):
    """Fill in the scores of hyperedges; the value of the root, or 0 where it is infinite."""
    for h in range(root + 1):
        if not needed[h]:
            continue
        values[h] = 0.0 if first_edge[h] == first_edge[h + 1] else -np.inf
        for e in range(first_edge[h], first_edge[h + 1]):
            # potentials may be any: these need not be exact
            a = parts[part[e]] if part[e] >= 0 else 0.0
            for t in tails[e]:
                if t >= 0:
                    a += values[t]
            edges[e] = a
            if a > values[h]:
                values[h] = a
        if -np.inf < values[h] < np.inf:
            for e in range(first_edge[h], first_edge[h + 1]):
                edges[e] = _sum_of(parts, tails, part, values, e, values[h])
    return values[root] if root >= 0 and np.abs(values[root]) < np.inf else 0.0


@inline
def _sum_of(parts, tails, part, values, e, less):
    """The score of a hyperedge and the values of its tails, less a number: rounded once, but for the last bit."""
    total, error = -less, 0.0
    for k in range(tails.shape[1] + 1):
        x = 0.0
        if k == 0 and part[e] >= 0:
            x = parts[part[e]]
        elif k > 0 and tails[e, k - 1] >= 0:
            x = values[tails[e, k - 1]]
        both = total + x
        other = both - total
        error += (total - (both - other)) + (x - other)
        total = both
    return total + error if np.abs(total) < np.inf else total


@inline
def _best_tree(problem, mu, vertex):
    """The best derivation around mu as a list of parts: how many penalised, and its own score."""
    edges, first_edge, tails, part, root, needed, values, back, waiting = problem
    vertex[:] = -1
    if root < 0:
        return 0, 0.0
    penalised = mu.size
    for h in range(root + 1):
        if not needed[h]:
            continue
        values[h] = 0.0 if first_edge[h] == first_edge[h + 1] else -np.inf
        back[h] = -1
        for e in range(first_edge[h], first_edge[h + 1]):
            a = edges[e]
            if 0 <= part[e] < penalised:
                a -= mu[part[e]]
            for t in tails[e]:
                if t >= 0:
                    a += values[t]
            if a > values[h]:
                values[h] = a
                back[h] = e
    if values[root] == -np.inf:
        return 0, -np.inf
    size, other, score = 0, vertex.size, 0.0
    waiting[0] = root
    left = 1
    while left > 0:
        left -= 1
        e = back[waiting[left]]
        if e < 0:
            continue
        score += edges[e]
        if part[e] >= 0:
            if part[e] < penalised:
                vertex[size] = part[e]
                size += 1
            else:
                other -= 1
                vertex[other] = part[e]
        for t in tails[e]:
            if t >= 0:
                waiting[left] = t
                left += 1
    # from the end to where they belong
    gap = other - size
    if gap > 0:
        for k in range(other, vertex.size):
            vertex[k - gap], vertex[k] = vertex[k], -1
    return size, score
