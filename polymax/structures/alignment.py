"""Monotone alignments of two sequences: dynamic time warping."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.kernels.alignment import alignment_inside, alignment_outside, alignment_tangent
from polymax.structures import faults
from polymax.structures.base import checked_lengths
from polymax.structures.dynamic import Derivations, DynamicProgram, Problem, kernel_passes


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

    parts_once = True

    def problem(self, *scores: Tensor) -> Problem:
        tensors, batch = self._flat(*scores)
        passes = kernel_passes(alignment_inside, alignment_outside, alignment_tangent, recorded=_recorded)
        return Problem(passes, tensors, batch, lambda mu: mu[0].reshape(*batch, *mu[0].shape[1:]))

    def derivations(self, *scores: Tensor) -> Derivations:
        from polymax.kernels.alignment.reference import as_graph

        tensors, batch = self._flat(*scores)
        flat, graph, roots = as_graph(*tensors)
        n, m = tensors[0].shape[1:]
        return Derivations(flat, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *batch, n, m))

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

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        """Cells (*batch, used, 2) of paths from (0, 0) to any cell, -1 after the last, to indicators (*batch, n, m)."""
        n, m = faults.sizes(shape, "the numbers of rows", "of columns")
        y = super().encode(index, n, m)
        if _check.readable(index) and index.shape[-2]:
            _check_path(index, 1 + index.amax(-2), m)
        return y

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        (x, rows, columns), batch = self._flat(*scores)
        super().check(index, *scores)
        if _check.readable(index):
            _check_path(index, torch.stack([rows, columns], -1).reshape(*batch, 2), x.shape[-1])
        return index

    def _flat(self, *scores: Tensor) -> tuple[tuple[Tensor, ...], torch.Size]:
        (x,) = scores
        if x.dim() < 2:
            raise ValueError(f"scores must be (*batch, n, m); got {tuple(x.shape)}")
        batch = x.shape[:-2]
        if self.lengths is not None and (not isinstance(self.lengths, tuple) or len(self.lengths) != 2):
            raise TypeError("lengths must be a pair of tensors, rows and columns")
        rows, columns = self.lengths or (None, None)
        n, m = x.shape[-2:]
        return (
            x.reshape(batch.numel(), n, m),
            checked_lengths(rows, batch, n, x.device, "lengths[0]"),
            checked_lengths(columns, batch, m, x.device, "lengths[1]"),
        ), batch


def _check_path(cells: Tensor, lengths: Tensor, m: int) -> None:
    """Cells (*batch, used, 2) lead in single steps from (0, 0) to the last of lengths (*batch, 2)."""
    # in the order of a path, rows of -1 after it
    key = torch.where(cells[..., 0] < 0, torch.iinfo(torch.long).max, cells[..., 0] * m + cells[..., 1])
    cells = cells.gather(-2, key.argsort(dim=-1, stable=True).unsqueeze(-1).expand(cells.shape))
    count = (cells[..., 0] >= 0).sum(-1, keepdim=True)
    empty = (lengths == 0).any(-1, keepdim=True)

    def at(instance: tuple[int, ...], place: int) -> tuple[int, ...]:
        return tuple(cells[(*instance, place)].tolist())

    def miscounted(instance: tuple[int, ...], _: int) -> str:
        sizes = tuple(lengths[instance].tolist())
        return f"there are {int(count[instance])} cells{faults.of(instance)}, whose lengths are {sizes}"

    faults.refuse("path", (count == 0) != empty, miscounted)
    first = (cells[..., :1, :] != 0).any(-1) & ~empty
    faults.refuse("path", first, lambda i, _: f"its first cell{faults.of(i)} is {at(i, 0)}, not (0, 0)")
    step = cells[..., 1:, :] - cells[..., :-1, :]
    single = ((step == 0) | (step == 1)).all(-1) & (step == 1).any(-1)
    jump = ~single & (cells[..., 1:, 0] >= 0)
    faults.refuse("path", jump, lambda i, k: f"it jumps{faults.of(i)} from cell {at(i, k)} to {at(i, k + 1)}")
    end = (cells != lengths.unsqueeze(-2) - 1).any(-1) & (torch.arange(cells.shape[-2]) == count - 1)

    def wrong_end(instance: tuple[int, ...], place: int) -> str:
        last = tuple((lengths[instance] - 1).tolist())
        return f"its last cell{faults.of(instance)} is {at(instance, place)}, not {last}"

    faults.refuse("path", end, wrong_end)


def _paths(n: int, m: int) -> Iterator[list[tuple[int, int]]]:
    if n == 1 and m == 1:
        yield [(0, 0)]
    for rows, columns in ((n - 1, m - 1), (n - 1, m), (n, m - 1)):
        if rows and columns:
            for path in _paths(rows, columns):
                yield [*path, (n - 1, m - 1)]


def _recorded(*args: Any) -> Tensor:
    from polymax.kernels.alignment.reference import recorded

    return recorded(*args)
