"""What dependency trees have in common: arcs [head, modifier], with labels or without, and their compact forms."""

from typing import Any

import torch
from torch import Tensor

from polymax.structures import labelled_arcs as labels
from polymax.structures.base import Structure
from polymax.structures.heads import allowed_heads, decode_heads, encode_heads, places_of
from polymax.structures.tree_faults import check_arcs, check_encoded_heads, check_heads, check_known_heads


class Arcs(Structure):
    """Trees over tokens 1..n below the root symbol 0."""

    lengths: Tensor | None
    single_root: bool
    labelled: bool

    def check_heads(self, heads: Tensor) -> None:
        """Refuse trees (*batch, n), -1 at padding, that a set leaves out."""

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (3,) if self.labelled else (2,)

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        """Heads (*batch, n) of tokens 1..n, -1 at padding, to arcs; or (*batch, n, 2), labels ending the shape."""
        if not self.labelled:
            y = encode_heads(index)
            self._check_encoded(index)
            return y
        labels.check_form(index)
        if not shape:
            raise TypeError("encode takes heads and labels, and the number of labels as the last size; got no size")
        y = labels.spread(index, shape[-1])
        self._check_encoded(index[..., 0])
        labels.check_labels(index, shape[-1])
        return y

    def decode(self, y: Any) -> Tensor:
        """Heads (*batch, n) of tokens 1..n, -1 at padding; with labels (*batch, n, 2)."""
        return labels.heads_and_labels(y) if self.labelled else decode_heads(y)

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        return labels.places_with_labels(index, scores[0].shape[-1]) if self.labelled else places_of(index)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        x, heads = self._arcs(index, *scores)
        clean = check_heads(heads, x, self.lengths, self.single_root)
        self.check_heads(clean)
        if not self.labelled:
            return clean
        index = torch.where((clean < 0).unsqueeze(-1), -1, index)
        labels.check_labels(index, scores[0].shape[-1])
        return index

    def check_parts(self, y: Any, *scores: Tensor) -> None:
        check_arcs((y != 0).sum(-1) if self.labelled else y)
        super().check_parts(y, *scores)

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        """Heads (*batch, n), or heads and labels (*batch, n, 2), -2 where not known."""
        x, heads = self._arcs(index, *scores)
        check_known_heads(heads, x, self.lengths)
        if not self.labelled:
            return allowed_heads(heads)
        labels.check_labels(index, scores[0].shape[-1], unknown=True)
        return labels.allowed_arcs(index, scores[0].shape[-1])

    def _arcs(self, index: Tensor, *scores: Tensor) -> tuple[Tensor, Tensor]:
        """Something shaped like scores of arcs without labels, and the heads."""
        (x,) = scores
        dims = 3 if self.labelled else 2
        if x.dim() < dims or x.shape[-dims] != x.shape[1 - dims] or x.shape[-dims] == 0:
            expected = "(*batch, n + 1, n + 1, labels)" if self.labelled else "(*batch, n + 1, n + 1)"
            raise ValueError(f"scores must be {expected}; got {tuple(x.shape)}")
        if not self.labelled:
            return x, index
        labels.check_form(index, x.shape)
        # not a slice: there may be no label
        return x.sum(-1), index[..., 0]

    def _check_encoded(self, heads: Tensor) -> None:
        check_encoded_heads(heads, self.single_root)
        self.check_heads(heads)
