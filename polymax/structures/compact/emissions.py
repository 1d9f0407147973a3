"""The compact form of a transducer's paths: the number of tokens emitted at the blank of each frame."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polymax.structures.compact import faults
from polymax.structures.compact.ordered import Ordered


@dataclass(frozen=True, eq=False)
class Emissions(Ordered):
    """The tokens emitted up to the blank of each frame, (*batch, frames), -1 at padding; `encode` takes tokens + 1."""

    what, unit, part, count = "path of a transducer", "frame", "number", "states, tokens + 1"

    def check_order(self, index: Tensor, like: Tensor) -> None:
        """Refuse numbers that decrease before the padding."""
        falls = (index[..., 1:] < index[..., :-1]) & (index[..., 1:] >= 0)

        def explain(instance: tuple[int, ...], frame: int) -> str:
            before, after = (int(index[(*instance, frame + k)]) for k in (0, 1))
            return f"frame {frame + 1}{faults.of(instance)} has number {after}, after {before}"

        faults.refuse(self.what, falls, explain)

    def check_end(self, index: Tensor, *scores: Tensor) -> None:
        frames, tokens = (t.reshape(index.shape[:-1]) for t in self.structure._sizes(*self.structure.full(*scores)))
        last = torch.where(frames > 0, index.amax(-1), tokens) if index.shape[-1] else tokens

        def explain(instance: tuple[int, ...], _: int) -> str:
            return f"{int(last[instance])} tokens{faults.of(instance)} are emitted, not {int(tokens[instance])}"

        faults.refuse(self.what, (last != tokens).unsqueeze(-1), explain)

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The scores of all parts, (*batch, parts), 0 for parts that are not used."""
        full = self.structure.full(*scores)
        parts = self.structure.complete(self.first(index, *full))
        return torch.cat([torch.where(y == 0, 0, y * x).flatten(-2) for y, x in zip(parts, full, strict=True)], -1)
