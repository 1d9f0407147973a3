"""Treebanks: sentences with their trees, and batches of words, characters, heads and relations."""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.parse.lifting import crossed, lifted
from polymax_recipes.readers.conllu import Sentence, parse_sentence, read_conllu
from polymax_recipes.readers.lines import Line, ReadError
from polymax_recipes.readers.tables import Row
from polymax_recipes.text.tokens import TokenTable, numbers, token_vocabularies
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import SPECIALS, UNKNOWN, Words

# the relation to the root symbol, which no other arc has
ROOT = "root"


def read_treebanks(files: Sequence[Path], skipped: list[ReadError] | None = None) -> list[Sentence]:
    """Return the sentences of CoNLL-U files with trees of one root; with a list `skipped`, leave out the others."""
    if not files:
        raise ValueError("treebanks come in one file or more; got 0")
    return list(chain.from_iterable(read_conllu(file, skipped=skipped) for file in files))


def conllu_rows(forms: Sequence[str], upos: object = None, heads: object = None, deprels: object = None) -> list[str]:
    """Return the lines of a sentence in CoNLL-U, `_` in each column that is not given.

    Example:
        >>> conllu_rows(["Go"], ["VERB"])
        ['1\\tGo\\t_\\tVERB\\t_\\t_\\t_\\t_\\t_\\t_', '']
    """
    columns = [column if isinstance(column, list) else ["_"] * len(forms) for column in (upos, heads, deprels)]
    rows = zip(forms, *columns, strict=True)
    return [
        *(f"{k}\t{form}\t_\t{tag}\t_\t_\t{head}\t{name}\t_\t_" for k, (form, tag, head, name) in enumerate(rows, 1)),
        "",
    ]


def sentences_of_rows(rows: Iterable[Row], skipped: list[ReadError] | None = None) -> list[Sentence]:
    """Return the sentences of a table, a row each with lists of forms, heads (0 is the root) and relations."""
    found = []
    for row in rows:
        try:
            found.append(_sentence(row))
        except ReadError as error:
            if skipped is None:
                raise
            skipped.append(error)
    return found


def _sentence(row: Row) -> Sentence:
    forms = row.tokens("form")
    lists = [row.values.get(role) for role in ("upos", "head", "deprel")]
    lists = [one.split(" ") if isinstance(one, str) else one for one in lists]
    for role, column in zip(("upos", "head", "deprel"), lists):
        if (role != "upos" or column is not None) and (not isinstance(column, list) or len(column) != len(forms)):
            raise row.error(f"{role} must be a list with an entry for each of {len(forms)} forms; got {column!r:.60}")
    lines = conllu_rows(forms, *lists)
    return parse_sentence(row.path, [Line(row.number, text, text + "\n") for text in lines], trees=True)


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
    """Sentences with trees; -1 at padding, -2 for relations outside of the training data.

    Shapes:
        words (b, n); characters (b, n, c); lengths (b,); heads (b, n), and `lifted`, the heads without crossing arcs;
        relations (b, n), and `universals`, the relations without subtypes
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
