"""Premises and hypotheses: from tables with tabs or JSON lines of SNLI; and as batches."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.readers.jsonl import parse_object, read_records
from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.readers.tsv import Pair, read_rows
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.vocabulary import END, Vocabulary

LABELS = ("entailment", "neutral", "contradiction")
# what SNLI writes where the annotators did not agree
UNLABELLED = "-"
COLUMNS = ("label", "premise", "hypothesis")
KEYS = ("gold_label", "sentence1", "sentence2")


def read_entailment(files: Sequence[Path]) -> list[Pair]:
    """The pairs of all files, tables of label, premise and hypothesis or .jsonl as SNLI has them.

    Those without a label are among them; a file that has no others is a ReadError.
    """
    pairs = []
    for file in files:
        is_json = file.name.removesuffix(".gz").endswith(".jsonl")
        found = list(_from_json(file) if is_json else _from_table(file))
        if not labelled(found):
            raise ReadError.at(file, 1, f"no pair has a label; all are {UNLABELLED!r}")
        pairs += found
    return pairs


def labelled(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that have a label.

    Example:
        >>> labelled([Pair("-", "a cat", "a dog"), Pair("neutral", "a cat", "a red cat")])
        [Pair(label='neutral', first='a cat', second='a red cat')]
    """
    return [pair for pair in pairs if pair.label != UNLABELLED]


def parse_pair(file: str, line: Line) -> Pair:
    """The pair in a line of input: two columns, three of which the first is a label, or an object of SNLI.

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


def _from_table(file: Path) -> Iterator[Pair]:
    for line, fields in read_rows(file, COLUMNS):
        yield _pair(file, line.number, COLUMNS, fields)


def _from_json(file: Path) -> Iterator[Pair]:
    for line, record in read_records(file):
        yield _pair(file, line.number, KEYS, [record.get(key) for key in KEYS])


def _pair(file: Path | str, number: int, names: Sequence[str], fields: Sequence[object]) -> Pair:
    for name, text in zip(names, fields):
        if not isinstance(text, str) or not text.strip():
            raise ReadError.at(file, number, f"{name} must be a text, not empty; got {text!r}")
    pair = Pair(*map(str, fields))
    if pair.label not in (*LABELS, UNLABELLED):
        known = ", ".join(LABELS)
        raise ReadError.at(file, number, f"{names[0]} must be {known} or {UNLABELLED}; got {pair.label!r}")
    return pair


class Batch(NamedTuple):
    """Shapes: premise (b, n), hypothesis (b, m), both with END; lengths and label (b,), -1 where there is none."""

    premise: Tensor
    premise_lengths: Tensor
    hypothesis: Tensor
    hypothesis_lengths: Tensor
    label: Tensor


class Pairs:
    """Pairs in numbers: batches of them on request."""

    def __init__(self, pairs: Sequence[Pair], words: Vocabulary) -> None:
        # END is in every text: what fits no other word has somewhere to go
        self.premise = Ragged.of([*words.encode(pair.first), END] for pair in pairs)
        self.hypothesis = Ragged.of([*words.encode(pair.second), END] for pair in pairs)
        self.label = torch.tensor([LABELS.index(pair.label) if pair.label in LABELS else -1 for pair in pairs])
        # a model may take a step for each word of the hypothesis: these are alike first
        self.sizes = self.hypothesis.lengths * (self.premise.lengths.max() + 1) + self.premise.lengths

    def __getitem__(self, rows: Tensor) -> Batch:
        return Batch(*self.premise.padded(rows), *self.hypothesis.padded(rows), self.label[rows])
