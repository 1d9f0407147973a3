"""Text to be tagged, line by line, and its lines with tags: in columns or in CoNLL-U."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from polymax_recipes.readers.layout import DOCUMENT, Split, begins_document, looks_like_comment
from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.tag.columns import CONLLU, FIRST_AND_LAST, NO_TAG, Chosen, Remembered

COLUMNS = len(CONLLU)


@dataclass(frozen=True)
class Untagged:
    """The lines up to the next sentence, with the blank lines at the end; `rows` are the lines of the tokens.

    `place` is the column of the tags, None if lines have only a token.
    """

    lines: list[str]
    rows: list[int]
    tokens: list[str]
    place: int | None
    tabs: bool

    @property
    def begins_document(self) -> bool:
        """Return True if a document begins with this sentence."""
        return any(begins_document(line) for line in self.lines)

    def tagged(self, tags: Sequence[str]) -> Iterator[str]:
        """The lines with tags in their column; a token alone gets a second one."""
        placed = dict(zip(self.rows, tags, strict=True))
        for row, line in enumerate(self.lines):
            yield self._line(line, placed[row]) if row in placed else line

    def _line(self, line: str, tag: str) -> str:
        if self.place is None:
            return f"{line.strip(' ')}\t{tag}"
        if self.tabs or "\t" in line:
            columns = line.split("\t")
            return "\t".join([*columns[: self.place], tag, *columns[self.place + 1 :]])
        # the spaces between columns stay as they are
        line = line.rstrip(" ")
        field = list(re.finditer("[^ ]+", line))[self.place]
        return line[: field.start()] + tag + line[field.end() :]


@dataclass(frozen=True)
class Reader:
    """The reader of a run's input: the columns of its training, the flags of the call, and a test for tags.

    Without `remembered`, as in older runs, any number of columns is accepted.
    """

    chosen: Chosen = FIRST_AND_LAST
    remembered: Remembered | None = None
    is_tag: Callable[[str], bool] = lambda tag: True

    def sentence(self, file: str, block: list[Line]) -> Untagged:
        """The sentence of the lines up to the next one.

        Example:
            >>> Reader().sentence("input", [Line(1, "a\\tO", ""), Line(2, "b\\tO", ""), Line(3, "", "")]).tokens
            ['a', 'b']
        """
        split = Split(any("\t" in line.text for line in block))
        cut = [split.fields(line) for line in block]
        if any(len(columns) == COLUMNS and re.fullmatch("[0-9]+", columns[0]) for columns in cut):
            return self._conllu(file, block, cut)
        rows = self._rows(block, cut)
        if not rows:
            return Untagged([line.text for line in block], [], [], None, split.tabs)
        count = len(cut[rows[0]])
        for row in rows:
            if len(cut[row]) != count:
                raise ReadError.at(file, block[row].number, f"{count} columns expected, as above; got {len(cut[row])}")
        token, tag = self._places(file, block[rows[0]].number, count)
        for row in rows:
            if not cut[row][token]:
                raise ReadError.at(file, block[row].number, "the token is empty")
        if tag is not None and not any(cut[row][tag] in NO_TAG or self.is_tag(cut[row][tag]) for row in rows):
            found = cut[rows[0]][tag]
            what = f"tags of the training, or _, expected in column {tag + 1}; got {found!r}; --text reads raw text"
            raise ReadError.at(file, block[rows[0]].number, what)
        return Untagged([line.text for line in block], rows, [cut[row][token] for row in rows], tag, split.tabs)

    def _rows(self, block: list[Line], cut: list[list[str]]) -> list[int]:
        """Return the lines with tokens: without blank lines, marks of documents, comments and a header."""
        rows = [k for k, line in enumerate(block) if not line.blank and cut[k][0] != DOCUMENT]
        names = [name for name in self.chosen if name and not re.fullmatch("-?[0-9]+", name)]
        if rows and names and block[rows[0]].number == 1 and set(names) <= set(cut[rows[0]]):
            rows = rows[1:]
        plain = [k for k in rows if not block[k].text.startswith("#")]
        counts = self._counts() if not plain else {len(cut[plain[0]])}
        # comments are recognized by the rule of the training files
        return [k for k in rows if block[k].text[0] != "#" or not looks_like_comment(block[k], len(cut[k]) in counts)]

    def _counts(self) -> set[int]:
        return {1, *([places.columns for places in self.remembered.places] if self.remembered else range(2, 1000))}

    def _places(self, file: str, number: int, count: int) -> tuple[int, int | None]:
        """The places of tokens and tags in lines with `count` columns; lines may have only a token."""
        if count == 1:
            return 0, None
        known = self.remembered
        if known and self.chosen == known.chosen:
            if found := known.of_columns(count):
                return found.token, found.tag
            trained = " or ".join("those of CoNLL-U" if p.columns == 0 else str(p.columns) for p in known.places)
            what = f"{trained} columns expected, as in the training, or a token alone; got {count}"
            raise ReadError.at(file, number, f"{what}; --text reads raw text")
        places = []
        for flag, column in zip(("--token-column", "--tag-column"), self.chosen.plain):
            if isinstance(column, str) or not -count <= column < count:
                raise ReadError.at(file, number, f"{flag} must be a number of one of {count} columns; got {column}")
            places.append(column % count)
        return places[0], places[1]

    def _conllu(self, file: str, block: list[Line], cut: list[list[str]]) -> Untagged:
        # flags of a training on other files do not apply to these
        other = self.remembered is not None and self.remembered.of_columns(0) is None
        token, tag = FIRST_AND_LAST.conllu if other else self.chosen.conllu
        rows = []
        for row, (line, columns) in enumerate(zip(block, cut)):
            if line.blank or line.text.startswith("#"):
                continue
            if len(columns) != COLUMNS:
                raise ReadError.at(file, line.number, f"{COLUMNS} columns between tabs expected; got {len(columns)}")
            if not columns[token]:
                raise ReadError.at(file, line.number, "the token is empty")
            # multiword tokens and empty nodes have no tag
            if columns[0].isdecimal():
                rows.append(row)
        return Untagged([line.text for line in block], rows, [cut[row][token] for row in rows], tag, True)
