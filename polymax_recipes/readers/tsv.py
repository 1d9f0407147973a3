"""Tables of text with tabs between the columns: sentences and pairs of sentences with labels, translations."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from polymax_recipes.readers.lines import Line, Path, ReadError, lines, write


class Labelled(NamedTuple):
    """A text and its class."""

    label: str
    text: str


class Pair(NamedTuple):
    """Two texts and the class of the pair, as premise and hypothesis."""

    label: str
    first: str
    second: str


class Translation(NamedTuple):
    """A text in two languages."""

    source: str
    target: str


def read_labelled(path: Path) -> Iterator[Labelled]:
    """Lines of label and text."""
    return (Labelled(*fields) for _, fields in read_rows(path, Labelled._fields))


def read_pairs(path: Path) -> Iterator[Pair]:
    """Lines of label, first and second text."""
    return (Pair(*fields) for _, fields in read_rows(path, Pair._fields))


def read_translations(path: Path) -> Iterator[Translation]:
    """Lines of source and target text."""
    return (Translation(*fields) for _, fields in read_rows(path, Translation._fields))


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Line, list[str]]]:
    """Lines and their columns, which errors call by `names`; no column may be empty. Quotation marks are text.

    Blank lines are left out.
    """
    for line in lines(path):
        if line.blank:
            continue
        fields = line.text.split("\t")
        if len(fields) != len(columns):
            expected = ", ".join(columns)
            raise ReadError.at(
                path, line.number, f"{len(columns)} columns between tabs expected, {expected}; got {len(fields)}"
            )
        for name, text in zip(columns, fields):
            if not text.strip():
                raise ReadError.at(path, line.number, f"{name} is empty")
        yield line, fields


def write_rows(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write rows of text: the inverse of the readers."""
    write(path, (_row(row) for row in rows))


def _row(row: Sequence[str]) -> str:
    for text in row:
        if not text.strip() or re.search(r"[\t\r\n]", text):
            raise ValueError(f"rows must hold texts without tabs and line ends, not empty; got {text!r}")
    return "\t".join(row) + "\n"
