"""Texts in windows: files one after the other, cut into pieces as long as the context of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.lm.tokens import BOUNDARY, Tokens
from polymax_recipes.readers.lines import lines

# of targets: nothing is predicted there; what cross_entropy leaves out
NOTHING = -100


class Document(NamedTuple):
    """A text, and how many tokens of it a model is to see at once."""

    text: str
    context: int


def read_documents(files: Sequence[Path], context: int) -> list[Document]:
    """The text of each file, plain or .gz, as it is: line ends and blank lines included."""
    return [Document("".join(line.raw for line in lines(file)), context) for file in files]


class Batch(NamedTuple):
    """Shapes: inputs (b, n), targets (b, n), NOTHING at padding; widths (b,), bytes that the targets stand for; places
    (b, n), the number of each target in the data.
    """

    inputs: Tensor
    targets: Tensor
    widths: Tensor
    places: Tensor


class Windows:
    """Texts in numbers, a boundary before, between and after them, in windows that predict each token once.

    A window begins with the last token of the one before: the first boundary alone is never predicted.
    """

    def __init__(self, documents: Sequence[Document], tokens: Tokens) -> None:
        boundary = torch.tensor([BOUNDARY], dtype=torch.int32)
        parts = [part for document in documents for part in (tokens.encode(document.text), boundary)]
        self.values = torch.cat([boundary, *parts])
        self.context = documents[0].context
        self.widths = tokens.widths
        self.vocabulary, self.spelled = len(tokens), tokens.spelled()
        # the targets of each text: its tokens, and the boundary after them
        self.lengths = torch.tensor([len(part) + 1 for part in parts[::2]])
        predicted = len(self.values) - 1
        starts = torch.arange(0, predicted, self.context)
        self.sizes = (predicted - starts).clamp(max=self.context)

    def __getitem__(self, rows: Tensor) -> Batch:
        starts, longest = rows.unsqueeze(1) * self.context, int(self.sizes[rows].max())
        steps = torch.arange(longest)
        inside = steps < self.sizes[rows].unsqueeze(1)
        places = torch.where(inside, starts + steps, 0)
        inputs = torch.where(inside, self.values[places].long(), BOUNDARY)
        following = self.values[torch.where(inside, places + 1, 0)].long()
        widths = torch.where(inside, self.widths[following], 0).sum(1)
        return Batch(inputs, torch.where(inside, following, NOTHING), widths, places)
