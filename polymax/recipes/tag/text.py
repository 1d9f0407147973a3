"""Text to be tagged, line by line, and the same text with tags: columns or CoNLL-U, whichever a sentence is in."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polymax.recipes.readers.lines import Line, ReadError

COLUMNS, FORM, UPOS = 10, 1, 3


@dataclass(frozen=True)
class Untagged:
    """The lines up to the next sentence, blank ones at the end included; `rows` are those of the tokens."""

    lines: list[str]
    rows: list[int]
    conllu: bool

    @property
    def tokens(self) -> list[str]:
        place = FORM if self.conllu else 0
        return [fields(self.lines[row])[place] for row in self.rows]

    def tagged(self, tags: Sequence[str]) -> Iterator[str]:
        """The lines with tags: UPOS is replaced, as is the last of several columns; a token alone gets a column."""
        placed = dict(zip(self.rows, tags, strict=True))
        for row, line in enumerate(self.lines):
            yield self._line(line, placed[row]) if row in placed else line

    def _line(self, line: str, tag: str) -> str:
        if self.conllu:
            columns = line.split("\t")
            return "\t".join([*columns[:UPOS], tag, *columns[UPOS + 1 :]])
        if len(fields(line)) == 1:
            return f"{line.strip(' ')}\t{tag}"
        kept, separator, _ = line.rpartition("\t") if "\t" in line else line.rstrip(" ").rpartition(" ")
        return kept + separator + tag


def fields(line: str) -> list[str]:
    """The columns of a line, between tabs if it has one, else between spaces."""
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def untagged(file: str, block: list[Line]) -> Untagged:
    """The sentence of the lines up to the next one.

    Example:
        >>> untagged("input", [Line(1, "a\\tO", ""), Line(2, "b\\tO", ""), Line(3, "", "")]).tokens
        ['a', 'b']
    """
    split = [fields(line.text) for line in block]
    conllu = any(len(columns) == COLUMNS and re.fullmatch("[0-9]+", columns[0]) for columns in split)
    rows = []
    for row, (line, columns) in enumerate(zip(block, split)):
        if line.blank or (line.text.startswith("#") if conllu else columns[0] == "-DOCSTART-"):
            continue
        if conllu and len(columns) != COLUMNS:
            raise ReadError.at(file, line.number, f"{COLUMNS} columns between tabs expected; got {len(columns)}")
        if not columns[FORM if conllu else 0]:
            raise ReadError.at(file, line.number, "the token is empty")
        # multiword tokens and empty nodes have no tag
        if not conllu or columns[0].isdecimal():
            rows.append(row)
    return Untagged([line.text for line in block], rows, conllu)
