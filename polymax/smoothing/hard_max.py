"""The maximum without smoothing: the best structure and its score."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from polymax._parts import checked_scores
from polymax.hypergraphs.passes import HARD
from polymax.smoothing.base import Smoothing
from polymax.structures.base import Parts, Structure, tensors


@dataclass(frozen=True, eq=False)
class HardMax(Smoothing):
    """The maximum without smoothing: the best structure and its score.

        Omega = 0

    Example:
        >>> HardMax(pm.Chain()).max(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 2))
        tensor(3.)
    """

    structure: Structure

    def max(self, *scores: Tensor) -> Tensor:
        return self.structure.best_score(*scores)

    def argmax(self, *scores: Tensor) -> Parts:
        return self.structure.map(*scores)

    def solve(self, *scores: Tensor) -> Any:
        """The best point of a factor graph's linear relaxation; if it is integral, it is the best structure."""
        found = self.structure.linear_relaxation(*checked_scores(scores))
        if found is None:
            name = type(self.structure).__name__
            raise TypeError(f"solve reports on a relaxation, and {name} has none: argmax is its best structure")
        return found

    def omega(self, mu: Parts) -> Tensor:
        first, dims = tensors(mu)[0], self.structure.event_dims(*tensors(mu))[0]
        return first.new_zeros(first.shape[: first.dim() - dims])

    def omega_at(self, index: Tensor, *scores: Tensor) -> float:
        """Return 0: HardMax does not smooth."""
        return 0.0

    def loss_at(self, index: Tensor, *scores: Tensor) -> Tensor | None:
        problem = self.structure.less(index, *scores)
        return None if problem is None else problem.value(HARD)

    def best_of(self, *scores: Tensor) -> Tensor:
        """The score of the best structure that the scores allow."""
        return self.structure.best_score(*scores)
