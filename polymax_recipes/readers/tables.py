"""Tables, row by row: TSV, CSV, JSON lines, Parquet, datasets of Hugging Face on disk, and lists and frames in memory.

A task names its columns by roles, such as token and tag. The column of a role is found by the name or the number that
the user gives. By default it is found by the usual names of such columns or, in a table without names, by its place.
"""

import csv
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from math import isnan
from typing import Any, NamedTuple

from polymax_recipes.readers.jsonl import read_records
from polymax_recipes.readers.lines import Path, ReadError, lines

# endings of files that are tables for every task
TABLES = (".csv", ".jsonl", ".parquet")
PACKED = ".gz"


class Role(NamedTuple):
    """A column by its meaning: its name in options, other names that files give it, and its use.

    `needed` columns must be in training data, `given` columns also in data to predict.
    """

    name: str
    names: tuple[str, ...] = ()
    needed: bool = True
    given: bool = False

    @property
    def known_as(self) -> tuple[str, ...]:
        """All names of the column, first its name in options."""
        return self.name, *self.names


class Row(NamedTuple):
    """The values of a row by role; blank lines of a file separate rows of one `group` from those of the next."""

    path: Path
    number: int
    values: dict[str, Any]
    group: int = 0

    def error(self, what: str) -> ReadError:
        """Return an error that names the row."""
        return ReadError.at(self.path, self.number, what)

    def has(self, role: str) -> bool:
        """Return True if the row has a value in a column."""
        return self.values.get(role) is not None

    def text(self, role: str) -> str:
        """Return the text of a column; a ReadError if it is blank or of another type."""
        value = self.values.get(role)
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            what = "is empty" if isinstance(value, str) else f"must be a text, not empty; got {value!r}"
            raise self.error(f"{role} {what}")
        return str(value)

    def line(self, role: str) -> str:
        """Return the text of a column without tabs and line ends, which become spaces."""
        return " ".join(self.text(role).replace("\t", " ").splitlines())

    def texts(self, role: str) -> list[str]:
        """Return the texts of a list; a text alone is a list of one."""
        value = self.values.get(role)
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise self.error(f"{role} must be a text or a list of texts; got {value!r}")
        return found

    def tokens(self, role: str) -> list[str]:
        """Return the tokens of a sentence: a list of them, or a text with spaces between them."""
        value = self.values.get(role)
        found = value.split(" ") if isinstance(value, str) else [str(one) for one in value or ()]
        if not found or not all(found):
            raise self.error(f"{role} must be a list of tokens, none empty; got {value!r}")
        return found


def is_table(path: Path) -> bool:
    """Return True if a path is a table by its name, or is a directory, such as a dataset on disk.

    Example:
        >>> is_table("train.csv.gz"), is_table("train.conllu")
        (True, False)
    """
    return os.fspath(path).removesuffix(PACKED).endswith(TABLES) or os.path.isdir(path)


def parse_columns(text: str, roles: Sequence[Role]) -> dict[str, int | str]:
    """Return the columns that the option --columns names, by role.

    Example:
        >>> parse_columns("token=0,tag=ner", (Role("token"), Role("tag")))
        {'token': 0, 'tag': 'ner'}
    """
    known = [role.name for role in roles]
    chosen: dict[str, int | str] = {}
    for part in filter(None, text.split(",")):
        role, equals, column = (piece.strip() for piece in part.partition("="))
        if not equals or not column:
            raise ValueError(f"--columns must be ROLE=COLUMN with commas between, such as {known[0]}=0; got {text!r}")
        if role not in known:
            raise ValueError(f"--columns: unknown role {role}; this task has {', '.join(known)}")
        chosen[role] = int(column) if column.removeprefix("-").isdecimal() else column
    return chosen


def read_table(path: Path, roles: Sequence[Role], columns: str = "", *, predict: bool = False) -> Iterator[Row]:
    """Return the rows of a file or a directory, in the format of its name; files other than CSV, JSON lines and Parquet
    have tabs.

    With `predict`, columns that only training needs may be missing.
    """
    chosen = parse_columns(columns, roles)
    name = os.fspath(path).removesuffix(PACKED)
    records: Iterable[tuple[int, Any, int]]
    if os.path.isdir(path):
        records, names = _dataset(path)
    elif name.endswith(".parquet"):
        records, names = _parquet(path)
    elif name.endswith(".jsonl"):
        records, names = ((line.number, record, 0) for line, record in read_records(path)), {}
    else:
        records, names = _fields(path, name.endswith(".csv")), {}
    return _rows(path, records, names, _Choice(roles, chosen, predict))


def rows_in_memory(data: Any, name: str, roles: Sequence[Role], columns: str = "") -> Iterator[Row]:
    """Return the rows of a list of dicts or of tuples, of a dict of lists, of a frame of pandas, or of a dataset.

    Example:
        >>> [row.values for row in rows_in_memory([("O", "a")], "train", (Role("tag"), Role("token")))]
        [{'tag': 'O', 'token': 'a'}]
    """
    choice = _Choice(roles, parse_columns(columns, roles), False)
    records = ((number, record, 0) for number, record in enumerate(records_in_memory(data, name, roles), 1))
    return _rows(name, records, {}, choice)


def records_in_memory(data: Any, name: str, roles: Sequence[Role]) -> Iterator[dict[str, Any]]:
    """Return the rows of data in memory as dicts of plain values, with all columns; values without names get names by
    their place.
    """
    names: dict[str, Any] = {}
    if hasattr(data, "features") and hasattr(data, "column_names"):
        names = dict(data.features)
        records: Iterable[Any] = data
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):
        records = data.to_dict("records")
    elif isinstance(data, Mapping):
        records = (dict(zip(data, row)) for row in zip(*data.values(), strict=True))
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        records = data
    else:
        raise TypeError(f"{name} must be a file, a list of rows, a frame or a dataset; got {type(data).__name__}")
    for record in records:
        if isinstance(record, Mapping):
            yield {str(key): _named(_plain(value), names.get(key)) for key, value in record.items()}
        else:
            values = [record] if isinstance(record, str) else list(record)
            keys = [*(role.name for role in roles), *map(str, range(len(roles), len(values)))]
            yield dict(zip(keys, map(_plain, values)))


def as_json(record: dict[str, Any]) -> str:
    """Return a row in memory as a line of JSON."""
    return json.dumps(record, ensure_ascii=False) + "\n"


class _Choice(NamedTuple):
    roles: Sequence[Role]
    chosen: dict[str, int | str]
    predict: bool

    def needs(self, role: Role) -> bool:
        return role.given or (not self.predict and (role.needed or role.name in self.chosen))

    def places(self, path: Path, number: int, keys: Sequence[str]) -> dict[str, str]:
        """Return the key of each role among the keys of a row."""
        found = {}
        for role in self.roles:
            column = self.chosen.get(role.name)
            if column is None:
                key = next((name for name in role.known_as if name in keys), None)
            elif isinstance(column, int):
                key = keys[column] if -len(keys) <= column < len(keys) else None
            else:
                key = column if column in keys else None
            if key is not None:
                found[role.name] = key
            elif self.needs(role):
                asked = "" if column is None else f" {column}"
                advice = f"--columns {role.name}=NAME says which"
                raise ReadError.at(
                    path, number, f"no column{asked} for {role.name}; there are {', '.join(keys)}: {advice}"
                )
        return found

    def header(self, fields: Sequence[str]) -> bool:
        """Return True if the first line of a table names its columns."""
        if any(isinstance(column, str) for column in self.chosen.values()):
            return True
        if self.chosen:
            inside = [
                (role, self.chosen[role.name]) for role in self.roles if isinstance(self.chosen.get(role.name), int)
            ]
            return all(
                fields[column].strip() in role.known_as  # type: ignore[index]
                for role, column in inside
                if -len(fields) <= column < len(fields)  # type: ignore[operator]
            )
        return all(any(name in fields for name in role.known_as) for role in self.roles if self.needs(role))

    def keys(self, path: Path, number: int, count: int) -> list[str]:
        """Return keys for a table without names: the roles in their order, or plain numbers if columns are chosen."""
        if self.chosen:
            return list(map(str, range(count)))
        wanted = [role.name for role in self.roles if not self.predict or role.given]
        least = sum(self.needs(role) for role in self.roles if role.name in wanted)
        if not least <= count <= len(wanted):
            expected = f"{_columns(path, wanted[:least])}; got {count}"
            raise ReadError.at(path, number, f"{expected}: --columns says which to take" if count > least else expected)
        return wanted[:count]


def _columns(path: Path, names: Sequence[str]) -> str:
    """The columns that a line of a table must have, in words."""
    between = "commas" if os.fspath(path).removesuffix(PACKED).endswith(".csv") else "tabs"
    return f"{len(names)} columns between {between} expected, {', '.join(names)}"


def _rows(
    path: Path, records: Iterable[tuple[int, Any, int]], names: Mapping[str, Any], choice: _Choice
) -> Iterator[Row]:
    keys: list[str] | None = None
    places: dict[str, str] | None = None
    for number, record, group in records:
        if isinstance(record, list):
            if keys is None:
                if choice.header(record):
                    keys = [field.strip() for field in record]
                    continue
                keys = choice.keys(path, number, len(record))
            if len(record) != len(keys):
                raise ReadError.at(path, number, f"{_columns(path, keys)}; got {len(record)}")
            record = dict(zip(keys, record))
        if places is None or not all(key in record for key in places.values()):
            places = choice.places(path, number, list(record))
        values = {role: _named(_plain(record[key]), names.get(key)) for role, key in places.items()}
        yield Row(path, number, values, group)


def _fields(path: Path, commas: bool) -> Iterator[tuple[int, list[str], int]]:
    """The fields of each line that is not blank; quotation marks are text in tables with tabs."""
    at, group = 0, 0

    def texts() -> Iterator[str]:
        nonlocal at
        for line in lines(path):
            at = line.number
            yield line.text + "\n"

    split = csv.reader(texts(), strict=True) if commas else (text.rstrip("\n").split("\t") for text in texts())
    begun = False
    try:
        for fields in split:
            if not any(field.strip(" ") for field in fields):
                group, begun = group + begun, False
                continue
            begun = True
            yield at, fields, group
    except csv.Error as error:
        raise ReadError.at(path, at, f"CSV expected: {error}") from None


def _parquet(path: Path) -> tuple[Iterator[tuple[int, Any, int]], dict[str, Any]]:
    parquet = _package("pyarrow.parquet", "pyarrow")
    try:
        file = parquet.ParquetFile(os.fspath(path))
    except (ValueError, _package("pyarrow", "pyarrow").ArrowException) as error:
        raise ReadError.at(path, 1, f"Parquet expected: {str(error).splitlines()[0]}") from None
    told = (file.schema_arrow.metadata or {}).get(b"huggingface")
    features = json.loads(told).get("info", {}).get("features", {}) if told else {}
    rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
    return ((number, row, 0) for number, row in enumerate(rows, 1)), features


def _dataset(path: Path) -> tuple[Iterator[tuple[int, Any, int]], dict[str, Any]]:
    parts = sorted(folder.name for folder in pathlib.Path(path).iterdir() if (folder / "dataset_info.json").exists())
    if parts:
        raise ValueError(f"{path} has parts {', '.join(parts)}: give one of them, such as {path}/{parts[0]}")
    if not (pathlib.Path(path) / "dataset_info.json").exists():
        raise IsADirectoryError(f"{path} is a directory, and not one that datasets.Dataset.save_to_disk wrote")
    found = _package("datasets", "datasets").load_from_disk(os.fspath(path), keep_in_memory=False)
    return ((number, row, 0) for number, row in enumerate(found, 1)), dict(found.features)


def _named(value: Any, feature: Any) -> Any:
    """Return a value with its classes by name, if the table has names for its numbers."""
    if isinstance(value, list):
        inner = feature.get("feature") if isinstance(feature, dict) else getattr(feature, "feature", feature)
        return [_named(one, inner) for one in value]
    names = feature.get("names") if isinstance(feature, dict) else getattr(feature, "names", None)
    if not names or isinstance(value, bool) or not isinstance(value, int):
        return value
    return names[value] if 0 <= value < len(names) else None


def _plain(value: Any) -> Any:
    """Return values of numpy, pandas and torch as numbers, texts and lists of them; missing values are None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and isnan(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def _package(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"this table needs the package {package}: pip install 'polymax[data]'") from None
