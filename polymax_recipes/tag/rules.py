"""Rules on the tags of a sentence or a document: limits of their number, and tags that need or exclude each other.

Each line is a rule; a comment begins with #. Labels are learned tags, with * for any text, joined by `or`:

    at most 1 B-PER
    at least 1 VERB or AUX
    exactly 2 B-* per document
    B-LOC implies B-PER or B-ORG
    B-LOC excludes B-MISC per document

A rule holds for each sentence, or, with `per document`, for each document. If there are fewer tokens than `at least` or
`exactly` requires, all tokens must have the labels.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from polymax_recipes.readers.lines import ReadError, lines

_COUNT = re.compile(r"(at most|at least|exactly)\s+(\S+)\s+(.+)")
_RELATION = re.compile(r"(.+?)\s+(implies|excludes)\s+(.+)")
_SCOPE = re.compile(r"(.+?)\s+per\s+(\S+)")


@dataclass(frozen=True)
class Rule:
    """A rule: tags `left` occur at most, at least or exactly `count` times, or they imply or exclude the tags `right`.

    Tags are numbers. `where` is FILE:LINE, `text` the line itself.
    """

    kind: str
    left: tuple[int, ...]
    right: tuple[int, ...] = ()
    count: int = 0
    document: bool = False
    where: str = ""
    text: str = ""

    def keeps(self, tags: Iterable[int]) -> bool:
        """Return True if these tags, of a sentence or of a whole document, keep the rule.

        Example:
            >>> Rule("at most", (1,), count=1).keeps([1, 0, 1]), Rule("implies", (1,), (2,)).keeps([0, 1, 2])
            (False, True)
        """
        listed = list(tags)
        found = sum(tag in self.left for tag in listed)
        if self.kind == "implies":
            return not found or any(tag in self.right for tag in listed)
        if self.kind == "excludes":
            return not found or not any(tag in self.right for tag in listed)
        few = found <= self.count or self.kind == "at least"
        return few and (found >= min(self.count, len(listed)) or self.kind == "at most")


def read_rules(path: Path) -> tuple[str, ...]:
    """The lines of a file with their numbers, "FILE:LINE<tab>text", without comments and blank ones."""
    found = ((line.number, line.text.partition("#")[0].strip()) for line in lines(path))
    return tuple(f"{path}:{number}\t{text}" for number, text in found if text)


def rules_on(stored: Sequence[str], names: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules of the lines of `read_rules`, on tags of these names; a ReadError names an invalid line.

    Example:
        >>> rules_on(["rules.txt:1\\tat most 1 B-*"], ["B-LOC", "B-PER", "O"])[0].left
        (0, 1)
    """
    return tuple(_rule(where, text, names) for where, _, text in (line.partition("\t") for line in stored))


def _rule(where: str, text: str, names: Sequence[str]) -> Rule:
    file, _, number = where.rpartition(":")

    def wrong(what: str) -> ReadError:
        return ReadError.at(file, int(number), what)

    def numbers(labels: str) -> tuple[int, ...]:
        found = set()
        for label in re.split(r"\s+or\s+", labels.strip()):
            if not label or " " in label:
                raise wrong(f"labels joined by 'or' expected; got {labels!r}")
            matching = {k for k, name in enumerate(names) if fnmatchcase(name, _escaped(label))}
            if not matching:
                raise wrong(f"{label} is not a tag of the training, whose tags are {', '.join(names)}")
            found |= matching
        return tuple(sorted(found))

    body, document = text, False
    if scope := _SCOPE.fullmatch(text):
        body = scope[1]
        if scope[2] not in ("sentence", "document"):
            raise wrong(f"'per sentence' or 'per document' expected; got 'per {scope[2]}'")
        document = scope[2] == "document"
    if found := _COUNT.fullmatch(body):
        if not re.fullmatch("[0-9]+", found[2]):
            raise wrong(f"a count of at least 0 expected after '{found[1]}'; got {found[2]!r}")
        return Rule(found[1], numbers(found[3]), (), int(found[2]), document, where, text)
    if found := _RELATION.fullmatch(body):
        left, right = numbers(found[1]), numbers(found[3])
        if both := set(left) & set(right):
            raise wrong(f"both sides of '{found[2]}' name {names[min(both)]}")
        return Rule(found[2], left, right, 0, document, where, text)
    wanted = "'at most', 'at least' or 'exactly' with a count and labels, or labels 'implies' or 'excludes' labels"
    raise wrong(f"{wanted} expected; got {text!r}")


def _escaped(label: str) -> str:
    """Return a pattern in which only * is special."""
    return re.sub(r"([\[?])", r"[\1]", label)
