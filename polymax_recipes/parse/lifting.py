"""Trees without crossing arcs from trees that have some.

See: Nivre and Nilsson 2005, Pseudo-projective dependency parsing, Section 2.
"""

from collections.abc import Sequence

import numpy as np


def crossed(heads: Sequence[int]) -> list[int]:
    """The words, from 1, whose arcs cross others; the root symbol stands to the left of all words.

    Example:
        >>> crossed([3, 4, 0, 3]), crossed([2, 0, 2])
        ([1, 2, 3], [])
    """
    words = np.arange(1, len(heads) + 1)
    left, right = np.minimum(heads, words), np.maximum(heads, words)
    over = (left[:, None] < left) & (left < right[:, None]) & (right[:, None] < right)
    return words[(over | over.T).any(1)].tolist()


def lifted(heads: Sequence[int]) -> list[int]:
    """The tree with words moved up, to the heads of their heads, until no arcs cross; the shortest crossing arc is
    moved first.

    Example:
        >>> lifted([3, 4, 0, 3])
        [3, 3, 0, 3]
    """
    found = list(heads)
    while words := [word for word in crossed(found) if _leaps(found, word)]:
        word = min(words, key=lambda word: (abs(found[word - 1] - word), word))
        found[word - 1] = found[found[word - 1] - 1]
    return found


def _leaps(heads: Sequence[int], word: int) -> bool:
    """Return True if a word between this one and its head does not hang below that head."""
    head = heads[word - 1]
    return any(not _below(heads, other, head) for other in range(min(head, word) + 1, max(head, word)))


def _below(heads: Sequence[int], word: int, head: int) -> bool:
    while word not in (0, head):
        word = heads[word - 1]
    return word == head
