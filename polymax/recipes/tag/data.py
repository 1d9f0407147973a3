"""Tagged sentences: from columns or CoNLL-U, and as batches of words, characters and tags."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax.recipes.readers.columns import Tagged, read_tagged
from polymax.recipes.readers.conllu import read_conllu
from polymax.recipes.readers.schemes import BIO, BIOES, IO, IOB1, detect, split_tag
from polymax.recipes.training.batches import Ragged
from polymax.recipes.training.task import Vocabularies
from polymax.recipes.training.vocabulary import PAD, SPECIALS, UNKNOWN, Words

SCHEMES = {scheme.name: scheme for scheme in (IO, BIO, BIOES, IOB1)}
# characters of a word that are read: half of them its first, half its last
LONGEST = 32


def read_tags(files: Sequence[Path]) -> list[Tagged]:
    """The sentences of files: words and their UPOS of .conllu, else the first column and the last."""
    if not files:
        raise ValueError("tagged sentences come in one file or more; got 0")
    return list(chain.from_iterable(map(_read, files)))


def _read(file: Path) -> Iterable[Tagged]:
    if not file.name.removesuffix(".gz").endswith(".conllu"):
        return read_tagged(file)
    sentences = read_conllu(file, trees=False)
    return (Tagged(sentence.forms, [word.upos for word in sentence.words]) for sentence in sentences)


def spell_spans(tags: Iterable[str]) -> bool:
    """Whether all tags are those of a scheme that writes labelled spans.

    Example:
        >>> spell_spans(["O", "B-PER"]), spell_spans(["NOUN"])
        (True, False)
    """
    try:
        for tag in tags:
            split_tag(tag)
    except ValueError:
        return False
    return True


def vocabularies_of(examples: Sequence[Tagged], scheme: str, words: int) -> Vocabularies:
    """Of the words in lower case, the characters and the tags; and the schemes of tags that are learned and written.

    Example:
        >>> vocabularies_of([Tagged(["Rome"], ["I-LOC"])], "BIO", 100)["tags"].words
        ('B-LOC',)
    """
    schemes = Words((scheme, _scheme_of(examples, scheme)) if scheme in SCHEMES else ())
    tags = {tag for sentence in examples for tag in learned(sentence.tags, schemes)}
    tokens = [token for sentence in examples for token in sentence.tokens]
    letters = Counter(letter for token in tokens for letter in token)
    return {
        "words": Words(_ranked(Counter(token.lower() for token in tokens))[:words]),
        # one that is there once stands for all that will be met: they share a vector, and it is learned
        "characters": Words(tuple(letter for letter in _ranked(letters) if letters[letter] > 1)),
        "tags": Words(tuple(sorted(tags))),
        "schemes": schemes,
    }


def _scheme_of(examples: Sequence[Tagged], scheme: str) -> str:
    """That of the files; BIO where they keep to none."""
    if not spell_spans({tag for sentence in examples for tag in sentence.tags}):
        raise ValueError(f"--scheme {scheme} must come with tags such as O and B-PER; these do not spell spans")
    try:
        return detect(sentence.tags for sentence in examples).name
    except ValueError:
        return BIO.name


def _ranked(counts: Counter[str]) -> tuple[str, ...]:
    return tuple(sorted(counts, key=lambda item: (-counts[item], item)))


def learned(tags: Sequence[str], schemes: Words) -> list[str]:
    """Tags in the scheme that a run learns; as they are where it was told none."""
    return SCHEMES[schemes.words[0]].convert(tags) if schemes.words else list(tags)


def written(tags: Sequence[str], schemes: Words) -> list[str]:
    """Tags in the scheme of the files that a run learned from.

    Example:
        >>> written(["B-PER", "E-PER", "O", "S-LOC"], Words(("BIOES", "BIO")))
        ['B-PER', 'I-PER', 'O', 'B-LOC']
    """
    return SCHEMES[schemes.words[1]].convert(tags) if schemes.words else list(tags)


class Batch(NamedTuple):
    """Shapes: words (b, n); characters (b, n, c); tags (b, n), -1 at padding, -2 for unknown ones; lengths (b,)."""

    words: Tensor
    characters: Tensor
    tags: Tensor
    lengths: Tensor


class Sentences:
    """Sentences in numbers: batches of them on request. Tags that training did not have are unknown."""

    def __init__(self, examples: Sequence[Tagged], vocabularies: Vocabularies) -> None:
        words, characters, tags = (numbers(vocabularies[name]) for name in ("words", "characters", "tags"))
        schemes = vocabularies["schemes"]
        assert isinstance(schemes, Words)
        forms = {token: k for k, token in enumerate({t: None for e in examples for t in e.tokens}, 1)}
        # what pads a sentence is the form 0, and its one character pads too
        spelled = ([characters.get(letter, UNKNOWN) for letter in cut(form)] for form in forms)
        self.letters = Ragged.of(chain([[PAD]], spelled))
        self.forms = Ragged.of([forms[token] for token in e.tokens] for e in examples)
        self.words = Ragged.of([words.get(token.lower(), UNKNOWN) for token in e.tokens] for e in examples)
        self.tags = Ragged.of([tags.get(tag, UNKNOWN) for tag in learned(e.tags, schemes)] for e in examples)
        self.sizes = self.words.lengths

    def __getitem__(self, rows: Tensor) -> Batch:
        words, lengths = self.words.padded(rows)
        forms, _ = self.forms.padded(rows)
        tags, _ = self.tags.padded(rows)
        letters, _ = self.letters.padded(forms.flatten())
        # PAD is 0, UNKNOWN is 1
        known = torch.where(tags < len(SPECIALS), -1 - tags, tags - len(SPECIALS))
        return Batch(words, letters.unflatten(0, forms.shape), known, lengths)


def numbers(vocabulary: object) -> dict[str, int]:
    """The number of each entry, which may have spaces inside, unlike the words of a text.

    Example:
        >>> numbers(Words(("a", "b c")))
        {'a': 4, 'b c': 5}
    """
    assert isinstance(vocabulary, Words)
    return {word: k for k, word in enumerate(vocabulary.words, len(SPECIALS))}


def cut(form: str) -> str:
    """The first and the last characters of a long form.

    Example:
        >>> cut("a" * 16 + "b" * 99 + "c" * 16) == "a" * 16 + "c" * 16
        True
    """
    return form if len(form) <= LONGEST else form[: LONGEST // 2] + form[-LONGEST // 2 :]
