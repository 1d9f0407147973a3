"""Alignments of a whole series with a part of a longer one: subsequence dynamic time warping."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax.hypergraphs.graph import Builder, Family, Graph
from polymax.structures import faults
from polymax.structures.alignment import Alignment
from polymax.structures.base import checked_lengths
from polymax.structures.dynamic import Derivations, DynamicProgram


@dataclass(frozen=True, eq=False)
class Subsequence(DynamicProgram):
    """Paths from any cell of the first row to any of the last by steps down, right and diagonal; parts are the cells.

    All rows are aligned, with the columns of one stretch: rows are a query, columns the series that it is searched in.

    Shapes: scores (*batch, n, m); lengths a pair of (*batch,), rows and columns of each instance

    Example:
        >>> Subsequence().map(torch.tensor([[0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]]))
        tensor([[0., 1., 0., 0.],
                [0., 0., 1., 0.]])

    See: Müller 2007, Information retrieval for music and motion, section 4.4.
    """

    lengths: tuple[Tensor, Tensor] | None = None

    def derivations(self, *scores: Tensor) -> Derivations:
        x, rows, columns, batch = self._flat(*scores)
        _, n, m = x.shape
        # columns of padding are forbidden; rows of padding are not reached
        x = torch.where(torch.arange(m, device=x.device) < columns[:, None, None], x, -torch.inf)
        roots = torch.where((rows > 0) & (columns > 0), 2 * n * m + rows - 1, -1)
        parts = x.flatten(1)
        graph = _graph.beside(parts, n, m)
        return Derivations(parts, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *batch, n, m))

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

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        x, rows, columns, batch = self._flat(*scores)
        super().check(index, *scores)
        if _check.readable(index):
            _check_path(index, rows.reshape(*batch, 1), columns.reshape(*batch, 1), x.shape[-1])
        return index

    def _flat(self, *scores: Tensor) -> tuple[Tensor, Tensor, Tensor, torch.Size]:
        (x,) = scores
        if x.dim() < 2:
            raise ValueError(f"scores must be (*batch, n, m); got {tuple(x.shape)}")
        if self.lengths is not None and (not isinstance(self.lengths, tuple) or len(self.lengths) != 2):
            raise TypeError("lengths must be a pair of tensors, rows and columns")
        rows, columns = self.lengths or (None, None)
        batch, (n, m) = x.shape[:-2], x.shape[-2:]
        return (
            x.reshape(batch.numel(), n, m),
            checked_lengths(rows, batch, n, x.device, "lengths[0]"),
            checked_lengths(columns, batch, m, x.device, "lengths[1]"),
            batch,
        )


@Family
def _graph(n: int, m: int) -> Graph:
    """Node D(i, j) chooses the cell before (i, j), or to begin there, V(i, j) adds its score, R(i) ends in row i."""
    cell = np.arange(n * m).reshape(n, m)
    builder = Builder(parts=n * m)
    builder.add(2 * cell + 1, cell, 2 * cell)
    builder.add(2 * cell[:1], -1)
    for before, after in ((cell[:-1, :-1], cell[1:, 1:]), (cell[:-1], cell[1:]), (cell[:, :-1], cell[:, 1:])):
        builder.add(2 * after, -1, 2 * before + 1)
    builder.add(2 * n * m + np.arange(n)[:, None], -1, 2 * cell + 1)
    return builder.build(2 * n * m + n)


def _check_path(cells: Tensor, rows: Tensor, columns: Tensor, m: int) -> None:
    """Cells (*batch, used, 2) lead in single steps from the first row to the last, within the columns."""
    key = torch.where(cells[..., 0] < 0, torch.iinfo(torch.long).max, cells[..., 0] * m + cells[..., 1])
    cells = cells.gather(-2, key.argsort(dim=-1, stable=True).unsqueeze(-1).expand(cells.shape))
    used = cells[..., 0] >= 0
    count = used.sum(-1, keepdim=True)
    empty = (rows == 0) | (columns == 0)

    def at(instance: tuple[int, ...], place: int) -> tuple[int, ...]:
        return tuple(cells[(*instance, place)].tolist())

    def miscounted(instance: tuple[int, ...], _: int) -> str:
        sizes = int(rows[instance]), int(columns[instance])
        return f"there are {int(count[instance])} cells{faults.of(instance)}, whose lengths are {sizes}"

    faults.refuse("path", (count == 0) != empty, miscounted)
    first = (cells[..., :1, 0] != 0) & ~empty
    faults.refuse("path", first, lambda i, _: f"its first cell{faults.of(i)} is {at(i, 0)}, not in row 0")
    step = cells[..., 1:, :] - cells[..., :-1, :]
    single = ((step == 0) | (step == 1)).all(-1) & (step == 1).any(-1)
    jump = ~single & used[..., 1:]
    faults.refuse("path", jump, lambda i, k: f"it jumps{faults.of(i)} from cell {at(i, k)} to {at(i, k + 1)}")
    last = torch.arange(cells.shape[-2], device=cells.device) == count - 1
    wrong = last & ((cells[..., 0] != rows - 1) | (cells[..., 1] >= columns))
    faults.refuse("path", wrong, lambda i, k: f"its last cell{faults.of(i)} is {at(i, k)}, not in the last row")
