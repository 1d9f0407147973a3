"""Pairs of texts: from two parallel files, a table with tabs, or JSON lines; and as batches."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from polymax_recipes.readers.lines import ReadError, lines
from polymax_recipes.readers.tables import Role, Row, read_table
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.vocabulary import BEGIN, END, Vocabulary

ROLES = (
    Role("source", ("src", "document", "article", "text"), given=True),
    Role("target", ("tgt", "summary", "highlights")),
)


class Referenced(NamedTuple):
    """A text with its targets: models learn the first one, and outputs are compared with all."""

    source: str
    targets: tuple[str, ...]

    @property
    def pair(self) -> tuple[str, str]:
        """The source and the first target, from which the model learns."""
        return self.source, self.targets[0]


def read_texts(files: Sequence[Path]) -> list[Referenced]:
    """Source and target texts of one file, a table with tabs or .jsonl, or of two parallel files, line by line.

    A JSON object has "source" and "target", each a text or a list of texts. A list of source sentences is joined; in a
    list of targets, each text is a target.
    """
    if len(files) == 2:
        return list(_parallel(*files))
    if len(files) != 1:
        raise ValueError(f"pairs come in one file, or in two that are parallel; got {len(files)}")
    return list(map(text_pair, read_table(files[0], ROLES)))


def text_pair(row: Row) -> Referenced:
    """Return the pair of a row of a table: each side is a text or a list of texts, of which blank ones are left out."""
    source, target = (_texts(row, role) for role in ("source", "target"))
    return Referenced(" ".join(source), tuple(target))


def _parallel(source: Path, target: Path) -> Iterator[Referenced]:
    for number, (first, second) in enumerate(zip_longest(lines(source), lines(target)), 1):
        for file, line, other in ((source, first, target), (target, second, source)):
            if line is None:
                raise ReadError.at(file, number, f"the file ends before {other}")
            if line.blank:
                raise ReadError.at(file, number, "the line is empty")
        yield Referenced(first.text, (second.text,))


def _texts(row: Row, role: str) -> list[str]:
    # files made by sentence splitters may have empty texts
    if found := [text for text in row.texts(role) if text.strip()]:
        return found
    raise row.error(f"{role} is empty")


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
        # a step of the decoder costs more than one of the encoder: batches are sorted by targets first, then by sources
        self.sizes = self.target.lengths * (self.source.lengths.max() + 1) + self.source.lengths

    def __getitem__(self, rows: Tensor) -> Batch:
        return Batch(*self.source.padded(rows), *self.target.padded(rows))
