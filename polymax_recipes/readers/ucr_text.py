"""Time series in plain text, in the form of the UCR archive: each line has a class and its series.

See: Dau et al. 2019
"""

import re
from collections.abc import Iterator
from math import isnan

import torch

from polymax_recipes.readers.lines import Line, Path, ReadError, lines
from polymax_recipes.readers.values import Series, complete_series, value_of


def read_text_series(path: Path, *, complete: bool = False) -> Iterator[Series]:
    """The series of a file of plain text: class and values between commas, tabs or spaces.

    NaN at the end pads a series that is shorter than others. A first line without any numbers is a header. If series
    must be `complete`, other missing values are refused.
    """
    first = True
    for line in lines(path):
        if line.blank:
            continue
        if not (first and is_header(line)):
            yield parse_text_series(path, line, complete)
        first = False


def parse_text_series(path: Path, line: Line, complete: bool) -> Series:
    """The series that a line of plain text holds.

    Example:
        >>> parse_text_series("input", Line(1, "  1.0000000e+00  0.5 -2", ""), True)
        Series(values=tensor([[ 0.5000], [-2.0000]], dtype=torch.float64), label='1')
    """
    label, *fields = columns(line)
    values = [value_of(path, line, field) for field in fields]
    while values and isnan(values[-1]):
        values.pop()
    if not values:
        raise ReadError.at(path, line.number, f"a class and values after it expected; got {line.text.strip()!r}")
    series = Series(torch.tensor(values, dtype=torch.float64).unsqueeze(1), class_name(label))
    return complete_series(path, line, series) if complete else series


def columns(line: Line) -> list[str]:
    """Return the fields between commas if there are any, else between tabs or spaces."""
    text = line.text.strip(" \t")
    return [part.strip() for part in text.split(",")] if "," in text else re.split("[ \t]+", text)


def is_header(line: Line) -> bool:
    """Return True if a line names its columns: none after the first is a number.

    Example:
        >>> is_header(Line(1, "class,t0,t1", "")), is_header(Line(1, "gun,0.5,NaN", ""))
        (True, False)
    """
    return not any(re.match("[-+.]*([0-9?]|nan|inf)", field.lower()) for field in columns(line)[1:])


def class_name(text: str) -> str:
    """Return the name of a class; a whole number is written without a point or an exponent.

    Example:
        >>> class_name("1.0000000e+00"), class_name("-1"), class_name("gun")
        ('1', '-1', 'gun')
    """
    try:
        value = float(text)
        return str(int(value)) if value == int(value) else text
    except (ValueError, OverflowError):
        return text
