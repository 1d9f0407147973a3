"""Pairs of sequences with their alignments, from FASTA files; and as batches."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.readers.fasta import GAPS, Record, read_fasta, two_by_two
from polymax_recipes.readers.lines import ReadError
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import SPECIALS, UNKNOWN, Words, stored_words

Links = list[tuple[int, int]]


class Aligned(NamedTuple):
    """Two sequences without gaps, their names, and the pairs of places of their known alignment."""

    names: tuple[str, str]
    first: str
    second: str
    links: Links


def read_alignments(files: Sequence[Path]) -> list[Aligned]:
    """The pairs of files, two records each: rows of one length in which gaps are "-"."""
    found: list[Aligned] = []
    for file in files:
        for two in _pairs(file, read_fasta(file)):
            rows = [record.letters for record in two]
            if len(rows[0]) != len(rows[1]):
                what = f"a row of {len(rows[0])} columns expected, as that of {two[0].name!r}; got {len(rows[1])}"
                raise ReadError.at(file, two[1].line, what)
            names = (two[0].name, two[1].name)
            first, second = (without_gaps(file, record) for record in two)
            found.append(Aligned(names, first, second, links_of(rows[0], rows[1])))
    if not found:
        raise ValueError("pairs come in one file or more; got 0")
    return found


def _pairs(file: Path, records: Iterable[Record]) -> Iterable[tuple[Record, Record]]:
    for two in two_by_two(records):
        if len(two) < 2:
            raise ReadError.at(file, two[0].line, f"records must come in pairs; got {two[0].name!r} alone at the end")
        yield two[0], two[1]


def without_gaps(file: str | os.PathLike[str], record: Record) -> str:
    """The letters of a record, without its gaps."""
    letters = "".join(letter for letter in record.letters if letter not in GAPS)
    if not letters:
        raise ReadError.at(file, record.line, f"letters expected; {record.name!r} has gaps alone")
    return letters


def links_of(first: str, second: str) -> Links:
    """The places that share a column, in two rows of one length.

    Example:
        >>> links_of("AC-GT", "A-TGT")
        [(0, 0), (2, 2), (3, 3)]
    """
    found, i, j = [], 0, 0
    for a, b in zip(first, second, strict=True):
        if a not in GAPS and b not in GAPS:
            found.append((i, j))
        i, j = i + (a not in GAPS), j + (b not in GAPS)
    return found


def vocabularies_of(pairs: Sequence[Aligned]) -> Vocabularies:
    """The vocabulary of the letters of both sequences."""
    return {"letters": Words(tuple(sorted({letter for pair in pairs for letter in pair.first + pair.second})))}


class Batch(NamedTuple):
    """Shapes: first (b, n); second (b, m); lengths (b,); links (b, k, 2), -1 after the last."""

    first: Tensor
    first_lengths: Tensor
    second: Tensor
    second_lengths: Tensor
    links: Tensor


class Pairs:
    """Pairs in numbers: batches of them on request."""

    def __init__(self, pairs: Sequence[Aligned], vocabularies: Vocabularies) -> None:
        words = stored_words(vocabularies, "letters")
        known = dict(zip(words.words, range(len(SPECIALS), len(words))))
        self.first = Ragged.of([known.get(letter, UNKNOWN) for letter in pair.first] for pair in pairs)
        self.second = Ragged.of([known.get(letter, UNKNOWN) for letter in pair.second] for pair in pairs)
        self.links = [torch.tensor(pair.links, dtype=torch.long).reshape(-1, 2) for pair in pairs]
        self.sizes = self.first.lengths * (self.second.lengths.max() + 1) + self.second.lengths

    def __getitem__(self, rows: Tensor) -> Batch:
        links = [self.links[k] for k in rows.tolist()]
        padded = torch.nn.utils.rnn.pad_sequence(links, batch_first=True, padding_value=-1)
        return Batch(*self.first.padded(rows), *self.second.padded(rows), padded)
