"""Differentiable dynamic programs: every maximum of a recursion is smoothed by a regularizer."""

from dataclasses import dataclass, replace

from torch import Tensor

from polymax._parts import checked_scores, narrow
from polymax.distributions.walk import Walk
from polymax.hypergraphs.passes import HARD
from polymax.hypergraphs.smoothed import kernel_alpha, smoothed_expectation, smoothed_value
from polymax.regularizers import Regularizer
from polymax.regularizers.entropies import positive
from polymax.smoothing.base import Smoothing
from polymax.smoothing.temperature import restore_scale, scaled_scores
from polymax.structures.base import Parts
from polymax.structures.dynamic import DynamicProgram


@dataclass(frozen=True, eq=False)
class LocalMax(Smoothing):
    """Differentiable dynamic programming: a regularizer smooths every maximum in the recursion.

        v_h = max_Omega over hyperedges e of (score_e + sum of v over its tails)

    Shannon gives Marginals. Gini and Tsallis give sparse expectations: parts that matter little get exactly 0.

    Example:
        >>> LocalMax(pm.Chain(), pm.Gini())(torch.tensor([[0.2, 0.0, -1.0]]), torch.zeros(3, 3)).unary
        tensor([[0.6000, 0.4000, 0.0000]])

    See: Mensch and Blondel 2018, Differentiable dynamic programming for structured prediction and attention.
    """

    structure: DynamicProgram
    regularizer: Regularizer
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.structure, DynamicProgram):
            raise TypeError(
                f"{type(self.structure).__name__} is not a dynamic program, so that it has no maxima to smooth"
            )
        if not isinstance(self.regularizer, Regularizer):
            raise TypeError(f"regularizer must be a Regularizer; got {type(self.regularizer).__name__}")
        positive(self.gamma, "gamma")

    def max(self, *scores: Tensor) -> Tensor:
        gamma, unit = self._gamma_and_regularizer
        scaled = scaled_scores(self.structure, checked_scores(scores), gamma)
        return restore_scale(smoothed_value(self.structure, unit, scaled), gamma).to(scores[0].dtype)

    def argmax(self, *scores: Tensor) -> Parts:
        gamma, unit = self._gamma_and_regularizer
        scaled = scaled_scores(self.structure, self.structure.full(*checked_scores(scores)), gamma)
        return narrow(smoothed_expectation(self.structure, unit, scaled), scores[0].dtype)

    def omega_at(self, index: Tensor, *scores: Tensor) -> float:
        if not self.regularizer.zero_at_vertices:
            name = type(self.regularizer).__name__
            raise ValueError(f"the Omega of LocalMax has no closed form with {name}, which is not 0 at vertices")
        return 0.0

    def loss_at(self, index: Tensor, *scores: Tensor) -> Tensor | None:
        gamma, unit = self._gamma_and_regularizer
        alpha = kernel_alpha(unit)
        # scores divided by gamma have rounding errors, which differences of large scores would show
        scaled = isinstance(gamma, Tensor) or gamma != 1
        problem = None if alpha is None or scaled else self.structure.less(index, *scores)
        return None if problem is None else problem.value(alpha)

    def omega(self, mu: Parts) -> Tensor:
        """Omega(mu), (*batch,), known if mu is a structure (then 0), or if mu determines the recursion's choices."""
        return restore_scale(self.structure.omega(mu, self.regularizer), self.gamma)

    def best_of(self, *scores: Tensor) -> Tensor:
        """The smoothed maximum over the structures that the scores allow."""
        return self.max(*scores)

    def distribution(self, *scores: Tensor) -> Walk:
        """The random walk from the root: at each node a hyperedge, drawn by its weight."""
        gamma, unit = self._gamma_and_regularizer
        return Walk(self.structure, scaled_scores(self.structure, checked_scores(scores), gamma), unit, scores[0].dtype)

    @property
    def _gamma_and_regularizer(self) -> tuple[float | Tensor, Regularizer]:
        """The gamma by which scores are divided, and the regularizer without its gamma, which kernels do not take."""
        alpha = kernel_alpha(self.regularizer)
        if alpha is None or alpha == HARD:
            return self.gamma, self.regularizer
        return self.gamma * self.regularizer.gamma, replace(self.regularizer, gamma=1.0)  # type: ignore[type-var]
