"""The alignment as a hypergraph: its specification.

Node D(i, j) chooses the cell before (i, j), node V(i, j) adds the score of the cell; the root is V of the last cell.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax.hypergraphs.graph import Builder, Graph
from polymax.kernels.alignment import chart_shape
from polymax.kernels.hypergraph import reference, tape


@lru_cache(maxsize=64)
def graph(n: int, m: int) -> Graph:
    """The hypergraph of paths in n rows and m columns."""
    cell = np.arange(n * m).reshape(n, m)
    builder = Builder(parts=n * m)
    builder.add(2 * cell + 1, cell, 2 * cell)
    for before, after in ((cell[:-1, :-1], cell[1:, 1:]), (cell[:-1], cell[1:]), (cell[:, :-1], cell[:, 1:])):
        builder.add(2 * after, -1, 2 * before + 1)
    return builder.build(2 * n * m)


def as_graph(scores: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Graph, Tensor]:
    """Scores of cells (B, n m), the hypergraph, and the root of each instance."""
    _, n, m = scores.shape
    last = (rows - 1) * m + columns - 1
    roots = torch.where((rows > 0) & (columns > 0), 2 * last + 1, -1)
    return scores.flatten(1), graph(n, m).to(scores.device), roots


def alignment_inside(scores: Tensor, rows: Tensor, columns: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    flat, g, roots = as_graph(scores, rows, columns)
    value, _ = reference.hypergraph_inside(flat, *g.arrays, roots, alpha)
    return value, scores.new_zeros(chart_shape(scores))


def alignment_outside(scores: Tensor, rows: Tensor, columns: Tensor, chart: Tensor, g: Tensor, alpha: float) -> Tensor:
    flat, h, roots = as_graph(scores, rows, columns)
    return reference.hypergraph_outside(flat, *h.arrays, roots, chart, g, alpha).view(scores.shape)


def alignment_tangent(
    scores: Tensor, rows: Tensor, columns: Tensor, chart: Tensor, g: Tensor, d: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    flat, h, roots = as_graph(scores, rows, columns)
    dvalue, dmu = reference.hypergraph_tangent(flat, *h.arrays, roots, chart, g, d.flatten(1), alpha)
    return dvalue, dmu.view(scores.shape)


def recorded(scores: Tensor, rows: Tensor, columns: Tensor, alpha: float) -> Tensor:
    """The value, by autograd's tape."""
    flat, h, roots = as_graph(scores, rows, columns)
    return tape.recorded(flat, *h.arrays, roots, alpha)
