"""Derivations of a hypergraph for SparseMAP on the CPU: the best derivation around mu.

Hyperedges get the scores  part + values of the tails - value of the head,  with the values of the best derivations of
nodes. The score of a derivation is then the difference to the best derivation's, without the rounding of large sums.
"""

from functools import lru_cache

import numpy as np

from polymax.backend.cpu_arrays import memory
from polymax.backend.numba_math import inline, kernel
from polymax.kernels.active_set.numba_search import SearchProblem


def problem(search):
    """Return the problem of scores of parts (B, parts) and roots (B,) of a graph."""
    (scores, roots), (graph,) = search.tensors, search.options
    nodes, edges = graph.nodes, graph.edges
    return SearchProblem(
        _table(graph),
        memory(roots.reshape(-1, 1).contiguous()),
        memory(scores.double().contiguous()),
        np.empty((1, 0)),
        ((1, 1), 1 + nodes + edges, (4, max(nodes, 1) + 1)),
        edges,
    )


@lru_cache(maxsize=64)
def _table(graph):
    """Return the numbers of nodes and hyperedges, and the arrays of a graph, in one array."""
    sizes = np.array([graph.nodes, graph.edges])
    return np.concatenate([sizes, *(memory(t).ravel() for t in graph.arrays)])


@kernel
def best(problem, mu, vertex):
    """Write the best derivation around mu to `vertex` as a list of parts; return its score."""
    table, own, parts, _, _, line, marks = problem
    nodes, edges, root = table[0], table[1], own[0]
    first, tails = table[2 : 3 + nodes], table[3 + nodes : 3 + nodes + 2 * edges]
    part = table[3 + nodes + 2 * edges :]
    values, scores = line[1 : 1 + nodes], line[1 + nodes :]
    needed, back, waiting = marks[1], marks[2], marks[3]
    for u in range(vertex.size):
        vertex[u] = -1
    marks[0, 1] = 0
    if root < 0:
        return 0.0
    if marks[0, 0] == 0:
        marks[0, 0] = 1
        _reach(first, tails, root, needed)
        line[0] = _reduce(parts, first, tails, part, root, needed, values, scores)
    penalised = mu.size
    for h in range(root + 1):
        if not needed[h]:
            continue
        value, chosen = 0.0 if first[h] == first[h + 1] else -np.inf, -1
        for e in range(first[h], first[h + 1]):
            a = scores[e]
            if 0 <= part[e] < penalised:
                a -= mu[part[e]]
            for t in tails[2 * e : 2 * e + 2]:
                if t >= 0:
                    a += values[t]
            if a > value:
                value, chosen = a, e
        values[h], back[h] = value, chosen
    if values[root] == -np.inf:
        return -np.inf
    size, other, score = 0, vertex.size, 0.0
    waiting[0] = root
    left = 1
    while left > 0:
        left -= 1
        e = back[waiting[left]]
        if e < 0:
            continue
        score += scores[e]
        if part[e] >= 0:
            if part[e] < penalised:
                vertex[size] = part[e]
                size += 1
            else:
                other -= 1
                vertex[other] = part[e]
        for t in tails[2 * e : 2 * e + 2]:
            if t >= 0:
                waiting[left] = t
                left += 1
    # move the parts of other tensors from the end of the list to follow the first tensor's
    gap = other - size
    if gap > 0:
        for k in range(other, vertex.size):
            vertex[k - gap], vertex[k] = vertex[k], -1
    marks[0, 1] = size
    return score


@inline
def _reach(first, tails, root, needed):
    """Mark the nodes that a derivation of the root may use."""
    for h in range(root + 1):
        needed[h] = 0
    needed[root] = 1
    for h in range(root, -1, -1):
        if needed[h]:
            for t in tails[2 * first[h] : 2 * first[h + 1]]:
                if t >= 0:
                    needed[t] = 1


@inline
def _reduce(parts, first, tails, part, root, needed, values, scores):
    """Write the scores of hyperedges; return the value of the root, or 0 if it is infinite."""
    for h in range(root + 1):
        if not needed[h]:
            continue
        values[h] = 0.0 if first[h] == first[h + 1] else -np.inf
        for e in range(first[h], first[h + 1]):
            # potentials may take any value, so that these sums need not be exact
            a = parts[part[e]] if part[e] >= 0 else 0.0
            for t in tails[2 * e : 2 * e + 2]:
                if t >= 0:
                    a += values[t]
            scores[e] = a
            if a > values[h]:
                values[h] = a
        if -np.inf < values[h] < np.inf:
            for e in range(first[h], first[h + 1]):
                scores[e] = _sum_of(parts, tails, part, values, e, values[h])
    return values[root] if np.abs(values[root]) < np.inf else 0.0


@inline
def _sum_of(parts, tails, part, values, e, less):
    """Return the score of a hyperedge plus the values of its tails minus `less`, with one rounding but for the last
    bit.
    """
    total, error = -less, 0.0
    for k in range(3):
        x = 0.0
        if k == 0 and part[e] >= 0:
            x = parts[part[e]]
        elif k > 0 and tails[2 * e + k - 1] >= 0:
            x = values[tails[2 * e + k - 1]]
        both = total + x
        other = both - total
        error += (total - (both - other)) + (x - other)
        total = both
    return total + error if np.abs(total) < np.inf else total
