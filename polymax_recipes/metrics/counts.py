"""Precision, recall and F1 of things that were found."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class F1(NamedTuple):
    """Precision, recall and F1, 0 if nothing was predicted or wanted.

    precision = right / predicted        recall = right / gold        f1 = 2 right / (predicted + gold)
    """

    precision: float
    recall: float
    f1: float


@dataclass
class Counts:
    """Numbers of things in the gold standard, in the predictions, and in both.

    Example:
        >>> counts = Counts()
        >>> counts.add(["a", "a", "b"], ["a", "b", "c", "d"])
        >>> counts.f1()
        F1(precision=0.5, recall=0.6666666666666666, f1=0.5714285714285714)
    """

    gold: int = 0
    predicted: int = 0
    right: int = 0

    def add(self, gold: Iterable[Hashable], predicted: Iterable[Hashable]) -> None:
        """Count the items of one sentence; an item that occurs twice can be found twice."""
        first, second = Counter(gold), Counter(predicted)
        self.gold += first.total()
        self.predicted += second.total()
        self.right += (first & second).total()

    def f1(self) -> F1:
        return F1(
            share(self.right, self.predicted),
            share(self.right, self.gold),
            share(2 * self.right, self.predicted + self.gold),
        )


def share(part: float, whole: float) -> float:
    """Return part / whole, and 0 if the whole is 0.

    Example:
        >>> share(1, 4), share(0, 0)
        (0.25, 0.0)
    """
    return part / whole if whole else 0.0


def check_lengths(name: str, gold: int, predicted: int) -> None:
    """Refuse predictions of another length than the gold standard's."""
    if gold != predicted:
        raise ValueError(f"predicted {name} must be as many as gold ones, {gold}; got {predicted}")


def sentences(gold: Iterable[T], **others: Iterable[Any]) -> Iterator[tuple[T, *tuple[Any, ...]]]:
    """Iterate over the entries of each sentence in several sequences, which must be equally long.

    Example:
        >>> list(sentences(["a", "b"], predicted=["c", "d"]))
        [('a', 'c'), ('b', 'd')]
    """
    first = list(gold)
    columns = {name: list(column) for name, column in others.items()}
    for name, column in columns.items():
        if len(column) != len(first):
            raise ValueError(f"{name} must be of {len(first)} sentences, as the gold ones; got {len(column)}")
    return zip(first, *columns.values())
