"""The pairs of an alignment with gaps, in order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import Parts, tensors
from polymax.structures.base import checked_pairs
from polymax.structures.compact import faults
from polymax.structures.compact.base import Compact, indicators


@dataclass(frozen=True, eq=False)
class Pairs(Compact):
    """The pairs (*batch, used, 2) of rows and columns in order, -1 after the last; `encode` takes both numbers."""

    def encode(self, index: Tensor, *shape: int) -> Parts:
        n, m = faults.sizes(shape, "the numbers of rows", "of columns")
        first = super().encode(index, n, m)
        if _check.readable(index):
            _check_order(index)
        return self.structure.complete(first)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        full = self.structure.full(*scores)
        super().check(index, *full)
        if _check.readable(index):
            _check_order(index)
            (_, rows, columns), batch = checked_pairs(self.structure, full[0])
            ends = torch.stack([rows, columns], -1).reshape(*batch, 1, 2)

            def explain(instance: tuple[int, ...], place: int) -> str:
                pair, sizes = tuple(index[(*instance, place)].tolist()), tuple(ends[instance][0].tolist())
                return f"pair {pair}{faults.of(instance)} is beyond its lengths {sizes}"

            faults.refuse("alignment", (index >= ends).any(-1), explain)
        return index

    def whole(self, y: Parts) -> bool:
        first = tensors(y)[0]
        return bool(((first == 0) | (first == 1)).all()) and all(bool((t == t.round()).all()) for t in tensors(y))

    def first(self, index: Tensor, *scores: Tensor) -> Tensor:
        return indicators(index, scores[0].shape[-2:]).to(scores[0].dtype)

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The scores of all parts, (*batch, parts), 0 for parts that are not used."""
        full = self.structure.full(*scores)
        parts = tensors(self.structure.complete(self.first(index, *full)))
        return torch.cat([torch.where(y == 0, 0, y * x).flatten(-2) for y, x in zip(parts, full, strict=True)], -1)


def _check_order(index: Tensor) -> None:
    """Refuse pairs (*batch, used, 2) unless each pair comes after the pair before it in both sequences."""
    behind = (index[..., 1:, :] <= index[..., :-1, :]).any(-1) & (index[..., 1:, 0] >= 0)

    def explain(instance: tuple[int, ...], place: int) -> str:
        before, after = (tuple(index[(*instance, place + k)].tolist()) for k in (0, 1))
        return f"pair {after}{faults.of(instance)} does not come after pair {before} in both sequences"

    faults.refuse("alignment", behind, explain)
