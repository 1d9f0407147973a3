"""The best tree of one sentence in O(n^2), for Numba.

Walk from a token to its best head, to that head's best head, and so on. If the walk meets a tree that hangs from the
root symbol, all of it joins this tree. If it meets itself, the cycle becomes one node, and an arc into it counts as the
gain over the cycle's arc that it replaces. A node is a row of the best arcs from each position; cycles merge rows and
leave columns. The rows of their members are kept, to find in the end the member of a cycle that an arc enters.

With a single root, arcs from the root symbol come last in the order of arcs, whatever their scores: then the tree has
the fewest such arcs, exactly one if there is a tree. No constant is subtracted, so no digits are lost. No cycle
contains the root symbol, so merged arcs keep their rank in this order.

See: Tarjan 1977, Finding optimum branchings; Stanojević and Cohen 2021, A root of a problem.
"""

import numpy as np

from polymax.backend.numba_math import inline, kernel, row_max

_WAITING, _WALKED, _DONE = 0, 1, 2


@inline
def workspace(n):
    """Return workspace of `best_tree` for sentences of up to n tokens; it may be reused."""
    return np.empty((2 * n + 2, n + 1)), np.empty(2 * n + 2), np.empty((8, 2 * n + 2), np.int64)


@kernel
def best_tree(scores, n, single_root, heads, space):
    """Fill heads[m - 1], m = 1..n, from scores [head, modifier]; write -1 and return False if no tree exists.

    The scores may be in any float type; `space` is a `workspace` of at least n.
    """
    rows = space[0]
    for v in range(1, n + 1):
        for u in range(n + 1):
            rows[v, u] = scores[u, v]
    return best_tree_of_rows(n, single_root, heads, space)


@kernel
def best_tree_of_rows(n, single_root, heads, space):
    """Fill heads as `best_tree` does, from scores in the rows 1..n of space[0], [modifier, head]."""
    w, cost, marks = space
    # position -> node; node -> the node it is merged into, its state, its head, the range of its members; members; the
    # walk
    node, above, state, head, begin, end, members, walk = (
        marks[0], marks[1], marks[2], marks[3], marks[4], marks[5], marks[6], marks[7],
    )  # fmt: skip
    for v in range(n + 1):
        node[v], above[v], state[v] = v, -1, _WAITING
        w[v, v] = -np.inf
    state[0] = _DONE
    nodes, listed, roots = n + 1, 0, 0
    for start in range(1, n + 1):
        v = node[start]
        if state[v] == _DONE:
            continue
        length = 0
        while True:
            u = _best_head(w[v, : n + 1], single_root)
            if u < 0:
                heads[:n] = -1
                return False
            head[v], cost[v] = u, w[v, u]
            walk[length] = v
            length += 1
            state[v] = _WALKED
            roots += u == 0
            u = node[u]
            if state[u] == _DONE:
                for i in range(length):
                    state[walk[i]] = _DONE
                break
            if state[u] == _WAITING:
                v = u
                continue
            # the walk from u on is a cycle
            first = length - 1
            while walk[first] != u:
                first -= 1
            v = nodes
            nodes += 1
            above[v], begin[v], end[v] = -1, listed, listed + length - first
            walk[length] = u
            for i in range(length, first, -1):
                members[listed] = walk[i]
                above[walk[i]] = v
                listed += 1
            length = first
            _merge(w, cost, members[begin[v] : end[v]], w[v], n)
            for i in range(n + 1):
                if above[node[i]] == v:
                    node[i] = v
                    # no arc from a node to itself
                    w[v, i] = -np.inf
    if single_root and roots > 1:
        heads[:n] = -1
        return False
    # an arc into a merged node replaces the arc into the token that it enters
    for v in range(nodes - 1, 0, -1):
        if state[v] >= 0:
            m = v
            while m > n:
                m = _entered(w, cost, members[begin[m] : end[m]], w[m, head[v]], head[v])
                state[m] = -1
            heads[m - 1] = head[v]
    return True


@inline
def _best_head(w, single_root):
    """Return the position of the best arc into a node; if single, the root symbol only if there is no other."""
    first = 1 if single_root else 0
    best = row_max(w[first:])
    if not best > -np.inf:
        return 0 if single_root and w[0] > -np.inf else -1
    u = first
    while w[u] != best:
        u += 1
    return u


@inline
def _merge(w, cost, members, merged, n):
    """Write the row of a cycle: the best arc from each position, by its gain over the arc of the cycle."""
    for i in range(n + 1):
        merged[i] = w[members[0], i] - cost[members[0]]
    for c in members[1:]:
        own, less = w[c], cost[c]
        for i in range(n + 1):
            gain = own[i] - less
            merged[i] = gain if gain > merged[i] else merged[i]


@inline
def _entered(w, cost, members, gain, u):
    """Return the member of a cycle that its best arc from u enters."""
    for c in members:
        if w[c, u] - cost[c] == gain:
            return c
    return members[0]
