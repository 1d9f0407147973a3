"""The tokens of a language model: bytes, or pieces of bytes that are learned from the training text.

Both can write every text, so that bits per byte of different tokens can be compared. Token 0 is the boundary of texts.
"""

import io
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import END, SPECIALS, Subwords, tokenizers_package

BOUNDARY = 0
# how a boundary is spelled where tokens are shown
MARK = SPECIALS[END]


class Bytes:
    """The bytes of a text in UTF-8, numbered from 1.

    Example:
        >>> Bytes().encode("aé").tolist(), Bytes().decode([98, 196, 170])
        ([98, 196, 170], 'aé')
    """

    def __len__(self) -> int:
        return 257

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, (n,) int32."""
        # a copy: torch refuses what cannot be written
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).int() + 1 if text else _EMPTY.clone()

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 are shown as U+FFFD, boundaries left out."""
        return bytes(number - 1 for number in numbers if number != BOUNDARY).decode(errors="replace")

    def spelled(self) -> list[str] | None:
        """Return None: bytes are the same in all runs."""
        return None

    @property
    def widths(self) -> Tensor:
        """The number of bytes that each token stands for, (tokens,)."""
        return (torch.arange(len(self)) != BOUNDARY).int()


class Pieces:
    """Byte-pair encoding over bytes: frequent strings are one token, and any text can be written.

    Example:
        >>> pieces = Pieces(learned_pieces(["low lower lowest\\n"] * 9, 265))
        >>> pieces.decode(pieces.encode("lowest\\nö").tolist()), int(pieces.widths[pieces.encode("lowest")].sum())
        ('lowest\\nö', 6)
    """

    def __init__(self, subwords: Subwords) -> None:
        self.subwords = subwords

    def __len__(self) -> int:
        return len(self.subwords)

    def encode(self, text: str) -> Tensor:
        """The tokens of a text, (n,) int32; none of them goes over the end of a line."""
        # a line by itself: the time for one long string grows faster than its length
        encoded = self.subwords.tokenizer.encode_batch(_lines(text), add_special_tokens=False)
        parts = [torch.tensor(line.ids, dtype=torch.int32) for line in encoded]
        return torch.cat(parts) if parts else _EMPTY.clone()

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 are shown as U+FFFD, boundaries left out."""
        return self.subwords.tokenizer.decode([n for n in numbers if n != BOUNDARY], skip_special_tokens=False)

    def spelled(self) -> list[str] | None:
        """Return the spelling of each piece."""
        return list(self.subwords.pieces(range(len(self))))

    @property
    def widths(self) -> Tensor:
        """The number of bytes that each token stands for, (tokens,)."""
        # the alphabet of byte-level pieces has a letter for each byte
        widths = [len(piece) for piece in self.subwords.pieces(range(len(self)))]
        widths[BOUNDARY] = 0
        return torch.tensor(widths, dtype=torch.int32)


Tokens = Bytes | Pieces
_EMPTY = torch.zeros(0, dtype=torch.int32)


def learned_pieces(texts: Iterable[str], size: int) -> Subwords:
    """A vocabulary of at most `size` pieces, all bytes and the boundary among them.

    See: Radford et al. 2019, Language models are unsupervised multitask learners, Section 2.2.
    """
    package = tokenizers_package()
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[package.AddedToken(MARK, special=True)],
        initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((line for text in texts for line in _lines(text)), trainer)
    # text never reads as a boundary
    tokenizer.encode_special_tokens = True
    return Subwords(tokenizer)


def tokens_of(vocabularies: Vocabularies) -> Tokens:
    """Return the tokens of a run: pieces if it has some, else bytes."""
    if "pieces" not in vocabularies:
        return Bytes()
    subwords: Any = vocabularies["pieces"]
    if not isinstance(subwords, Subwords):
        raise ValueError("vocabulary.json must have subwords as 'pieces'; it has words")
    return Pieces(subwords)


def _lines(text: str) -> list[str]:
    return list(io.StringIO(text, newline="\n"))
