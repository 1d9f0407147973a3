"""The best tags that keep rules, exactly: Viterbi's algorithm with a counter for each rule.

The memory of a rule is a small number: the count of its labels so far, or the sides of it that have occurred. The
memories of all rules are combined to one number, and a state of the recursion is a pair of this number and a tag. The
recursion runs through all sentences of a document; memories of rules of sentences are reset at each sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from polymax_recipes.tag.rules import Rule

# values that a recursion may store
LARGEST = 50_000_000


@dataclass(frozen=True)
class Memory:
    """The counter of a rule: a number below `size`, the tags that change it, and the numbers allowed in the end."""

    rule: Rule

    @property
    def size(self) -> int:
        if self.rule.kind in ("implies", "excludes"):
            return 4
        # counts stop at `count` for "at least", and at `count` + 1, which is too many, for "at most" and "exactly"
        return self.rule.count + (1 if self.rule.kind == "at least" else 2)

    def after(self, tags: int) -> np.ndarray:
        """The number that is remembered after each number and tag, (size, tags)."""
        now = np.arange(self.size)[:, None]
        left, right = (np.isin(np.arange(tags), labels)[None] for labels in (self.rule.left, self.rule.right))
        if self.rule.kind in ("implies", "excludes"):
            return now | left * 1 | right * 2
        return np.minimum(now + left, self.size - 1)

    def allowed(self, tokens: int) -> np.ndarray:
        """Return the numbers that are allowed after so many tokens, (size,)."""
        now, count = np.arange(self.size), self.rule.count
        kinds = {
            "implies": now != 1,
            "excludes": now != 3,
            "at most": now <= count,
            "at least": now >= min(count, tokens),
            "exactly": (now <= count) & (now >= min(count, tokens)),
        }
        return kinds[self.rule.kind]


def size_of(rules: Sequence[Rule], sizes: Sequence[int], tags: int) -> int:
    """Return the number of values that the recursion stores for a document of sentences of these sizes."""
    return prod(Memory(rule).size for rule in rules) * sum(sizes) * tags


def exact_tags(rules: Sequence[Rule], unary: Sequence[np.ndarray], transition: np.ndarray) -> list[np.ndarray] | None:
    """Return the best tags (n,) of the sentences of a document that keep all rules; None if no tags do.

    Shapes: unary (n, s) of each sentence, n of at least 1; transition (s, s)

    Example:
        >>> rules = [Rule("at most", (1,), count=1, document=True)]
        >>> unary = [np.array([[0.0, 1.0], [0.0, 2.0]]), np.array([[0.0, 0.5]])]
        >>> [tags.tolist() for tags in exact_tags(rules, unary, np.zeros((2, 2)))]
        [[0, 1], [0]]
    """
    memories = [Memory(rule) for rule in rules]
    shape = tuple(m.size for m in memories)
    tags = len(transition)
    digits = np.stack(np.unravel_index(np.arange(prod(shape)), shape)) if shape else np.zeros((0, 1), np.int64)
    after = np.zeros((prod(shape), tags), np.int64)
    for digit, memory, step in zip(digits, memories, _strides(shape)):
        after += memory.after(tags)[digit] * step
    total = sum(map(len, unary))
    # the best values so far by the state of the memory: (Q,) before a sentence, (s, Q) by tag and memory after each
    # token
    begin = np.full(prod(shape), -np.inf)
    begin[0] = 0
    before, table = [begin], []
    for scores in unary:
        values = before[-1][None].repeat(tags, 0)
        for row in scores:
            values = _next_values(values, after) + row[:, None]
            table.append(values)
            values = (values[:, None] + transition[:, :, None]).max(0)
        before.append(_values_at_end(table[-1].max(0), digits, shape, memories, len(scores), document=False))
    last = _values_at_end(before[-1], digits, shape, memories, total, document=True)
    if last.max() == -np.inf:
        return None
    return _best_path(before, table, unary, transition, after, (digits, shape, memories, total))


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [prod(shape[k + 1 :]) for k in range(len(shape))]


def _next_values(values: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Values (s, Q) of the next tags, for each state of the memory after them."""
    found = np.full_like(values, -np.inf)
    for tag, row in enumerate(values):
        np.maximum.at(found[tag], after[:, tag], row)
    return found


def _values_at_end(
    values: np.ndarray,
    digits: np.ndarray,
    shape: tuple[int, ...],
    memories: list[Memory],
    tokens: int,
    document: bool,
) -> np.ndarray:
    """Values (Q,) at the end of a sentence or a document: its rules forbid states, and their memories are reset."""
    values, start = _each_ended(values, digits, shape, memories, tokens, document)
    found = np.full_like(values, -np.inf)
    np.maximum.at(found, start, values)
    return found


def _best_path(
    before: list[np.ndarray],
    table: list[np.ndarray],
    unary: Sequence[np.ndarray],
    transition: np.ndarray,
    after: np.ndarray,
    ends: tuple[np.ndarray, tuple[int, ...], list[Memory], int],
) -> list[np.ndarray]:
    """The tags that led to the best value, from the last to the first."""
    digits, shape, memories, total = ends
    found: list[np.ndarray] = []
    here = int(_each_ended(before[-1], digits, shape, memories, total, document=True)[0].argmax())
    place = len(table)
    for sentence in range(len(unary) - 1, -1, -1):
        n = len(unary[sentence])
        path = np.zeros(n, np.int64)
        values, start = _each_ended(table[place - 1].max(0), digits, shape, memories, n, document=False)
        state = int(np.where(start == here, values, -np.inf).argmax())
        tag = int(table[place - 1][:, state].argmax())
        for k in range(n - 1, -1, -1):
            path[k] = tag
            place -= 1
            came = after[:, tag] == state
            if k == 0:
                here = int(np.where(came, before[sentence], -np.inf).argmax())
                break
            sums = np.where(came, table[place - 1] + transition[:, tag, None], -np.inf)
            tag, state = (int(i) for i in np.unravel_index(sums.argmax(), sums.shape))
        found.append(path)
    return found[::-1]


def _each_ended(
    values: np.ndarray,
    digits: np.ndarray,
    shape: tuple[int, ...],
    memories: list[Memory],
    tokens: int,
    document: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Values (Q,) of the states that are allowed at an end, and the state of the memory after it."""
    values, start = values.copy(), np.arange(len(values))
    for digit, memory, step in zip(digits, memories, _strides(shape)):
        if memory.rule.document == document:
            values[~memory.allowed(tokens)[digit]] = -np.inf
            start = start - digit * step
    return values, start
