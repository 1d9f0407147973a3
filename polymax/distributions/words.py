"""Sparse distributions over the words of a large vocabulary."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polymax import _check

if TYPE_CHECKING:
    from polymax.distributions.stored_words import StoredWords


@dataclass(frozen=True)
class WordDistribution:
    """The words that have a positive probability, the likeliest first.

    A row whose logits have a NaN has ids of -1 and probabilities of NaN; draws from it are -1.

    Shapes: ids (*batch, k), -1 where a row has fewer words; probs (*batch, k), 0 there; words: the whole vocabulary

    Example:
        >>> found = WordDistribution(torch.tensor([[7, 3]]), torch.tensor([[0.75, 0.25]]), words=10)
        >>> found.prob(torch.tensor([3])), found.support_size
        (tensor([0.2500]), tensor([2]))
    """

    ids: Tensor
    probs: Tensor
    words: int

    @property
    def support_size(self) -> Tensor:
        """The number of words with a positive probability, (*batch,)."""
        return (self.probs > 0).sum(-1)

    @property
    def mode(self) -> Tensor:
        """The likeliest word, (*batch,)."""
        return self.ids[..., 0]

    def prob(self, target: Tensor) -> Tensor:
        """The probability of a word for each row, (*batch,): exactly 0 outside of the support."""
        return torch.where((self.ids == target.unsqueeze(-1)) | self.probs.isnan(), self.probs, 0).sum(-1)

    def squared_norm(self) -> Tensor:
        """The sum of squared probabilities, (*batch,)."""
        return self.probs.square().sum(-1)

    def entropy(self) -> Tensor:
        """The entropy in nats, (*batch,)."""
        return torch.special.entr(self.probs).sum(-1)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The k likeliest words and their probabilities, (*batch, k): -1 and 0 where fewer are possible."""
        _check.whole(k, "k")
        missing = max(k - self.ids.shape[-1], 0)
        ids = torch.nn.functional.pad(self.ids, (0, missing), value=-1)
        return ids[..., :k], torch.nn.functional.pad(self.probs, (0, missing))[..., :k]

    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        """Words drawn by their probabilities, (*shape, *batch)."""
        count = torch.Size(shape).numel()
        rows = self.probs.reshape(-1, self.probs.shape[-1])
        # a row of NaN has ids of -1, whichever place is drawn
        rows = torch.where(rows.isnan(), 1.0, rows)
        drawn = torch.multinomial(rows, count, replacement=True, generator=generator)
        ids = self.ids.reshape(rows.shape).gather(1, drawn)
        return ids.mT.reshape(*shape, *self.ids.shape[:-1])

    def dense(self) -> Tensor:
        """The probabilities of all words, (*batch, words)."""
        if _check.readable(self.ids) and bool((self.ids >= self.words).any()):
            raise ValueError(f"ids must be below {self.words}, the number of words; got {int(self.ids.max())}")
        rows = self.probs.new_zeros(*self.probs.shape[:-1], self.words + 1)
        # places of -1 point to one more word
        found = rows.scatter(-1, torch.where(self.ids < 0, self.words, self.ids), self.probs)[..., : self.words]
        return torch.where(self.probs.isnan().any(-1, keepdim=True), torch.nan, found)

    @staticmethod
    def save(
        path: str | os.PathLike[str], documents: "Iterable[WordDistribution]", dtype: torch.dtype = torch.float16
    ) -> None:
        """Write a teacher's distributions to a new folder, one for each document, as lists (positions, k).

        `documents` may be a generator: only one of them is in memory at a time. Probabilities take 2 bytes
        (torch.float16) or 4 (torch.float32), words 2 bytes, or 4 in vocabularies of more than 65,536 words.
        """
        from polymax.distributions.stored_words import save_words

        save_words(path, documents, dtype)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "StoredWords":
        """Open a folder of `save`: `stored[document]` and `stored.at(documents, positions)` read from it."""
        from polymax.distributions.stored_words import StoredWords

        return StoredWords(path)
