"""The cells of paths through a table, in single steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polymax import _check
from polymax.structures.base import checked_pairs
from polymax.structures.compact import faults
from polymax.structures.compact.base import Compact


@dataclass(frozen=True, eq=False)
class Cells(Compact):
    """The cells (*batch, used, 2) of paths, -1 after the last; `encode` takes the numbers of rows and of columns.

    A path leads from the first row to the last; with `corners`, from the first cell to the last.
    """

    corners: bool

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        n, m = faults.sizes(shape, "the numbers of rows", "of columns")
        y = super().encode(index, n, m)
        if _check.readable(index) and index.shape[-2]:
            # a path of any length
            self._check_path(index, 1 + index.amax(-2), m)
        return y

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        (x, rows, columns), batch = checked_pairs(self.structure, *scores)
        super().check(index, *scores)
        if _check.readable(index):
            self._check_path(index, torch.stack([rows, columns], -1).reshape(*batch, 2), x.shape[-1])
        return index

    def _check_path(self, cells: Tensor, lengths: Tensor, m: int) -> None:
        """Refuse cells (*batch, used, 2) that do not lead in single steps to the end of lengths (*batch, 2)."""
        # in the order of a path, rows of -1 after it
        key = torch.where(cells[..., 0] < 0, torch.iinfo(torch.long).max, cells[..., 0] * m + cells[..., 1])
        cells = cells.gather(-2, key.argsort(dim=-1, stable=True).unsqueeze(-1).expand(cells.shape))
        used = cells[..., 0] >= 0
        count = used.sum(-1, keepdim=True)
        empty = (lengths == 0).any(-1, keepdim=True)

        def at(instance: tuple[int, ...], place: int) -> tuple[int, ...]:
            return tuple(cells[(*instance, place)].tolist())

        def miscounted(instance: tuple[int, ...], _: int) -> str:
            sizes = tuple(lengths[instance].tolist())
            return f"there are {int(count[instance])} cells{faults.of(instance)}, whose lengths are {sizes}"

        faults.refuse("path", (count == 0) != empty, miscounted)
        start = cells[..., :1, :] != 0
        start, where = (start.any(-1), "not (0, 0)") if self.corners else (start[..., 0], "not in row 0")
        faults.refuse("path", start & ~empty, lambda i, _: f"its first cell{faults.of(i)} is {at(i, 0)}, {where}")
        step = cells[..., 1:, :] - cells[..., :-1, :]
        single = ((step == 0) | (step == 1)).all(-1) & (step == 1).any(-1)
        jump = ~single & used[..., 1:]
        faults.refuse("path", jump, lambda i, k: f"it jumps{faults.of(i)} from cell {at(i, k)} to {at(i, k + 1)}")
        last = lengths.unsqueeze(-2) - 1
        wrong = (cells != last).any(-1) if self.corners else (cells[..., 0] != last[..., 0]) | (cells > last).any(-1)
        wrong &= torch.arange(cells.shape[-2], device=cells.device) == count - 1

        def misled(instance: tuple[int, ...], place: int) -> str:
            right = tuple((lengths[instance] - 1).tolist()) if self.corners else "in the last row"
            return f"its last cell{faults.of(instance)} is {at(instance, place)}, not {right}"

        faults.refuse("path", wrong, misled)
