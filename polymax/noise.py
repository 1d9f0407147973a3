"""Noise that perturbs scores, each kind with mean zero.

A mean would be added to every part, and so favour structures with more parts, or with fewer.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.function import standard_gamma

EULER = 0.5772156649015329


class Noise(ABC):
    """A distribution over the reals, from which every part of a structure gets its own draw.

    Draws are made in float64 and rounded: the largest of many draws, which decides the best structure, needs more than
    the 24 random bits of a float32. They are made on the device of the generator, if there is one.
    """

    def sample(self, like: Tensor, shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent draws (*shape, *like.shape), in the dtype and on the device of `like`."""
        device = generator.device if generator is not None else like.device
        size = (*torch.Size(shape), *like.shape)
        return self._draw(size, device, generator).to(device=like.device, dtype=like.dtype)

    @abstractmethod
    def _draw(self, size: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
        """Draws in float64."""


class SmoothNoise(Noise):
    """Noise with a density exp(-nu) whose slope is known."""

    @abstractmethod
    def nu(self, z: Tensor) -> Tensor:
        """Minus the log-density, up to a constant."""

    @abstractmethod
    def slope(self, z: Tensor) -> Tensor:
        """The derivative of nu; its mean is 0."""


@dataclass(frozen=True)
class Gumbel(SmoothNoise):
    """The noise under which the largest of n scores is a draw of their softmax.

        nu(z) = t + exp(-t),  t = z + 0.5772..., which makes the mean zero

    Example:
        >>> draws = Gumbel().sample(torch.zeros(2), (100000,), torch.Generator().manual_seed(0))
        >>> share = (draws + torch.tensor([1.0, 0.0])).argmax(-1).float().mean()
        >>> round(share.item(), 2)  # softmax gives 0.2689
        0.27

    See: Gumbel 1954; Maddison, Tarlow and Minka 2014, A* sampling.
    """

    def nu(self, z: Tensor) -> Tensor:
        return z + torch.exp(-(z + EULER))

    def slope(self, z: Tensor) -> Tensor:
        return -torch.expm1(-(z + EULER))

    def _draw(self, size: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
        # torch.compile takes two calls of exponential_ for one and the same, but not two of rand
        uniform = torch.rand(size, dtype=torch.float64, device=device, generator=generator)
        # a draw of exactly 0 would forbid the part
        return -torch.log(-torch.log(uniform.clamp(min=torch.finfo(torch.float64).tiny))) - EULER


@dataclass(frozen=True)
class Normal(SmoothNoise):
    """The standard normal distribution.

        nu(z) = z^2 / 2

    Example:
        >>> Normal().slope(torch.tensor([0.5, -2.0]))
        tensor([ 0.5000, -2.0000])
    """

    def nu(self, z: Tensor) -> Tensor:
        return z.square() / 2

    def slope(self, z: Tensor) -> Tensor:
        return z

    def _draw(self, size: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.randn(size, dtype=torch.float64, device=device, generator=generator)


@dataclass(frozen=True)
class SumOfGamma(Noise):
    """Noise for structures of k parts: the sum of k draws is a Gumbel variable.

        z = 1 / k (sum over i = 1, ..., terms of a draw of Gamma(1 / k, scale k / i), minus 1 / i)

    exact as the number of terms grows. Its density has no closed form. k = 1 is Gumbel noise.

    Example:
        >>> draws = SumOfGamma(k=4).sample(torch.zeros(4), (100000,), torch.Generator().manual_seed(0))
        >>> round(draws.sum(-1).var().item(), 1)  # ten terms have 1.55, a Gumbel variable 1.64
        1.6

    See: Niepert, Minervini and Franceschi 2021, Implicit MLE, the Sum-of-Gamma distribution.
    """

    k: int
    terms: int = 10

    def __post_init__(self) -> None:
        for name in ("k", "terms"):
            value = getattr(self, name)
            _check.whole(value, name)

    def _draw(self, size: tuple[int, ...], device: torch.device, generator: torch.Generator | None) -> Tensor:
        shape = torch.full(size, 1 / self.k, dtype=torch.float64, device=device)
        total = torch.zeros_like(shape)
        for i in range(1, self.terms + 1):
            total += standard_gamma(shape, generator) / i
        return total - sum(1 / i for i in range(1, self.terms + 1)) / self.k
