"""Premises and hypotheses: from tables with tabs or JSON lines of SNLI; and as batches."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.readers.jsonl import parse_object
from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.readers.tables import Role, Row, read_table
from polymax_recipes.readers.tsv import Pair
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.vocabulary import END, Vocabulary

LABELS = ("entailment", "neutral", "contradiction")
# the label in SNLI if annotators disagreed
UNLABELLED = "-"
COLUMNS = ("label", "premise", "hypothesis")
KEYS = ("gold_label", "sentence1", "sentence2")
ROLES = (
    Role("label", ("gold_label", "labels")),
    Role("premise", ("sentence1", "first"), given=True),
    Role("hypothesis", ("sentence2", "second"), given=True),
)


def read_entailment(files: Sequence[Path]) -> list[Pair]:
    """The pairs of all files: tables of label, premise and hypothesis, or .jsonl in the form of SNLI.

    Pairs without a label are included; a file without any label is a ReadError.
    """
    pairs = []
    for file in files:
        pairs += pairs_of_rows(read_table(file, ROLES))
    return pairs


def pairs_of_rows(rows: Iterable[Row]) -> list[Pair]:
    """Return the pairs of the rows of a table; a ReadError if none has a label."""
    pairs, last = [], None
    for last in rows:
        fields = [_label_of(last), last.text("premise"), last.text("hypothesis")]
        pairs.append(_pair(last.path, last.number, COLUMNS, fields))
    if last is not None and not labelled(pairs):
        raise ReadError.at(last.path, 1, f"no pair has a label; all are {UNLABELLED!r}")
    return pairs


def _label_of(row: Row) -> str:
    """The label of a row: by name, or by its number in SNLI's order; None for a negative or missing number."""
    label = row.values.get("label")
    if label is None:
        return UNLABELLED
    if isinstance(label, int) and not isinstance(label, bool) and label < len(LABELS):
        return LABELS[label] if label >= 0 else UNLABELLED
    return row.text("label")


def labelled(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that have a label.

    Example:
        >>> labelled([Pair("-", "a cat", "a dog"), Pair("neutral", "a cat", "a red cat")])
        [Pair(label='neutral', first='a cat', second='a red cat')]
    """
    return [pair for pair in pairs if pair.label != UNLABELLED]


def parse_pair(file: str, line: Line) -> Pair:
    """The pair in a line of input: two columns, three columns with the label first, or a JSON object of SNLI.

    Example:
        >>> parse_pair("input", Line(1, "a cat sleeps\\ta cat rests", ""))
        Pair(label='-', first='a cat sleeps', second='a cat rests')
    """
    number, text, _ = line
    if text.startswith("{") and "\t" not in text:
        record = {KEYS[0]: UNLABELLED, **parse_object(file, number, text)}
        return _pair(file, number, KEYS, [record.get(key) for key in KEYS])
    fields = text.split("\t")
    if len(fields) not in (2, 3):
        raise ReadError.at(
            file, number, f"premise and hypothesis between tabs expected, or JSON; got {len(fields)} columns"
        )
    return _pair(file, number, COLUMNS, fields if len(fields) == 3 else [UNLABELLED, *fields])


def _pair(file: str | os.PathLike[str], number: int, names: Sequence[str], fields: Sequence[object]) -> Pair:
    for name, text in zip(names, fields):
        if not isinstance(text, str) or not text.strip():
            raise ReadError.at(file, number, f"{name} must be a text, not empty; got {text!r}")
    pair = Pair(*map(str, fields))
    if pair.label not in (*LABELS, UNLABELLED):
        known = ", ".join(LABELS)
        raise ReadError.at(file, number, f"{names[0]} must be {known} or {UNLABELLED}; got {pair.label!r}")
    return pair


class Batch(NamedTuple):
    """Shapes: premise (b, n), hypothesis (b, m), both with END; lengths and label (b,), -1 without a label."""

    premise: Tensor
    premise_lengths: Tensor
    hypothesis: Tensor
    hypothesis_lengths: Tensor
    label: Tensor


class Pairs:
    """Pairs in numbers: batches of them on request."""

    def __init__(self, pairs: Sequence[Pair], words: Vocabulary) -> None:
        # every text has END, to which words without a counterpart can be aligned
        self.premise = Ragged.of([*words.encode(pair.first), END] for pair in pairs)
        self.hypothesis = Ragged.of([*words.encode(pair.second), END] for pair in pairs)
        self.label = torch.tensor([LABELS.index(pair.label) if pair.label in LABELS else -1 for pair in pairs])
        # a model may take a step for each word of the hypothesis: batches are sorted by the hypothesis first
        self.sizes = self.hypothesis.lengths * (self.premise.lengths.max() + 1) + self.premise.lengths

    def __getitem__(self, rows: Tensor) -> Batch:
        return Batch(*self.premise.padded(rows), *self.hypothesis.padded(rows), self.label[rows])
