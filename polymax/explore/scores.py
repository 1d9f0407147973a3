"""Scores to begin with: plausible ones for a sentence, the same for the same words on every machine."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from polymax.explore.structures import MOST, SETS

SENTENCE = "she saw the man with a telescope"
OTHER = "elle a vu un homme avec un télescope"
TAGS = ("noun", "verb", "word")


def initial_scores(name: str, rows: Sequence[str], columns: Sequence[str]) -> list[Tensor]:
    """Scores for tokens under a set: near things are likely to belong together, and words have whims of their own.

    Example:
        >>> [tuple(one.shape) for one in initial_scores("Chain", ["a", "b"], ["x", "y", "z"])]
        [(2, 3), (3, 3)]
    """
    if name not in SETS:
        raise ValueError(f"set must be one of {', '.join(SETS)}; got {name!r}")
    n = len(rows)
    if not 1 <= n <= MOST or len(columns) > MOST:
        raise ValueError(f"there must be 1 to {MOST} rows, and at most {MOST} columns; got {n} and {len(columns)}")
    if name == "Chain":
        unary = _whims([(word, tag) for word in rows for tag in columns], 1.6).reshape(n, len(columns))
        pairs = _whims([("pair", a + ">" + b) for a in columns for b in columns], 0.8)
        return [unary, pairs.reshape(len(columns), -1)]
    if name in ("ProjectiveTree", "SpanningTree"):
        words = ["<root>", *rows]
        scores = _whims([(a, b) for a in words for b in words], 1.2).reshape(n + 1, n + 1)
        place = torch.arange(n + 1, dtype=torch.float64)
        return [scores - 0.35 * (place - place.unsqueeze(-1)).abs().clamp(max=6)]
    if name == "SpanTree":
        scores = _whims([(a, b + str(k)) for k, a in enumerate(rows) for b in rows], 1.2).reshape(n, n)
        return [scores.triu()]
    m = len(columns)
    scores = _whims([(a, b) for a in rows for b in columns], 0.7).reshape(n, m)
    down, right = (torch.linspace(0, 1, size, dtype=torch.float64) for size in (n, m))
    return [scores - 4 * (down.unsqueeze(-1) - right).abs()]


def _whims(pairs: Sequence[tuple[str, str]], size: float) -> Tensor:
    """A number in [-size, size] for each pair of words, made of their letters."""
    digests = [hashlib.sha256(f"{a}\n{b}".encode()).digest() for a, b in pairs]
    values = [int.from_bytes(digest[:4], "big") / 2**32 for digest in digests]
    return ((torch.tensor(values, dtype=torch.float64) - 0.5) * 2 * size).mul(100).round() / 100
