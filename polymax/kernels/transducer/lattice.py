"""The recursion of a transducer as a hypergraph."""

import numpy as np

from polymax.graphs.graph import Builder, Family, Graph


@Family
def graph(n: int, m: int) -> Graph:
    """Return the hypergraph: node N(t, u) is reached by the blank of the frame before or by an emission, E(t, u) by a
    final blank.
    """
    node = np.arange(n * (m + 1)).reshape(n, m + 1)
    labels = n * (m + 1) + np.arange(n * m).reshape(n, m)
    builder = Builder(parts=n * (2 * m + 1))
    builder.add(node[1:], node[:-1], node[:-1])
    builder.add(node[:, 1:], labels, node[:, :-1])
    builder.add(n * (m + 1) + node, node, node)
    return builder.build(2 * n * (m + 1))
