"""Policies: distributions from which structures are drawn, and the log-probabilities of draws."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from polymax.noise import Gumbel, SmoothNoise
from polymax.regularizers import Regularizer
from polymax.smoothing import LocalMax, Marginals, Smoothing
from polymax.smoothing.perturbed import Perturbed
from polymax.structures import Simplex
from polymax.structures.base import Parts, Sampled, Structure


class Actions(Protocol):
    """A distribution over the actions of a policy: structures, or tensors that determine a structure."""

    def sample(self, sample_shape: tuple[int, ...], generator: torch.Generator | None = None) -> Any:
        """Independent draws, (*sample_shape, *batch, ...)."""

    def log_prob(self, action: Any) -> Tensor:
        """The log-probabilities of actions, (*sample_shape, *batch), differentiable in the scores."""


class Policy(ABC):
    """A way to draw structures for scores, by actions with a known log-probability."""

    structure: Structure

    @abstractmethod
    def actions(self, *scores: Tensor) -> Actions:
        """The distribution over actions."""

    @abstractmethod
    def chosen(self, action: Any) -> Parts:
        """The structures that actions choose."""

    @abstractmethod
    def with_lengths(self, lengths: Any) -> Self:
        """A copy for a batch of these lengths."""


@dataclass(frozen=True, eq=False)
class Drawn(Policy):
    """Structures from the distribution of a smoothing."""

    smooth: Any

    def __post_init__(self) -> None:
        check_distribution(self.smooth)

    @property
    def structure(self) -> Structure:  # type: ignore[override]
        return self.smooth.structure

    def actions(self, *scores: Tensor) -> Actions:
        return self.smooth.distribution(*scores)

    def chosen(self, action: Parts) -> Parts:
        return action

    def with_lengths(self, lengths: Any) -> Self:
        return replace(self, smooth=self.smooth.with_lengths(lengths))


@dataclass(frozen=True, eq=False)
class Perturbing(Policy):
    """The best structures of perturbed scores.

    The probability of a structure cannot be computed, but the perturbed scores, which determine the structure, have a
    density: they are the action.
    """

    structure: Structure
    noise: SmoothNoise
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.noise, SmoothNoise):
            raise TypeError(f"noise must have a density, as Gumbel and Normal have; got {type(self.noise).__name__}")

    def actions(self, *scores: Tensor) -> "Shifted":
        return Shifted(self.structure, self.noise, self.structure.full(*scores), self.gamma)

    def chosen(self, action: "Perturbation") -> Parts:
        return action.y

    def with_lengths(self, lengths: Any) -> Self:
        return replace(self, structure=self.structure.with_lengths(lengths))


class Perturbation(NamedTuple):
    """Perturbed scores, and their best structures; all tensors are (samples, *batch, ...)."""

    scores: tuple[Tensor, ...]
    y: Parts


@dataclass(frozen=True, eq=False)
class Shifted:
    """Scores plus gamma times independent noise on each entry; scores of -inf do not change.

        log p(u) = - sum over entries of nu((u - scores) / gamma) + log gamma,        exp(-nu) the density of the noise

    Entries that no structure uses are left out of the sum: their gradient would be noise.
    """

    structure: Structure
    noise: SmoothNoise
    scores: tuple[Tensor, ...]
    gamma: float | Tensor

    def sample(self, sample_shape: tuple[int, ...], generator: torch.Generator | None = None) -> Perturbation:
        """Independent draws of perturbed scores and their best structures."""
        with torch.no_grad():
            u = tuple(
                x + scale * self.noise.sample(x, sample_shape, generator)
                for x, scale in zip(self.scores, self._scales, strict=True)
            )
            return Perturbation(u, self._stacked_set(u).map(*u))

    def log_prob(self, action: Perturbation) -> Tensor:
        """The log-density up to a constant, (samples, *batch)."""
        structure = self._stacked_set(action.scores)
        dims, masks = structure.event_dims(*action.scores), structure.gradient_mask(action.y)
        total: Tensor | float = 0.0
        for u, x, scale, mask, d in zip(action.scores, self.scores, self._scales, masks, dims, strict=True):
            # parts that are forbidden, or were forbidden in the draw, add 0
            free = mask & (u != -torch.inf) & (x != -torch.inf)
            z = (torch.where(free, u, 0) - torch.where(free, x, 0)) / scale
            total = total - torch.where(free, self.noise.nu(z) + torch.log(scale), 0).flatten(-d).sum(-1)
        return torch.as_tensor(total)

    @property
    def _scales(self) -> list[Tensor]:
        """gamma, a number or (*batch,), in a shape that broadcasts to each score tensor."""
        gamma = torch.as_tensor(self.gamma).to(self.scores[0])
        return [gamma.reshape(*gamma.shape, *[1] * d) for d in self.structure.event_dims(*self.scores)]

    def _stacked_set(self, action: tuple[Tensor, ...]) -> Structure:
        """The set for (samples, *batch, ...)."""
        return self.structure.stack(action[0].shape[0], *self.scores)


def smoothing_of(structure: Any, default: Callable[[Any], Smoothing]) -> Smoothing:
    """The smoothing of the argument: a smoothing itself, `default` of a structure, or a regularizer of the simplex."""
    match structure:
        case Smoothing():
            return structure
        case Regularizer():
            return LocalMax(Simplex(), structure)
        case Structure():
            return default(structure)
    raise TypeError(f"structure must be a Structure, a Smoothing or a Regularizer; got {type(structure).__name__}")


def check_distribution(smooth: Smoothing) -> None:
    """Raise TypeError if the smoothing has no distribution over structures."""
    if not hasattr(smooth, "distribution"):
        raise TypeError(f"{type(smooth).__name__} has no distribution over structures")


def policy_of(structure: Any) -> Policy:
    """The policy of the argument: a policy itself, a smoothing, a regularizer of the simplex, or a structure."""
    match structure:
        case Policy():
            return structure
        case Sampled():
            return Drawn(Marginals(structure))
        case Perturbed(structure=base, noise=noise, gamma=gamma):
            return Perturbing(base, noise, gamma)
        case Structure():
            return Perturbing(structure, Gumbel())
    return Drawn(smoothing_of(structure, Marginals))
