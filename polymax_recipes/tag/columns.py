"""The columns of tokens and tags in files, as flags name them, and the record of them in a run."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from polymax_recipes.readers.columns import Places, Tagged
from polymax_recipes.readers.layout import Column
from polymax_recipes.training.vocabulary import Words

CONLLU = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
# entries of the column of tags that stand for a missing tag
NO_TAG = ("_", "-", "?", "O", "")


class Chosen(NamedTuple):
    """The columns of tokens and tags as flags spell them; an empty text stands for the default."""

    token: str = ""
    tag: str = ""

    @property
    def plain(self) -> tuple[Column, Column]:
        """The columns of words and tags in a file of columns: the first and the last by default."""
        return column("--token-column", self.token or "1"), column("--tag-column", self.tag or "-1")

    @property
    def conllu(self) -> tuple[int, int]:
        """The places of words and tags in CoNLL-U, from the left: those of FORM and UPOS by default."""
        chosen = (("--token-column", self.token or "FORM"), ("--tag-column", self.tag or "UPOS"))
        return tuple(conllu_place(flag, text) for flag, text in chosen)  # type: ignore[return-value]


FIRST_AND_LAST = Chosen()


def column(flag: str, text: str) -> Column:
    """The column that a flag names: a number from 1, a negative number from the end, or a name.

    Example:
        >>> column("--tag-column", "2"), column("--tag-column", "-1"), column("--tag-column", "NER")
        (1, -1, 'NER')
    """
    if not re.fullmatch("-?[0-9]+", text):
        return text
    if int(text) == 0:
        raise ValueError(f"{flag} must be a name or a number from 1, or from -1 at the end; got 0")
    return int(text) - (int(text) > 0)


def conllu_place(flag: str, text: str) -> int:
    """The place of a column of CoNLL-U.

    Example:
        >>> conllu_place("--tag-column", "XPOS"), conllu_place("--tag-column", "-1")
        (4, 9)
    """
    place = column(flag, text)
    if isinstance(place, str):
        if place not in CONLLU:
            raise ValueError(f"{flag} must be one of {', '.join(CONLLU)} in CoNLL-U; got {place}")
        return CONLLU.index(place)
    if not -len(CONLLU) <= place < len(CONLLU):
        raise ValueError(f"{flag} must be from 1 to {len(CONLLU)} in CoNLL-U; got {text}")
    return place % len(CONLLU)


class Remembered(NamedTuple):
    """The record that a run keeps of its training files: the flags, and the places of columns by their number."""

    chosen: Chosen
    places: tuple[Places, ...]

    @classmethod
    def of(cls, examples: Iterable[Tagged], chosen: Chosen) -> "Remembered":
        """Return the record of the columns from which these examples were read."""
        return cls(chosen, tuple(sorted({sentence.places for sentence in examples})))

    def stored(self) -> Words:
        """Return the record in the form of a vocabulary.

        Example:
            >>> Remembered.of([Tagged(["a"], ["O"])], Chosen("", "-1")).stored().words
            ('', '-1', '2 0 1')
        """
        return Words((*self.chosen, *(" ".join(map(str, places)) for places in self.places)))

    @classmethod
    def restored(cls, words: Words) -> "Remembered":
        """The inverse of `stored`."""
        token, tag, *places = words.words
        return cls(Chosen(token, tag), tuple(Places(*map(int, text.split())) for text in places))

    def of_columns(self, count: int) -> Places | None:
        """The places in files with so many columns; None if the training had no such files."""
        return next((places for places in self.places if places.columns == count), None)


def looks_wrong(examples: Sequence[Tagged]) -> str | None:
    """Return a sentence about tags that look wrong to learn from; None if they do not.

    Example:
        >>> looks_wrong([Tagged(["a", "b"], ["O", "O"])])
        "all 2 tokens have the tag 'O': there is nothing to learn; is --tag-column right?"
    """
    pairs = [pair for sentence in examples for pair in zip(sentence.tokens, sentence.tags)]
    tokens, tags = {token for token, _ in pairs}, {tag for _, tag in pairs}
    if len(tags) == 1:
        return f"all {len(pairs)} tokens have the tag {min(tags)!r}: there is nothing to learn; is --tag-column right?"
    if all(sentence.tokens == [str(k) for k in range(1, len(sentence.tokens) + 1)] for sentence in examples):
        return "all tokens are their own numbers, 1, 2, ...; is --token-column right?"
    same = sum(token == tag for token, tag in pairs)
    if 2 * same > len(pairs):
        return f"{same} of {len(pairs)} tags are equal to their tokens; are --token-column and --tag-column right?"
    # there should be few tags and many tokens; small files are not judged
    if len(tags) > max(len(tokens), 20):
        what = f"there are more different tags, {len(tags)}, than tokens, {len(tokens)}"
        return f"{what}; are --token-column and --tag-column the wrong way round?"
    return None
