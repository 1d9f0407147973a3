"""Alignments of a whole series with a part of a longer one: subsequence dynamic time warping."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from polymax.hypergraphs import Builder, Derivations, Family, Graph
from polymax.structures.alignment import Alignment
from polymax.structures.base import checked_pairs
from polymax.structures.compact.cells import Cells
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.usable import usable_cells


@dataclass(frozen=True, eq=False)
class Subsequence(DynamicProgram):
    """Paths from any cell of the first row to any of the last by steps down, right and diagonal; parts are the cells.

    All rows are aligned with one stretch of the columns: rows are a query, columns the series that is searched.

    Shapes: scores (*batch, n, m); lengths a pair of (*batch,), rows and columns of each instance

    Example:
        >>> Subsequence().map(torch.tensor([[0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]]))
        tensor([[0., 1., 0., 0.],
                [0., 0., 1., 0.]])

    See: Müller 2007, Information retrieval for music and motion, section 4.4.
    """

    lengths: tuple[Tensor, Tensor] | None = None
    may_be_empty = False
    form = partial(Cells, corners=False)
    parts_once = True

    def derivations(self, *scores: Tensor) -> Derivations:
        (x, rows, columns), batch = checked_pairs(self, *scores)
        _, n, m = x.shape
        # columns of padding are forbidden; rows of padding are not reached
        x = torch.where(torch.arange(m, device=x.device) < columns[:, None, None], x, -torch.inf)
        roots = torch.where((rows > 0) & (columns > 0), 2 * n * m + rows - 1, -1)
        parts = x.flatten(1)
        graph = _graph.beside(parts, n, m)
        return Derivations(parts, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *batch, n, m))

    def most_parts(self, *events: torch.Size) -> int:
        return events[0][0] + events[0][1]

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2,)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        n, m = event_shape
        if not n or not m:
            return torch.zeros(1, n, m)
        found = []
        for start in range(m):
            for width in range(1, m - start + 1):
                paths = Alignment().vertices((n, width))
                found.append(torch.nn.functional.pad(paths, (start, m - start - width)))
        return torch.cat(found)

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return usable_cells(self.lengths, *parts)


@Family
def _graph(n: int, m: int) -> Graph:
    """Node D(i, j) chooses the cell before (i, j), or begins a path; V(i, j) adds its score; R(i) ends in row i."""
    cell = np.arange(n * m).reshape(n, m)
    builder = Builder(parts=n * m)
    builder.add(2 * cell + 1, cell, 2 * cell)
    builder.add(2 * cell[:1], -1)
    for before, after in ((cell[:-1, :-1], cell[1:, 1:]), (cell[:-1], cell[1:]), (cell[:, :-1], cell[:, 1:])):
        builder.add(2 * after, -1, 2 * before + 1)
    builder.add(2 * n * m + np.arange(n)[:, None], -1, 2 * cell + 1)
    return builder.build(2 * n * m + n)
