"""Bracketed trees: read and cleaned, as charts of labelled spans, and as batches."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.readers.binary import (
    INSERTED,
    JOINT,
    chart_spans,
    chart_tree,
    collapsed,
    expanded,
    right_binary,
    unbinary,
)
from polymax_recipes.readers.cleaning import is_trace, is_zero, without, without_functions, without_root
from polymax_recipes.readers.lines import ReadError, lines
from polymax_recipes.readers.spans import Span
from polymax_recipes.readers.trees import Tree, numbered_trees, parse_tree
from polymax_recipes.text.tokens import TokenTable, numbers, token_vocabularies
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import SPECIALS, UNKNOWN, Words

# the label of spans that are not constituents: of inserted nodes, and of words without a node above the part of speech
NONE = ""
ESCAPES = str.maketrans({"(": "-LRB-", ")": "-RRB-"})


def read_brackets(files: Sequence[Path]) -> list[Tree]:
    """Return the cleaned trees of files, without trees that consist of traces."""
    if not files:
        raise ValueError("trees come in one file or more; got 0")
    trees = list(chain.from_iterable(map(_read, files)))
    if not trees:
        raise ValueError(f"{', '.join(map(str, files))}: no tree has a word")
    return trees


def _read(file: Path) -> Iterator[Tree]:
    for number, tree in numbered_trees(file, lines(file)):
        kept = _learnable(file, number, tree)
        if kept is not None:
            yield kept


def _learnable(file: str | os.PathLike[str], number: int, tree: Tree) -> Tree | None:
    """The cleaned tree, None if nothing is left of it; a ReadError if its labels cannot be joined."""
    kept = cleaned(tree)
    try:
        if kept is not None:
            collapsed(kept)
    except ValueError as error:
        raise ReadError.at(file, number, str(error)) from None
    return kept


def tree_of_text(file: str | os.PathLike[str], number: int, text: str) -> Tree:
    """Return the cleaned tree written in a text; a ReadError names the row of a text without a tree."""
    try:
        tree = _learnable(file, number, parse_tree(text))
    except ReadError:
        raise
    except ValueError as error:
        raise ReadError.at(file, number, str(error)) from None
    if tree is None:
        raise ReadError.at(file, number, "the tree has no word")
    return tree


def cleaned(tree: Tree) -> Tree | None:
    """Return a tree in the form that is learned and measured; None if nothing is left of it.

    Example:
        >>> from polymax_recipes.readers.trees import parse_tree
        >>> print(cleaned(parse_tree("( (IP-MAT (NP-SBJ *pro*) (VB go)) (ID 7))")))
        (IP (VB go))
    """
    # trees with ids are of the Keyaki Treebank, whose empty elements begin with a star; elsewhere words may begin with
    # a star
    zeros = is_zero if any(child.label == "ID" for child in tree.children) else is_trace
    left = without(tree, zeros)
    if left is None:
        return None
    plain = without_functions(without_root(left))
    # a root over several sentences has no label of its own
    return plain if plain.label else Tree("TOP", plain.children, plain.word)


class Chart(NamedTuple):
    """A binary tree by its spans, and the parts of speech."""

    spans: list[Span]
    tags: list[str]


def chart_of(tree: Tree) -> Chart:
    """The chart of a tree, in which inserted nodes have no label.

    Example:
        >>> from polymax_recipes.readers.trees import parse_tree
        >>> [tuple(span) for span in chart_of(parse_tree("(NP (DT a) (JJ b) (NP (NN c)))")).spans]
        [(0, 2, 'NP'), (1, 2, ''), (0, 0, ''), (1, 1, ''), (2, 2, 'NP')]
    """
    spans = chart_spans(right_binary(collapsed(tree)))
    return Chart([s._replace(label=NONE) if s.label.endswith(INSERTED) else s for s in spans], tree.tags)


def tree_of(spans: Iterable[Span], words: Sequence[str], tags: Sequence[str]) -> Tree:
    """The inverse of `chart_of`; brackets in words are spelled out.

    Example:
        >>> print(tree_of([Span(0, 1, "S::VP"), Span(0, 0), Span(1, 1, "NP")], ["go", "home"], ["VB", "NN"]))
        (S (VP (VB go) (NP (NN home))))
    """
    named = (s._replace(label=INSERTED) if s.start < s.last and s.label == NONE else s for s in spans)
    return expanded(unbinary(chart_tree(named, [word.translate(ESCAPES) for word in words], tags)))


def vocabularies_of(trees: Sequence[Tree], words: int) -> Vocabularies:
    """Vocabularies of words in lower case, characters, labels of spans with NONE first, and parts of speech."""
    labels = {span.label for tree in trees for span in chart_of(tree).spans}
    tags = {tag for tree in trees for tag in tree.tags}
    return {
        **token_vocabularies([tree.words for tree in trees], words),
        "labels": Words((NONE, *sorted(labels - {NONE}))),
        "tags": Words(tuple(sorted(tags))),
    }


class Batch(NamedTuple):
    """Sentences and their charts; unknown labels are NONE, and unknown tags are -1, as at padding.

    Shapes: words (b, n); characters (b, n, c); lengths (b,); tags (b, n); spans (b, 2 n - 1, 3), -1 at padding
    """

    words: Tensor
    characters: Tensor
    lengths: Tensor
    tags: Tensor
    spans: Tensor


class Charts:
    """Charts in numbers: batches of them on request."""

    def __init__(self, trees: Sequence[Tree], vocabularies: Vocabularies) -> None:
        labels, tags = numbers(vocabularies["labels"]), numbers(vocabularies["tags"])
        charts = [chart_of(tree) for tree in trees]
        self.tokens = TokenTable([tree.words for tree in trees], vocabularies)
        self.tags = Ragged.of([tags.get(tag, UNKNOWN) for tag in one.tags] for one in charts)
        # numbers are shifted by one, since padding is 0
        rows = ([(s.start + 1, s.last + 1, _number(s.label, labels) + 1) for s in one.spans] for one in charts)
        self.spans = Ragged.of([number for row in spans for number in row] for spans in rows)
        self.sizes = self.tokens.sizes

    def __getitem__(self, rows: Tensor) -> Batch:
        tags, _ = self.tags.padded(rows)
        spans, _ = self.spans.padded(rows)
        known = torch.where(tags < len(SPECIALS), -1, tags - len(SPECIALS))
        return Batch(*self.tokens[rows], known, spans.unflatten(1, (-1, 3)) - 1)


def _number(label: str, labels: dict[str, int]) -> int:
    """The number of a chain of labels; of an unknown chain, the number of its top label, or of NONE."""
    for known in (label, label.split(JOINT)[0]):
        if known in labels:
            return labels[known] - len(SPECIALS)
    return labels[NONE] - len(SPECIALS)
