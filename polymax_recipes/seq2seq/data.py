"""Pairs of texts: from two parallel files, a table with tabs, or JSON lines; and as batches."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from polymax_recipes.readers.jsonl import read_records
from polymax_recipes.readers.lines import ReadError, lines
from polymax_recipes.readers.tsv import read_translations
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.vocabulary import BEGIN, END, Vocabulary


class Referenced(NamedTuple):
    """A text and what can be written for it: the first target is learned, what is written is compared with all."""

    source: str
    targets: tuple[str, ...]

    @property
    def pair(self) -> tuple[str, str]:
        """The source and the first target, which is the one that is learned."""
        return self.source, self.targets[0]


def read_texts(files: Sequence[Path]) -> list[Referenced]:
    """Source and target texts of one file, a table with tabs or .jsonl, or of two that are parallel, line by line.

    An object of JSON has them as "source" and "target": a text, or a list. The sentences of a source are joined, those
    of a target are each a target.
    """
    if len(files) == 2:
        return list(_parallel(*files))
    if len(files) != 1:
        raise ValueError(f"pairs come in one file, or in two that are parallel; got {len(files)}")
    (file,) = files
    is_json = file.name.removesuffix(".gz").endswith(".jsonl")
    if is_json:
        return list(_from_json(file))
    return [Referenced(source, (target,)) for source, target in read_translations(file)]


def _parallel(source: Path, target: Path) -> Iterator[Referenced]:
    for number, (first, second) in enumerate(zip_longest(lines(source), lines(target)), 1):
        for file, line, other in ((source, first, target), (target, second, source)):
            if line is None:
                raise ReadError.at(file, number, f"the file ends before {other}")
            if line.blank:
                raise ReadError.at(file, number, "the line is empty")
        yield Referenced(first.text, (second.text,))


def _from_json(file: Path) -> Iterator[Referenced]:
    for line, record in read_records(file):
        source, target = (_texts(file, line.number, name, record.get(name)) for name in ("source", "target"))
        yield Referenced(" ".join(source), tuple(target))


def _texts(file: Path, number: int, name: str, value: Any) -> list[str]:
    """The texts that are not empty: files made by a splitter of sentences have some that are."""
    texts = [value] if isinstance(value, str) else value
    found = [text for text in texts if text.strip()] if _all_texts(texts) else []
    if not found:
        raise ReadError.at(file, number, f"{name} must be a text or a list of texts, not empty")
    return found


def _all_texts(texts: Any) -> bool:
    return isinstance(texts, list) and all(isinstance(text, str) for text in texts)


class Batch(NamedTuple):
    """Shapes: source (b, n), with END; target (b, m), from BEGIN to END; lengths (b,)."""

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor


class Pairs:
    """Pairs in numbers: batches of them on request."""

    def __init__(self, pairs: Sequence[tuple[str, str]], source: Vocabulary, target: Vocabulary) -> None:
        self.source = Ragged.of([*source.encode(text), END] for text, _ in pairs)
        self.target = Ragged.of([BEGIN, *target.encode(text), END] for _, text in pairs)
        # a step of the decoder costs more than one of the encoder: targets are alike first, then sources
        self.sizes = self.target.lengths * (self.source.lengths.max() + 1) + self.source.lengths

    def __getitem__(self, rows: Tensor) -> Batch:
        return Batch(*self.source.padded(rows), *self.target.padded(rows))
