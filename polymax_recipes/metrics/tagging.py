"""Tags of tokens: accuracy, and F1 of the entities that they spell.

See: Tjong Kim Sang and De Meulder 2003 (conlleval)
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from polymax_recipes.metrics.counts import F1, Counts, check_lengths, sentences, share
from polymax_recipes.readers.schemes import spans_of


@dataclass
class TokenAccuracy:
    """The share of tokens with the right tag.

    Example:
        >>> accuracy = TokenAccuracy()
        >>> accuracy.add([["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["VERB"]])
        >>> accuracy.result()
        0.6666666666666666
    """

    tokens: int = 0
    right: int = 0

    def add(self, gold: Iterable[Sequence[Hashable]], predicted: Iterable[Sequence[Hashable]]) -> None:
        """Tags of several sentences."""
        for truth, guess in sentences(gold, predicted=predicted):
            check_lengths("tags", len(truth), len(guess))
            self.tokens += len(truth)
            self.right += sum(a == b for a, b in zip(truth, guess))

    def result(self) -> float:
        return share(self.right, self.tokens)


class EntityScores(NamedTuple):
    """Scores of all entities together, and of each type."""

    all: F1
    types: dict[str, F1]


@dataclass
class EntityF1:
    """Entities with the right first and last token and the right type, by conlleval's rules.

    Tags may be in any scheme, one for the gold standard and another for the predictions; broken sequences are read
    as conlleval does, so that I-X after O begins an entity.

    Example:
        >>> entities = EntityF1()
        >>> entities.add([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "B-ORG"]])
        >>> entities.result().all
        F1(precision=0.5, recall=0.5, f1=0.5)
    """

    types: dict[str, Counts] = field(default_factory=dict)

    def add(self, gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> None:
        """Tags of several sentences."""
        for truth, guess in sentences(gold, predicted=predicted):
            check_lengths("tags", len(truth), len(guess))
            first, second = spans_of(truth), spans_of(guess)
            for kind in sorted({span.label for span in first + second}):
                counts = self.types.setdefault(kind, Counts())
                counts.add((a for a in first if a.label == kind), (b for b in second if b.label == kind))

    def result(self) -> EntityScores:
        total = Counts()
        for counts in self.types.values():
            total.gold += counts.gold
            total.predicted += counts.predicted
            total.right += counts.right
        return EntityScores(total.f1(), {kind: self.types[kind].f1() for kind in sorted(self.types)})
