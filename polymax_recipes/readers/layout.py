"""The layout of a file of columns: their number, their separator, their names, and comments."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from polymax_recipes.readers.lines import Line, Path, ReadError, lines

DOCUMENT = "-DOCSTART-"
GLOBAL = re.compile(r"#\s*global\.columns\s*=\s*(.*)")

# comments of CoNLL-U: a key and its value, and marks of documents and paragraphs
METADATA = re.compile(r"#\s*(?:newdoc|newpar|[\w.:-]+\s+=)(?:\s.*)?")

# a place from the left, a negative one from the right, or a name
Column = int | str


class Split(NamedTuple):
    """The separator of columns: tabs in files that have any, else spaces."""

    tabs: bool

    def fields(self, line: Line) -> list[str]:
        """The columns of a line.

        Example:
            >>> Split(tabs=False).fields(Line(1, "New  York", "")), Split(tabs=True).fields(Line(1, "New York", ""))
            (['New', 'York'], ['New York'])
        """
        if self.tabs or "\t" in line.text:
            return line.text.split("\t")
        return re.split(" +", line.text.strip(" "))


@dataclass(frozen=True)
class Layout:
    """The columns of a file; `header` is the number of the line that names them, 0 without such a line.

    `first` is the number of the first line with a token; errors about columns name it.
    """

    columns: int
    split: Split
    comments: bool | None
    names: tuple[str, ...] = ()
    header: int = 0
    first: int = 1

    def fields(self, line: Line) -> list[str]:
        """The columns of a line."""
        return self.split.fields(line)

    def is_comment(self, line: Line) -> bool:
        """Return True if a line that begins with "#" is a comment, False if it is a token.

        By default it is a comment if its number of columns differs from that of tokens, or if it is a key and its
        value, `# text = ...`.
        """
        if not line.text.startswith("#") or self.comments is False:
            return False
        return bool(self.comments) or looks_like_comment(line, len(self.fields(line)) == self.columns)

    def place(self, path: Path, what: str, column: Column) -> int:
        """The place, from the left, of a column by its place or name."""
        if isinstance(column, str):
            if column not in self.names:
                there = ", ".join(self.names)
                raise ReadError.at(path, self.header or 1, f"no column {column!r} for the {what}; there are {there}")
            return self.names.index(column)
        if self.columns < 2:
            raise ReadError.at(path, self.first, f"columns of tokens and tags expected; got {self.columns}")
        if not -self.columns <= column < self.columns:
            # users count columns from 1
            number = column + 1 if column >= 0 else column
            raise ReadError.at(path, self.first, f"no column {number} for the {what}; there are {self.columns}")
        return column % self.columns


def looks_like_comment(line: Line, fits: bool) -> bool:
    """Return True if a line that begins with "#" does not fit the columns of tokens, or is a key and its value.

    Example:
        >>> [looks_like_comment(Line(1, text, ""), True) for text in ("# O", "# text = O", "# newdoc id = 7")]
        [False, True, True]
    """
    return not fits or METADATA.fullmatch(line.text) is not None


def begins_document(text: str) -> bool:
    """Return True if a line marks the beginning of a document.

    Example:
        >>> [begins_document(text) for text in ("-DOCSTART- O", "# newdoc id = 7", "# newpar")]
        [True, True, False]
    """
    return re.match(rf"{DOCUMENT}(?:\s|$)|#\s*newdoc\b", text) is not None


def layout_of(path: Path, comments: bool | None = None, names: bool = False) -> Layout:
    """The layout of a file, by its first token; with `names`, a comment or the first line names the columns."""
    found: tuple[str, ...] = ()
    marked: Line | None = None
    header = 0
    for line in lines(path):
        if line.blank:
            continue
        split = Split("\t" in line.text)
        fields = split.fields(line)
        if fields[0] == DOCUMENT:
            continue
        if line.text.startswith("#") and comments is not False:
            declared = GLOBAL.fullmatch(line.text)
            found = tuple(declared[1].split()) if declared else found
            # if all lines begin with "#", they are tokens
            marked = marked or (None if declared or comments else line)
            continue
        if names and not found:
            found, header = tuple(fields), line.number
            continue
        return Layout(len(fields), split, comments, found, header, line.number)
    if marked is None:
        raise ReadError.at(path, 1, "no tokens in this file")
    split = Split("\t" in marked.text)
    return Layout(len(split.fields(marked)), split, comments, found, header, marked.number)
