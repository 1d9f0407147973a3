"""CoNLL-U: sentences with dependency trees, read and written back byte for byte.

See: universaldependencies.org/format.html
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from polymax_recipes.readers.lines import Line, Path, ReadError, blocks, write

COLUMNS = 10
HEAD, DEPREL = 6, 7


class Word(NamedTuple):
    """A syntactic word. `head` counts words from 1; 0 is the root, and -1 stands for a head that is not given."""

    form: str
    lemma: str
    upos: str
    xpos: str
    feats: str
    head: int
    deprel: str
    deps: str
    misc: str

    @property
    def features(self) -> dict[str, str]:
        """The features of the column `feats` by their names.

        Example:
            >>> Word("dogs", "dog", "NOUN", "NNS", "Number=Plur", 0, "root", "_", "_").features
            {'Number': 'Plur'}
        """
        if self.feats == "_":
            return {}
        return {name: value for name, _, value in (feature.partition("=") for feature in self.feats.split("|"))}


@dataclass(frozen=True)
class Sentence:
    """Words, and the raw lines of the file: comments, multiword tokens and empty nodes are only in these lines.

    `rows` are the positions of the words in `lines`.
    """

    words: tuple[Word, ...]
    lines: tuple[str, ...]
    rows: tuple[int, ...]

    @property
    def comments(self) -> list[str]:
        texts = (line.removeprefix("\ufeff").rstrip("\r\n") for line in self.lines)
        return [text for text in texts if text.startswith("#")]

    @property
    def forms(self) -> list[str]:
        return [word.form for word in self.words]

    @property
    def heads(self) -> list[int]:
        return [word.head for word in self.words]

    @property
    def deprels(self) -> list[str]:
        return [word.deprel for word in self.words]

    def with_tree(self, heads: Sequence[int], deprels: Sequence[str]) -> "Sentence":
        """Return the sentence with other heads and relations, which need not be a tree; other columns do not change."""
        n = len(self.words)
        if len(heads) != n or len(deprels) != n:
            raise ValueError(f"heads and deprels must have one entry per word, {n}; got {len(heads)}, {len(deprels)}")
        if not all(0 <= head <= n for head in heads):
            raise ValueError(f"heads must be from 0 to {n}; got {list(heads)}")
        for deprel in deprels:
            if not deprel or any(character in deprel for character in "\t\r\n"):
                raise ValueError(f"deprels must fit in a column between tabs; got {deprel!r}")
        kept = list(self.lines)
        for row, head, deprel in zip(self.rows, heads, deprels):
            columns = kept[row].split("\t")
            columns[HEAD], columns[DEPREL] = str(head), deprel
            kept[row] = "\t".join(columns)
        words = (word._replace(head=h, deprel=d) for word, h, d in zip(self.words, heads, deprels))
        return replace(self, words=tuple(words), lines=tuple(kept))

    def __str__(self) -> str:
        return "".join(self.lines)


def read_conllu(path: Path, *, trees: bool = True, skipped: list[ReadError] | None = None) -> Iterator[Sentence]:
    """The sentences of a file; each must be a tree with one root.

    Without `trees` heads and relations may be missing (`_`) and are not checked to be a tree: text to be parsed. A
    sentence that cannot be read is an error or, with `skipped`, left out, and its error is added there.
    """
    for block in blocks(path):
        try:
            sentence = parse_sentence(path, block, trees)
        except ReadError as error:
            if skipped is None:
                raise
            skipped.append(error)
            continue
        yield sentence


def write_conllu(path: Path, sentences: Iterable[Sentence]) -> None:
    """Write sentences as they were read, but for the trees that `with_tree` gave them."""
    write(path, _separated(sentences))


def _separated(sentences: Iterable[Sentence]) -> Iterator[str]:
    previous = ""
    for sentence in sentences:
        # the last sentence of a file may end without a line feed or a blank line, and others may follow it here
        if previous:
            yield "" if previous.endswith("\n") else "\n"
            yield "" if previous in ("\n", "\r\n") else "\n"
        yield str(sentence)
        previous = sentence.lines[-1]


def parse_sentence(path: Path, block: list[Line], trees: bool) -> Sentence:
    """The sentence of the lines up to the next one, as `read_conllu` gives it; `path` is named in errors."""
    words: list[Word] = []
    rows: list[int] = []
    ids = _Ids()
    for row, line in enumerate(block):
        # a line of spaces is neither a word nor the end of a sentence
        if not line.text:
            continue
        if line.text.startswith("#"):
            if ids.begun:
                raise ReadError.at(path, line.number, "a comment inside of a sentence")
            continue
        columns = line.text.split("\t")
        if len(columns) != COLUMNS:
            raise ReadError.at(path, line.number, f"{COLUMNS} columns between tabs expected; got {len(columns)}")
        if "" in columns:
            raise ReadError.at(path, line.number, f"column {columns.index('') + 1} is empty")
        fault = ids.fault(columns[0])
        if fault:
            raise ReadError.at(path, line.number, fault)
        if columns[0].isdecimal():
            words.append(_word(path, line, columns, trees))
            rows.append(row)
    if not words:
        first = next(line for line in block if not line.blank)
        raise ReadError.at(path, first.number, "no words in this sentence")
    if ids.covered > len(words):
        raise ReadError.at(path, block[rows[-1]].number, f"a multiword token goes on to {ids.covered}, past this word")
    if trees:
        fault_at = tree_fault([word.head for word in words])
        if fault_at:
            word, what = fault_at
            raise ReadError.at(path, block[rows[word]].number, what)
    return Sentence(tuple(words), tuple(line.raw for line in block), tuple(rows))


def _word(path: Path, line: Line, columns: list[str], trees: bool) -> Word:
    _, form, lemma, upos, xpos, feats, head, deprel, deps, misc = columns
    if re.fullmatch("[0-9]{1,9}", head):
        number = int(head)
    elif head == "_" and not trees:
        number = -1
    else:
        raise ReadError.at(path, line.number, f"head must be a number; got {head!r}")
    return Word(form, lemma, upos, xpos, feats, number, deprel, deps, misc)


class _Ids:
    """The order of ids: words 1, 2, ..., multiword tokens before their first word, empty nodes after a word."""

    def __init__(self) -> None:
        self.word = self.empty = self.covered = 0
        self.begun = False

    def fault(self, id: str) -> str | None:
        """Return the error message for the next id; empty if the id is right."""
        self.begun = True
        match = re.fullmatch(r"([0-9]{1,9})(?:([-.])([0-9]{1,9}))?", id)
        if not match:
            return f"id must be a number, or two with - or . between; got {id!r}"
        first, kind, second = int(match[1]), match[2], int(match[3] or 0)
        if kind == "-":
            if first != self.word + 1 or second < first or first <= self.covered:
                return f"multiword token {id} out of order after word {self.word}"
            self.covered = second
        elif kind == ".":
            if first != self.word or second != self.empty + 1:
                return f"empty node {id} out of order after {self.word}.{self.empty}"
            self.empty = second
        else:
            if first != self.word + 1:
                return f"id {self.word + 1} expected; got {id}"
            self.word, self.empty = first, 0
        return None


def tree_fault(heads: Sequence[int]) -> tuple[int, str] | None:
    """The first word, from 0, at which heads fail to be a tree with one root, and the reason; None for a tree.

    Example:
        >>> tree_fault([2, 0, 2])
        >>> tree_fault([2, 1, 0])
        (0, 'word 1 is its own ancestor')
    """
    n = len(heads)
    roots = [word for word, head in enumerate(heads) if head == 0]
    for word, head in enumerate(heads):
        if not 0 <= head <= n:
            return word, f"head must be from 0 to {n}, the number of words; got {head}"
    if n and not roots:
        return 0, "no word of this sentence is the root"
    # 0 unseen, 1 on the path from the current word, 2 known to lead to a root
    state = [2] + [0] * n
    for word in range(1, n + 1):
        path, node = [], word
        while state[node] == 0:
            state[node] = 1
            path.append(node)
            node = heads[node - 1]
        if state[node] == 1:
            return node - 1, f"word {node} is its own ancestor"
        for node in path:
            state[node] = 2
    if len(roots) > 1:
        return roots[1], f"one root expected; word {roots[0] + 1} is one already"
    return None
