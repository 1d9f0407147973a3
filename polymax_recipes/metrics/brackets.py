"""Constituency trees: F1 of brackets, with evalb's conventions.

See: Black et al. 1991; Sekine and Collins 1997 (evalb, COLLINS.prm)
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from polymax_recipes.metrics.counts import F1, Counts, sentences, share
from polymax_recipes.readers.cleaning import ROOTS
from polymax_recipes.readers.spans import Span
from polymax_recipes.readers.trees import Tree

# parts of speech whose words are removed from both trees, and labels that count as equal, as in COLLINS.prm
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
SAME = {"PRT": "ADVP"}


class BracketScores(NamedTuple):
    """F1 of brackets with and without their labels, and the share of sentences with all labelled brackets right."""

    labelled: F1
    unlabelled: F1
    exact: float


@dataclass
class BracketF1:
    """F1 of brackets, counted over all sentences.

    As in evalb, parts of speech and roots that only wrap the sentence do not count. Words that are punctuation in the
    gold tree are removed first, and brackets without words are dropped. A bracket that occurs twice can be found twice.
    Labels are compared as given: remove functions and traces before.

    Example:
        >>> from polymax_recipes.readers.trees import parse_tree
        >>> brackets = BracketF1()
        >>> gold = parse_tree("(S (NP (PRP it)) (VP (VBZ works)) (. .))")
        >>> brackets.add([gold], [parse_tree("(S (NP (PRP it)) (S (VBZ works) (. .)))")])
        >>> brackets.result().labelled.recall, brackets.result().unlabelled.recall
        (0.6666666666666666, 1.0)
    """

    punctuation: frozenset[str] = PUNCTUATION
    sentences: int = 0
    complete: int = 0
    labelled: Counts = field(default_factory=Counts)
    unlabelled: Counts = field(default_factory=Counts)

    def add(self, gold: Iterable[Tree], predicted: Iterable[Tree]) -> None:
        """Count the trees of several sentences."""
        for truth, guess in sentences(gold, predicted=predicted):
            if truth.words != guess.words:
                raise ValueError(f"predicted must be a tree over {' '.join(truth.words)}; got {' '.join(guess.words)}")
            keep = [tag not in self.punctuation for tag in truth.tags]
            first, second = _brackets(truth, keep), _brackets(guess, keep)
            self.labelled.add(first, second)
            self.unlabelled.add(((a, b) for a, b, _ in first), ((a, b) for a, b, _ in second))
            self.sentences += 1
            self.complete += sorted(first) == sorted(second)

    def result(self) -> BracketScores:
        return BracketScores(self.labelled.f1(), self.unlabelled.f1(), share(self.complete, self.sentences))


def _brackets(tree: Tree, keep: list[bool]) -> list[Span]:
    """Return the brackets over the kept words, with new positions."""
    before = [0, *accumulate(keep)]
    spans = tree.spans
    if spans and spans[0].label in ROOTS:
        spans = spans[1:]
    return [
        Span(before[start], before[last + 1] - 1, SAME.get(label, label))
        for start, last, label in spans
        if before[start] < before[last + 1]
    ]
