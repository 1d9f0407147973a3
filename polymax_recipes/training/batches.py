"""Batches of sequences of similar lengths, in an order that is a function of seed and epoch alone."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from polymax_recipes.training.vocabulary import PAD

# batches that are sorted together: enough to find neighbours in length, few enough to keep the order random
WINDOW = 64


class Ragged(NamedTuple):
    """Sequences of integers of different lengths, end to end: a few large tensors, whatever the number of sequences.

    Shapes: values (total,); offsets (count + 1,)

    Example:
        >>> Ragged.of([[5, 6, 7], [8]]).padded(torch.tensor([1, 0]))
        (tensor([[8, 0, 0],
                [5, 6, 7]]), tensor([1, 3]))
    """

    values: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, rows: Iterable[list[int]]) -> "Ragged":
        """The sequences of an iterable."""
        tensors = [torch.tensor(row, dtype=torch.int32) for row in rows]
        lengths = torch.tensor([0, *map(len, tensors)])
        return cls(torch.cat(tensors) if tensors else torch.zeros(0, dtype=torch.int32), lengths.cumsum(0))

    @property
    def lengths(self) -> Tensor:
        """The length of each sequence, (count,)."""
        return self.offsets.diff()

    def padded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen sequences (rows, longest), PAD after their ends, and their lengths (rows,)."""
        lengths = self.lengths[rows]
        steps = torch.arange(int(lengths.max()))
        inside = steps < lengths.unsqueeze(1)
        places = torch.where(inside, self.offsets[rows].unsqueeze(1) + steps, 0)
        return torch.where(inside, self.values[places].long(), PAD), lengths


class Encoded(Protocol):
    """Encoded data: the size of each example, and batches of chosen examples."""

    @property
    def sizes(self) -> Tensor:
        """The sizes (count,) by which examples are sorted into batches."""

    def __getitem__(self, rows: Tensor) -> tuple[Tensor, ...]:
        """A NamedTuple of tensors, all with a row for each of `rows`."""


def sorted_batches(sizes: Tensor, batch_size: int) -> list[Tensor]:
    """All rows from the shortest to the longest, in batches.

    Example:
        >>> [batch.tolist() for batch in sorted_batches(torch.tensor([3, 1, 2]), 2)]
        [[1, 2], [0]]
    """
    return list(sizes.argsort(stable=True).split(batch_size))


def places(batches: list[Tensor]) -> Tensor:
    """The place of each row in the concatenated batches, to restore the order of the data.

    Example:
        >>> places([torch.tensor([1, 2]), torch.tensor([0])])
        tensor([2, 0, 1])
    """
    return torch.cat(batches).argsort()


def shuffled_batches(sizes: Tensor, batch_size: int, seed: int, epoch: int) -> list[Tensor]:
    """All rows in random batches of similar sizes.

    Example:
        >>> batches = shuffled_batches(torch.tensor([3, 1, 2, 3, 1]), 2, seed=0, epoch=0)
        >>> sorted(torch.cat(batches).tolist()), sorted(len(batch) for batch in batches)
        ([0, 1, 2, 3, 4], [1, 2, 2])
    """
    generator = torch.Generator().manual_seed(mixed(seed, epoch))
    batches: list[Tensor] = []
    for window in torch.randperm(len(sizes), generator=generator).split(WINDOW * batch_size):
        batches += window[sizes[window].argsort(stable=True)].split(batch_size)
    return [batches[k] for k in torch.randperm(len(batches), generator=generator)]


def share(batches: list[Tensor], rank: int, processes: int) -> list[Tensor]:
    """Return the batches of one process, equally many for each: the first are taken twice if the numbers do not divide.

    Example:
        >>> [len(share(shuffled_batches(torch.ones(5), 1, 0, 0), rank, 2)) for rank in (0, 1)]
        [3, 3]
    """
    missing = -len(batches) % processes
    repeated = (batches * processes)[:missing]
    return (batches + repeated)[rank::processes]


def mixed(*numbers: int) -> int:
    """A seed from several numbers, far from the seeds of their neighbours."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
