"""The recursion of a transducer with durations as a hypergraph."""

import numpy as np

from polymax.graphs.graph import Builder, Family, Graph


@Family
def graph(n: int, m: int, *durations: int) -> Graph:
    """Return the hypergraph: node N(t, u) is at frame t after u tokens, E(t, u) ends before frame t with a blank.

    Parts are blanks with durations (n, m + 1, durations), then tokens with durations (n, m, durations). A node that
    cannot be reached has no hyperedge and no head. The last node has the first part, for instances without a path.
    """
    states, count = m + 1, len(durations)
    node = np.arange(n * states).reshape(n, states)
    ends = n * states + np.arange((n + 1) * states).reshape(n + 1, states)
    blanks = np.arange(n * states * count).reshape(n, states, count)
    labels = blanks.size + np.arange(n * m * count).reshape(n, m, count)
    reached = _reached(n, m, durations)
    builder = Builder(parts=blanks.size + labels.size)
    for i, d in enumerate(durations):
        there = reached[: max(n - d, 0), :m]
        builder.add(node[d:, 1:][there], labels[: n - d, :, i][there], node[: n - d, :m][there])
        if d > 0:
            there = reached[: max(n - d, 0)]
            builder.add(node[d:][there], blanks[: n - d, :, i][there], node[: n - d][there])
            there = reached[: max(n - d + 1, 0)]
            builder.add(ends[d:][there], blanks[: n - d + 1, :, i][there], node[: n - d + 1][there])
    last = n * states + ends.size
    if builder.parts:
        builder.add(last, 0)
    return builder.build(last + 1)


def _reached(n: int, m: int, durations: tuple[int, ...]) -> np.ndarray:
    """Return a bool array (n, m + 1), True for cells to which steps lead from the first."""
    reached = np.zeros((n, m + 1), bool)
    reached[:1, 0] = True
    for t in range(n):
        for d in durations:
            if 0 < d <= t:
                reached[t] |= reached[t - d]
                reached[t, 1:] |= reached[t - d, :-1]
        if 0 in durations:
            reached[t] = np.logical_or.accumulate(reached[t])
    return reached
