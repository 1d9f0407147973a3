"""Tokens of sentences as numbers of words and of characters."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from torch import Tensor

from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import PAD, SPECIALS, UNKNOWN, Words

# characters of a word that are read: its first 16 and its last 16
LONGEST = 32


class Tokens(NamedTuple):
    """Shapes: words (b, n); characters (b, n, c); lengths (b,)."""

    words: Tensor
    characters: Tensor
    lengths: Tensor


class TokenTable:
    """Sentences in numbers: batches of them on request.

    Words and characters outside of the training data are UNKNOWN.
    """

    def __init__(self, sentences: Sequence[Sequence[str]], vocabularies: Vocabularies) -> None:
        words, characters = (numbers(vocabularies[name]) for name in ("words", "characters"))
        forms = {token: k for k, token in enumerate({t: None for sentence in sentences for t in sentence}, 1)}
        # form 0 pads sentences; its only character is padding, too
        spelled = ([characters.get(letter, UNKNOWN) for letter in shorten(form)] for form in forms)
        self.letters = Ragged.of(chain([[PAD]], spelled))
        self.forms = Ragged.of([forms[token] for token in sentence] for sentence in sentences)
        self.words = Ragged.of([words.get(token.lower(), UNKNOWN) for token in sentence] for sentence in sentences)
        self.sizes = self.words.lengths

    def __getitem__(self, rows: Tensor) -> Tokens:
        words, lengths = self.words.padded(rows)
        forms, _ = self.forms.padded(rows)
        letters, _ = self.letters.padded(forms.flatten())
        return Tokens(words, letters.unflatten(0, forms.shape), lengths)


def token_vocabularies(sentences: Sequence[Sequence[str]], words: int) -> Vocabularies:
    """Return vocabularies of repeated entries: at most `words` words in lower case, and characters.

    Example:
        >>> token_vocabularies([["Rome", "Oslo"], ["rome"]], 1)["words"].words
        ('rome',)
    """
    tokens = [token for sentence in sentences for token in sentence]
    letters = Counter(letter for token in tokens for letter in token)
    return {
        "words": Words(repeated_entries(Counter(token.lower() for token in tokens))[:words]),
        "characters": Words(repeated_entries(letters)),
    }


def repeated_entries(counts: Counter[str]) -> tuple[str, ...]:
    """The entries that occur more than once, most frequent first.

    Entries that occur once share the vector of UNKNOWN with unseen ones, so that training learns this vector.

    Example:
        >>> repeated_entries(Counter("cabbaab"))
        ('a', 'b')
    """
    return rank_by_frequency(Counter({item: count for item, count in counts.items() if count > 1}))


def rank_by_frequency(counts: Counter[str]) -> tuple[str, ...]:
    """The most frequent first; among equals, in the order of the alphabet.

    Example:
        >>> rank_by_frequency(Counter("cabb"))
        ('b', 'a', 'c')
    """
    return tuple(sorted(counts, key=lambda item: (-counts[item], item)))


def numbers(vocabulary: object) -> dict[str, int]:
    """The number of each entry, which may have spaces inside, unlike the words of a text.

    Example:
        >>> numbers(Words(("a", "b c")))
        {'a': 4, 'b c': 5}
    """
    assert isinstance(vocabulary, Words)
    return {word: k for k, word in enumerate(vocabulary.words, len(SPECIALS))}


def shorten(form: str) -> str:
    """The form, or the first and the last characters of a long form.

    Example:
        >>> shorten("a" * 16 + "b" * 99 + "c" * 16) == "a" * 16 + "c" * 16
        True
    """
    return form if len(form) <= LONGEST else form[: LONGEST // 2] + form[-LONGEST // 2 :]
