"""Initial scores: plausible for a sentence, and equal for equal words on every machine."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from polymax_recipes.explore.structures import MOST, SETS

SENTENCE = "she saw the man with a telescope"
OTHER = "elle a vu l'homme avec un télescope"
TAGS = ("PRON", "VERB", "DET", "NOUN", "ADP")

# the two readings of the sentence: parts, and the numbers added to their scores
_HEADS = [
    "<root> saw 3",
    "saw she 2.6",
    "man the 2.6",
    "saw man 2.4",
    "saw with 1.5",
    "man with 1.4",
    "with telescope 2.4",
]
_KNOWN: dict[str, list[str]] = {
    "Chain": [
        "she PRON 2.5",
        "saw VERB 2",
        "saw NOUN 1.6",
        "the DET 2.5",
        "man NOUN 2",
        "man VERB 1.4",
        "with ADP 2.5",
    ],
    "ProjectiveTree": [*_HEADS, "telescope a 2.6"],
    "SpanTree": [
        "the man 2.4",
        "a telescope 2.4",
        "with telescope 2",
        "the telescope 1.1",
        "saw man 1",
        "saw telescope 2",
    ],
    "Alignment": [
        "she elle 2",
        "saw vu 2",
        "man l'homme 2",
        "with avec 2",
        "a un 2",
        "telescope télescope 2",
        "saw a 1.4",
    ],
}
_KNOWN["Chain"] += ["a DET 2.5", "telescope NOUN 2"]
_KNOWN["SpanningTree"], _KNOWN["Assignment"] = _KNOWN["ProjectiveTree"], _KNOWN["Alignment"]


def initial_scores(name: str, rows: Sequence[str], columns: Sequence[str]) -> list[Tensor]:
    """Scores for tokens under a set: near words get higher scores, plus pseudorandom numbers that depend on the words.

    Example:
        >>> [tuple(one.shape) for one in initial_scores("Chain", ["a", "b"], ["x", "y", "z"])]
        [(2, 3), (3, 3)]
    """
    if name not in SETS:
        raise ValueError(f"set must be one of {', '.join(SETS)}; got {name!r}")
    scores = _generic(name, rows, columns)
    if " ".join(rows) == SENTENCE:
        down = ["<root>", *rows] if name in ("ProjectiveTree", "SpanningTree") else list(rows)
        across = down if name in ("ProjectiveTree", "SpanningTree", "SpanTree") else list(columns)
        for first, second, more in (line.split() for line in _KNOWN[name]):
            if first in down and second in across:
                scores[0][down.index(first), across.index(second)] += float(more)
    return scores


def _generic(name: str, rows: Sequence[str], columns: Sequence[str]) -> list[Tensor]:
    n = len(rows)
    if not 1 <= n <= MOST or len(columns) > MOST:
        raise ValueError(f"there must be 1 to {MOST} rows, and at most {MOST} columns; got {n} and {len(columns)}")
    if name in ("Chain", "Alignment", "Assignment") and not columns:
        raise ValueError(f"columns of {name} must be 1 to {MOST}; got none")
    if name == "Chain":
        unary = _whims([(word, tag) for word in rows for tag in columns], 0.9).reshape(n, len(columns))
        pairs = _whims([("pair", a + ">" + b) for a in columns for b in columns], 0.5)
        return [unary, pairs.reshape(len(columns), -1)]
    if name in ("ProjectiveTree", "SpanningTree"):
        words = ["<root>", *rows]
        scores = _whims([(a, b) for a in words for b in words], 0.6).reshape(n + 1, n + 1)
        place = torch.arange(n + 1, dtype=torch.float64)
        return [scores - 0.3 * (place - place.unsqueeze(-1)).abs().clamp(max=6)]
    if name == "SpanTree":
        scores = _whims([(a, b + str(k)) for k, a in enumerate(rows) for b in rows], 0.6).reshape(n, n)
        return [scores.triu()]
    m = len(columns)
    scores = _whims([(a, b) for a in rows for b in columns], 0.5).reshape(n, m)
    down, right = (torch.linspace(0, 1, size, dtype=torch.float64) for size in (n, m))
    return [scores - 4 * (down.unsqueeze(-1) - right).abs()]


def _whims(pairs: Sequence[tuple[str, str]], size: float) -> Tensor:
    """A number in [-size, size] for each pair of words, made of their letters."""
    digests = [hashlib.sha256(f"{a}\n{b}".encode()).digest() for a, b in pairs]
    values = [int.from_bytes(digest[:4], "big") / 2**32 for digest in digests]
    return ((torch.tensor(values, dtype=torch.float64) - 0.5) * 2 * size).mul(100).round() / 100
