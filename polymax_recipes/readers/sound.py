"""Sound from .wav files, by the standard library's reader."""

import os
import wave
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Path = str | os.PathLike[str]


class Sound(NamedTuple):
    """Samples (n,) between -1 and 1, averaged over channels, and their number per second."""

    samples: Tensor
    rate: int


def read_wave(path: Path) -> Sound:
    """Return the sound of a .wav file of integers of 8, 16, 24 or 32 bits; a ValueError names any other file."""
    try:
        with wave.open(os.fspath(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{os.fspath(path)}: a .wav file of integers expected: {error}") from error
    whole = np.frombuffer(data[: len(data) // (width * channels) * width * channels], np.uint8).reshape(-1, width)
    if width == 1:
        # samples of 8 bits are unsigned: 128 is silence
        values = whole[:, 0].astype(np.float64) - 128
    else:
        padded = np.zeros((len(whole), 4), np.uint8)
        padded[:, 4 - width :] = whole
        values = (padded.view("<i4")[:, 0] >> 8 * (4 - width)).astype(np.float64)
    samples = (values / 2 ** (8 * width - 1)).reshape(-1, channels).mean(1)
    return Sound(torch.from_numpy(samples.astype(np.float32)), rate)


def write_wave(path: Path, sound: Sound) -> None:
    """Write samples as a .wav file of one channel with 16 bits; values beyond -1 or 1 are clipped.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_wave(f"{folder}/a.wav", Sound(torch.tensor([0.0, 0.5, -1.0]), 8000))
        ...     read_wave(f"{folder}/a.wav")
        Sound(samples=tensor([ 0.0000,  0.5000, -1.0000]), rate=8000)
    """
    values = (sound.samples.double() * 2**15).round().clamp(-(2**15), 2**15 - 1)
    with wave.open(os.fspath(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sound.rate)
        file.writeframes(values.numpy().astype("<i2").tobytes())
