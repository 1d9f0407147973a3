"""The alignment as a hypergraph: its specification.

Node D(i, j) chooses the cell before (i, j), node V(i, j) adds the score of the cell; the root is V of the last cell.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax.graphs.graph import Builder, Graph
from polymax.kernels.alignment import chart_like
from polymax.kernels.hypergraph.lowered import by_graph


@lru_cache(maxsize=64)
def graph(n: int, m: int) -> Graph:
    """Return the hypergraph of paths in n rows and m columns."""
    cell = np.arange(n * m).reshape(n, m)
    builder = Builder(parts=n * m)
    builder.add(2 * cell + 1, cell, 2 * cell)
    for before, after in ((cell[:-1, :-1], cell[1:, 1:]), (cell[:-1], cell[1:]), (cell[:, :-1], cell[:, 1:])):
        builder.add(2 * after, -1, 2 * before + 1)
    return builder.build(2 * n * m)


def as_graph(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Graph, Tensor]:
    """Return scores of cells (B, n m), the hypergraph, and the root of each instance."""
    _, n, m = scores.shape
    last = (rows - 1) * m + columns - 1
    roots = torch.where((rows > 0) & (columns > 0), 2 * last + 1, -1)
    return scores.flatten(1), graph(n, m).to(scores.device), roots


alignment_inside, alignment_outside, alignment_tangent, recorded = by_graph(as_graph, chart_like, 2)
