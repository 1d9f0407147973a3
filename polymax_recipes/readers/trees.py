"""Constituency trees in brackets, as in the Penn Treebank: (S (NP (PRP it)) (VP (VBZ works)))."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from polymax_recipes.readers.lines import Line, Path, ReadError, lines, write
from polymax_recipes.readers.spans import Span

Value = TypeVar("Value")

# white space of other scripts can be a word
_TOKEN = re.compile(r"[()]|[^ \t\r\n()]+")


@dataclass(frozen=True)
class Tree:
    """A node: a part of speech over a word, or a label over children.

    Example:
        >>> tree = parse_tree("(S (NP (PRP it)) (VP (VBZ works)))")
        >>> tree.words, tree.tags
        (['it', 'works'], ['PRP', 'VBZ'])
        >>> print(tree)
        (S (NP (PRP it)) (VP (VBZ works)))
    """

    label: str
    children: tuple["Tree", ...] = ()
    word: str | None = None

    def __post_init__(self) -> None:
        if (self.word is None) == (not self.children):
            raise ValueError(f"a node has children, or one word; got {len(self.children)} children, word {self.word!r}")

    @property
    def leaves(self) -> list["Tree"]:
        """The nodes over the words, from left to right."""
        found, stack = [], [self]
        while stack:
            node = stack.pop()
            stack.extend(reversed(node.children))
            if node.word is not None:
                found.append(node)
        return found

    @property
    def words(self) -> list[str]:
        return [leaf.word for leaf in self.leaves if leaf.word is not None]

    @property
    def tags(self) -> list[str]:
        return [leaf.label for leaf in self.leaves]

    @property
    def spans(self) -> list[Span]:
        """The spans of all nodes above the parts of speech, each node before its children.

        Example:
            >>> [tuple(span) for span in parse_tree("(S (NP (PRP it)) (VP (VBZ works)))").spans]
            [(0, 1, 'S'), (0, 0, 'NP'), (1, 1, 'VP')]
        """
        spans: list[Span] = []
        # an opened node is visited again when its last word is known
        stack: list[Tree | int] = [self]
        words = 0
        while stack:
            node = stack.pop()
            if isinstance(node, int):
                spans[node] = spans[node]._replace(last=words - 1)
            elif node.word is not None:
                words += 1
            else:
                stack.append(len(spans))
                spans.append(Span(words, words, node.label))
                stack.extend(reversed(node.children))
        return spans

    def __str__(self) -> str:
        pieces: list[str] = []
        stack: list[Tree | str] = [self]
        while stack:
            node = stack.pop()
            if isinstance(node, str):
                pieces.append(node)
            elif node.word is not None:
                pieces.append(f"({node.label} {node.word})")
            else:
                pieces.append(f"({node.label}")
                stack.append(")")
                for child in reversed(node.children):
                    stack += [child, " "]
        return "".join(pieces)


def fold(tree: Tree, value: Callable[[Tree, list[Value]], Value]) -> Value:
    """The value of a tree, computed from the values of its children, without recursion: trees can be deeper than
    Python's stack.

    Example:
        >>> fold(parse_tree("(S (NP (PRP it)) (VBZ works))"), lambda node, depths: 1 + max(depths, default=0))
        3
    """
    stack: list[tuple[Tree, list[Value]]] = [(tree, [])]
    while True:
        node, values = stack[-1]
        if len(values) < len(node.children):
            stack.append((node.children[len(values)], []))
            continue
        stack.pop()
        result = value(node, values)
        if not stack:
            return result
        stack[-1][1].append(result)


def read_trees(path: Path) -> Iterator[Tree]:
    """The trees of a file, unchanged: traces, functions and empty root labels stay. A tree may take several lines."""
    return (tree for _, tree in numbered_trees(path, lines(path)))


def numbered_trees(path: Path, text: Iterable[Line]) -> Iterator[tuple[int, Tree]]:
    """The trees in some lines of a file, and the numbers of the lines in which they begin.

    Example:
        >>> for number, tree in numbered_trees("input", [Line(3, "(NP (DT a)", ""), Line(4, "(NN dog))", "")]):
        ...     print(number, tree)
        3 (NP (DT a) (NN dog))
    """
    builder = _Builder()
    opened = last = 0
    for line in text:
        if line.blank and builder.open:
            raise ReadError.at(path, line.number, f"a blank line inside of the tree that begins in line {opened}")
        for token in _TOKEN.findall(line.text):
            if not builder.open:
                opened = line.number
            fault = builder.add(token)
            if fault:
                raise ReadError.at(path, line.number, fault)
            if builder.done is not None:
                yield opened, builder.done
                builder = _Builder()
        last = line.number
    if builder.open:
        raise ReadError.at(path, last, f"the tree that begins in line {opened} is not closed")


def write_trees(path: Path, trees: Iterable[Tree]) -> None:
    """Write trees to a file, one on each line."""
    write(path, (f"{tree}\n" for tree in trees))


def parse_tree(text: str) -> Tree:
    """The tree that a text spells.

    Example:
        >>> parse_tree("(NP (DT the) (NN dog))").children[1]
        Tree(label='NN', children=(), word='dog')
    """
    builder = _Builder()
    for token in _TOKEN.findall(text):
        fault = "a tree is followed by more" if builder.done is not None else builder.add(token)
        if fault:
            raise ValueError(f"text must be a tree in brackets: {fault}; got {text!r}")
    if builder.done is None:
        raise ValueError(f"text must be a tree in brackets: it is not closed; got {text!r}")
    return builder.done


class _Builder:
    """Builds one tree from its tokens."""

    def __init__(self) -> None:
        # label, children and word of each node that is open
        self.stack: list[tuple[list[str], list[Tree]]] = []
        self.done: Tree | None = None

    @property
    def open(self) -> bool:
        return bool(self.stack)

    def add(self, token: str) -> str | None:
        """Take the next token, and return the error message if it is wrong here, else an empty text."""
        if token == "(":
            if self.stack and len(self.stack[-1][0]) > 1:
                return f"a bracket after the word {self.stack[-1][0][1]!r}"
            if self.stack and not self.stack[-1][0]:
                # a node that begins with a bracket has an empty label
                self.stack[-1][0].append("")
            self.stack.append(([], []))
        elif not self.stack:
            return f"( expected; got {token!r}"
        elif token == ")":
            return self._close()
        else:
            atoms, children = self.stack[-1]
            if children:
                return f"the word {token!r} beside brackets"
            if len(atoms) == 2:
                return f"the word {token!r} after the word {atoms[1]!r}"
            atoms.append(token)
        return None

    def _close(self) -> str | None:
        atoms, children = self.stack.pop()
        if len(atoms) < 2 and not children:
            return f"nothing under the label {atoms[0]!r}" if atoms else "empty brackets"
        node = Tree(atoms[0], tuple(children), atoms[1] if len(atoms) == 2 else None)
        if self.stack:
            self.stack[-1][1].append(node)
        else:
            self.done = node
        return None
