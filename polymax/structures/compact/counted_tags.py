"""Tags in which one state has at most k positions, or at most k runs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import Parts
from polymax.structures.compact import faults
from polymax.structures.compact.tags import Tags


@dataclass(frozen=True, eq=False)
class CountedTags(Tags):
    """Tags (*batch, n), -1 at padding; `encode` takes the number of states."""

    def encode(self, index: Tensor, *shape: int) -> Parts:
        y = super().encode(index, *shape)
        self._check_count(index)
        return y

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        tags = super().check(index, *scores)
        self._check_count(tags)
        return tags

    def count_of(self, tags: Tensor) -> Tensor:
        """The number of positions with the counted state, or of its runs, in tags (*batch, n): (*batch,)."""
        on = tags == self.structure.state
        if self.structure.runs:
            on = on & ~torch.nn.functional.pad(on[..., :-1], (1, 0))
        return on.sum(-1)

    def _check_count(self, tags: Tensor) -> None:
        if _check.readable(tags):
            structure, count = self.structure, self.count_of(tags)
            what = "runs" if structure.runs else "positions"

            def explain(instance: tuple[int, ...], _: int) -> str:
                came = int(count[instance])
                return f"state {structure.state} has {came} {what}{faults.of(instance)}, more than {structure.k}"

            faults.refuse(self.what, (count > structure.k).unsqueeze(-1), explain)
