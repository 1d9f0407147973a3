"""The nodes of many trees level by level, found from the roots down, for all trees at once; tables for tree plans.

Nodes are numbered (tree, place) in row order. All results are blocks of levels, one after the other, the deepest first.
"""

import numpy as np

from polymax.backend.numba_math import kernel
from polymax.nn.shift_reduce import REDUCE


@kernel
def binary_levels(steps):
    """Levels of transitions (count, T) of trees, composed nodes before tokens.

    Returns sizes and the number composed (levels,), nodes (m,), the places of children in the block below (2 composed,)
    and the token of each shift, (count T,).
    """
    count, width = steps.shape
    left, right = np.full(count * width, -1), np.empty(count * width, np.int64)
    token, stack = np.zeros(count * width, np.int64), np.empty(width + 1, np.int64)
    tops = np.full(count, -1)
    for c in range(count):
        high = shifted = 0
        for t in range(width):
            node = c * width + t
            if steps[c, t] == REDUCE:
                high -= 1
                right[node], left[node] = stack[high], stack[high - 1]
                stack[high - 1] = node
            elif steps[c, t] >= 0:
                token[node] = shifted
                stack[high] = node
                shifted += 1
                high += 1
        if high:
            tops[c] = stack[0]
    nodes, place = np.empty(count * width, np.int64), np.empty(count * width, np.int64)
    links = np.empty(2 * count * width, np.int64)
    sizes, made = np.zeros(width + 1, np.int64), np.zeros(width + 1, np.int64)
    done = linked = levels = 0
    wanted = tops[tops >= 0]
    while wanted.size:
        here = done
        for composed in (True, False):
            for node in wanted:
                if (left[node] >= 0) == composed:
                    place[node] = done - here
                    nodes[done] = node
                    done += 1
            if composed:
                made[levels] = done - here
        below = np.empty(2 * made[levels], np.int64)
        for i in range(made[levels]):
            below[2 * i], below[2 * i + 1] = left[nodes[here + i]], right[nodes[here + i]]
        sizes[levels] = wanted.size
        wanted = below
        levels += 1
    # children have places once their level is known
    for i in range(done):
        if left[nodes[i]] >= 0:
            links[linked], links[linked + 1] = place[left[nodes[i]]], place[right[nodes[i]]]
            linked += 2
    sizes, made = sizes[:levels], made[:levels]
    return (
        sizes[::-1],
        made[::-1],
        _reversed_blocks(nodes[:done], sizes),
        _reversed_blocks(links[:linked], 2 * made),
        token,
    )


@kernel
def heads_levels(heads):
    """Levels of trees given by heads (count, n); children are in the order of their parents.

    Returns sizes (levels,), nodes (m,), the place of the parent of each node in the block above, and the place of the
    first child of each node in the block below, (m,).
    """
    count, n = heads.shape
    # children by parent; the first parent of each tree is the root symbol
    ends = np.zeros(count * (n + 1) + 1, np.int64)
    for c in range(count):
        for m in range(n):
            if heads[c, m] >= 0:
                ends[c * (n + 1) + heads[c, m] + 1] += 1
    ends = np.cumsum(ends)
    free, kids = ends.copy(), np.empty(ends[-1], np.int64)
    for c in range(count):
        for m in range(n):
            if heads[c, m] >= 0:
                parent = c * (n + 1) + heads[c, m]
                kids[free[parent]] = c * n + m
                free[parent] += 1
    nodes, parents, starts = np.empty_like(kids), np.empty_like(kids), np.empty_like(kids)
    sizes = np.zeros(n + 1, np.int64)
    done = 0
    for c in range(count):
        for k in range(ends[c * (n + 1)], ends[c * (n + 1) + 1]):
            nodes[done] = kids[k]
            done += 1
    sizes[0] = done
    here = levels = 0
    while sizes[levels]:
        below = done
        for i in range(here, below):
            starts[i] = done - below
            parent = nodes[i] // n * (n + 1) + nodes[i] % n + 1
            for k in range(ends[parent], ends[parent + 1]):
                nodes[done], parents[done] = kids[k], i - here
                done += 1
        here = below
        levels += 1
        sizes[levels] = done - below
    sizes = sizes[:levels]
    links = _reversed_blocks(parents[sizes[0] : done], sizes[1:]) if levels else parents[:0]
    return sizes[::-1], _reversed_blocks(nodes[:done], sizes), links, _reversed_blocks(starts[:done], sizes)


@kernel
def distinct_places(tokens):
    """The distinct numbers of `tokens` (k,), ascending, and the place of each token among them."""
    if tokens.size == 0:
        return tokens.copy(), tokens.copy()
    seen = np.zeros(tokens.max() + 1, np.int64)
    seen[tokens] = 1
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[tokens]


@kernel
def _reversed_blocks(values, sizes):
    """Blocks of values, the last block first."""
    out, end = np.empty_like(values), values.size
    start = 0
    for size in sizes:
        out[end - size : end] = values[start : start + size]
        start += size
        end -= size
    return out
