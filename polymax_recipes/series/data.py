"""Series with classes: from files, and as padded batches."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.readers.lines import ReadError
from polymax_recipes.readers.natural import natural_order
from polymax_recipes.readers.series import Series, read_series
from polymax_recipes.readers.tables import Row
from polymax_recipes.readers.ucr_text import class_name
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import Words, stored_words


class Shape(NamedTuple):
    """The shape of the centroids: the number of points for each class, and the dimensions of a point."""

    sizes: tuple[int, ...]
    dimensions: int


def read_labelled_series(files: Sequence[Path]) -> list[Series]:
    """The series of files; each must have a class and all its values, and all must have equal dimensions."""
    if not files:
        raise ValueError("series come in one file or more; got 0")
    found: list[Series] = []
    for file in files:
        own = list(read_series(file, complete=True))
        if not own:
            raise ReadError.at(file, 1, "no series in this file")
        if own[0].label is None:
            raise ReadError.at(file, 1, "series must have classes: the header has no @classLabel true")
        found += own
        dimensions, first = own[0].values.shape[1], found[0].values.shape[1]
        if dimensions != first:
            raise ReadError.at(file, 1, f"{first} dimensions expected, as in {files[0]}; got {dimensions}")
    return found


def series_of_row(row: Row) -> Series:
    """Return the series of a row: its values are a list of numbers or of points, or a text with spaces."""
    given = row.values.get("values")
    try:
        values = torch.tensor(list(map(float, given.split())) if isinstance(given, str) else given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        values = torch.zeros(0)
    values = values.unsqueeze(1) if values.ndim == 1 else values
    if values.ndim != 2 or 0 in values.shape or not bool(values.isfinite().all()):
        raise row.error("values must be finite numbers, (n,) or (n, d), in a list or with spaces between")
    return Series(values, class_name(row.text("label")))


def checked_series(rows: Iterable[Row]) -> list[Series]:
    """Return the series of the rows of a table; all must have equal dimensions."""
    found: list[Series] = []
    for row in rows:
        found.append(series_of_row(row))
        dimensions, first = found[-1].values.shape[1], found[0].values.shape[1]
        if dimensions != first:
            raise row.error(f"{first} dimensions expected, as above; got {dimensions}")
    return found


def vocabularies_of(examples: Sequence[Series], size: int) -> Vocabularies:
    """The classes, and the shape of centroids: `size` points, or as many as the longest series of their own class.

    Example:
        >>> vocabularies = vocabularies_of([Series(torch.zeros(5, 2), "b"), Series(torch.zeros(4, 2), "a")], 0)
        >>> vocabularies["classes"].words, shape_of(vocabularies)
        (('a', 'b'), Shape(sizes=(4, 5), dimensions=2))
    """
    longest: dict[str, int] = {}
    for series in examples:
        if series.label is not None:
            longest[series.label] = max(longest.get(series.label, 0), len(series.values))
    labels = natural_order(longest)
    shape = (*(size or longest[label] for label in labels), examples[0].values.shape[1])
    return {"classes": Words(tuple(labels)), "shape": Words(tuple(map(str, shape)))}


def shape_of(vocabularies: Vocabularies) -> Shape:
    """The shape that `vocabularies_of` stored; a single size holds for all classes."""
    *sizes, dimensions = map(int, stored_words(vocabularies, "shape").words)
    classes = len(stored_words(vocabularies, "classes").words)
    return Shape(tuple(sizes) if len(sizes) == classes else (sizes[0],) * classes, dimensions)


class Batch(NamedTuple):
    """Shapes: values (b, n, d), 0 at padding; lengths (b,); labels (b,), -1 for unknown classes."""

    values: Tensor
    lengths: Tensor
    labels: Tensor


class LabelledSeries:
    """Series in numbers: batches of them on request."""

    def __init__(self, examples: Sequence[Series], vocabularies: Vocabularies) -> None:
        numbers = {label: k for k, label in enumerate(stored_words(vocabularies, "classes").words)}
        dimensions = shape_of(vocabularies).dimensions
        for series in examples:
            found = series.values.shape[1]
            if found != dimensions:
                raise ValueError(f"series must have {dimensions} dimensions, as in the training; got {found}")
        self.values = [series.values.float() for series in examples]
        self.labels = torch.tensor([numbers.get(series.label or "", -1) for series in examples], dtype=torch.long)
        self.sizes = torch.tensor([len(values) for values in self.values], dtype=torch.long)

    def __getitem__(self, rows: Tensor) -> Batch:
        padded = torch.nn.utils.rnn.pad_sequence([self.values[k] for k in rows.tolist()], batch_first=True)
        return Batch(padded, self.sizes[rows], self.labels[rows])
