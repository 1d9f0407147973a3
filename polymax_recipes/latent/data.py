"""Sentences with labels, alone or in pairs, with trees if the files have them; and batches of them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.listops import Expression
from polymax_recipes.readers.binary_parses import parse_binary
from polymax_recipes.readers.lines import ReadError
from polymax_recipes.readers.tables import Role, Row, read_table
from polymax_recipes.training.batches import Ragged
from polymax_recipes.training.vocabulary import SPECIALS, UNKNOWN, Words

Spans = tuple[tuple[int, int], ...]
ROLES = (
    Role("label", ("labels", "class", "category", "gold_label")),
    Role("text", ("sentence", "first", "text1", "sentence1", "premise", "review"), given=True),
    Role("second", ("text2", "sentence2", "hypothesis"), needed=False),
)
# the label of examples without one
NONE = -1


class Sentence(NamedTuple):
    """Tokens, the inner spans of their binary tree and the heads of their dependency tree; None if a tree is
    unknown.
    """

    tokens: tuple[str, ...]
    spans: Spans | None = None
    heads: tuple[int, ...] | None = None


class Example(NamedTuple):
    """A label, and one sentence or two."""

    label: str
    sides: tuple[Sentence, ...]


class Given(NamedTuple):
    """A line of input: its columns, of which the first may be a label."""

    file: str
    number: int
    columns: tuple[Sentence, ...]

    def error(self, what: str) -> ReadError:
        """An error that names the line."""
        return ReadError.at(self.file, self.number, what)


def of_expression(expression: Expression) -> Example:
    """An expression with both of its trees.

    Example:
        >>> example = of_expression(Expression(("[MAX", "2", "9", "]")))
        >>> example.label, example.sides[0].heads
        ('9', (0, 1, 1, 1))
    """
    return Example(str(expression.value), (Sentence(expression.tokens, expression.spans, expression.heads),))


def read_classes(file: Path) -> Iterator[Example]:
    """The examples of a table: label and text, or label and two texts.

    If every text begins with a round bracket, or is a single word, the texts are binary trees in SNLI's form; else
    words are separated by spaces.
    """
    yield from class_examples(read_table(file, ROLES))


def class_examples(rows: Iterable[Row]) -> Iterator[Example]:
    """Return the examples of the rows of a table, as `read_classes` reads them."""
    taken = list(rows)
    sides = [[row.line(role) for role in ("text", "second") if row.has(role) or role == "text"] for row in taken]
    texts = [text.strip() for own in sides for text in own]
    are_trees = any(t.startswith("( ") for t in texts) and all(t.startswith("( ") or " " not in t for t in texts)
    for row, own in zip(taken, sides):
        if len(own) != len(sides[0]):
            raise row.error(f"{len(sides[0])} texts expected, as in the first row; got {len(own)}")
        try:
            yield Example(row.text("label"), tuple(sentence(text, are_trees) for text in own))
        except ReadError:
            raise
        except ValueError as error:
            raise row.error(str(error)) from error


def sentence(text: str, is_tree: bool = False) -> Sentence:
    """The sentence that a text spells.

    Example:
        >>> sentence("( ( a cat ) sleeps )", is_tree=True).spans
        ((0, 1), (0, 2))
    """
    if not is_tree:
        return Sentence(tuple(text.split()))
    tokens, spans = parse_binary(text.strip())
    return Sentence(tuple(tokens), tuple(spans))


def tokens(sentence: Sentence, words: Words) -> list[str]:
    """Return the tokens of a sentence as a vocabulary spells them; a tree keeps their number.

    Example:
        >>> tokens(sentence("It sleeps."), Words((), lower=True, punctuation=True))
        ['it', 'sleeps', '.']
    """
    if sentence.spans is None:
        return words.split(" ".join(sentence.tokens))
    return [token.lower() if words.lower else token for token in sentence.tokens]


class Batch(NamedTuple):
    """A batch of b examples, each with s sentences.

    Shapes: words (b, s, n); lengths (b, s); transitions (b, s, 2 n - 1), 0 to shift, 1 to reduce, -1 at padding and for
    sentences without a tree; heads (b, s, n), likewise; label (b,), -1 if unknown
    """

    words: Tensor
    lengths: Tensor
    transitions: Tensor
    heads: Tensor
    label: Tensor


class Examples:
    """Examples in numbers: batches of them on request. A label outside of the training data is NONE."""

    def __init__(self, examples: Sequence[Example], words: Words, labels: Words) -> None:
        self.sides = len(examples[0].sides) if examples else 1
        if any(len(example.sides) != self.sides for example in examples):
            raise ValueError("examples must all be of single sentences, or all of pairs; got both")
        sentences = [side for example in examples for side in example.sides]
        number = {word: k for k, word in enumerate(words.words, len(SPECIALS))}
        self.words = Ragged.of([number.get(token, UNKNOWN) for token in tokens(s, words)] for s in sentences)
        self.transitions = Ragged.of(transitions(s) for s in sentences)
        self.heads = Ragged.of(list(s.heads or ()) for s in sentences)
        known = {label: k for k, label in enumerate(labels.words)}
        self.label = torch.tensor([known.get(example.label, NONE) for example in examples])
        # the size of a pair is the length of its longer sentence
        self.sizes = self.words.lengths.reshape(-1, self.sides).amax(1)

    def __getitem__(self, rows: Tensor) -> Batch:
        places = (rows.unsqueeze(1) * self.sides + torch.arange(self.sides)).flatten()
        words, lengths = self.words.padded(places)
        n = words.shape[1]
        shape = (len(rows), self.sides)
        return Batch(
            words.unflatten(0, shape),
            lengths.unflatten(0, shape),
            _pad_to_width(self.transitions, places, 2 * n - 1).unflatten(0, shape),
            _pad_to_width(self.heads, places, n).unflatten(0, shape),
            self.label[rows],
        )


def _pad_to_width(ragged: Ragged, rows: Tensor, width: int) -> Tensor:
    """Chosen sequences (rows, width), -1 after their ends."""
    found, lengths = ragged.padded(rows)
    found = torch.nn.functional.pad(found, (0, width - found.shape[1]))
    return torch.where(torch.arange(width) < lengths.unsqueeze(1), found, -1)


def transitions(sentence: Sentence) -> list[int]:
    """Return the transitions of a sentence's binary tree; [] if it is unknown.

    Example:
        >>> transitions(Sentence(("a", "b", "c"), ((1, 2), (0, 2))))
        [0, 0, 0, 1, 1]
    """
    if sentence.spans is None:
        return []
    closed = [0] * len(sentence.tokens)
    for _, last in sentence.spans:
        closed[last] += 1
    return [action for count in closed for action in (0, *[1] * count)]
