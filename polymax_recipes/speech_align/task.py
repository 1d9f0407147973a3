"""Alignment of speech as a task of the command."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from polymax_recipes.metrics.counts import share
from polymax_recipes.readers.lines import Line
from polymax_recipes.readers.sound import Sound
from polymax_recipes.readers.tables import Role, Row
from polymax_recipes.results import SpeechResult
from polymax_recipes.speech_align.data import (
    Utterance,
    Utterances,
    frames_of,
    parse_utterance,
    read_utterances,
    utterance_of_row,
    vocabularies_of,
)
from polymax_recipes.speech_align.model import SMOOTHINGS, FrameClassifier
from polymax_recipes.training.batches import places, sorted_batches
from polymax_recipes.training.measured import means, to_device
from polymax_recipes.training.task import Reading, Report, Task, Trained, Vocabularies, option
from polymax_recipes.training.vocabulary import stored_words

# a boundary this near, in seconds, counts as found
NEAR = 0.02


@dataclass(frozen=True)
class SpeechAlignOptions(Reading):
    """The options of the model and of its frames."""

    smoothing: str = option("marginals", "How alignments are summed.", choices=tuple(SMOOTHINGS))
    hidden: int = option(64, "Size of the layer between frames and tokens.", least=1)
    context: int = option(2, "Frames on each side that a frame is classified by.")
    bands: int = option(40, "Bands of the mel scale.", least=1)
    window: float = option(25.0, "Milliseconds of sound in a frame.", least=1)
    hop: float = option(10.0, "Milliseconds from one frame to the next.", least=1)
    batch: int = option(32, "Utterances that are aligned at once.", least=1, late=True)


class SpeechAlignTask(Task):
    """Utterances with their tokens; known ends of tokens are only for measures, never for training."""

    name = "speech-align"
    summary = "find where the tokens of utterances begin and end, from transcripts alone"
    Options = SpeechAlignOptions

    def read(self, files: Sequence[Path]) -> list[Utterance]:
        return read_utterances(files)

    roles = (
        Role("sound", ("audio", "file", "path"), given=True),
        Role("tokens", ("text", "transcription"), given=True),
        Role("ends", ("times",), needed=False),
    )

    def of_row(self, row: Row, options: SpeechAlignOptions) -> Utterance:
        return utterance_of_row(row)

    def lines_of_row(self, trained: Trained, row: Row) -> list[str]:
        sound = row.values.get("sound")
        path = sound.get("path") if isinstance(sound, dict) else sound
        if not isinstance(path, str):
            raise row.error("predict takes sounds as .wav files; Trained.results takes samples")
        return ["\t".join([path, " ".join(row.tokens("tokens"))])]

    def vocabularies(self, examples: list[Utterance], options: SpeechAlignOptions) -> Vocabularies:
        return vocabularies_of(examples, options.bands, options.window, options.hop)

    def encode(self, examples: list[Utterance], vocabularies: Vocabularies) -> Utterances:
        return Utterances(examples, vocabularies)

    def tokens(self, data: Utterances) -> Tensor:
        return torch.tensor([len(own) for own in data.tokens])

    def model(self, options: SpeechAlignOptions, vocabularies: Vocabularies) -> FrameClassifier:
        bands = frames_of(vocabularies).bands
        return FrameClassifier(options, bands, len(stored_words(vocabularies, "tokens").words))

    def evaluate(self, trained: Trained, examples: list[Utterance]) -> Report:
        measured = means(trained.model, self.encode(examples, trained.vocabularies), trained.options.batch)
        start = perf_counter()
        found = aligned(trained, examples)
        seconds = perf_counter() - start
        report: Report = {"utterances": len(examples), **measured}
        errors = [
            abs(first - second)
            for one, result in zip(examples, found)
            if one.ends is not None
            # inner boundaries only: the first token begins with the sound, and the last ends with it
            for first, second in zip(one.ends[:-1], result.ends[:-1])
        ]
        if errors:
            near = sum(error <= NEAR for error in errors)
            report |= {"boundary_ms": 1000 * sum(errors) / len(errors), "within_20_ms": share(near, len(errors))}
        spoken = sum(len(one.sound.samples) / one.sound.rate for one in examples)
        return {**report, "seconds_of_sound_per_second": spoken / seconds}

    def parse(self, file: str, unit: list[Line]) -> Utterance | None:
        return parse_utterance("" if file == "-" else file, unit[0]) if not unit[0].blank else None

    def accept(self, trained: Trained, file: str, unit: list[Line]) -> Utterance | None:
        one = self.parse(file, unit)
        if one is not None:
            # raises an error for inputs that do not fit the model
            self.encode([one], trained.vocabularies)
        return one

    def results(self, trained: Trained, inputs: list[Any]) -> list[SpeechResult]:
        rate = frames_of(trained.vocabularies).rate
        return aligned(trained, [_utterance(one, rate) for one in inputs], expected=True)

    def predict(self, trained: Trained, inputs: list[Utterance | None], before: int) -> Iterator[str]:
        """A line for each token: the file, the seconds at which it begins and ends, and the token."""
        given = [one for one in inputs if one is not None]
        for one, found in zip(given, aligned(trained, given)):
            for token, first, last in zip(found.tokens, found.starts, found.ends):
                yield f"{one.name}\t{first:.4f}\t{last:.4f}\t{token}"


def aligned(trained: Trained, utterances: Sequence[Utterance], expected: bool = False) -> list[SpeechResult]:
    """The alignments of utterances, in their order; weights are the best one, or the `expected` one."""
    if not utterances:
        return []
    model, frames = trained.model, frames_of(trained.vocabularies)
    assert isinstance(model, FrameClassifier)
    encoded = Utterances(utterances, trained.vocabularies)
    batches = sorted_batches(encoded.sizes, trained.options.batch)
    found: list[SpeechResult] = []
    for rows in batches:
        best, mean = (t.cpu() for t in model.found(to_device(encoded[rows], model), expected))
        for k, row in enumerate(rows.tolist()):
            one = utterances[row]
            n, m = len(encoded.values[row]), len(one.tokens)
            firsts = (best[k, :n, :m].sum(0).cumsum(0) - best[k, :n, :m].sum(0)).tolist()
            times = [frames.time(first) for first in firsts[1:]]
            ends = [*times, len(one.sound.samples) / one.sound.rate]
            found.append(SpeechResult(one.tokens, [0.0, *times], ends, mean[k, :n, :m]))
    return [found[k] for k in places(batches).tolist()]


def _utterance(given: Any, rate: int) -> Utterance:
    wrong = "inputs must be pairs of samples (n,), as many a second as in the training, and of tokens between spaces"
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2 or not isinstance(given[1], str):
        raise ValueError(wrong)
    samples, tokens = torch.as_tensor(given[0], dtype=torch.float32), given[1].split()
    if samples.ndim != 1 or not len(samples) or not bool(samples.isfinite().all()) or not tokens:
        raise ValueError(f"{wrong}; got {tuple(samples.shape)} and {given[1]!r}")
    return Utterance("", Sound(samples, rate), tokens, None, "inputs")


task = SpeechAlignTask()
