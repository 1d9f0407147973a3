"""Perturb-and-MAP: the best structure of noisy scores is a random structure."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from polymax._parts import checked_scores, narrow
from polymax.estimators.base import NoisyEstimator, checked_noise, perturbed_scores
from polymax.estimators.straight_through import checked_through, vector_jacobian
from polymax.noise import Gumbel, Noise
from polymax.smoothing import Smoothing
from polymax.structures.base import Parts


@dataclass(frozen=True, eq=False)
class PerturbAndMap(NoisyEstimator):
    """A random structure, with the gradient of the identity, or of a smoothing at the same perturbed scores.

        y = map(scores + gamma z),    vjp(g) = g  or  J^T g,  J the Jacobian of through.argmax at scores + gamma z

    On the simplex, with Gumbel noise, y is a draw of softmax(scores / gamma), and with through=Marginals(Simplex())
    the estimator is straight-through Gumbel-softmax. Elsewhere draws only resemble those of the Gibbs distribution.

    Example:
        >>> draw = PerturbAndMap(pm.Simplex(), through=pm.Marginals(pm.Simplex(), gamma=0.5))
        >>> draw(torch.tensor([0.0, 40.0, 1.0]), generator=torch.Generator().manual_seed(0))
        tensor([0., 1., 0.])

    See: Papandreou and Yuille 2011, Perturb-and-MAP random fields; Jang, Gu and Poole 2017, section 2.2; Corro and
    Titov 2019, Differentiable perturb-and-parse.
    """

    through: Smoothing | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_through(self.through)

    def vjp(self, y: Parts, g: Parts, *scores: Tensor) -> Any:
        return g if self.through is None else vector_jacobian(self.through, g, scores)


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A random point of the hull: a smoothing of perturbed scores, with its own exact gradient.

        mu = smooth(scores + gamma z)

    Relaxed(Marginals(Simplex(), gamma=tau)) is Gumbel-softmax of temperature tau. gamma is the scale of the noise.

    Example:
        >>> soft = Relaxed(pm.Marginals(pm.Simplex(), gamma=0.5))
        >>> mu = soft(torch.tensor([0.0, 2.0, 1.0]), generator=torch.Generator().manual_seed(0))
        >>> bool((mu > 0).all()), round(mu.sum().item(), 4)
        (True, 1.0)

    See: Jang, Gu and Poole 2017, Categorical reparameterization with Gumbel-softmax; Maddison, Mnih and Teh 2017.
    """

    smooth: Smoothing
    noise: Noise = Gumbel()  # noqa: RUF009
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.smooth, Smoothing):
            raise TypeError(
                f"smooth must be a smoothing, such as Marginals(structure); got {type(self.smooth).__name__}"
            )
        checked_noise(self.noise, self.gamma)

    def __call__(self, *scores: Tensor, generator: torch.Generator | None = None) -> Parts:
        """The smoothing of perturbed scores."""
        noisy = perturbed_scores(self.smooth.structure, self.noise, self.gamma, checked_scores(scores), generator)
        return narrow(self.smooth.argmax(*noisy), scores[0].dtype)

    def with_lengths(self, lengths: Any) -> Self:
        """A copy for a batch of these lengths."""
        return replace(self, smooth=self.smooth.with_lengths(lengths))
