"""Prediction of any amount of text: a few units in memory at a time, and a file that can be gone on with.

While OUTPUT is being written OUTPUT.progress says how much of the input is in it; the last step removes it. Whatever is
wrong with a unit, what was predicted for all before it is written.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from polymax.recipes.readers.lines import Line
from polymax.recipes.training.run import replaced
from polymax.recipes.training.task import Trained

# units that are sorted and predicted together
CHUNK = 1024


class Predicted(NamedTuple):
    """What some units of the input gave, how many they are, and their lines."""

    output: list[str]
    units: int
    lines: list[Line]


def predicted(trained: Trained, file: str, lines: Iterable[Line], before: int = 0) -> Iterator[Predicted]:
    """The output of lines, in pieces; `before` is how many units came before them, and `file` is named in errors."""
    units = trained.task.units(lines)
    while True:
        taken, inputs, error = [], [], None
        for unit in islice(units, CHUNK):
            try:
                inputs.append(trained.task.accept(trained, file, unit))
            except ValueError as wrong:
                error = wrong
                break
            taken += unit
        if inputs:
            yield Predicted(list(trained.task.predict(trained, inputs, before)), len(inputs), taken)
        if error is not None:
            raise error
        if not inputs:
            return
        before += len(inputs)


@dataclass
class Progress:
    """How far an output is: units and lines of the input, a digest of these lines and of the model, bytes written."""

    model: str
    units: int = 0
    lines: int = 0
    digest: str = ""
    bytes: int = 0


def write_predictions(
    trained: Trained,
    model: str,
    source: tuple[str, Iterable[Line]],
    output: Path,
    resume: bool = False,
    advanced: Callable[[int], None] = lambda lines: None,
) -> None:
    """Predict the lines of a source, by its name, into a file; `model` tells this model and its options from others.

    `advanced` is told of how many lines more the output is written.
    """
    stored = output.with_name(output.name + ".progress")
    file, lines = source[0], iter(source[1])
    progress, seen = Progress(model), hashlib.sha256()
    if resume:
        progress = _read(stored, model)
        for line in islice(lines, progress.lines):
            seen.update(line.raw.encode())
        if seen.hexdigest() != progress.digest:
            raise ValueError(f"{file}: not the text that {output} began with")
        advanced(progress.lines)
    elif stored.exists():
        raise FileExistsError(f"--output: {output} is not finished; --resume continues it, or remove {stored}")
    with output.open("r+b" if resume else "wb") as opened:
        # what was written after the last record is written again
        opened.truncate(progress.bytes)
        opened.seek(progress.bytes)
        for part in predicted(trained, file, lines, progress.units):
            opened.write("".join(line + "\n" for line in part.output).encode())
            opened.flush()
            for line in part.lines:
                seen.update(line.raw.encode())
            progress.units += part.units
            progress.lines += len(part.lines)
            progress.digest, progress.bytes = seen.hexdigest(), opened.tell()
            text = json.dumps(asdict(progress))
            replaced(stored, lambda temporary, text=text: temporary.write_text(text))  # type: ignore[misc]
            advanced(len(part.lines))
    stored.unlink(missing_ok=True)


def numbered(texts: Iterable[str]) -> Iterator[Line]:
    """Texts that are no file's as lines.

    Example:
        >>> next(numbered(["a"]))
        Line(number=1, text='a', raw='a\\n')
    """
    return (Line(number, text, text + "\n") for number, text in enumerate(texts, 1))


def predictions(trained: Trained, texts: Iterable[str]) -> Iterator[str]:
    """The lines of output of lines of input."""
    return chain.from_iterable(part.output for part in predicted(trained, "input", numbered(texts)))


def _read(stored: Path, model: str) -> Progress:
    if not stored.exists():
        raise FileNotFoundError(f"--resume: there is no {stored}: nothing was begun, or all is written")
    try:
        progress = Progress(**json.loads(stored.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise ValueError(f"{stored}: not a record of progress, or a damaged one") from None
    if progress.model != model:
        raise ValueError(f"--resume: {stored} is of another model, or of other options")
    return progress
