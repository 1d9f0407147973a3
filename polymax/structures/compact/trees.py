"""Dependency trees as the head of each token, and its label if arcs have labels."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax.structures.compact import heads as arcs
from polymax.structures.compact import labels
from polymax.structures.compact.base import Compact
from polymax.structures.compact.tree_faults import (
    check_arcs,
    check_encoded_heads,
    check_heads,
    check_known_heads,
    check_projective,
)


@dataclass(frozen=True, eq=False)
class Heads(Compact):
    """Heads (*batch, n) of tokens 1..n, 0 the root symbol, -1 at padding; with labels (*batch, n, 2), head and label.

    `encode` takes no size, or sizes that end in the number of labels. With `projective` no two arcs may cross.
    """

    projective: bool

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        if not self.structure.labelled:
            y = arcs.encode_heads(index)
            self._check_encoded(index)
            return y
        labels.check_form(index)
        if not shape:
            raise TypeError("encode takes heads and labels, and the number of labels as the last size; got no size")
        y = labels.encode_labels(index, shape[-1])
        self._check_encoded(index[..., 0])
        labels.check_labels(index, shape[-1])
        return y

    def decode(self, y: Any) -> Tensor:
        return labels.heads_and_labels(y) if self.structure.labelled else arcs.decode_heads(y)

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        if self.structure.labelled:
            return labels.places_with_labels(index, scores[0].shape[-1])
        return arcs.places_of(index)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        x, heads = self._arcs(index, *scores)
        clean = check_heads(heads, x, self.structure.lengths, self.structure.single_root)
        if self.projective:
            check_projective(clean)
        if not self.structure.labelled:
            return clean
        index = torch.where((clean < 0).unsqueeze(-1), -1, index)
        labels.check_labels(index, scores[0].shape[-1])
        return index

    def check_parts(self, y: Any, *scores: Tensor) -> None:
        check_arcs((y != 0).sum(-1) if self.structure.labelled else y)
        super().check_parts(y, *scores)

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The arcs that agree with heads (*batch, n), or heads and labels (*batch, n, 2), in which -2 is unknown."""
        x, heads = self._arcs(index, *scores)
        check_known_heads(heads, x, self.structure.lengths)
        if not self.structure.labelled:
            return arcs.allowed_heads(heads)
        labels.check_labels(index, scores[0].shape[-1], unknown=True)
        return labels.allowed_arcs(index, scores[0].shape[-1])

    def _arcs(self, index: Tensor, *scores: Tensor) -> tuple[Tensor, Tensor]:
        """A tensor in the shape of scores of arcs without labels, and the heads."""
        (x,) = scores
        dims = 3 if self.structure.labelled else 2
        if x.dim() < dims or x.shape[-dims] != x.shape[1 - dims] or x.shape[-dims] == 0:
            expected = "(*batch, n + 1, n + 1, labels)" if dims == 3 else "(*batch, n + 1, n + 1)"
            raise ValueError(f"scores must be {expected}; got {tuple(x.shape)}")
        if not self.structure.labelled:
            return x, index
        labels.check_form(index, x.shape)
        # not a slice: there may be no label
        return x.sum(-1), index[..., 0]

    def _check_encoded(self, heads: Tensor) -> None:
        check_encoded_heads(heads, self.structure.single_root)
        if self.projective:
            check_projective(heads)
