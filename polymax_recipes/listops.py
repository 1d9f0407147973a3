"""ListOps: nested operations on lists of digits, whose value needs their tree.

See: Nangia and Bowman 2018; Tay et al. 2021 for the long expressions
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

from polymax_recipes.readers.binary_parses import format_binary, parse_binary
from polymax_recipes.readers.lines import Path, ReadError
from polymax_recipes.readers.tsv import read_rows, write_rows

DIGITS = tuple(str(digit) for digit in range(10))
END = "]"


def _median(values: list[int]) -> int:
    middle = len(values) // 2
    ordered = sorted(values)
    # between two middle values: their mean, rounded down
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda values: sum(values) % 10,
    "[FIRST": lambda values: values[0],
    "[LAST": lambda values: values[-1],
    "[PM": lambda values: prod(values) % 10,
    # the sum of the first two arguments only, as in all published files with this operator
    "[FLSUM": lambda values: sum(values[:2]) % 10,
}
# operators of the published task; the authors' further files have the others
PUBLISHED = ("[MIN", "[MAX", "[MED", "[SM")
TOKENS = (*DIGITS, *OPERATORS, END)
# the header of files of the Long Range Arena, whose columns are in the other order
LONG_HEADER = "Source\tTarget"
# known expressions drawn in a row, after which the search for a new one ends
PATIENCE = 10_000


@dataclass(frozen=True)
class Expression:
    """A digit, or an operator with its arguments and the end of the list.

    Example:
        >>> expression = Expression(("[MAX", "2", "[SM", "7", "6", "]", "]"))
        >>> expression.value, expression.depth
        (3, 2)
        >>> str(expression)
        '( ( ( [MAX 2 ) ( ( ( [SM 7 ) 6 ) ] ) ) ] )'
    """

    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("tokens must be an expression; got none")
        # parse now, so that errors are raised here
        _ = self._parsed

    @property
    def value(self) -> int:
        """The digit that the expression evaluates to."""
        return self._parsed[0]

    @property
    def depth(self) -> int:
        """Return the number of operators around the innermost digit."""
        return self._parsed[1]

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First and last token of the inner nodes of its binary tree, in the order in which they close.

        An operator takes its arguments one by one, from the left, and the end of the list last.
        """
        return self._parsed[2]

    @property
    def heads(self) -> tuple[int, ...]:
        """The head of each token, counted from 1; 0 for the outermost.

        An operator is the head of the end of its list and of its arguments; a list as an argument counts by its
        operator.

        Example:
            >>> Expression(("[MAX", "2", "[SM", "7", "6", "]", "]")).heads
            (0, 1, 1, 3, 3, 3, 1)
        """
        found: list[int] = []
        open_ = [0]
        for place, token in enumerate(self.tokens, 1):
            found.append(open_[-1])
            if token in OPERATORS:
                open_.append(place)
            elif token == END:
                open_.pop()
        return tuple(found)

    @cached_property
    def _parsed(self) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        """The value, the depth and the spans of the expression."""
        spans: list[tuple[int, int]] = []
        # the outermost frame stands for the whole text
        starts, arguments = [0], [list[int]()]
        deepest = 0
        for place, token in enumerate(self.tokens):
            if len(starts) == 1 and arguments[0]:
                raise ValueError(f"tokens must be one expression; got {token!r} after its end")
            if token in OPERATORS:
                starts.append(place)
                arguments.append([])
                deepest = max(deepest, len(starts) - 1)
                continue
            if token == END:
                start, values = starts.pop(), arguments.pop()
                if not starts or not values:
                    raise ValueError(f"tokens must be an expression; got {END!r} without arguments at {place}")
                spans.append((start, place))
                value = OPERATORS[self.tokens[start]](values)
            elif token in DIGITS:
                value = int(token)
            else:
                raise ValueError(f"tokens must be among {' '.join(TOKENS)}; got {token!r}")
            arguments[-1].append(value)
            if len(starts) > 1:
                spans.append((starts[-1], place))
        if len(starts) > 1:
            raise ValueError(f"tokens must be an expression; {len(starts) - 1} operators are not closed")
        return arguments[0][0], deepest, tuple(spans)

    def __str__(self) -> str:
        return format_binary(self.tokens, self.spans)


@dataclass(frozen=True)
class Grammar:
    """The distribution of expressions: an argument is a list with some probability, down to a maximal depth, else a
    digit.

    An operator has 2 to `arguments` arguments; all choices are uniform. Expressions with fewer or more tokens than the
    limits are drawn again.
    """

    operator: float = 0.25
    arguments: int = 5
    depth: int = 20
    min_tokens: int = 1
    max_tokens: int | None = None
    operators: tuple[str, ...] = PUBLISHED

    def __post_init__(self) -> None:
        if not self.operators or not set(self.operators) <= set(OPERATORS):
            raise ValueError(f"operators must be among {' '.join(OPERATORS)}; got {' '.join(self.operators) or 'none'}")
        if not 0 <= self.operator <= 1:
            raise ValueError(f"operator must be a probability; got {self.operator}")
        if self.arguments < 2:
            raise ValueError(f"arguments must be at least 2; got {self.arguments}")
        if self.depth < 1:
            raise ValueError(f"depth must be at least 1; got {self.depth}")
        if self.max_tokens is not None and self.max_tokens < max(self.min_tokens, 1):
            raise ValueError(f"max_tokens must be at least {max(self.min_tokens, 1)}; got {self.max_tokens}")

    def expressions(
        self, count: int, *, without: Iterable[Expression] = (), generator: torch.Generator | None = None
    ) -> Iterator[Expression]:
        """Return different expressions, none of them in `without`. Short expressions run out, so that later ones are
        longer: shuffle them.

        Example:
            >>> short = Grammar(min_tokens=4, max_tokens=8)
            >>> for expression in short.expressions(2, generator=torch.Generator().manual_seed(3)):
            ...     print(expression.value, expression)
            1 ( ( ( [MIN 1 ) 4 ) ] )
            6 ( ( ( ( [MED 6 ) 7 ) 3 ) ] )
        """
        uniform = _uniform(generator)
        known = {expression.tokens for expression in without}
        most, repeats = len(known) + count, 0
        while len(known) < most:
            tokens = self._tokens(uniform)
            if tokens is None or tokens in known:
                repeats += 1
                if repeats >= PATIENCE:
                    raise ValueError(f"count must be a number of expressions that {self} has; got {count}")
                continue
            repeats = 0
            known.add(tokens)
            yield Expression(tokens)

    def _tokens(self, uniform: Iterator[float]) -> tuple[str, ...] | None:
        """The tokens of one random expression; None if it breaks the limits."""
        tokens: list[str] = []
        # the number of arguments that each open operator still takes
        open_: list[int] = []
        names = self.operators
        while True:
            # the root is at depth 1
            if len(open_) + 1 < self.depth and next(uniform) < self.operator:
                tokens.append(names[int(next(uniform) * len(names))])
                open_.append(2 + int(next(uniform) * (self.arguments - 1)))
            else:
                tokens.append(DIGITS[int(next(uniform) * len(DIGITS))])
                while open_:
                    open_[-1] -= 1
                    if open_[-1]:
                        break
                    open_.pop()
                    tokens.append(END)
            # this ends expressions of grammars in which they grow without bound
            if self.max_tokens is not None and len(tokens) + len(open_) > self.max_tokens:
                return None
            if not open_:
                return tuple(tokens) if len(tokens) >= self.min_tokens else None


# the expressions of the Long Range Arena: more than 500 and fewer than 2000 tokens
LONG = Grammar(arguments=10, depth=10, min_tokens=501, max_tokens=1999)


def _uniform(generator: torch.Generator | None) -> Iterator[float]:
    """Uniform numbers in [0, 1), drawn many at a time, since a call costs more than a number."""
    while True:
        yield from torch.rand(1024, dtype=torch.float64, generator=generator).tolist()


def parse_expression(text: str) -> Expression:
    """The expression of a text, with the round brackets of its binary tree, or without any.

    Example:
        >>> parse_expression("( ( ( [MAX 2 ) 9 ) ] )") == parse_expression("[MAX 2 9 ]")
        True
    """
    tokens, spans = parse_binary(text) if "(" in text else (text.split(), None)
    expression = Expression(tuple(tokens))
    if spans is not None and tuple(spans) != expression.spans:
        raise ValueError("round brackets must take arguments one by one, from the left")
    return expression


def read_listops(path: Path) -> Iterator[Expression]:
    """The expressions of a file: value, tab, tokens; with the round brackets of the binary tree, or without any.

    A file that begins with the header of the Long Range Arena has the value in the last column.
    """
    swapped = False
    for line, (label, text) in read_rows(path, ("value", "expression")):
        if line.number == 1 and line.text == LONG_HEADER:
            swapped = True
            continue
        if swapped:
            label, text = text, label
        try:
            expression = parse_expression(text)
        except ValueError as error:
            raise ReadError.at(path, line.number, str(error)) from error
        if label != str(expression.value):
            raise ReadError.at(path, line.number, f"value must be {expression.value}; got {label!r}")
        yield expression


def write_listops(path: Path, expressions: Iterable[Expression]) -> None:
    """Write values and expressions with the round brackets of their trees."""
    write_rows(path, ((str(expression.value), str(expression)) for expression in expressions))
