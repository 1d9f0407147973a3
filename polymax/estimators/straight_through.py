"""Straight-through estimators: MAP forward, and backward the gradient of the identity or of a smoothing."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax.backend.function import functional
from polymax.estimators.base import Estimator
from polymax.regularizers import Regularizer
from polymax.smoothing import LocalMax, Smoothing
from polymax.structures import Simplex
from polymax.structures.base import Parts, tensors


@dataclass(frozen=True, eq=False)
class StraightThrough(Estimator):
    """The best structure, with the gradient of the identity, or of a smoothing.

        vjp(g) = g,    or  J^T g,  J the Jacobian of through.argmax at the scores

    Given a smoothing instead of a structure, it takes the smoothing's structure, through the smoothing; given a
    regularizer, it takes the simplex, through the regularizer's mapping.

    Example:
        >>> x = torch.tensor([0.0, 2.0, 1.0], requires_grad=True)
        >>> y = StraightThrough(pm.Simplex(), through=pm.Marginals(pm.Simplex()))(x)
        >>> y.detach(), torch.autograd.grad(y[0], x)[0]
        (tensor([0., 1., 0.]), tensor([ 0.0819, -0.0599, -0.0220]))

    See: Bengio, Leonard and Courville 2013, Estimating or propagating gradients through stochastic neurons.
    """

    through: Smoothing | None = None

    def __post_init__(self) -> None:
        given: Any = self.structure
        if isinstance(given, Regularizer):
            given = LocalMax(Simplex(), given)
        if isinstance(given, Smoothing):
            if self.through is not None:
                raise TypeError(f"through must be None if structure is a {type(self.structure).__name__}; got both")
            object.__setattr__(self, "structure", given.structure)
            object.__setattr__(self, "through", given)
        super().__post_init__()
        checked_through(self.through)

    def vjp(self, y: Parts, g: Parts, *scores: Tensor) -> Any:
        return g if self.through is None else vector_jacobian(self.through, g, scores)


def checked_through(through: Smoothing | None) -> None:
    """Refuse an argument that is neither a smoothing nor None, which stands for the identity."""
    if through is not None and not isinstance(through, Smoothing):
        raise TypeError(f"through must be a smoothing, such as Marginals(structure); got {type(through).__name__}")


def vector_jacobian(smooth: Smoothing, g: Parts, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """J^T g, where J is the Jacobian of smooth.argmax at the scores."""
    if functional():
        return torch.func.vjp(lambda *x: tensors(smooth.argmax(*x)), *scores)[1](tensors(g))
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = tuple(x if x.requires_grad else x.detach().requires_grad_() for x in scores)
        mu = tensors(smooth.argmax(*inputs))
        return torch.autograd.grad(mu, inputs, tensors(g), create_graph=keep, materialize_grads=True)
