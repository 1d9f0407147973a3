"""A labelled stretch of tokens."""

from typing import NamedTuple


class Span(NamedTuple):
    """Tokens `start` to `last`, both included, as `SpanTree` numbers its parts.

    Example:
        >>> Span(0, 1, "NP")
        Span(start=0, last=1, label='NP')
    """

    start: int
    last: int
    label: str = ""
