"""FASTA: names after ">", and letters on the lines that follow; "-" and "." are gaps."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

from polymax_recipes.readers.lines import Line, ReadError, lines

Path = str | os.PathLike[str]
GAPS = "-."
T = TypeVar("T")


class Record(NamedTuple):
    """A name and its letters in upper case, gaps included; `line` is the number of the name's line."""

    name: str
    letters: str
    line: int


def read_fasta(path: Path) -> Iterator[Record]:
    """Return the records of a file, plain or .gz; a ReadError names the line of a fault."""
    return (parse_record(path, unit) for unit in records(lines(path)))


def records(read: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines of each record: its name, and all up to the next name.

    Example:
        >>> [len(unit) for unit in records(Line(0, text, text) for text in (">a", "AC", "GT", ">b", "A"))]
        [3, 2]
    """
    unit: list[Line] = []
    for line in read:
        if line.text.startswith(">") and any(not one.blank for one in unit):
            yield unit
            unit = []
        unit.append(line)
    if any(not one.blank for one in unit):
        yield unit


def parse_record(path: Path, unit: list[Line]) -> Record:
    """The record that these lines spell.

    Example:
        >>> parse_record("a.fa", [Line(1, ">first of two", ""), Line(2, "ac-", ""), Line(3, "gt", "")])
        Record(name='first of two', letters='AC-GT', line=1)
    """
    head, *body = [line for line in unit if not line.blank]
    if not head.text.startswith(">"):
        raise ReadError.at(path, head.number, f"a name after '>' expected; got {head.text!r}")
    letters = "".join("".join(line.text.split()) for line in body).upper()
    if not letters:
        raise ReadError.at(path, head.number, f"letters expected after {head.text!r}")
    for line in body:
        strange = [c for c in "".join(line.text.split()) if not (c.isascii() and c.isalpha()) and c not in GAPS + "*"]
        if strange:
            raise ReadError.at(path, line.number, f"letters and gaps expected; got {strange[0]!r}")
    return Record(head.text[1:].strip(), letters, head.number)


def two_by_two(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """Return items in pairs; the last item is alone if their number is odd.

    Example:
        >>> list(two_by_two("abc"))
        [('a', 'b'), ('c',)]
    """
    iterator = iter(items)
    while two := tuple(islice(iterator, 2)):
        yield two
