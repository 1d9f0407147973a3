"""The compact form of trees that score pairs of arcs: the heads of their tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax.structures.compact.base import Compact
from polymax.structures.compact.trees import Heads


@dataclass(frozen=True, eq=False)
class PairedHeads(Compact):
    """Heads (*batch, n) of tokens 1..n, 0 the root symbol, -1 at padding; `encode` takes no size."""

    @property
    def heads(self) -> Heads:
        """The form of the same trees by their arcs alone."""
        return self.structure.tree.compact

    def encode(self, index: Tensor, *shape: int) -> Any:
        return self.structure.complete(self.heads.encode(index, *shape))

    def decode(self, y: Any) -> Tensor:
        return self.heads.decode(y.arcs)

    def first(self, index: Tensor, *scores: Tensor) -> Tensor:
        return self.heads.first(index, scores[0])

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        return self.heads.places(index, scores[0])

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The scores (*batch, 2 n), or 3 n, of the arc of each token, then of its pairs."""
        arcs, *pairs = self.structure.full(*scores)
        used = self.structure.pairs(self.first(index, arcs).to(arcs.dtype))
        each = [torch.where(y == 0, 0, y * x).sum((-3, -2))[..., 1:] for y, x in zip(used, pairs, strict=True)]
        return torch.cat([self.heads.terms(index, arcs), *each], -1)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        return self.heads.check(index, scores[0])

    def check_parts(self, y: Any, *scores: Tensor) -> None:
        self.heads.check_parts(y.arcs, scores[0])
        super().check_parts(y, *self.structure.full(*scores))

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        return self.heads.allowed(index, scores[0])
