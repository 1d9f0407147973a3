"""Problems whose answers are known at every length: a source, and the target that a model is to write after it.

See: Vasylenko, Pitorro, Martins and Treviso 2025, Long-context generalization with sparse attention,
https://arxiv.org/abs/2506.16640; sizes are those of https://github.com/deep-spin/asentmax.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor


class Examples(NamedTuple):
    """Shapes: source (count, n) and target (count, m), whole numbers from 0."""

    source: Tensor
    target: Tensor


class Problem(ABC):
    """A problem that draws its examples."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """The number of different tokens."""

    @abstractmethod
    def draw(self, count: int, length: int, generator: Generator) -> Examples:
        """Return examples whose sources have a length, but for the rounding of the problem."""


@dataclass(frozen=True)
class OfSymbols(Problem):
    """A problem whose source has symbols at random."""

    symbols: int = 32

    @property
    def tokens(self) -> int:
        """The number of symbols."""
        return self.symbols

    def draw(self, count: int, length: int, generator: Generator) -> Examples:
        source = torch.randint(self.symbols, (count, length), generator=generator)
        return Examples(source, self.answer(source))

    @abstractmethod
    def answer(self, source: Tensor) -> Tensor:
        """Return the targets of sources (count, n)."""


@dataclass(frozen=True)
class Copy(OfSymbols):
    """The target is the source.

    Example:
        >>> source, target = Copy().draw(2, 5, torch.Generator().manual_seed(0))
        >>> torch.equal(source, target)
        True
    """

    def answer(self, source: Tensor) -> Tensor:
        return source


@dataclass(frozen=True)
class Reverse(OfSymbols):
    """The target is the source from its end.

    Example:
        >>> source, target = Reverse().draw(2, 5, torch.Generator().manual_seed(0))
        >>> torch.equal(source.flip(1), target)
        True
    """

    def answer(self, source: Tensor) -> Tensor:
        return source.flip(1)


@dataclass(frozen=True)
class Sort(OfSymbols):
    """The target is the source in ascending order.

    Example:
        >>> source, target = Sort().draw(1, 5, torch.Generator().manual_seed(0))
        >>> target.tolist() == [sorted(source[0].tolist())]
        True
    """

    def answer(self, source: Tensor) -> Tensor:
        return source.sort(1).values


@dataclass(frozen=True)
class TwoBack(Problem):
    """The target at each place is the symbol of the source two places earlier; 0 at the first two.

    Example:
        >>> source, target = TwoBack().draw(1, 5, torch.Generator().manual_seed(0))
        >>> target[:, :2].tolist(), torch.equal(source[:, :-2], target[:, 2:])
        ([[0, 0]], True)
    """

    symbols: int = 16

    @property
    def tokens(self) -> int:
        """The number of symbols."""
        return self.symbols

    def draw(self, count: int, length: int, generator: Generator) -> Examples:
        source = torch.randint(1, self.symbols, (count, length), generator=generator)
        source[:, 0] = 0
        target = source.roll(2, 1)
        target[:, :2] = 0
        return Examples(source, target)


@dataclass(frozen=True)
class LocalCount(Problem):
    """The source has runs of 2 to `most` equal symbols; the target numbers the symbols of each run from 0.

    Example:
        >>> source, target = LocalCount(symbols=3, most=4).draw(1, 8, torch.Generator().manual_seed(0))
        >>> source.tolist(), target.tolist()
        ([[2, 2, 2, 2, 1, 1, 0, 0]], [[0, 1, 2, 3, 0, 1, 0, 1]])
    """

    symbols: int = 16
    most: int = 48

    @property
    def tokens(self) -> int:
        """The number of symbols, or of places in a run, whichever is more."""
        return max(self.symbols, self.most)

    def draw(self, count: int, length: int, generator: Generator) -> Examples:
        runs = length // 2 + 1
        sizes = torch.randint(2, self.most + 1, (count, runs), generator=generator)
        # steps of 1 to symbols - 1: neighbouring runs differ
        steps = torch.randint(1, self.symbols, (count, runs), generator=generator)
        ends, places = sizes.cumsum(1), torch.arange(length).repeat(count, 1)
        run = torch.searchsorted(ends, places, right=True)
        source = (steps.cumsum(1) % self.symbols).gather(1, run)
        return Examples(source, places - (ends - sizes).gather(1, run))


@dataclass(frozen=True)
class FlipFlop(Problem):
    """Pairs of a command and a bit, write (2) or ignore (3), then read (4): the target is the bit last written.

    The first command is a write, and later ones are writes with probability `write`.

    Example:
        >>> source, target = FlipFlop().draw(1, 8, torch.Generator().manual_seed(0))
        >>> source.tolist(), target.tolist()
        ([[2, 0, 3, 1, 3, 1, 4]], [[0]])

    See: Liu, Ash, Goel, Krishnamurthy and Zhang 2023, Exposing attention glitches with flip-flop language modeling.
    """

    write: float = 0.1

    @property
    def tokens(self) -> int:
        """Two bits and three commands."""
        return 5

    def draw(self, count: int, length: int, generator: Generator) -> Examples:
        pairs = max(2, length // 2)
        bits = torch.randint(2, (count, pairs), generator=generator)
        writes = torch.rand(count, pairs, generator=generator) < self.write
        writes[:, 0], writes[:, -1] = True, False
        commands = torch.where(writes, 2, 3)
        commands[:, -1] = 4
        last = torch.where(writes, torch.arange(pairs), -1).amax(1, keepdim=True)
        source = torch.stack([commands, bits], 2).flatten(1)
        return Examples(source[:, :-1], bits.gather(1, last))


@dataclass(frozen=True)
class AssociativeRecall(Problem):
    """Keys with values among spaces, then queries: the target has the value of each (MQMTAR).

    Keys and values are two symbols each, out of `words` keys and as many values. A source of length n has
    0.8 n / 6 pairs of them, each with its share of the spaces; `queries` keys of the source follow it.

    Example:
        >>> problem = AssociativeRecall(symbols=8, words=16, queries=2)
        >>> source, target = problem.draw(1, 24, torch.Generator().manual_seed(0))
        >>> source.shape, target.shape, source[0, -6].item(), target[0, 0].item()
        (torch.Size([1, 30]), torch.Size([1, 6]), 2, 2)
    """

    symbols: int = 256
    words: int = 10_000
    queries: int = 4

    @property
    def tokens(self) -> int:
        """A space, what stands between a key and its value, what comes before a query, and the symbols."""
        return 3 + self.symbols

    def draw(self, count: int, length: int, generator: Generator) -> Examples:
        pairs = min(int(0.8 * length) // 6, self.words)
        if pairs < self.queries:
            raise ValueError(f"length must have room for {self.queries} pairs; got {length}, which has {pairs}")
        # the dictionary is the same in every call
        fixed = torch.Generator().manual_seed(0)
        keys, values = (_two_symbols(self.words, self.symbols, fixed) + 3 for _ in range(2))
        chosen = [torch.rand(count, self.words, generator=generator).topk(pairs).indices for _ in range(2)]
        key, value = keys[chosen[0]], values[chosen[1]]
        unit = torch.cat([key, torch.ones_like(key[..., :1]), value], -1)
        width = length // pairs
        # a space at least after each pair
        before = torch.randint(width - 5, (count, pairs, 1), generator=generator)
        source = torch.zeros(count, pairs, width, dtype=torch.long).scatter(2, before + torch.arange(5), unit)
        asked = torch.randint(pairs, (count, self.queries, 1), generator=generator).expand(-1, -1, 2)
        mark = torch.full((count, self.queries, 1), 2)
        question, answer = (torch.cat([mark, part.gather(1, asked)], 2).flatten(1) for part in (key, value))
        return Examples(torch.cat([source.flatten(1), question], 1), answer)


def _two_symbols(words: int, symbols: int, generator: Generator) -> Tensor:
    if words > symbols**2:
        raise ValueError(f"words must be at most {symbols**2}, the square of {symbols} symbols; got {words}")
    chosen = torch.randperm(symbols**2, generator=generator)[:words]
    return torch.stack([chosen // symbols, chosen % symbols], 1)


PROBLEMS: dict[str, Problem] = {
    "mqmtar": AssociativeRecall(),
    "copy": Copy(),
    "reverse": Reverse(),
    "sort": Sort(),
    "count": LocalCount(),
    "2back": TwoBack(),
    "flip-flop": FlipFlop(),
}
