"""Series to learn from and to classify, from files or made; and who learns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax_recipes.readers.series import Series
from polymax_recipes.series.data import LabelledSeries, read_labelled_series, shape_of
from polymax_recipes.series.model import Centroids
from polymax_recipes.series.task import SeriesOptions, classes_of, task

# as small as keeps an alignment of standardised series from being an average of all
GAMMA = 0.1
ITERATIONS = 50


@dataclass(frozen=True)
class Problem:
    """Series of a training and of a test, and how barycenters are learned: under what gamma and how long."""

    train: Sequence[Series]
    test: Sequence[Series]
    gamma: float = GAMMA
    iterations: int = ITERATIONS

    @cached_property
    def vocabularies(self) -> Any:
        return task.vocabularies(list(self.train), self.options)

    @property
    def options(self) -> SeriesOptions:
        # the centroids of a peer are as long as the longest of all series
        size = max(len(series.values) for series in self.train)
        return SeriesOptions(gamma=self.gamma, iterations=self.iterations, size=size)

    @property
    def labels(self) -> tuple[str, ...]:
        return classes_of(self.vocabularies)

    @cached_property
    def encoded(self) -> tuple[LabelledSeries, LabelledSeries]:
        return LabelledSeries(self.train, self.vocabularies), LabelledSeries(self.test, self.vocabularies)

    @property
    def shape(self) -> tuple[int, int, int]:
        """How many series are learned from, their points and dimensions."""
        sizes, dimensions = shape_of(self.vocabularies)
        return len(self.train), max(sizes), dimensions

    def started(self) -> Centroids:
        """Our model with the mean of each class, which is where all begin."""
        model = Centroids(self.options, shape_of(self.vocabularies))
        model.start(self.encoded[0])
        return model

    def right(self, distances: Tensor) -> float:
        """The share of test series whose own class is the nearest, (series, classes)."""
        return float((distances.argmin(1) == self.encoded[1].labels).double().mean())


class Learner(NamedTuple):
    """`fit` takes what `prepare` makes of a problem to centroids (classes, size, d), `distances` both to distances.

    Distances are those of the test series, (series, classes).
    """

    name: str
    dtype: str
    prepare: Callable[[Problem], Any]
    fit: Callable[[Problem, Any], Any]
    distances: Callable[[Problem, Any, Any], Tensor]


def read(train: Path, test: Path) -> Problem:
    """The problem of two .ts files."""
    return Problem(read_labelled_series([train]), read_labelled_series([test]))


def made(series: int = 24, length: int = 60, **how: Any) -> Problem:
    """Bumps, steps and waves that begin at different times, with noise."""
    generator = torch.Generator().manual_seed(0)
    time = torch.linspace(0, 1, length, dtype=torch.float64)

    def one(k: int) -> Series:
        shift, noise = 0.3 * torch.rand(1, generator=generator), torch.randn(length, generator=generator)
        moved = time - shift
        shapes = (torch.exp(-40 * (moved - 0.3) ** 2), (moved > 0.3).double(), torch.sin(9 * moved))
        return Series((shapes[k % 3] + 0.1 * noise).unsqueeze(1), ["bump", "step", "wave"][k % 3])

    return Problem([one(k) for k in range(series)], [one(k) for k in range(series)], **how)
