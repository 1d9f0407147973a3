"""Constraints that the names of tags imply: schemes that write labelled spans as tags of tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TagConstraints(NamedTuple):
    """Allowed tags, True = allowed: transitions [previous, next] (s, s), first tags (s,) and last tags (s,).

    Example:
        >>> bio_constraints(["O", "B-PER", "I-PER"]).start
        tensor([ True,  True, False])
    """

    transitions: Tensor
    start: Tensor
    end: Tensor


def bio_constraints(tags: Sequence[str]) -> TagConstraints:
    """The rules of BIO: I-X follows B-X or I-X. B-X is the first token of a span of type X, O is outside of spans.

    Example:
        >>> bio_constraints(["O", "B-PER", "I-PER"]).transitions[0]
        tensor([ True,  True, False])
    """
    return _constraints(tags, {"O": "O", "B": "B", "I": "I"}, closed=False)


def bioes_constraints(tags: Sequence[str]) -> TagConstraints:
    """The rules of BIO with "E-X" for the last token of a span and "S-X" for a span of one; BILOU calls these L and U.

    Example:
        >>> bioes_constraints(["O", "B-PER", "I-PER", "E-PER", "S-PER"]).transitions[1]
        tensor([False, False,  True,  True, False])
    """
    return _constraints(tags, {"O": "O", "B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}, closed=True)


_SCHEMES = {
    "BIO": bio_constraints,
    "IOB2": bio_constraints,
    "BIOES": bioes_constraints,
    "IOBES": bioes_constraints,
    "BILOU": bioes_constraints,
}


def scheme_constraints(scheme: str, tags: Sequence[str]) -> TagConstraints:
    """The constraints of the scheme of this name.

    Example:
        >>> scheme_constraints("BIO", ["O", "B-PER", "I-PER"]).start
        tensor([ True,  True, False])
    """
    if scheme.upper() not in _SCHEMES:
        raise ValueError(f"constraints must be one of {', '.join(_SCHEMES)}; got {scheme!r}")
    return _SCHEMES[scheme.upper()](tags)


def scheme_of(tags: Sequence[str]) -> str | None:
    """The scheme that the names of tags follow, "BIO" or "BIOES"; None if they follow neither.

    Example:
        >>> scheme_of(["O", "B-PER", "I-PER"]), scheme_of(["NOUN", "VERB"])
        ('BIO', None)
    """
    prefixes = {tag.partition("-")[0] for tag in tags}
    if "B" not in prefixes or not prefixes <= set("OBIESLU") or any(tag.startswith("O-") for tag in tags):
        return None
    return "BIOES" if prefixes & set("ESLU") else "BIO"


def _constraints(tags: Sequence[str], prefixes: dict[str, str], closed: bool) -> TagConstraints:
    """The constraints of a scheme from the names of its tags; with `closed`, spans must end in an E or S tag."""
    parsed = []
    for tag in tags:
        prefix, _, kind = tag.partition("-")
        if prefix not in prefixes or (prefix == "O" and kind):
            raise ValueError(f"tags must be O, or one of {', '.join(prefixes)} with a type, as in B-PER; got {tag!r}")
        parsed.append((prefixes[prefix], kind))
    opened = [prefix in "BI" for prefix, _ in parsed]
    continues = [prefix in "IE" for prefix, _ in parsed]
    moves = [
        [
            opened[a] and parsed[a][1] == parsed[b][1] if continues[b] else not (closed and opened[a])
            for b in range(len(parsed))
        ]
        for a in range(len(parsed))
    ]
    return TagConstraints(
        torch.tensor(moves, dtype=torch.bool).reshape(len(parsed), len(parsed)),
        torch.tensor([not c for c in continues], dtype=torch.bool),
        torch.tensor([not (closed and o) for o in opened], dtype=torch.bool),
    )
