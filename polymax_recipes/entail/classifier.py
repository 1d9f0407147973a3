"""The loss of all models of entailment, and LSTMs over sequences of different lengths."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from polymax_recipes.entail.data import Batch
from polymax_recipes.training.task import Model


class Judged(NamedTuple):
    """Scores of the labels, the weights with which words were compared, and a mask of the weights between words.

    Shapes: scores (b, labels); weights (*any, b, k, l); there (b, k, l), bool
    """

    scores: Tensor
    weights: Tensor
    there: Tensor


class Classifier(Model):
    """A model that scores the labels of pairs."""

    @abstractmethod
    def forward(self, batch: Batch) -> Judged:
        """The scores of labels, and the weights with which words were compared."""

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Cross-entropy, right labels, and weights that are exactly 0."""
        scores, weights, there = self(batch)
        count = batch.label.new_full((), len(batch.label))
        zeros = ((weights.detach() == 0) & there).sum()
        return {
            "loss": (cross_entropy(scores.float(), batch.label, reduction="sum"), count),
            "accuracy": ((scores.argmax(-1) == batch.label).sum(), count),
            "zeros": (zeros, there.expand_as(weights).sum()),
        }


class PaddedLSTM(nn.Module):
    """An LSTM that ends at the end of each sequence; outputs after it are 0. Two directions have half the size each,
    rounded up.

    Shapes: x (b, n, d); lengths (b,), at least 1; outputs (b, n, size); state a pair of (directions, b, ...)
    """

    def __init__(self, entering: int, size: int, directions: int = 1) -> None:
        super().__init__()
        own = -(-size // directions)
        self.size = directions * own
        self.lstm = nn.LSTM(entering, own, batch_first=True, bidirectional=directions == 2)

    def forward(
        self, x: Tensor, lengths: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Outputs, and the state after the last."""
        x = x.to(next(self.lstm.parameters()).dtype)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        # on some processors oneDNN has no LSTM in half precision; other devices keep autocast
        with torch.autocast("cpu", enabled=False):
            outputs, state = self.lstm(packed, state)
        return pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])[0], state


def inside(words: Tensor, lengths: Tensor) -> Tensor:
    """True for words, False for padding: bool (b, n), from words (b, n) and lengths (b,)."""
    return torch.arange(words.shape[1], device=words.device) < lengths.unsqueeze(1)
