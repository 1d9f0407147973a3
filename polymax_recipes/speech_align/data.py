"""Utterances: sound, its tokens, and the times at which they end if these are known; and batches of utterances."""

import math
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polymax_recipes.readers.lines import Line, ReadError, lines
from polymax_recipes.readers.natural import natural_order
from polymax_recipes.readers.sound import Sound, read_wave
from polymax_recipes.readers.tables import Row
from polymax_recipes.speech_align.features import Frames, log_bands
from polymax_recipes.training.task import Vocabularies
from polymax_recipes.training.vocabulary import Words, stored_words


class Utterance(NamedTuple):
    """An utterance. `ends` has the seconds at which tokens end, None if unknown; `where` names it in errors."""

    name: str
    sound: Sound
    tokens: list[str]
    ends: list[float] | None
    where: str


def read_utterances(files: Sequence[pathlib.Path]) -> list[Utterance]:
    """The utterances of tables: a .wav file, its tokens, and if known the seconds at which each ends, between tabs."""
    found = [parse_utterance(str(file), line) for file in files for line in lines(file) if not line.blank]
    if not found:
        raise ValueError("utterances come in one table or more; got 0")
    return found


def parse_utterance(file: str, line: Line) -> Utterance:
    """The utterance of a line; the .wav file is sought beside the table."""
    columns = [column.strip() for column in line.text.split("\t")]
    if len(columns) not in (2, 3) or not all(columns):
        what = "a .wav file, tokens and, if known, the seconds at which they end expected, with tabs between"
        raise ReadError.at(file, line.number, f"{what}; got {line.text!r}")
    tokens = columns[1].split()
    ends = _ends(file, line, columns[2].split(), len(tokens)) if len(columns) == 3 else None
    path = pathlib.Path(os.path.dirname(file)) / columns[0]
    sound = _sound(file, line.number, path)
    return Utterance(columns[0], sound, tokens, ends, f"{file}:{line.number}")


def utterance_of_row(row: Row) -> Utterance:
    """Return the utterance of a row: its sound is a .wav file, or samples with their rate as datasets have them."""
    sound = row.values.get("sound")
    tokens = row.tokens("tokens")
    if isinstance(sound, dict) and isinstance(sound.get("array"), list) and sound.get("sampling_rate"):
        name, found = f"row {row.number}", Sound(torch.tensor(sound["array"]), int(sound["sampling_rate"]))
    else:
        path = sound.get("path") if isinstance(sound, dict) else sound
        if not isinstance(path, str):
            raise row.error(f"sound must be a .wav file or samples with a sampling_rate; got {sound!r:.60}")
        name, found = path, _sound(row.path, row.number, pathlib.Path(os.path.dirname(row.path)) / path)
    times = row.values.get("ends")
    texts = times.split() if isinstance(times, str) else list(map(str, times or ()))
    line = Line(row.number, "", "")
    return Utterance(
        name, found, tokens, _ends(row.path, line, texts, len(tokens)) if texts else None, f"{row.path}:{row.number}"
    )


def _sound(file: str | os.PathLike[str], number: int, path: pathlib.Path) -> Sound:
    try:
        return read_wave(path)
    except (OSError, ValueError) as error:
        why = error if isinstance(error, ValueError) else f"{path}: {error.strerror}"
        raise ReadError.at(file, number, str(why)) from error


def _ends(file: str | os.PathLike[str], line: Line, texts: list[str], count: int) -> list[float]:
    try:
        ends = [float(text) for text in texts]
    except ValueError:
        ends = []
    rising = all(math.isfinite(b) and a < b for a, b in zip([0.0, *ends], ends))
    if len(ends) != count or not rising:
        what = f"{count} rising times expected, the seconds at which the tokens end"
        raise ReadError.at(file, line.number, f"{what}; got {' '.join(texts)!r}")
    return ends


def vocabularies_of(utterances: Sequence[Utterance], bands: int, window: float, hop: float) -> Vocabularies:
    """The tokens, and how sound is cut into frames."""
    tokens = natural_order({token for one in utterances for token in one.tokens})
    frames = Frames.of(utterances[0].sound.rate, bands, window, hop)
    return {"tokens": Words(tuple(tokens)), "frames": Words(tuple(map(str, frames)))}


def frames_of(vocabularies: Vocabularies) -> Frames:
    """The frames that `vocabularies_of` stored."""
    return Frames(*map(int, stored_words(vocabularies, "frames").words))


class Batch(NamedTuple):
    """Shapes: values (b, n, bands), 0 at padding; lengths (b,); tokens (b, m), 0 at padding; token_lengths (b,)."""

    values: Tensor
    lengths: Tensor
    tokens: Tensor
    token_lengths: Tensor


class Utterances:
    """Utterances in numbers: batches of them on request."""

    def __init__(self, utterances: Sequence[Utterance], vocabularies: Vocabularies) -> None:
        numbers = {token: k for k, token in enumerate(stored_words(vocabularies, "tokens").words)}
        frames = frames_of(vocabularies)
        for one in utterances:
            if one.sound.rate != frames.rate:
                raise ValueError(f"{one.where}: {frames.rate} samples a second expected; got {one.sound.rate}")
            strange = [token for token in one.tokens if token not in numbers]
            if strange:
                raise ValueError(
                    f"{one.where}: unknown token {strange[0]!r}; the training has {', '.join(list(numbers)[:20])}"
                )
            count = frames.count(len(one.sound.samples))
            if len(one.tokens) > count:
                raise ValueError(f"{one.where}: each token needs a frame; got {len(one.tokens)} for {count} frames")
        self.values = [log_bands(one.sound.samples, frames) for one in utterances]
        self.tokens = [torch.tensor([numbers[token] for token in one.tokens]) for one in utterances]
        self.sizes = torch.tensor([len(values) for values in self.values], dtype=torch.long)

    def __getitem__(self, rows: Tensor) -> Batch:
        padded = torch.nn.utils.rnn.pad_sequence
        chosen = rows.tolist()
        tokens = [self.tokens[k] for k in chosen]
        counts = torch.tensor([len(own) for own in tokens])
        values = padded([self.values[k] for k in chosen], batch_first=True)
        return Batch(values, self.sizes[rows], padded(tokens, batch_first=True), counts)
