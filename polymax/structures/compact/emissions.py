"""How many tokens a transducer has emitted at the blank of each frame."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import Parts
from polymax.structures.compact import faults
from polymax.structures.compact.tags import OneEach


@dataclass(frozen=True, eq=False)
class Emissions(OneEach):
    """The tokens emitted up to the blank of each frame, (*batch, frames), -1 at padding; `encode` takes tokens + 1."""

    what, unit, part, count = "path of a transducer", "frame", "number", "states, tokens + 1"

    def encode(self, index: Tensor, *shape: int) -> Parts:
        y = super().encode(index, *shape)
        if _check.readable(index):
            _check_order(index)
        return y

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        index = super().check(index, *scores)
        if _check.readable(index):
            _check_order(index)
            frames, tokens = (t.reshape(index.shape[:-1]) for t in self.structure._sizes(*self.structure.full(*scores)))
            last = torch.where(frames > 0, index.amax(-1), tokens) if index.shape[-1] else tokens

            def explain(instance: tuple[int, ...], _: int) -> str:
                return f"{int(last[instance])} tokens{faults.of(instance)} are emitted, not {int(tokens[instance])}"

            faults.refuse(self.what, (last != tokens).unsqueeze(-1), explain)
        return index

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        """(*batch, parts): the scores of all parts, 0 for those that are not used."""
        full = self.structure.full(*scores)
        parts = self.structure.complete(self.first(index, *full))
        return torch.cat([torch.where(y == 0, 0, y * x).flatten(-2) for y, x in zip(parts, full, strict=True)], -1)


def _check_order(index: Tensor) -> None:
    """Refuse numbers (*batch, frames) that fall, up to the padding."""
    falls = (index[..., 1:] < index[..., :-1]) & (index[..., 1:] >= 0)

    def explain(instance: tuple[int, ...], frame: int) -> str:
        before, after = (int(index[(*instance, frame + k)]) for k in (0, 1))
        return f"frame {frame + 1}{faults.of(instance)} has number {after}, after {before}"

    faults.refuse("path of a transducer", falls, explain)
