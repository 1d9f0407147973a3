"""Series and their values, whatever the file they are in."""

from typing import NamedTuple

from torch import Tensor

from polymax_recipes.readers.lines import Line, Path, ReadError


class Series(NamedTuple):
    """Values (length, dimensions) in float64, and the class, None in files without classes. Missing values are NaN."""

    values: Tensor
    label: str | None


def complete_series(path: Path, line: Line, series: Series) -> Series:
    """Return the series of a line; a ReadError if a value is missing or not finite."""
    if not bool(series.values.isfinite().all()):
        raise ReadError.at(path, line.number, "series must have all values, and finite ones")
    return series


def value_of(path: Path, line: Line, text: str) -> float:
    """The number that a text is; NaN for a missing one, a question mark."""
    try:
        # float() would accept 1_000, too
        return float("nan") if text.strip() == "?" else float(text.replace("_", "?"))
    except ValueError:
        raise ReadError.at(path, line.number, f"a number expected; got {text!r}") from None
