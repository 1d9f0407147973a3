"""Series to be classified, line by line: from .ts files, from plain text, or as values alone."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.readers.series import Series, parse_values
from polymax_recipes.readers.ucr_text import is_header, parse_text_series

# names of lines that do not come from a file
NAMELESS = ("-", "input")
UNKNOWN = "?"


class Given(NamedTuple):
    """A series of a line of a file; in plain text the class comes first."""

    series: Series
    file: str
    number: int
    plain: bool

    def fitting(self, classes: Sequence[str]) -> Series:
        """Return the series; a ReadError if the text before its values in plain text is not a class."""
        if self.plain and self.series.label not in (*classes, UNKNOWN):
            what = f"a class of the training or {UNKNOWN} expected before the values; got {self.series.label!r}"
            raise ReadError.at(self.file, self.number, what)
        return self.series


def given_series(file: str, line: Line) -> Given | None:
    """Return the series of a line; None for blank lines, comments and headers.

    Lines of other files than .ts are plain text, with the class before the values; lines with a colon are in the form
    of .ts.

    Example:
        >>> [given_series(file, Line(2, "1,2,3", "")).series.values.shape[0] for file in ("a.ts", "a.csv")]
        [3, 2]
    """
    text = line.text.strip(" \t")
    plain = file not in NAMELESS and not os.fspath(file).removesuffix(".gz").endswith(".ts") and ":" not in text
    if not text or text[0] in "#@" or (plain and line.number == 1 and is_header(line)):
        return None
    if plain:
        return Given(parse_text_series(file, line, complete=True), file, line.number, plain)
    series = parse_values(file, line)
    return None if series is None else Given(series, file, line.number, plain)
