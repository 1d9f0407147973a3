"""The best tree of one sentence in O(n^2), for Numba.

Walk from a token to its best head, to that head's best head, and so on. Where the walk meets a tree that hangs from
the root symbol, all of it joins this tree; where it meets itself, the cycle becomes one node, whose arcs count what
they add to the cycle's. A node is a row of the best arcs from each position; cycles merge rows and leave columns.

With a single root, arcs from the root symbol come last in the order of arcs, whatever their scores: then there are as
few of them as can be, one or no tree at all. No constant is subtracted, so no digits are lost. No cycle contains the
root symbol, so merged arcs keep their rank in this order.

See: Tarjan 1977, Finding optimum branchings; Stanojević and Cohen 2021, A root of a problem.
"""

import numpy as np

from polymax.kernels.numba_math import inline, kernel

_WAITING, _WALKED, _DONE = 0, 1, 2


@inline
def workspace(n):
    """What `best_tree` needs for sentences of up to n tokens; it may be used again and again."""
    return np.empty((n + 1, n + 1)), np.empty((n + 1, n + 1), np.int32), np.empty((8, 2 * n + 2), np.int64)


@kernel
def best_tree(scores, n, single_root, heads, space):
    """Fill heads[m - 1], m = 1..n, from scores [head, modifier]; -1 in all and False where no tree exists.

    The scores may be in any float type; `space` is a `workspace` of at least n.
    """
    w, to, marks = space
    # position -> node; node -> what it is part of, its state, its row, the arc into it; the walk; merged
    node, above, state, row, head, modifier, walk, merged = (
        marks[0], marks[1], marks[2], marks[3], marks[4], marks[5], marks[6], marks[7],
    )  # fmt: skip
    for v in range(1, n + 1):
        for u in range(n + 1):
            w[v, u] = scores[u, v]
            to[v, u] = v
    for v in range(n + 1):
        node[v], above[v], state[v], row[v] = v, -1, _WAITING, v
    state[0] = _DONE
    nodes = n + 1
    roots = 0
    for start in range(1, n + 1):
        v = node[start]
        if state[v] == _DONE:
            continue
        length = 0
        while True:
            u = _best_head(w[row[v]], node, v, n, single_root)
            if u < 0:
                heads[:n] = -1
                return False
            head[v], modifier[v] = u, to[row[v], u]
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
            into = row[u]
            cycle = 0
            while True:
                length -= 1
                c = walk[length]
                merged[cycle] = c
                cycle += 1
                above[c] = nodes
                if c == u:
                    break
            _merge(w, to, row, head, merged, cycle, into, n)
            for i in range(n + 1):
                if above[node[i]] == nodes:
                    node[i] = nodes
            above[nodes], row[nodes] = -1, into
            v = nodes
            nodes += 1
    if single_root and roots > 1:
        heads[:n] = -1
        return False
    # an arc into a merged node replaces, in it, the arc into the token it goes to
    for v in range(nodes - 1, 0, -1):
        if state[v] >= 0:
            m = modifier[v]
            heads[m - 1] = head[v]
            while m != v:
                state[m] = -1
                m = above[m]
    return True


@inline
def _best_head(w, node, v, n, single_root):
    """The position outside node v of the best arc into it; the root symbol only if all else fails, if it is single."""
    best = -np.inf
    u = -1
    for i in range(1 if single_root else 0, n + 1):
        if w[i] > best and node[i] != v:
            best = w[i]
            u = i
    if u < 0 and single_root and w[0] > -np.inf:
        u = 0
    return u


@inline
def _merge(w, to, row, head, merged, cycle, into, n):
    """Merge the rows of a cycle in row `into`, that of its last node: the best arc from each position."""
    cost = w[into, head[merged[cycle - 1]]]
    for i in range(n + 1):
        w[into, i] -= cost
    for j in range(cycle - 1):
        r = row[merged[j]]
        cost = w[r, head[merged[j]]]
        for i in range(n + 1):
            gain = w[r, i] - cost
            if gain > w[into, i]:
                w[into, i] = gain
                to[into, i] = to[r, i]
