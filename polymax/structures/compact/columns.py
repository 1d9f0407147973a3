"""The column of each row: assignments."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.structures.compact import faults
from polymax.structures.compact.base import Compact
from polymax.structures.compact.choices import one_hot, one_hot_or_unknown, used_index

_WHAT = "assignment"


@dataclass(frozen=True, eq=False)
class Columns(Compact):
    """The columns (*batch, n) of the rows, -1 at unassigned rows; `encode` ends in the number of columns."""

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        faults.check_integers(index)
        m = shape[-1] if shape else index.shape[-1]
        if _check.readable(index):
            out = (index < -1) | (index >= m)
            if bool(out.any()):
                raise ValueError(f"columns must be in [0, {m}), or -1 at unassigned rows; got {int(index[out][0])}")
            _refuse_repeated_columns(index)
        return one_hot(index, m).float()

    def decode(self, y: Any) -> Tensor:
        return used_index(y)

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        n, m = scores[0].shape[-2:]
        return torch.where(index < 0, -1, torch.arange(n, device=index.device) * m + index)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        within, columns = self._sizes(index, *scores)
        if _check.readable(index):
            rows = within.sum(-1, keepdim=True)
            # if there are more rows than columns, rows may have none
            padded = torch.where(within & (rows > columns) & (index == -1), 0, index)
            faults.check_padding(_WHAT, "row", "column", padded, within)
            _refuse_columns(index, within, columns)
            _refuse_repeated_columns(index)

            def unassigned(instance: tuple[int, ...], _: int) -> str:
                free = set(range(int(columns[instance]))) - set(index[instance].tolist())
                return f"column {min(free)}{faults.of(instance)} has no row"

            faults.refuse(_WHAT, (rows > columns) & ((index >= 0).sum(-1, keepdim=True) < columns), unassigned)
        return torch.where(within, index, -1)

    def check_parts(self, y: Any, *scores: Tensor) -> None:
        count = (y != 0).sum(-1)
        faults.refuse(
            _WHAT, count > 1, lambda i, r: f"row {r}{faults.of(i)} has {int(count[(*i, r)])} columns, not one"
        )
        super().check_parts(y, *scores)

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The parts that agree with columns (*batch, n), in which -2 is unknown, and -1 marks unassigned rows."""
        within, columns = self._sizes(index, *scores)
        if _check.readable(index):
            _refuse_columns(index, within, columns)
        return one_hot_or_unknown(index, scores[0].shape[-1])

    def _sizes(self, index: Tensor, *scores: Tensor) -> tuple[Tensor, Tensor]:
        """A mask (*batch, n) of the rows of each instance, and its number of columns, (*batch, 1)."""
        *batch, n, m = scores[0].shape
        faults.check_shape(index, (*batch, n), "columns (*batch, n) of the rows")
        rows, columns = self.structure.lengths or (None, None)
        within = faults.inside(rows, torch.Size(batch), n, index.device)
        size = index.new_full((*batch, 1), m) if columns is None else columns.to(index.device).unsqueeze(-1)
        return within, size


def _refuse_columns(index: Tensor, within: Tensor, columns: Tensor) -> None:
    """Refuse columns (*batch, n) that do not exist."""

    def explain(instance: tuple[int, ...], row: int) -> str:
        came = int(index[(*instance, row)])
        return f"row {row}{faults.of(instance)} has column {came}, not one in [0, {int(columns[instance])})"

    faults.refuse(_WHAT, within & (index >= columns), explain)


def _refuse_repeated_columns(index: Tensor) -> None:
    """Refuse a column of index (*batch, n) that belongs to two rows."""
    ordered = index.sort(-1).values
    twice = torch.zeros_like(index, dtype=torch.bool)
    twice[..., 1:] = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)

    def repeated(instance: tuple[int, ...], place: int) -> str:
        column = int(ordered[(*instance, place)])
        rows = (index[instance] == column).nonzero()[:, 0].tolist()
        return f"column {column}{faults.of(instance)} belongs to rows {faults.in_words(rows)}"

    faults.refuse(_WHAT, twice, repeated)
