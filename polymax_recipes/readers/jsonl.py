"""JSON lines: SNLI and SciTLDR.

See: Bowman et al. 2015 (SNLI); Cachola et al. 2020 (SciTLDR)
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from polymax_recipes.readers.lines import Line, Path, ReadError, lines


class ParsedPair(NamedTuple):
    """A pair of texts with its class. Parses are for `parse_binary`; None if the file has no parses."""

    label: str
    first: str
    second: str
    first_parse: str | None
    second_parse: str | None


class Summarized(NamedTuple):
    """The sentences of a text, its summaries, and for each sentence 1 if it belongs to the best extract, else 0."""

    source: list[str]
    targets: list[str]
    labels: list[int]
    title: str


def read_snli(path: Path) -> Iterator[ParsedPair]:
    """The pairs of a file of SNLI or MultiNLI; pairs on which annotators disagreed, "-", are left out."""
    for line, record in read_records(path):
        label = _text(path, line, record, "gold_label")
        if label != "-":
            first, second = (_text(path, line, record, name) for name in ("sentence1", "sentence2"))
            parses = [
                _text(path, line, record, name) if name in record else None
                for name in ("sentence1_binary_parse", "sentence2_binary_parse")
            ]
            yield ParsedPair(label, first, second, parses[0], parses[1])


def read_scitldr(path: Path) -> Iterator[Summarized]:
    """The papers of a file of SciTLDR. Its rouge_scores, which can be fewer than the sentences, are not read."""
    for line, record in read_records(path):
        source, targets = (_items(path, line, record, name, str) for name in ("source", "target"))
        labels = _items(path, line, record, "source_labels", int)
        if len(labels) != len(source):
            raise ReadError.at(
                path, line.number, f"source_labels must be one per sentence, {len(source)}; got {len(labels)}"
            )
        yield Summarized(source, targets, labels, _text(path, line, record, "title"))


def read_records(path: Path) -> Iterator[tuple[Line, dict[str, Any]]]:
    """Lines and the objects in them. Blank lines are left out."""
    for line in lines(path):
        if not line.blank:
            yield line, parse_object(path, line.number, line.text)


def parse_object(path: Path, number: int, text: str) -> dict[str, Any]:
    """The JSON object of a text that begins in line `number` of a file."""
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ReadError.at(path, number + error.lineno - 1, f"JSON expected: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        # numbers with too many digits, or lists that are nested too deep
        raise ReadError.at(path, number, f"JSON expected: {error}") from error
    if not isinstance(record, dict):
        raise ReadError.at(path, number, f"a JSON object expected; got {type(record).__name__}")
    return record


def _text(path: Path, line: Line, record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise ReadError.at(path, line.number, f"{name} must be a text; got {value!r}")
    return value


def _items(path: Path, line: Line, record: dict[str, Any], name: str, kind: type) -> list[Any]:
    value = record.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(item, kind) for item in value):
        raise ReadError.at(path, line.number, f"{name} must be a list of {kind.__name__}, not empty; got {value!r}")
    return value
