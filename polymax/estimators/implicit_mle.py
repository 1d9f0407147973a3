"""Implicit maximum likelihood: the difference of perturb-and-MAP before and after a gradient step on the scores."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import checked_scores, narrow
from polymax.estimators.base import NoisyEstimator, perturbed_scores, with_gradient
from polymax.regularizers.entropies import positive
from polymax.structures.base import Parts, tensors


@dataclass(frozen=True, eq=False)
class ImplicitMLE(NoisyEstimator):
    """A random structure; its gradient compares it with the structure after a step of the scores along -g.

        y = map(scores + gamma z_1),    vjp(g) = mean over i of (map(x_i) - map(x_i - step g)) / step,
        x_i = scores + gamma z_i,  i = 1, ..., samples

    For structures of k parts, use the noise SumOfGamma(k).

    Example:
        >>> x = torch.tensor([0.0, 20.0, -40.0], requires_grad=True)
        >>> y = ImplicitMLE(pm.Simplex(), samples=4)(x, generator=torch.Generator().manual_seed(0))
        >>> torch.autograd.grad(y @ torch.tensor([0.0, 40.0, 0.0]), x)  # without the second the first is the best
        (tensor([-1.,  1.,  0.]),)

    See: Niepert, Minervini and Franceschi 2021, Implicit MLE, algorithm 1.
    """

    step: float = 1.0
    samples: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.step, "step")
        _check.whole(self.samples, "samples")

    def __call__(self, *scores: Tensor, generator: torch.Generator | None = None) -> Parts:
        """The best structure of scores with the first draw of noise."""
        full = self.structure.full(*checked_scores(scores))
        draws, *others = perturbed_scores(self.structure, self.noise, self.gamma, full, generator, (self.samples,))
        y = self.structure.map(draws[0].detach(), *(x.detach() for x in others))
        return narrow(with_gradient(self, y, (draws, *others)), scores[0].dtype)

    def vjp(self, y: Parts, g: Parts, *scores: Tensor) -> Any:
        """The gradient in each of the draws (samples, ...), and in the other tensors."""
        many = self.structure.stack(self.samples, *tensors(y))
        moved = (x - self.step * d for x, d in zip(scores, tensors(g), strict=True))
        before = (t.unsqueeze(0) for t in tensors(y)) if self.samples == 1 else tensors(many.map(*scores))
        after = tensors(many.map(*moved))
        first, *others = ((b - a) / (self.step * self.samples) for b, a in zip(before, after, strict=True))
        return first, *(d.sum(0) for d in others)
