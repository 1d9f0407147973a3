"""Tokens with tags in columns, as in the CoNLL shared tasks: a token a line, a blank line after a sentence."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from polymax.recipes.readers.lines import Path, ReadError, blocks, write


class Tagged(NamedTuple):
    """A sentence and a tag for each of its tokens."""

    tokens: list[str]
    tags: list[str]


def read_tagged(path: Path, *, token: int = 0, tag: int = -1, comments: bool = False) -> Iterator[Tagged]:
    """The sentences of a file; `token` and `tag` are columns, from the left or, negative, from the right.

    Columns are separated by tabs in lines that have one, else by spaces. Lines of -DOCSTART- are left out. With
    `comments`, so are lines that begin with "#", which else is a token.
    """
    columns: int | None = None
    for block in blocks(path):
        sentence = Tagged([], [])
        for line in block:
            if line.blank or (comments and line.text.startswith("#")):
                continue
            fields = line.text.split("\t") if "\t" in line.text else re.split(" +", line.text.strip(" "))
            if fields[0] == "-DOCSTART-":
                continue
            if columns is None:
                columns = len(fields)
                # what is wrong with the arguments shows at the first line
                for name, place in (("token", token), ("tag", tag)):
                    if columns < 2 or not -columns <= place < columns:
                        raise ReadError.at(path, line.number, f"column {name}={place} of {columns} does not exist")
            if len(fields) != columns:
                raise ReadError.at(path, line.number, f"{columns} columns expected, as above; got {len(fields)}")
            if not fields[token] or not fields[tag]:
                raise ReadError.at(path, line.number, "the token or its tag is empty")
            sentence.tokens.append(fields[token])
            sentence.tags.append(fields[tag])
        if sentence.tokens:
            yield sentence
    if columns is None:
        raise ReadError.at(path, 1, "no tokens in this file")


def write_tagged(path: Path, sentences: Iterable[Tagged]) -> None:
    """Write tokens and tags with a tab between them."""
    write(path, (text for sentence in sentences for text in _rows(sentence)))


def _rows(sentence: Tagged) -> Iterator[str]:
    if len(sentence.tokens) != len(sentence.tags):
        raise ValueError(f"tags must be one per token, {len(sentence.tokens)}; got {len(sentence.tags)}")
    for token, tag in zip(sentence.tokens, sentence.tags):
        if re.search(r"[\t\r\n]|^[ ]*$", token) or re.search(r"[\t\r\n]|^[ ]*$", tag):
            raise ValueError(f"tokens and tags must fit in a column between tabs; got {token!r}, {tag!r}")
        yield f"{token}\t{tag}\n"
    yield "\n"
