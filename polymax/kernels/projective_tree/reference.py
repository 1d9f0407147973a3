"""The projective tree as a hypergraph: its specification.

Over positions i <= j: M(i, j) joins two half trees; IR and IL add the arc from i to j or from j to i; R and L are
complete half trees with their head at the left or right end. Derivations and trees correspond one to one.

See: Eisner 1996, Three new probabilistic models for dependency parsing.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax.graphs.graph import Builder, Graph
from polymax.kernels.hypergraph.lowered import by_graph
from polymax.kernels.projective_tree import chart_like

_KINDS = 5


@lru_cache(maxsize=64)
def graph(positions: int, single_root: bool) -> Graph:
    """Return the hypergraph of trees over tokens 1, ..., positions - 1 and the root symbol 0."""
    i, j = np.indices((positions, positions))
    # number of pairs that are closer, or as close and further left
    rank = np.where(j >= i, (j - i) * positions - (j - i) * (j - i - 1) // 2 + i, 0)
    join, arc_right, arc_left, right, left = (_KINDS * rank + kind for kind in range(_KINDS))
    builder = Builder(parts=positions * positions)
    # the root symbol is the head of half trees to its right, unless it has a single arc
    start = 1 if single_root else 0
    for width in range(1, positions):
        a, k = np.ogrid[start : positions - width, :width]
        b = a + width
        builder.add(join[a, b], -1, right[a, a + k], left[a + k + 1, b])
        builder.add(arc_right[a, b], a * positions + b, join[a, b])
        builder.add(right[a, b], -1, arc_right[a, a + k + 1], right[a + k + 1, b])
        a, b = a[max(1 - start, 0) :], b[max(1 - start, 0) :]
        builder.add(arc_left[a, b], b * positions + a, join[a, b])
        builder.add(left[a, b], -1, left[a, a + k], arc_left[a + k, b])
    nodes = _KINDS * positions * (positions + 1) // 2
    if single_root and positions > 1:
        length, r = np.ogrid[1:positions, 1:positions]
        length, r = (x[r <= length] for x in np.broadcast_arrays(length, r))
        builder.add(nodes + length, r, left[1, r], right[r, length])
        nodes += positions
    return builder.build(nodes)


def as_graph(scores: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Graph, Tensor]:
    """Return scores of arcs (B, positions^2), the hypergraph, and the root of each instance."""
    positions = scores.shape[1]
    if single_root:
        roots = _KINDS * positions * (positions + 1) // 2 + lengths
    else:
        roots = _KINDS * (lengths * positions - lengths * (lengths - 1) // 2) + 3
    return scores.flatten(1), graph(positions, single_root).to(scores.device), torch.where(lengths > 0, roots, -1)


projective_tree_inside, projective_tree_outside, projective_tree_tangent, recorded = by_graph(as_graph, chart_like, 1)
