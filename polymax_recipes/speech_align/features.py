"""Frames of sound: the logarithm of the energy in bands of the mel scale."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

# energies below this are silence
FLOOR = 1e-8


class Frames(NamedTuple):
    """The settings by which sound is cut into frames: samples per second, bands, samples of a window, and samples from
    a frame to the next.
    """

    rate: int
    bands: int
    window: int
    hop: int

    @classmethod
    def of(cls, rate: int, bands: int, window: float, hop: float) -> "Frames":
        """Frames by windows and hops in milliseconds.

        Example:
            >>> Frames.of(16000, 40, 25.0, 10.0)
            Frames(rate=16000, bands=40, window=400, hop=160)
        """
        return cls(rate, bands, max(2, round(rate * window / 1000)), max(1, round(rate * hop / 1000)))

    def count(self, samples: int) -> int:
        """Return the number of frames of a sound: their middles are `hop` samples apart, the first at sample 0."""
        return samples // self.hop + 1

    def time(self, frame: float) -> float:
        """Return the second at which a frame begins: halfway between the middle of the frame before and its own."""
        return max(0.0, (frame - 0.5) * self.hop / self.rate)


def log_bands(samples: Tensor, frames: Frames) -> Tensor:
    """The frames of a sound.

    log of max(FLOOR, sum over frequencies of band(f) |STFT(t, f)|^2 / window)

    Shapes: samples (n,); result (n // hop + 1, bands)

    Example:
        >>> wave = torch.sin(torch.arange(800) * 2 * torch.pi * 1000 / 8000)
        >>> log_bands(wave, Frames.of(8000, 10, 25.0, 10.0)).argmax(1).unique()
        tensor([4])
    """
    half = frames.window // 2
    # a short sound cannot be mirrored at its ends
    extended = pad(samples[None], (half, frames.window), mode="constant")[0]
    spectrum = torch.stft(
        extended[: frames.hop * (len(samples) // frames.hop) + frames.window],
        frames.window,
        frames.hop,
        window=torch.hann_window(frames.window, dtype=samples.dtype),
        center=False,
        return_complex=True,
    )
    energy = spectrum.abs().square().mT / frames.window
    return (energy @ _bands(frames).to(energy.dtype)).clamp(min=FLOOR).log()


@lru_cache
def _bands(frames: Frames) -> Tensor:
    """Triangles (frequencies, bands) of equal width on the mel scale, mel = 2595 log10(1 + Hz / 700)."""
    most = 2595 * torch.log10(torch.tensor(1 + frames.rate / 2 / 700, dtype=torch.float64))
    edges = 700 * (10 ** (torch.linspace(0, float(most), frames.bands + 2, dtype=torch.float64) / 2595) - 1)
    at = torch.arange(frames.window // 2 + 1, dtype=torch.float64)[:, None] * frames.rate / frames.window
    rising = (at - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - at) / (edges[2:] - edges[1:-1])
    found = torch.minimum(rising, falling).clamp(min=0)
    # a band between two frequencies takes the nearest one
    empty = found.sum(0) == 0
    nearest = (at - edges[1:-1]).abs().argmin(0)
    found[nearest[empty], empty.nonzero()[:, 0]] = 1
    return found.float()
