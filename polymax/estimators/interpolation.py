"""Blackbox differentiation: a second call of MAP, at scores moved by the gradient."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from polymax.estimators.base import Estimator, combine_parts
from polymax.regularizers.entropies import positive
from polymax.structures.base import Parts, tensors


@dataclass(frozen=True, eq=False)
class Interpolation(Estimator):
    """The best structure y, with the exact gradient of a continuous interpolation of the linearized loss.

        vjp(g) = (y - map(scores - step g)) / step

    It is the gradient of (max(scores) - max(scores - step g)) / step, and follows from the paper, which minimizes
    costs, with scores = -costs: for costs w the gradient is -(y - y')/step with y' the solution for w + step g.
    A larger step gives a smoother interpolation, and a less faithful one.

    Example:
        >>> x = torch.tensor([0.0, 2.0, 1.0], requires_grad=True)
        >>> y = Interpolation(pm.Simplex(), step=2.0)(x)
        >>> torch.autograd.grad(y @ torch.tensor([0.0, 1.0, 0.0]), x)  # without the second the third is the best
        (tensor([ 0.0000,  0.5000, -0.5000]),)

    See: Vlastelica et al. 2020, Differentiation of blackbox combinatorial solvers, algorithm 1.
    """

    step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self.step, "step")

    def vjp(self, y: Parts, g: Parts, *scores: Tensor) -> Any:
        moved = (x - self.step * d for x, d in zip(scores, tensors(g), strict=True))
        return combine_parts(lambda z, m: (z - m) / self.step, y, self.structure.map(*moved))
