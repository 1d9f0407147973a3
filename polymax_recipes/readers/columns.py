"""Tokens with tags in columns, as in the CoNLL shared tasks: a token a line, a blank line after a sentence."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from polymax_recipes.readers.layout import DOCUMENT, Column, Layout, begins_document, layout_of
from polymax_recipes.readers.lines import Line, Path, ReadError, blocks, write


class Places(NamedTuple):
    """The number of columns of a file, 0 for CoNLL-U, and the places of tokens and tags among them, from 0."""

    columns: int = 2
    token: int = 0
    tag: int = 1


class Tagged(NamedTuple):
    """A sentence with a tag for each token, the places of its columns, and the number of its document in the file."""

    tokens: list[str]
    tags: list[str]
    places: Places = Places()
    document: int = 0


def read_tagged(
    path: Path,
    *,
    token: Column = 0,
    tag: Column = -1,
    comments: bool | None = None,
    skipped: list[ReadError] | None = None,
) -> Iterator[Tagged]:
    """The sentences of a file; `token` and `tag` are columns: from the left, negative from the right, or by name.

    Names are those of the first line, or of a comment `# global.columns = ...`. Columns are separated by tabs in files
    with tabs, else by spaces. Lines of -DOCSTART- are left out, and so are comments: all lines that begin with "#" if
    `comments` is True, none if it is False; by default those whose number of columns differs from that of tokens, or
    with a key and its value, `# text = ...`. A sentence that cannot be read is an error or, with `skipped`, left out,
    and its error is added there.
    """
    layout = layout_of(path, comments, names=isinstance(token, str) or isinstance(tag, str))
    found = (layout.place(path, name, column) for name, column in (("token", token), ("tag", tag)))
    places = Places(layout.columns, *found)
    document, any_before = 0, False
    for block in blocks(path):
        document += any_before and any(begins_document(line.text) for line in block)
        try:
            sentence = _sentence(path, block, layout, places)
        except ReadError as error:
            if skipped is None:
                raise
            skipped.append(error)
            continue
        if sentence.tokens:
            any_before = True
            yield sentence._replace(document=document)


def _sentence(path: Path, block: list[Line], layout: Layout, places: Places) -> Tagged:
    sentence = Tagged([], [], places)
    for line in block:
        if line.blank or line.number <= layout.header or layout.is_comment(line):
            continue
        fields = layout.fields(line)
        if fields[0] == DOCUMENT:
            continue
        if len(fields) != layout.columns:
            raise ReadError.at(path, line.number, f"{layout.columns} columns expected, as above; got {len(fields)}")
        token, tag = fields[places.token], fields[places.tag]
        if not token or not tag.strip(" "):
            raise ReadError.at(path, line.number, "the token or its tag is empty")
        sentence.tokens.append(token)
        sentence.tags.append(tag)
    return sentence


def write_tagged(path: Path, sentences: Iterable[Tagged]) -> None:
    """Write tokens and tags with a tab between them."""
    write(path, (text for sentence in sentences for text in _rows(sentence)))


def _rows(sentence: Tagged) -> Iterator[str]:
    if len(sentence.tokens) != len(sentence.tags):
        raise ValueError(f"tags must be one per token, {len(sentence.tokens)}; got {len(sentence.tags)}")
    for token, tag in zip(sentence.tokens, sentence.tags):
        if re.search(r"[\t\r\n]|^$", token) or re.search(r"[\t\r\n]|^[ ]*$", tag):
            raise ValueError(f"tokens and tags must fit in a column between tabs; got {token!r}, {tag!r}")
        yield f"{token}\t{tag}\n"
    yield "\n"
