"""Zeros, runs and groups of equal weights in rows of attention."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.metrics.counts import share


class AttentionShape(NamedTuple):
    """The share of weights that are exactly 0, and for each row the numbers of runs of positive entries, and of runs of
    equal positive entries.
    """

    zeros: float
    segments: float
    groups: float


@dataclass
class AttentionRuns:
    """Means over the rows of attention weights; rows without entries are left out.

    Masked entries (mask False) are deleted, as in `fusedmax`: the entries beside them become neighbours.

    Shapes: weights (*batch, n), mask the same or broadcast to it

    Example:
        >>> runs = AttentionRuns()
        >>> runs.add(torch.tensor([[0.2, 0.2, 0.0, 0.5, 0.1]]))
        >>> runs.result()
        AttentionShape(zeros=0.2, segments=2.0, groups=3.0)
    """

    rows: int = 0
    entries: int = 0
    zeros: int = 0
    segments: int = 0
    groups: int = 0

    def add(self, weights: Tensor, mask: Tensor | None = None) -> None:
        """Count the rows of several sentences, heads and queries."""
        if weights.dim() == 0 or not weights.is_floating_point():
            raise ValueError(f"weights must be (*batch, n), floating point; got {tuple(weights.shape)} {weights.dtype}")
        if mask is not None and mask.dtype != torch.bool:
            raise TypeError(f"mask must be a bool tensor; got {mask.dtype}")
        keep = torch.ones_like(weights, dtype=torch.bool)
        if mask is not None:
            try:
                keep = mask.expand_as(weights)
            except RuntimeError:
                shapes = f"{tuple(weights.shape)}; got {tuple(mask.shape)}"
                raise ValueError(f"mask must broadcast to the shape of weights, {shapes}") from None
        # entries that are kept come first, in their order
        order = keep.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        x, keep = weights.detach().gather(-1, order), keep.gather(-1, order)
        positive = (x > 0) & keep
        begins, differs = positive.clone(), positive.clone()
        begins[..., 1:] &= ~positive[..., :-1]
        differs[..., 1:] &= x[..., 1:] != x[..., :-1]
        self.rows += int(keep.any(-1).sum())
        self.entries += int(keep.sum())
        self.zeros += int(((x == 0) & keep).sum())
        self.segments += int(begins.sum())
        self.groups += int(differs.sum())

    def result(self) -> AttentionShape:
        return AttentionShape(
            share(self.zeros, self.entries), share(self.segments, self.rows), share(self.groups, self.rows)
        )
