"""Monotone alignments of two sequences: dynamic time warping."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from polymax.hypergraphs import Derivations
from polymax.hypergraphs.passes import Problem, kernel_passes
from polymax.kernels.alignment import alignment_inside, alignment_outside, alignment_tangent
from polymax.kernels.alignment.reference import as_graph, recorded
from polymax.structures.base import checked_pairs
from polymax.structures.compact.cells import Cells
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.usable import usable_cells

_PASSES = kernel_passes(alignment_inside, alignment_outside, alignment_tangent, recorded=recorded)


@dataclass(frozen=True, eq=False)
class Alignment(DynamicProgram):
    """Paths from cell (0, 0) to (n - 1, m - 1) by steps down, right and diagonal; the parts are the cells.

    Shapes: scores (*batch, n, m); lengths a pair of (*batch,), rows and columns of each instance

    Example:
        >>> Alignment().map(torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]))
        tensor([[1., 1., 0.],
                [0., 1., 1.]])
    """

    lengths: tuple[Tensor, Tensor] | None = None
    may_be_empty = False
    form = partial(Cells, corners=True)
    parts_once = True

    def problem(self, *scores: Tensor) -> Problem:
        tensors, batch = checked_pairs(self, *scores)
        return Problem(_PASSES, tensors, batch, lambda mu: mu[0].reshape(scores[0].shape))

    def derivations(self, *scores: Tensor) -> Derivations:
        tensors, batch = checked_pairs(self, *scores)
        flat, graph, roots = as_graph(*tensors)
        return Derivations(flat, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *scores[0].shape))

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return usable_cells(self.lengths, *parts)

    def most_parts(self, *events: torch.Size) -> int:
        return events[0][0] + events[0][1]

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2,)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        n, m = event_shape
        paths = list(_paths(n, m)) if n and m else [[]]
        y = torch.zeros(len(paths), n, m)
        for k, path in enumerate(paths):
            for i, j in path:
                y[k, i, j] = 1
        return y


def _paths(n: int, m: int) -> Iterator[list[tuple[int, int]]]:
    if n == 1 and m == 1:
        yield [(0, 0)]
    for rows, columns in ((n - 1, m - 1), (n - 1, m), (n, m - 1)):
        if rows and columns:
            for path in _paths(rows, columns):
                yield [*path, (n - 1, m - 1)]
