"""Dependency trees: the share of words with the right head, and with the right relation to it.

See: Zeman et al. 2018 (the CoNLL shared task)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polymax_recipes.metrics.counts import check_lengths, sentences, share


class Attachment(NamedTuple):
    """Unlabelled and labelled attachment score."""

    uas: float
    las: float


@dataclass
class AttachmentScore:
    """UAS and LAS over gold words, as in the CoNLL 2018 shared task.

    All words count, punctuation included; relations are compared up to ":", unless `subtypes` is set.

    Example:
        >>> score = AttachmentScore()
        >>> score.add([[2, 0]], [[2, 0]], [["nsubj:pass", "root"]], [["nsubj", "dep"]])
        >>> score.result()
        Attachment(uas=1.0, las=0.5)
    """

    subtypes: bool = False
    words: int = 0
    heads: int = 0
    relations: int = 0

    def add(
        self,
        gold_heads: Iterable[Sequence[int]],
        heads: Iterable[Sequence[int]],
        gold_deprels: Iterable[Sequence[str]],
        deprels: Iterable[Sequence[str]],
    ) -> None:
        """Count the trees of several sentences."""
        columns = sentences(gold_heads, heads=heads, gold_deprels=gold_deprels, deprels=deprels)
        for truth, guess, names, guesses in columns:
            check_lengths("heads", len(truth), len(guess))
            check_lengths("deprels", len(truth), len(guesses))
            check_lengths("gold deprels", len(truth), len(names))
            self.words += len(truth)
            for a, b, name, other in zip(truth, guess, names, guesses):
                self.heads += a == b
                self.relations += a == b and self._relation(name) == self._relation(other)

    def result(self) -> Attachment:
        return Attachment(share(self.heads, self.words), share(self.relations, self.words))

    def _relation(self, deprel: str) -> str:
        return deprel if self.subtypes else deprel.partition(":")[0]
