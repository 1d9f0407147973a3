"""Explanations of the words of one side by those of the other: the set of alignments and its smoothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

import polymax as pm
from polymax import Regularizer, Smoothing


class Scores(NamedTuple):
    """Scores of m words to be explained by n words, or by nothing.

    Shapes: words (b, m, n); nothing (b, m); made, given (b,): the numbers of words among the m and the n
    """

    words: Tensor
    nothing: Tensor
    made: Tensor
    given: Tensor

    @property
    def rows(self) -> Tensor:
        """Return True for each of the m words that is there, (b, m)."""
        return torch.arange(self.words.shape[1], device=self.made.device) < self.made.unsqueeze(1)


class Explanation(Protocol):
    """A smoothed maximum over the alignments of a sentence pair."""

    def max(self, scores: Scores) -> Tensor:
        """The smoothed maximum, (b,), whose gradient in the scores is the expected alignment."""

    def argmax(self, scores: Scores) -> Tensor:
        """The expected alignment of words, (b, m, n)."""


@dataclass(frozen=True)
class EachWord:
    """Each word is explained independently of the others: with Shannon's entropy, these are IBM's models 1 and 2."""

    regularizer: Regularizer

    def max(self, scores: Scores) -> Tensor:
        return torch.where(scores.rows, self.regularizer.max(self._all(scores)), 0).sum(1)

    def argmax(self, scores: Scores) -> Tensor:
        return self.regularizer.argmax(self._all(scores))[..., 1:] * scores.rows.unsqueeze(2)

    def _all(self, scores: Scores) -> Tensor:
        return torch.cat([scores.nothing.unsqueeze(2), scores.words], 2)


@dataclass(frozen=True)
class Matching:
    """A word explains at most one other.

    Besides the columns of words, each word has its own column for no explanation.
    """

    smooth: Callable[[pm.Assignment], Smoothing] = pm.SparseMap

    def max(self, scores: Scores) -> Tensor:
        return self._smooth(scores).max(self._all(scores))

    def argmax(self, scores: Scores) -> Tensor:
        return self._smooth(scores)(self._all(scores))[..., scores.words.shape[1] :]

    def _smooth(self, scores: Scores) -> Smoothing:
        return self.smooth(pm.Assignment((scores.made, scores.words.shape[1] + scores.given)))

    def _all(self, scores: Scores) -> Tensor:
        own = torch.eye(scores.words.shape[1], dtype=torch.bool, device=scores.words.device)
        return torch.cat([torch.where(own, scores.nothing.unsqueeze(2), -torch.inf), scores.words], 2)


@dataclass(frozen=True)
class Path:
    """Alignments are monotone and leave no word out, on either side."""

    smooth: Callable[[pm.Alignment], Smoothing] = pm.Marginals

    def max(self, scores: Scores) -> Tensor:
        return self._smooth(scores).max(scores.words)

    def argmax(self, scores: Scores) -> Tensor:
        return self._smooth(scores)(scores.words)

    def _smooth(self, scores: Scores) -> Smoothing:
        return self.smooth(pm.Alignment((scores.made, scores.given)))


EXPLANATIONS: dict[str, Explanation] = {
    "softmax": EachWord(pm.Shannon()),
    "sparsemax": EachWord(pm.Gini()),
    "sparsemap-assignment": Matching(),
    "marginal-alignment": Path(),
}
