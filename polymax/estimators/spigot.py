"""SPIGOT: the gradient of a loss on structures, kept from leaving their hull."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax.estimators.base import Estimator, combine_parts
from polymax.regularizers.entropies import positive
from polymax.smoothing.sparse_map import SparseMap
from polymax.structures.base import Parts, tensors


@dataclass(frozen=True, eq=False)
class Spigot(Estimator):
    """The best structure; its gradient is the step of projected gradient descent from it.

        vjp(g) = (y - p) / step,    p = the projection of y - step g onto the hull of the structures that -inf allows

    If y - step g is in the hull, this is the straight-through gradient. For chains and segmentations distances are
    those of the first tensor, which SparseMap penalises, and p is the minimizer of step <g, p> + 1/2 |p - y|^2.

    Example:
        >>> x = torch.tensor([0.0, 2.0, 1.0], requires_grad=True)
        >>> y = Spigot(pm.Simplex())(x)
        >>> torch.autograd.grad(y @ torch.tensor([-0.25, 0.25, 3.0]), x)  # nothing to take from the third
        (tensor([-0.2500,  0.2500,  0.0000]),)

    See: Peng, Thomson and Smith 2018, Backpropagating through structured argmax using a SPIGOT.
    """

    step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.step, "step")

    def vjp(self, y: Parts, g: Parts, *scores: Tensor) -> Any:
        first, *others = (-self.step * d for d in tensors(g))
        aims = (tensors(y)[0] + first, *others)
        allowed = (torch.where(x == -torch.inf, x, aim) for x, aim in zip(scores, aims, strict=True))
        return combine_parts(lambda z, p: (z - p) / self.step, y, SparseMap(self.structure)(*allowed))
