"""Utterances made of tones, with known boundaries."""

import pathlib
import random

import numpy as np
import torch

from polymax_recipes.outputs import atomic_write
from polymax_recipes.readers.sound import Sound, write_wave

RATE = 16000
# two frequencies in Hz for each token, as two formants of a vowel
FORMANTS = {
    "a": (730.0, 1090.0),
    "e": (530.0, 1840.0),
    "i": (270.0, 2290.0),
    "o": (570.0, 840.0),
    "u": (300.0, 870.0),
    "m": (250.0, 1200.0),
    "s": (2600.0, 5200.0),
    "z": (250.0, 5200.0),
}
# shortest and longest duration of a token in seconds; relative spread of speakers' frequencies; seconds of fading
SHORTEST, LONGEST, SPREAD, FADE = 0.06, 0.3, 0.05, 0.01


def utterance(draw: random.Random, noise: float) -> tuple[Sound, list[str], list[float]]:
    """A sound, its tokens and the seconds at which they end.

    Three to ten tokens follow each other, neighbours are different, each lasts from 60 to 300 ms. A token is the sum of
    two sines, which fade in and out in 10 ms; a speaker changes all frequencies by up to 5 %, a token its loudness by
    up to a half. Gaussian noise of standard deviation `noise` is added to all of it.

    Example:
        >>> sound, tokens, ends = utterance(random.Random(0), 0.01)
        >>> len(tokens), len(ends), len(sound.samples) == round(ends[-1] * RATE)
        (9, 9, True)
    """
    tokens: list[str] = []
    for _ in range(draw.randint(3, 10)):
        tokens.append(draw.choice([token for token in FORMANTS if not tokens or token != tokens[-1]]))
    counts = [round(draw.uniform(SHORTEST, LONGEST) * RATE) for _ in tokens]
    pitch = draw.uniform(1 - SPREAD, 1 + SPREAD)
    pieces = []
    for token, count in zip(tokens, counts):
        time = np.arange(count) / RATE
        fade = np.minimum(1.0, np.minimum(time, time[::-1]) / FADE)
        sines = [np.sin(2 * np.pi * (pitch * f * time + draw.random())) for f in FORMANTS[token]]
        pieces.append(draw.uniform(0.1, 0.2) * fade * sum(sines))
    samples = np.concatenate(pieces)
    samples += np.random.default_rng(draw.getrandbits(32)).normal(0, noise, len(samples))
    ends = (np.cumsum(counts) / RATE).tolist()
    return Sound(torch.from_numpy(samples.astype(np.float32)), RATE), tokens, ends


def write_tones(folder: pathlib.Path, count: int, seed: int, noise: float) -> pathlib.Path:
    """Write .wav files and their table utterances.tsv into a folder, and return the table."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, rows = random.Random(seed), []
    for k in range(count):
        sound, tokens, ends = utterance(draw, noise)
        write_wave(folder / f"{k:05}.wav", sound)
        rows.append(f"{k:05}.wav\t{' '.join(tokens)}\t{' '.join(f'{end:.6f}' for end in ends)}\n")
    table = folder / "utterances.tsv"
    with atomic_write(table) as temporary:
        temporary.write_text("".join(rows), encoding="utf-8")
    return table
