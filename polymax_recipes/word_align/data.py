"""Sentence pairs to be aligned: readers of texts or CoNLL-U, with or without alignments by hand; and batches."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from polymax_recipes.readers.alignments import WordAlignment, read_aligned
from polymax_recipes.readers.conllu import read_conllu
from polymax_recipes.readers.lines import Line, ReadError, lines
from polymax_recipes.seq2seq.data import read_texts
from polymax_recipes.text.tokens import numbers, rank_by_frequency
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import SPECIALS, UNKNOWN, Vocabulary, Words

# n't; French words elided before a vowel; parts after an apostrophe; words; marks
CLITICS = re.compile(
    r"\w+(?=n['’]t\b)|n['’]t\b|\b(?:[cdjlmnst]|\w*qu)['’](?=\w)|['’]\w+|\w+|[^\w\s]", flags=re.IGNORECASE
)


class Sides(NamedTuple):
    """A sentence and its translation, as texts or as lists of words, and the links made by hand."""

    source: str | list[str]
    target: str | list[str]
    gold: WordAlignment | None = None


def read_sides(files: Sequence[Path]) -> list[Sides]:
    """The pairs in tables (.tsv, .jsonl), in two parallel texts, and in two .conllu files, in any number and order.

    A .json file after two .conllu files has their alignments by hand.
    """
    waiting, pairs = list(files), list[Sides]()
    while waiting:
        group = [waiting.pop(0)]
        if not _is(group[0], ".tsv", ".jsonl"):
            if not waiting:
                raise ValueError(f"pairs must come in a table or in two files; got {group[0]} alone")
            group.append(waiting.pop(0))
        if not _is(group[0], ".conllu"):
            pairs += [Sides(*text.pair) for text in read_texts(group)]
        elif waiting and _is(waiting[0], ".json"):
            triples = read_aligned(group[0], group[1], waiting.pop(0))
            pairs += [Sides(first.forms, second.forms, gold) for first, second, gold in triples]
        else:
            pairs += _parallel(*group)
    if not pairs:
        raise ValueError("pairs come in one file or more; got 0")
    return pairs


def _is(file: Path, *endings: str) -> bool:
    return file.name.removesuffix(".gz").endswith(endings)


def _parallel(source: Path, target: Path) -> Iterator[Sides]:
    sentences = zip_longest(*(read_conllu(file, trees=False) for file in (source, target)))
    for count, (first, second) in enumerate(sentences):
        if first is None or second is None:
            short, other = (source, target) if first is None else (target, source)
            raise ReadError.at(short, sum(1 for _ in lines(short)), f"ends after {count} sentences, before {other}")
        yield Sides(first.forms, second.forms)


def words_of(side: str | list[str], punctuation: bool) -> list[str]:
    """The words of a side, in lower case; with `punctuation`, punctuation marks and clitics are split off the words of
    a text.

    Example:
        >>> words_of("Don't eat Tom's apple, l'eau.", True)
        ['do', "n't", 'eat', 'tom', "'s", 'apple', ',', "l'", 'eau', '.']
        >>> words_of("Don't eat.", False)
        ["don't", 'eat.']
    """
    if isinstance(side, list):
        return [word.lower() for word in side]
    return CLITICS.findall(side.lower()) if punctuation else side.lower().split()


def vocabularies_of(pairs: Sequence[Sides], size: int, punctuation: bool) -> Vocabularies:
    """The most frequent words of both sides."""
    sides = {"source": [pair.source for pair in pairs], "target": [pair.target for pair in pairs]}
    counts = {
        name: Counter(word for side in both for word in words_of(side, punctuation)) for name, both in sides.items()
    }
    return {name: Words(rank_by_frequency(found)[:size], True, punctuation) for name, found in counts.items()}


class Batch(NamedTuple):
    """Shapes: source (b, n); target (b, m); lengths (b,)."""

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor


class Pairs:
    """Pairs in numbers: batches of them on request."""

    def __init__(self, pairs: Sequence[Sides], vocabularies: Vocabularies) -> None:
        self.source = _numbers_of([pair.source for pair in pairs], vocabularies["source"])
        self.target = _numbers_of([pair.target for pair in pairs], vocabularies["target"])
        self.sizes = self.target.lengths * (self.source.lengths.max() + 1) + self.source.lengths

    def __getitem__(self, rows: Tensor) -> Batch:
        return Batch(*self.source.padded(rows), *self.target.padded(rows))


def _numbers_of(sides: Sequence[str | list[str]], vocabulary: Vocabulary) -> Ragged:
    assert isinstance(vocabulary, Words)
    known = numbers(vocabulary)
    return Ragged.of([known.get(word, UNKNOWN) for word in words_of(side, vocabulary.punctuation)] for side in sides)


def trigrams(vocabulary: Vocabulary, size: int) -> Tensor:
    """Counts of the trigrams of letters in each word, hashed with signs: inner products are right on average.

    Shapes: (words, size), 0 for specials

    Example:
        >>> a, b = trigrams(Words(("nation", "national")), 512)[-2:]
        >>> a @ b
        tensor(5.)

    See: Weinberger et al. 2009, Feature hashing for large scale multitask learning.
    """
    assert isinstance(vocabulary, Words)
    counts = torch.zeros(len(vocabulary), size)
    for row, word in zip(counts[len(SPECIALS) :], vocabulary.words):
        spelled = f"<{word}>"
        for start in range(len(spelled) - 2):
            # not Python's hash, which differs from one process to the next
            code = crc32(spelled[start : start + 3].encode())
            row[code % size] += 1 if code & 1 << 30 else -1
    return counts


def parse_sides(file: str, line: Line) -> Sides:
    """Source and target of a line, between a tab, or |||.

    Example:
        >>> parse_sides("input", Line(1, "a dog ||| un chien", ""))
        Sides(source='a dog', target='un chien', gold=None)
    """
    texts = line.text.split("\t") if "\t" in line.text else line.text.split("|||")
    if len(texts) != 2 or not all(text.strip() for text in texts):
        raise ReadError.at(
            file, line.number, f"source and target expected, with a tab or ||| between; got {line.text!r}"
        )
    return Sides(texts[0].strip(), texts[1].strip())
