"""Whole corpora in parts: shards for several machines, by any scheduler, and several devices of one machine.

Outputs of shards, one after the other, are the bytes of the whole output: a shard consists of whole pieces, the units
of input that are predicted together.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain, islice
from typing import Any, NamedTuple

import torch

from polymax_recipes.readers.lines import Line
from polymax_recipes.training.measured import device_of
from polymax_recipes.training.task import Trained


class Shard(NamedTuple):
    """The part `number`, from 1, of `count` parts.

    Example:
        >>> Shard.parsed("2/8")
        Shard(number=2, count=8)
    """

    number: int
    count: int  # type: ignore[assignment]

    @classmethod
    def parsed(cls, text: str) -> "Shard":
        """The shard that the flag I/N names."""
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"--shard must be I/N, with I from 1 to N; got {text}")
        return cls(int(found[1]), int(found[2]))

    def range_of(self, pieces: int) -> tuple[int, int]:
        """Return the range of this shard among so many pieces: its first piece, and the piece after its last.

        Example:
            >>> [Shard(k, 3).range_of(7) for k in (1, 2, 3)]
            [(0, 2), (2, 4), (4, 7)]
        """
        return (self.number - 1) * pieces // self.count, self.number * pieces // self.count


def shard_lines(
    trained: Trained, source: Callable[[], Iterable[Line]], shard: Shard, chunk: int
) -> tuple[int, Iterator[Line]]:
    """Return the number of units before a shard, and its lines; `source` opens the input, which is read twice.

    Units are predicted `chunk` at a time, and a shard has whole pieces of that size: an input with fewer pieces than
    shards leaves some shards empty.
    """
    units = sum(1 for _ in trained.task.units(source()))
    first, end = shard.range_of(-(-units // chunk))
    own = islice(trained.task.units(source()), first * chunk, end * chunk)
    return first * chunk, chain.from_iterable(own)


def in_order(models: Sequence[Trained], compute: Callable[[Trained, Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Compute results of items by several copies of a model at once, and return them in the order of the items.

    At most two items for each copy are in memory. An error of an item is raised after the results of all earlier items.
    """
    free = deque(models)

    def work(item: Any) -> Any:
        # there are as many threads as copies, so that one is always free
        own = free.popleft()
        try:
            device = device_of(own.model)
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                return compute(own, item)
        finally:
            free.append(own)

    waiting: deque[Future] = deque()
    with ThreadPoolExecutor(len(models)) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) == 2 * len(models):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
