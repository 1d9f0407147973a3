"""Vocabularies: words or subwords to integers and back, and their form in JSON."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

PAD, UNKNOWN, BEGIN, END = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
# words, apostrophes in them included, and single marks
MARKED = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Words:
    """Words between spaces, numbered after the specials; unlisted words are UNKNOWN.

    Text never becomes a special: "</s>" in a text is a word. With `lower` text is converted to lower case, with
    `punctuation` punctuation marks are separate words.

    Example:
        >>> words = Words.counted(["a b a", "a c"], size=2)
        >>> words.encode("a b d"), words.decode([4, 5, 1])
        ([4, 5, 1], 'a b <unk>')
    """

    words: tuple[str, ...]
    lower: bool = False
    punctuation: bool = False

    @classmethod
    def counted(cls, texts: Iterable[str], size: int, lower: bool = False, punctuation: bool = False) -> "Words":
        """The `size` most frequent words of the texts; equally frequent words are in alphabetical order."""
        empty = cls((), lower, punctuation)
        counts = Counter(word for text in texts for word in empty.split(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[:size]), lower, punctuation)

    def __len__(self) -> int:
        return len(SPECIALS) + len(self.words)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {word: k for k, word in enumerate(self.words, len(SPECIALS))}

    def split(self, text: str) -> list[str]:
        """The words of a text.

        Example:
            >>> Words((), lower=True, punctuation=True).split("It isn't here.")
            ['it', "isn't", 'here', '.']
        """
        read = text.lower() if self.lower else text
        return MARKED.findall(read) if self.punctuation else read.split()

    def encode(self, text: str) -> list[int]:
        """The numbers of the words of a text."""
        return [self._number.get(word, UNKNOWN) for word in self.split(text)]

    def pieces(self, numbers: Sequence[int]) -> list[str]:
        """The words of numbers, one by one."""
        return [SPECIALS[k] if k < len(SPECIALS) else self.words[k - len(SPECIALS)] for k in numbers]

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of numbers."""
        return " ".join(self.pieces(numbers))

    def stored(self) -> dict[str, Any]:
        """Return the words and how text is read, as JSON stores them."""
        return {"words": list(self.words), "lower": self.lower, "punctuation": self.punctuation}


class Subwords:
    """Byte-pair encoding, learned from the texts: frequent words are one piece, rare ones several.

    Example:
        >>> subwords = Subwords.learned(["low lower lowest newest"] * 9, size=30)
        >>> subwords.decode(subwords.encode("lowest new"))
        'lowest new'

    See: Sennrich, Haddow and Birch 2016, Neural machine translation of rare words with subword units, Section 3.2.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def learned(cls, texts: Iterable[str], size: int) -> "Subwords":
        """A vocabulary of at most `size` pieces, specials included."""
        tokenizers = tokenizers_package()
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=SPECIALS[UNKNOWN]))
        split = tokenizers.pre_tokenizers
        tokenizer.pre_tokenizer = split.Sequence([split.Metaspace(), split.Punctuation()])
        tokenizer.decoder = tokenizers.decoders.Metaspace()
        special = [tokenizers.AddedToken(word, special=True) for word in SPECIALS]
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        # special tokens in a text are encoded as ordinary text
        tokenizer.encode_special_tokens = True
        return cls(tokenizer)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """The numbers of the pieces of a text."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def pieces(self, numbers: Sequence[int]) -> list[str]:
        """The pieces of numbers, one by one; `▁` begins a word."""
        return [self.tokenizer.id_to_token(k) for k in numbers]

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of numbers."""
        return self.tokenizer.decode(list(numbers), skip_special_tokens=False)

    def stored(self) -> dict[str, Any]:
        """Return the tokenizer, as JSON stores it."""
        return {"subwords": self.tokenizer.to_str()}


Vocabulary = Words | Subwords


def stored_words(vocabularies: Mapping[str, Vocabulary], name: str) -> Words:
    """Return the vocabulary of this name; an error if it is not one of words."""
    words = vocabularies[name]
    if not isinstance(words, Words):
        raise ValueError(f"vocabulary.json must have words as {name!r}; it has subwords")
    return words


def restored(stored: dict[str, Any]) -> Vocabulary:
    """The vocabulary that `stored` wrote.

    Example:
        >>> restored(Words(("a", "b"), lower=True).stored())
        Words(words=('a', 'b'), lower=True, punctuation=False)
    """
    if "words" in stored:
        words = Words(**{**stored, "words": tuple(stored["words"])})
        if not all(isinstance(word, str) for word in words.words):
            raise TypeError("words must be text")
        if not isinstance(words.lower, bool) or not isinstance(words.punctuation, bool):
            raise TypeError("lower and punctuation must be true or false")
        return words
    tokenizer = tokenizers_package().Tokenizer.from_str(stored["subwords"])
    tokenizer.encode_special_tokens = True
    return Subwords(tokenizer)


def tokenizers_package() -> Any:
    """Return the package tokenizers; if it is missing, a ValueError says how to install it."""
    try:
        import tokenizers
    except ImportError:
        raise ValueError("subwords need the package tokenizers: pip install 'polymax[train]'") from None
    return tokenizers
