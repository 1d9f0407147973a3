"""The spans of binary trees, with labels or without."""

from dataclasses import dataclass

from torch import Tensor

from polymax import _check
from polymax.structures.base import checked_lengths
from polymax.structures.compact import faults
from polymax.structures.compact.base import Compact, flat_places, refuse_repeats

_WHAT = "binary tree"


@dataclass(frozen=True, eq=False)
class Spans(Compact):
    """Spans (*batch, used, 2) [i, j], or (*batch, used, 3) with labels, -1 after the last; `encode` takes all sizes."""

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        y = super().encode(index, *shape)
        if _check.readable(index) and index.shape[-2]:
            _check_brackets(index, 1 + index[..., 1].amax(-1, keepdim=True), shape[0])
        return y

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        super().check(index, *scores)
        if _check.readable(index):
            x, dims = scores[0], self.structure.event_dims(*scores)[0]
            batch, n = x.shape[: x.dim() - dims], x.shape[-dims]
            lengths = checked_lengths(self.structure.lengths, batch, n, index.device, "lengths")
            _check_brackets(index, lengths.reshape(*batch, 1), n)
        return index


def _check_brackets(rows: Tensor, lengths: Tensor, n: int) -> None:
    """Refuse spans (*batch, used, 2 or 3) that are not a binary tree over the leaves before lengths (*batch, 1).

    There are at most 2 n - 1 spans that do not cross; a binary tree has exactly 2 n - 1.
    """
    i, j = rows[..., 0], rows[..., 1]

    def span(instance: tuple[int, ...], place: int) -> str:
        return f"[{int(i[(*instance, place)])}, {int(j[(*instance, place)])}]"

    backward = (i > j) | (j >= lengths)
    faults.refuse(
        _WHAT, backward, lambda b, k: f"span {span(b, k)}{faults.of(b)} is none of its {int(lengths[b])} leaves"
    )
    refuse_repeats(_WHAT, rows[..., :2], flat_places(rows[..., :2], (n, n)))
    a, b, c, d = i.unsqueeze(-1), j.unsqueeze(-1), i.unsqueeze(-2), j.unsqueeze(-2)
    cross = ((a < c) & (c <= b) & (b < d) & (a >= 0)).flatten(-2)

    def crossing(instance: tuple[int, ...], place: int) -> str:
        first, second = divmod(place, rows.shape[-2])
        return f"spans {span(instance, first)} and {span(instance, second)}{faults.of(instance)} cross"

    faults.refuse(_WHAT, cross, crossing)
    count = (i >= 0).sum(-1, keepdim=True)
    full = (2 * lengths - 1).clamp(min=0)

    def few(instance: tuple[int, ...], _: int) -> str:
        return f"it has {int(count[instance])} spans{faults.of(instance)}, leaves included, not {int(full[instance])}"

    faults.refuse(_WHAT, count != full, few)
