"""The span tree as a hypergraph: its specification.

Node S(i, j) chooses the split, node T(i, j) the label; the root is T of the whole span.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax.graphs.graph import Builder, Graph
from polymax.kernels.hypergraph.lowered import by_graph
from polymax.kernels.span_tree import chart_like


@lru_cache(maxsize=64)
def graph(n: int, labels: int) -> Graph:
    """Return the hypergraph of bracketings of at most n leaves."""
    split, span = numbers(n)
    builder = Builder(parts=n * n * labels)
    i, j = np.triu_indices(n)
    part = (i * n + j)[:, None] * labels + np.arange(labels)
    builder.add(span[i, j][:, None], part, split[i, j][:, None])
    for width in range(1, n):
        left, k = np.ogrid[: n - width, :width]
        builder.add(split[left, left + width], -1, span[left, left + k], span[left + k + 1, left + width])
    return builder.build(n * (n + 1))


def numbers(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the node numbers S and T of span (i, j): short spans before long ones."""
    i, j = np.indices((n, n))
    width = j - i
    # the spans that are shorter, and those of this width further left
    rank = np.where(width >= 0, width * n - width * (width - 1) // 2 + i, 0)
    return 2 * rank, 2 * rank + 1


def as_graph(scores: Tensor, lengths: Tensor) -> tuple[Tensor, Graph, Tensor]:
    """Return scores of labelled spans (B, n n labels), the hypergraph, and the root of each instance."""
    _, n, _, labels = scores.shape
    whole = torch.from_numpy(np.append(numbers(n)[1][0] if n else [], -1)).long().to(lengths.device)
    return scores.flatten(1), graph(n, labels).to(scores.device), whole[lengths - 1]


span_tree_inside, span_tree_outside, span_tree_tangent, recorded = by_graph(as_graph, chart_like, 1)
