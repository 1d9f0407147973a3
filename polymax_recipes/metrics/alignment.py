"""Word alignments: the alignment error rate.

See: Och and Ney 2003
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from polymax_recipes.metrics.counts import sentences, share

Links = Collection[tuple[int, int]]


class AlignmentScores(NamedTuple):
    """The alignment error rate, lower is better, with precision on possible and recall on sure links."""

    error: float
    precision: float
    recall: float


@dataclass
class AlignmentErrorRate:
    """Error rate of links A against sure links S and possible links P, which include S.

        AER = 1 - (|A and S| + |A and P|) / (|A| + |S|)

    Counts go over all sentences. Without possible links, P = S and AER = 1 - F1.

    Example:
        >>> aer = AlignmentErrorRate()
        >>> aer.add([[(0, 0)]], [[(0, 0), (1, 1)]], possible=[[(1, 1)]])
        >>> aer.result()
        AlignmentScores(error=0.0, precision=1.0, recall=1.0)
    """

    sure: int = 0
    predicted: int = 0
    right_sure: int = 0
    right_possible: int = 0

    def add(self, gold: Iterable[Links], predicted: Iterable[Links], possible: Iterable[Links] | None = None) -> None:
        """Count the links (source, target) of several sentences: the sure, the predicted and the possible ones."""
        sure = [set(links) for links in gold]
        others = sure if possible is None else [set(links) for links in possible]
        for certain, guess, maybe in sentences(sure, predicted=map(set, predicted), possible=others):
            self.sure += len(certain)
            self.predicted += len(guess)
            self.right_sure += len(guess & certain)
            self.right_possible += len(guess & (certain | maybe))

    def result(self) -> AlignmentScores:
        links = self.predicted + self.sure
        error = 1 - (self.right_sure + self.right_possible) / links if links else 0.0
        return AlignmentScores(error, share(self.right_possible, self.predicted), share(self.right_sure, self.sure))
