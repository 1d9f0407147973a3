"""Word alignments of sentence pairs by hand: a JSON list with an object per pair, from source ids to target ids.

See: Nikolaev et al. 2020
"""

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

from polymax_recipes.readers.conllu import Sentence, read_conllu
from polymax_recipes.readers.jsonl import parse_object
from polymax_recipes.readers.lines import Path, ReadError, lines

# the mark of words without a counterpart
NOTHING = "X"
# strings, whose brackets are text, and the brackets outside of strings
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]')


class WordAlignment(NamedTuple):
    """Pairs of source and target words, counted from 0, and the words that were judged to have no counterpart.

    Other words were not annotated.
    """

    links: list[tuple[int, int]]
    unlinked_source: list[int]
    unlinked_target: list[int]


def read_alignments(path: Path) -> Iterator[WordAlignment]:
    """The alignments of a file, in its order."""
    for _, alignment in _numbered(path):
        yield alignment


def read_aligned(source: Path, target: Path, alignments: Path) -> Iterator[tuple[Sentence, Sentence, WordAlignment]]:
    """Sentence pairs, of two CoNLL-U files, with their alignments."""
    triples = zip_longest(read_conllu(source), read_conllu(target), _numbered(alignments))
    for count, (first, second, record) in enumerate(triples):
        if first is None or second is None or record is None:
            short = source if first is None else target if second is None else alignments
            end = sum(1 for _ in lines(short))
            raise ReadError.at(short, end, f"ends after {count} sentences, before the files that belong to it")
        line, alignment = record
        sides = ((0, alignment.unlinked_source, first), (1, alignment.unlinked_target, second))
        for side, unlinked, sentence in sides:
            beyond = max([link[side] for link in alignment.links] + unlinked, default=-1)
            if beyond >= len(sentence.words):
                words = len(sentence.words)
                raise ReadError.at(alignments, line, f"id {beyond + 1} of a sentence with {words} words")
        yield first, second, alignment


def _numbered(path: Path) -> Iterator[tuple[int, WordAlignment]]:
    """Return alignments, and the lines in which they begin."""
    for number, record in _objects(path):
        links: set[tuple[int, int]] = set()
        sources: set[int] = set()
        targets: set[int] = set()
        for source, ids in record.items():
            if not isinstance(ids, list):
                raise ReadError.at(path, number, f"a list of ids expected for {source!r}; got {ids!r}")
            for target in ids:
                i, j = _word(path, number, source), _word(path, number, target)
                if i is not None and j is not None:
                    links.add((i, j))
                elif i is not None:
                    sources.add(i)
                elif j is not None:
                    targets.add(j)
        yield number, WordAlignment(sorted(links), sorted(sources), sorted(targets))


def _word(path: Path, number: int, id: object) -> int | None:
    if id == NOTHING:
        return None
    if not isinstance(id, str) or not re.fullmatch("[1-9][0-9]{0,8}", id):
        raise ReadError.at(path, number, f'ids must be texts with numbers from 1, or "{NOTHING}"; got {id!r}')
    return int(id) - 1


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON list, and the lines in which they begin, one at a time: the file may be long."""
    depth, begun, held, last = 0, 0, "", 0
    for line in lines(path):
        last, taken, between = line.number, 0, ""
        for piece in _PIECE.finditer(line.text):
            if piece[0] in "[{":
                depth += 1
                if depth == 2:
                    between += line.text[taken : piece.start()]
                    begun, taken = line.number, piece.start()
            elif piece[0] in "]}":
                depth -= 1
                if depth == 1:
                    held += line.text[taken : piece.end()]
                    yield begun, parse_object(path, begun, held)
                    held, taken = "", piece.end()
        if depth >= 2:
            held += line.text[taken:] + "\n"
        else:
            between += line.text[taken:]
        if depth < 0 or between.strip(" \t,[]"):
            raise ReadError.at(path, line.number, "a JSON list of objects expected")
    if depth != 0:
        raise ReadError.at(path, last, f"the list is not closed; its last object begins in line {begun}")
