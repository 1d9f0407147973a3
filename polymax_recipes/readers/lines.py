"""Lines of text files, plain or gzip, with their numbers, and errors that name the line."""

import gzip
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

from polymax_recipes.outputs import atomic_write

Path = str | os.PathLike[str]


class ReadError(ValueError):
    """An error in a file: "FILE:LINE: what is wrong"."""

    @classmethod
    def at(cls, path: Path, line: int, what: str) -> "ReadError":
        """The error that names a line of a file.

        Example:
            >>> ReadError.at("train.tsv", 3, "no label")
            ReadError('train.tsv:3: no label')
        """
        return cls(f"{os.fspath(path)}:{line}: {what}")


class Line(NamedTuple):
    """`text` has neither line end nor byte order mark; `raw` has both, as they are in the file."""

    number: int
    text: str
    raw: str

    @property
    def blank(self) -> bool:
        # white space of other scripts can be a token
        return not self.text.strip(" \t")


def lines(path: Path) -> Iterator[Line]:
    """The lines of a UTF-8 file; a name that ends in ".gz" is unpacked.

    They end in a line feed, with or without a carriage return; the last may have none. A file without any text is an
    error.
    """
    number, found = 0, False
    with _source(path) as file:
        chunks = iter(file)
        while True:
            try:
                raw = next(chunks, None)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ReadError.at(path, number + 1, f"gzip data expected: {error}") from error
            if raw is None:
                break
            number += 1
            try:
                kept = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                place = f"byte {error.start + 1} of the line is 0x{raw[error.start]:02x}"
                raise ReadError.at(path, number, f"UTF-8 expected; {place}") from error
            text = kept.removesuffix("\n").removesuffix("\r")
            if number == 1 and text == kept.removesuffix("\r") and "\r" in text:
                raise ReadError.at(path, 1, "lines end in carriage returns alone; convert them to line feeds")
            line = Line(number, text.removeprefix("\ufeff") if number == 1 else text, kept)
            found = found or not line.blank
            yield line
    if not found:
        raise ReadError.at(path, max(number, 1), "the file is empty")


def blocks(path: Path) -> Iterator[list[Line]]:
    """Groups of lines: each ends with a blank line and all blank lines after it; together they are the whole file.

    Blank lines at the top belong to the first block. A complete block is yielded before an error in a later line is
    raised.
    """
    return grouped(lines(path))


def grouped(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Return the blocks of lines that need not come from a file.

    Example:
        >>> [len(block) for block in grouped(Line(0, text, text) for text in ("a", "b", "", "", "c"))]
        [4, 1]
    """
    block: list[Line] = []
    begun = False
    try:
        for line in lines:
            if begun and block[-1].blank and not line.blank:
                yield block
                block, begun = [], False
            block.append(line)
            begun = begun or not line.blank
    except ReadError:
        if begun and block[-1].blank:
            yield block
        raise
    if block:
        yield block


def write(path: Path, texts: Iterable[str]) -> None:
    """Write texts, one after the other, as UTF-8; a name that ends in ".gz" is packed, to the same bytes every time.

    The file is moved to its place when it is complete: texts may come from a file of the same name, and an error does
    not change that file.
    """
    file = pathlib.Path(path)
    with atomic_write(file) as temporary, temporary.open("wb") as plain:
        if file.name.endswith(".gz"):
            # without name and time, equal contents give equal bytes
            with gzip.GzipFile(filename="", mode="wb", fileobj=plain, mtime=0) as packed:
                packed.writelines(text.encode("utf-8") for text in texts)
        else:
            plain.writelines(text.encode("utf-8") for text in texts)


@contextmanager
def _source(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    if os.fspath(path).endswith(".gz"):
        with gzip.open(path, "rb") as packed:
            yield packed
    else:
        with open(path, "rb") as plain:
            yield plain
