"""Time series: the files of the UCR and UEA archives, and single series in .csv files.

See: Dau et al. 2019; Bagnall et al. 2018
"""

import os
import re
from collections.abc import Iterator
from math import isfinite

import torch
from torch import Tensor

from polymax_recipes.readers.lines import Line, Path, ReadError, lines
from polymax_recipes.readers.ucr_text import read_text_series
from polymax_recipes.readers.values import Series as Series
from polymax_recipes.readers.values import complete_series, value_of


def read_series(path: Path, *, complete: bool = False) -> Iterator[Series]:
    """Return the series of a file: of a .ts file or, without this name and a header of @, of plain text.

    If series must be `complete`, missing values are refused.
    """
    return (read_ts if is_ts(path) else read_text_series)(path, complete=complete)


def is_ts(path: Path) -> bool:
    """Return True if a file is a .ts file, by its name or by its first line, a comment or a line of the header."""
    if os.fspath(path).removesuffix(".gz").endswith(".ts"):
        return True
    first = next((line.text.strip(" \t") for line in lines(path) if not line.blank), "")
    return first.startswith(("@", "#"))


def read_ts(path: Path, *, complete: bool = False) -> Iterator[Series]:
    """The series of a .ts file: values between commas, dimensions between colons, the class last.

    Dimensions, lengths and classes must agree with the header. Time stamps are refused; if series must be `complete`,
    so are missing values.
    """
    header: dict[str, list[str]] = {}
    data, dimensions = False, 0
    for line in lines(path):
        text = line.text.strip(" \t")
        if not text or text.startswith("#"):
            continue
        if data:
            series = _series(path, line, text, header)
            dimensions = dimensions or series.values.shape[1]
            if series.values.shape[1] != dimensions:
                found = series.values.shape[1]
                raise ReadError.at(path, line.number, f"{dimensions} dimensions expected, as above; got {found}")
            yield complete_series(path, line, series) if complete else series
        elif text.startswith("@"):
            name, *words = text[1:].split() or [""]
            data = name.lower() == "data"
            header[name.lower()] = words
            if name.lower() == "timestamps" and _is_true(header, "timestamps"):
                raise ReadError.at(path, line.number, "series with time stamps are not read")
        else:
            raise ReadError.at(path, line.number, "the header must end with @data before the first series")
    if not data:
        raise ReadError.at(path, line.number, "no @data line in this file")


def parse_values(path: Path, line: Line) -> Series | None:
    """Return the complete series of a line of a .ts file, whose header is unknown; None for lines without a series.

    If the last field is not a sequence as long as those before it, it is the class.

    Example:
        >>> parse_values("input", Line(1, "1,2:3,4:a", "")).values.T
        tensor([[1., 2.],
                [3., 4.]], dtype=torch.float64)
    """
    text = line.text.strip(" \t")
    if not text or text[0] in "#@":
        return None
    *first, last = text.split(":")
    count = first[0].count(",") if first else 0
    labelled = bool(first) and (last.count(",") != count or count == 0)
    return complete_series(path, line, _series(path, line, text, {"classlabel": ["true"]} if labelled else {}))


def read_steps(path: Path) -> Tensor:
    """The values (length, dimensions), float64, of one series: a time step in each line, its values separated by commas
    or spaces.

    Lines that begin with "#" are left out.
    """
    rows: list[list[float]] = []
    number = 1
    for line in lines(path):
        number = line.number
        if line.blank or line.text.startswith("#"):
            continue
        fields = line.text.split(",") if "," in line.text else re.split("[ \t]+", line.text.strip(" \t"))
        if rows and len(fields) != len(rows[0]):
            raise ReadError.at(path, number, f"{len(rows[0])} values expected, as above; got {len(fields)}")
        values = [value_of(path, line, field) for field in fields]
        if not all(map(isfinite, values)):
            raise ReadError.at(path, number, f"finite values expected; got {line.text.strip()!r}")
        rows.append(values)
    if not rows:
        raise ReadError.at(path, number, "no values in this file")
    return torch.tensor(rows, dtype=torch.float64)


def read_long_series(path: Path) -> Tensor:
    """The values (length,), float64, of one series in a .csv file: a value in each line, or its number, from 1, and the
    value.
    """
    values: list[float] = []
    columns: int | None = None
    for line in lines(path):
        if line.blank:
            continue
        fields = line.text.split(",")
        columns = columns or len(fields)
        if len(fields) != columns or columns > 2:
            raise ReadError.at(path, line.number, f"a value, or number and value, expected; got {len(fields)} columns")
        if columns == 2 and fields[0].strip() != str(len(values) + 1):
            raise ReadError.at(path, line.number, f"number {len(values) + 1} expected; got {fields[0]!r}")
        values.append(value_of(path, line, fields[-1]))
    return torch.tensor(values, dtype=torch.float64)


def _series(path: Path, line: Line, text: str, header: dict[str, list[str]]) -> Series:
    parts = text.split(":")
    label = None
    if _is_true(header, "classlabel") or _is_true(header, "targetlabel"):
        *parts, label = (part.strip() for part in parts)
        classes = header.get("classlabel", [])[1:]
        if classes and label not in classes:
            raise ReadError.at(path, line.number, f"class must be one of {', '.join(classes)}; got {label!r}")
    if not parts:
        raise ReadError.at(path, line.number, "a series and its class, with a colon between, expected")
    rows = [[value_of(path, line, value) for value in part.split(",")] for part in parts]
    length = len(rows[0])
    if any(len(row) != length for row in rows):
        raise ReadError.at(path, line.number, f"dimensions must be equally long; got {[len(row) for row in rows]}")
    dimensions = ["1"] if _is_true(header, "univariate") else header.get("dimensions", [])
    if dimensions and dimensions != [str(len(rows))]:
        raise ReadError.at(path, line.number, f"{' '.join(dimensions)} dimensions expected; got {len(rows)}")
    lengths = header.get("serieslength", []) if _is_true(header, "equallength") else []
    if lengths and lengths != [str(length)]:
        raise ReadError.at(path, line.number, f"{' '.join(lengths)} values expected; got {length}")
    return Series(torch.tensor(rows, dtype=torch.float64).T.contiguous(), label)


def _is_true(header: dict[str, list[str]], name: str) -> bool:
    return [word.lower() for word in header.get(name, [])[:1]] == ["true"]
