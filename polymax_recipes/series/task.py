"""Classification of series as a task of the command."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from polymax_recipes.readers.lines import Line
from polymax_recipes.readers.series import Series
from polymax_recipes.readers.tables import Role, Row
from polymax_recipes.results import SeriesResult
from polymax_recipes.series.data import (
    LabelledSeries,
    checked_series,
    read_labelled_series,
    series_of_row,
    shape_of,
    vocabularies_of,
)
from polymax_recipes.series.given import Given, given_series
from polymax_recipes.series.model import Centroids, Classes, Nearest
from polymax_recipes.series.warp import SMOOTHINGS
from polymax_recipes.training.batches import places, sorted_batches
from polymax_recipes.training.measured import means, to_device
from polymax_recipes.training.task import Reading, Report, Task, Trained, Vocabularies, option
from polymax_recipes.training.vocabulary import Words, stored_words


@dataclass(frozen=True)
class SeriesOptions(Reading):
    """The options of the centroids and of how they are learned."""

    model: str = option(
        "centroids",
        "Compare series with centroids of each class, or with all series of the training.",
        choices=("centroids", "nearest"),
    )
    smoothing: str = option(
        "default",
        "Smoothing of dynamic time warping: by default soft for centroids, hard for nearest.",
        choices=("default", *SMOOTHINGS),
    )
    band: int = option(0, "Radius of a Sakoe-Chiba band, with --model nearest; 0 for no band.")
    gamma: float = option(0.1, "Strength of the smoothing; hard has none.", least=1e-6)
    centroids: int = option(1, "Centroids of each class.", least=1)
    size: int = option(0, "Points of a centroid; 0 for as many as the longest series of its class has.")
    optimizer: str = option(
        "lbfgs",
        "lbfgs takes all series at once, and ignores --lr, --clip and --weight-decay; adam takes batches.",
        choices=("lbfgs", "adam"),
    )
    iterations: int = option(5, "Iterations of lbfgs in an epoch.", least=1)
    batch: int = option(256, "Series that are classified at once.", least=1, late=True)

    def __post_init__(self) -> None:
        if self.band and self.model != "nearest":
            raise ValueError("--band must come with --model nearest: centroids are compared with whole series")

    @property
    def chosen(self) -> str:
        """The smoothing, with the default of the model."""
        default = "hard" if self.model == "nearest" else "soft"
        return default if self.smoothing == "default" else self.smoothing


class SeriesTask(Task):
    """Series with classes: a series gets the class of the nearest centroid, or of the nearest training series."""

    name = "series"
    summary = "classify time series by the nearest barycenter, or the nearest series, under dynamic time warping"
    Options = SeriesOptions
    monitor = ("accuracy",)

    def read(self, files: Sequence[Path]) -> list[Series]:
        return read_labelled_series(files)

    roles = (Role("label", ("class", "target", "y")), Role("values", ("series", "x", "data"), given=True))

    def takes_table(self, file: Path, options: SeriesOptions) -> bool:
        # .csv files of the UCR archive have a class and all values of a series in a line
        wide = not options.columns and file.name.removesuffix(".gz").endswith(".csv")
        return super().takes_table(file, options) and not wide

    def of_rows(self, rows: Iterable[Row], options: SeriesOptions) -> list[Series]:
        return checked_series(rows)

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        values = series_of_row(row._replace(values={**row.values, "label": "?"})).values
        parts = [",".join(map(str, dimension)) for dimension in values.T.tolist()]
        return [f"?,{parts[0]}" if len(parts) == 1 else ":".join(parts)]

    def vocabularies(self, examples: list[Series], options: SeriesOptions) -> Vocabularies:
        found = vocabularies_of(examples, options.size)
        if options.model == "nearest":
            kept = (len(examples), max(len(series.values) for series in examples))
            found["kept"] = Words(tuple(map(str, kept)))
        return found

    def encode(self, examples: list[Series], vocabularies: Vocabularies) -> LabelledSeries:
        return LabelledSeries(examples, vocabularies)

    def model(self, options: SeriesOptions, vocabularies: Vocabularies) -> Classes:
        if options.model == "nearest":
            count, longest = map(int, stored_words(vocabularies, "kept").words)
            return Nearest(options, shape_of(vocabularies), count, longest)
        return Centroids(options, shape_of(vocabularies))

    def evaluate(self, trained: Trained, examples: list[Series]) -> Report:
        encoded = self.encode(examples, trained.vocabularies)
        start = perf_counter()
        measured = means(trained.model, encoded, trained.options.batch)
        seconds = perf_counter() - start
        return {"series": len(examples), **measured, "series_per_second": len(examples) / seconds}

    def parse(self, file: str, unit: list[Line]) -> Given | None:
        """A series, whose class is not used; None for a line of a header."""
        return given_series(file, unit[0])

    def results(self, trained: Trained, inputs: list[Any]) -> list[SeriesResult]:
        names = classes_of(trained.vocabularies)
        rows = nearest(trained, [Series(_values(one), None) for one in inputs]).tolist()
        return [SeriesResult(names[row.index(min(row))], dict(zip(names, row))) for row in rows]

    def predict(self, trained: Trained, inputs: list[Given | None], before: int) -> Iterator[str]:
        """The class of each series, and its discrepancies to all classes."""
        names = classes_of(trained.vocabularies)
        series = [one.fitting(names) for one in inputs if one is not None]
        for row in nearest(trained, series).tolist() if series else ():
            yield "\t".join([names[row.index(min(row))], *(f"{distance:.6g}" for distance in row)])


@torch.no_grad()
def nearest(trained: Trained, series: Sequence[Series]) -> Tensor:
    """The discrepancies (series, classes) of series to the nearest centroid of each class."""
    model = trained.model
    assert isinstance(model, Classes)
    encoded = LabelledSeries(series, trained.vocabularies)
    batches = sorted_batches(encoded.sizes, trained.options.batch)
    found = [model.distances(to_device(encoded[rows], model)).amin(2).cpu() for rows in batches]
    return torch.cat(found)[places(batches)]


def _values(given: Any) -> Tensor:
    values = torch.as_tensor(given, dtype=torch.float64)
    values = values.unsqueeze(1) if values.ndim == 1 else values
    if values.ndim != 2 or 0 in values.shape or not bool(values.isfinite().all()):
        raise ValueError(f"inputs must be series (n,) or (n, d) of finite values; got {tuple(values.shape)}")
    return values


def classes_of(vocabularies: Vocabularies) -> tuple[str, ...]:
    """The classes of a run, in the order of its centroids."""
    return stored_words(vocabularies, "classes").words


task = SeriesTask()
