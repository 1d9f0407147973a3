"""Prediction of any amount of text: a few units in memory at a time, and an output that can be continued after a stop.

Predictions are written to OUTPUT.part, and OUTPUT.progress records how much of the input is in it; at the end the file
gets its name, and the record is removed. If a unit has an error, the predictions before it are written, and can be
continued.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from polymax_recipes.outputs import atomic_write, is_special, move_into_place, part_of
from polymax_recipes.readers.lines import Line
from polymax_recipes.training.run import refused
from polymax_recipes.training.shards import in_order
from polymax_recipes.training.task import Trained

# units that are sorted and predicted together
CHUNK = 1024


class Predicted(NamedTuple):
    """The output of some units of the input, their number, and their lines."""

    output: list[str]
    units: int
    lines: list[Line]


class Unread(NamedTuple):
    """The lines that are written for a unit that cannot be read."""

    lines: list[str]


class _Piece(NamedTuple):
    """Inputs that are predicted together, their lines, and how many units came before them."""

    inputs: list[Any]
    lines: list[Line]
    before: int


def predicted(
    trained: Trained,
    file: str,
    lines: Iterable[Line],
    before: int = 0,
    copies: Sequence[Trained] = (),
    skipped: list[ValueError] | None = None,
) -> Iterator[Predicted]:
    """Yield the output of lines, in pieces; `before` is the number of units before them, and errors name `file`.

    With `copies` of the model on other devices, pieces are predicted at the same time, but come in their order. With a
    list `skipped`, units that cannot be read become the lines of `Task.unread`, and their errors are added to the list.
    """
    errors: list[ValueError] = []
    pieces = _pieces(trained, file, lines, before, errors, skipped)
    if copies:
        yield from in_order([trained, *copies], _output, pieces)
    else:
        for piece in pieces:
            yield _output(trained, piece)
    if errors:
        raise errors[0]


def _output(trained: Trained, piece: _Piece) -> Predicted:
    """The output of a piece: predictions of its inputs, and the lines for units that cannot be read."""
    output: list[str] = []
    before = piece.before
    for unread, group in groupby(piece.inputs, key=lambda given: isinstance(given, Unread)):
        inputs = list(group)
        if unread:
            output += [line for given in inputs for line in given.lines]
        else:
            output += trained.task.predict(trained, inputs, before)
        before += len(inputs)
    return Predicted(output, len(piece.inputs), piece.lines)


def _pieces(
    trained: Trained,
    file: str,
    lines: Iterable[Line],
    before: int,
    errors: list[ValueError],
    skipped: list[ValueError] | None,
) -> Iterator[_Piece]:
    """Yield units of lines, some at a time, up to the first that cannot be read; its error is added to a list."""
    taken: list[Line] = []
    inputs: list[Any] = []
    units = iter(trained.task.units(lines))
    while True:
        try:
            unit = next(units, None)
            if unit is None:
                break
            given = _accepted(trained, file, unit, skipped)
        except ValueError as wrong:
            errors.append(wrong)
            break
        if len(inputs) >= CHUNK and (isinstance(given, Unread) or trained.task.stands_alone(trained, given)):
            yield _Piece(inputs, taken, before)
            before += len(inputs)
            taken, inputs = [], []
        inputs.append(given)
        taken += unit
    if inputs:
        yield _Piece(inputs, taken, before)


def _accepted(trained: Trained, file: str, unit: list[Line], skipped: list[ValueError] | None) -> Any:
    try:
        return trained.task.accept(trained, file, unit)
    except ValueError as wrong:
        if skipped is None:
            raise
        skipped.append(wrong)
        return Unread(trained.task.unread(unit))


@dataclass
class Progress:
    """The progress of an output: units and lines of the input, a digest of these lines and of the model, bytes
    written.
    """

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
    force: bool = False,
    advanced: Callable[[int], None] = lambda lines: None,
    before: int = 0,
    copies: Sequence[Trained] = (),
    skipped: list[ValueError] | None = None,
) -> None:
    """Predict the lines of a source, by its name, into a file; `model` identifies the model and its options.

    With `force` an existing output is replaced, and an unfinished one is begun again. `advanced` is called with the
    number of input lines since its last call. `before`, `copies` and `skipped` are as in `predicted`.
    """
    if is_special(output):
        _write_stream(predicted(trained, *source, before, copies, skipped), output, advanced)
        return
    part, stored = part_of(output), record_of(output)
    file, lines = source[0], iter(source[1])
    progress, seen = Progress(model), hashlib.sha256()
    if output.exists() and not force:
        raise FileExistsError(f"--output: {output} exists; --force writes over it")
    if resume:
        progress = _read(stored, part, model)
        for line in islice(lines, progress.lines):
            seen.update(line.raw.encode())
        if seen.hexdigest() != progress.digest:
            raise ValueError(f"{file}: not the text that {part} began with")
        advanced(progress.lines)
    else:
        if stored.exists() and part.exists() and not force:
            raise FileExistsError(f"--output: {output} is not finished; --resume continues it, --force begins it again")
        stored.unlink(missing_ok=True)
        # remove a link of this name, but never its target
        part.unlink(missing_ok=True)
    try:
        with part.open("r+b" if resume else "xb") as opened:
            # drop output after the last record, which is computed again
            opened.truncate(progress.bytes)
            opened.seek(progress.bytes)
            for piece in predicted(trained, file, lines, before + progress.units, copies, skipped):
                opened.write(_text(piece))
                opened.flush()
                for line in piece.lines:
                    seen.update(line.raw.encode())
                progress.units += piece.units
                progress.lines += len(piece.lines)
                progress.digest, progress.bytes = seen.hexdigest(), opened.tell()
                with atomic_write(stored) as temporary:
                    temporary.write_text(json.dumps(asdict(progress)), encoding="utf-8")
                advanced(len(piece.lines))
        move_into_place(part, output)
    except BaseException:
        # without a record the output cannot be continued
        if not stored.exists():
            part.unlink(missing_ok=True)
        raise
    stored.unlink(missing_ok=True)


def record_of(output: Path) -> Path:
    """The record of how far an output is, beside it.

    Example:
        >>> record_of(Path("tags.txt")).name
        'tags.txt.progress'
    """
    return part_of(output).with_suffix(".progress")


def _write_stream(pieces: Iterable[Predicted], output: Path, advanced: Callable[[int], None]) -> None:
    with output.open("wb") as opened:
        for piece in pieces:
            opened.write(_text(piece))
            opened.flush()
            advanced(len(piece.lines))


def _text(piece: Predicted) -> bytes:
    return "".join(line + "\n" for line in piece.output).encode()


def as_lines(texts: Iterable[str]) -> Iterator[Line]:
    """Return texts that come from no file as lines.

    Example:
        >>> next(as_lines(["a"]))
        Line(number=1, text='a', raw='a\\n')
    """
    return (Line(number, text, text + "\n") for number, text in enumerate(texts, 1))


def predictions(trained: Trained, texts: Iterable[str]) -> Iterator[str]:
    """The lines that `polymax predict` writes for lines of input."""
    return chain.from_iterable(part.output for part in predicted(trained, "input", as_lines(texts)))


def _read(stored: Path, part: Path, model: str) -> Progress:
    if not stored.exists() or not part.exists():
        raise FileNotFoundError(f"--resume: there is no {stored} with {part}: nothing was begun, or all is written")
    with refused(stored, "a record of progress"):
        progress = Progress(**json.loads(stored.read_text(encoding="utf-8")))
        for name, kind in (("model", str), ("units", int), ("lines", int), ("digest", str), ("bytes", int)):
            if not isinstance(getattr(progress, name), kind):
                raise TypeError(f"{name} must be {kind.__name__}")
        if min(progress.units, progress.lines, progress.bytes) < 0:
            raise ValueError("counts must not be negative")
    if progress.model != model:
        raise ValueError(f"--resume: {stored} is of another model, or of other options")
    size = part.stat().st_size
    if size < progress.bytes:
        raise ValueError(f"{part} must have {progress.bytes} bytes, as {stored} says; got {size}: --force begins again")
    return progress
