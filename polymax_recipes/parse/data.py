"""Treebanks: sentences with their trees, and batches of words, characters, heads and relations."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.parse.lifting import crossed, lifted
from polymax_recipes.readers.conllu import Sentence, read_conllu
from polymax_recipes.readers.lines import ReadError
from polymax_recipes.text.tokens import TokenTable, numbers, token_vocabularies
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import SPECIALS, UNKNOWN, Words

# the relation to the root symbol, and to nothing else
ROOT = "root"


def read_treebanks(files: Sequence[Path], skipped: list[ReadError] | None = None) -> list[Sentence]:
    """The sentences of CoNLL-U files, each with a tree of one root; others are left out where there is `skipped`."""
    if not files:
        raise ValueError("treebanks come in one file or more; got 0")
    return list(chain.from_iterable(read_conllu(file, skipped=skipped) for file in files))


def universal(relation: str) -> str:
    """A relation without its subtype.

    Example:
        >>> universal("nsubj:pass")
        'nsubj'
    """
    return relation.partition(":")[0]


def vocabularies_of(examples: Sequence[Sentence], words: int) -> Vocabularies:
    """Vocabularies of words in lower case, characters, relations, and relations without subtypes."""
    relations = {relation for sentence in examples for relation in sentence.deprels}
    return {
        **token_vocabularies([sentence.forms for sentence in examples], words),
        "relations": Words(tuple(sorted(relations))),
        "universals": Words(tuple(sorted(set(map(universal, relations))))),
    }


class Batch(NamedTuple):
    """Sentences with trees; -1 at padding, -2 for relations that training did not have.

    Shapes:
        words (b, n); characters (b, n, c); lengths (b,); heads (b, n), and lifted, without crossing arcs; relations
        (b, n), and universals, without subtypes
    """

    words: Tensor
    characters: Tensor
    lengths: Tensor
    heads: Tensor
    lifted: Tensor
    relations: Tensor
    universals: Tensor


class Treebank:
    """Sentences in numbers: batches of them on request."""

    def __init__(self, examples: Sequence[Sentence], vocabularies: Vocabularies) -> None:
        relations, universals = (numbers(vocabularies[name]) for name in ("relations", "universals"))
        names = [sentence.deprels for sentence in examples]
        self.tokens = TokenTable([sentence.forms for sentence in examples], vocabularies)
        self.heads = _shifted([sentence.heads for sentence in examples])
        self.lifted = _shifted([lifted(s.heads) if crossed(s.heads) else s.heads for s in examples])
        self.relations = Ragged.of([relations.get(name, UNKNOWN) for name in row] for row in names)
        self.universals = Ragged.of([universals.get(universal(name), UNKNOWN) for name in row] for row in names)
        self.sizes = self.tokens.sizes

    def __getitem__(self, rows: Tensor) -> Batch:
        heads, lifts = (part.padded(rows)[0] - 1 for part in (self.heads, self.lifted))
        named = (part.padded(rows)[0] for part in (self.relations, self.universals))
        # PAD is 0, UNKNOWN is 1
        known = (torch.where(part < len(SPECIALS), -1 - part, part - len(SPECIALS)) for part in named)
        return Batch(*self.tokens[rows], heads, lifts, *known)


def _shifted(heads: Sequence[Sequence[int]]) -> Ragged:
    # padding is 0, as is the root symbol
    return Ragged.of([head + 1 for head in row] for row in heads)
