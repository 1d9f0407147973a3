"""Binary trees without labels, measures of latent trees against gold trees, and against each other.

See: Williams, Drozdov and Bowman 2018; Kim, Dyer and Rush 2019
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from polymax_recipes.metrics.counts import Counts, sentences, share

Spans = Collection[tuple[int, int]]


class TreeScores(NamedTuple):
    """F1 of all spans together, and the mean of F1 over sentences."""

    corpus: float
    sentence: float


@dataclass
class TreeF1:
    """F1 of spans (first, last) of more than one word.

    Trees are given with the span of the whole sentence. It counts (Williams et al. 2018), or with `whole=False` does
    not (Kim et al. 2019). A sentence whose trees have no span that counts is left out.

    Example:
        >>> f1 = TreeF1()
        >>> f1.add([[(0, 1), (0, 2)]], [[(1, 2), (0, 2)]])
        >>> f1.result()
        TreeScores(corpus=0.5, sentence=0.5)
    """

    whole: bool = True
    counts: Counts = field(default_factory=Counts)
    sentences: int = 0
    total: float = 0.0

    def add(self, gold: Iterable[Spans], predicted: Iterable[Spans]) -> None:
        """Count the trees of several sentences."""
        for truth, guess in sentences(gold, predicted=predicted):
            end = max((last for _, last in [*truth, *guess]), default=-1)
            one = Counts()
            one.add(self._spans_that_count(truth, end), self._spans_that_count(guess, end))
            if one.gold + one.predicted:
                self.sentences += 1
                self.total += one.f1().f1
                self.counts.gold += one.gold
                self.counts.predicted += one.predicted
                self.counts.right += one.right

    def result(self) -> TreeScores:
        return TreeScores(self.counts.f1().f1, share(self.total, self.sentences))

    def _spans_that_count(self, spans: Spans, end: int) -> set[tuple[int, int]]:
        return {(a, b) for a, b in spans if a < b and (self.whole or (a, b) != (0, end))}


def self_f1(runs: Sequence[Sequence[Spans]], *, whole: bool = True) -> TreeScores:
    """Return the agreement of the trees of several runs: the mean of `TreeF1` over all pairs of runs.

    Example:
        >>> left, right = [[(0, 1), (0, 2)]], [[(1, 2), (0, 2)]]
        >>> self_f1([left, left, right])
        TreeScores(corpus=0.6666666666666666, sentence=0.6666666666666666)
    """
    if len(runs) < 2:
        raise ValueError(f"runs must be at least two; got {len(runs)}")
    scores = []
    for one, other in combinations(runs, 2):
        f1 = TreeF1(whole)
        f1.add(one, other)
        scores.append(f1.result())
    return TreeScores(*(sum(values) / len(scores) for values in zip(*scores)))
