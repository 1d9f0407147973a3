"""A structure some of whose parts in the first tensor are private, and not in the quadratic term."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax.structures.base import Parts, Structure, tensors, weighted_sum


@dataclass(frozen=True, eq=False)
class Shared(Structure):
    """The set of a structure with its first tensor split in two: the shared parts, and the private parts, 0 elsewhere.

    Several structures may have the same shared parts; the best of them under the scores `private`, of the private parts
    and of the other tensors, stands for them all.

    Shapes: shared (*batch, *event) bool; scores: shared parts and private parts (*batch, *event), then other tensors
    """

    structure: Structure
    shared: Tensor
    private: tuple[Tensor, ...]

    def map(self, *scores: Tensor) -> Parts:
        first, private, *others = scores
        y = tensors(self.structure.map(torch.where(self.shared, first, private), *others))
        return torch.where(self.shared, y[0], 0), torch.where(self.shared, 0, y[0]), *y[1:]

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        first, *others = self.structure.event_dims(*(scores[:1] + scores[2:]))
        return first, first, *others

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        first, *others = self.structure.full(scores[0], *scores[2:])
        return first, scores[1], *others

    def complete(self, first: Tensor) -> Parts:
        """Structures (*batch, k, *event), or (*batch, *event), from their shared parts."""
        lead = self.private[0].dim()
        if first.dim() == lead:
            return self._best(first)
        dim = lead - self.structure.event_dims(self.private[0])[0]
        return tuple(t.movedim(0, dim) for t in self._best(first.movedim(dim, 0)))

    def rescore(self, vertices: Tensor, *scores: Tensor) -> Tensor:
        dim = vertices.dim() - 1 - self.event_dims(*scores)[0]
        return self.score(self._best(vertices.movedim(dim, 0)), *scores).movedim(0, -1)

    def mean(self, vertices: Tensor, probs: Tensor) -> Parts:
        return tuple(weighted_sum(t, probs) for t in self.complete(vertices))

    def named(self, *parts: Tensor) -> Any:
        return parts

    def _best(self, first: Tensor) -> tuple[Tensor, ...]:
        """The best structures with these shared parts (..., *batch, *event)."""
        first = first.double()
        dims = self.structure.event_dims(*self.private)
        sizes = [
            torch.where(x.isfinite(), x.abs(), 0).flatten(x.dim() - d).sum(-1)
            for x, d in zip(self.private, dims, strict=True)
        ]
        # the price of a shared part that differs exceeds any gain of private parts
        price = (1 + 2 * torch.stack(torch.broadcast_tensors(*sizes)).sum(0)).reshape(*sizes[0].shape, *[1] * dims[0])
        forced = torch.where(self.shared, (2 * first - 1) * price, self.private[0])
        others = (x.expand(*first.shape[: first.dim() - dims[0]], *x.shape[x.dim() - d :])
                  for x, d in zip(self.private[1:], dims[1:], strict=True))  # fmt: skip
        y = tensors(self.structure.map(forced, *others))
        return first, torch.where(self.shared, 0, y[0]), *y[1:]
