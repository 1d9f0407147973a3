"""The private tensors of a graph's factors: in the order of the scores, and stacked by block for the solver."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polymax.factors.blocks import Block
from polymax.factors.factor import Pair


class Layout:
    """The order of score tensors: the variables, then the private tensors of each factor."""

    def __init__(self, factors: Sequence[Any]) -> None:
        numbered = [(f, factor, factor.private) for f, factor in enumerate(factors)]
        self.dims = 1, *(d for _, _, private in numbered for d in private)
        # the index of each factor with private tensors, and how many it has
        self.owners = tuple((f, len(private)) for f, _, private in numbered if private)
        self.pairs = tuple(f for f, factor, _ in numbered if isinstance(factor, Pair))

    def flat(
        self, tensors: Sequence[Tensor], batch: torch.Size, blocks: Sequence[Block]
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, ...]]]:
        """Variables (B, n), pairs (B, P) and the tensors (B, F, ...) of each block, in float64."""
        count = batch.numel()
        own: dict[int, tuple[Tensor, ...]] = {}
        place = 1
        for f, size in self.owners:
            given = tensors[place : place + size]
            own[f] = tuple(t.double().reshape(count, *t.shape[len(batch) :]) for t in given)
            place += size
        x = tensors[0].double().reshape(count, tensors[0].shape[-1])
        pairs = torch.stack([own[f][0] for f in self.pairs], 1) if self.pairs else x.new_zeros(count, 0)
        each = [tuple(torch.stack(t, 1) for t in zip(*(own.get(f, ()) for f in b.members))) for b in blocks]
        return x, pairs, each

    def listed(
        self,
        x: Tensor,
        pairs: Tensor,
        private: Sequence[tuple[Tensor, ...]],
        batch: torch.Size,
        blocks: Sequence[Block],
    ) -> tuple[Tensor, ...]:
        """The inverse of `flat`."""
        own: dict[int, tuple[Tensor, ...]] = {f: (pairs[:, k],) for k, f in enumerate(self.pairs)}
        for block, tensors in zip(blocks, private, strict=True):
            for k, f in enumerate(block.members):
                own[f] = tuple(t[:, k] for t in tensors)
        found = [x, *(t for f, _ in self.owners for t in own[f])]
        return tuple(t.reshape(batch + t.shape[1:]) for t in found)
