"""Differentiable dynamic programs: every maximum of a recursion is smoothed by a regularizer."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polymax._function import functional
from polymax.distributions.walk import Walk
from polymax.hypergraphs.entropy import local_omega
from polymax.hypergraphs.level_passes import LevelPasses
from polymax.hypergraphs.levels import levels_of
from polymax.hypergraphs.passes import expectation, value
from polymax.regularizers import Gini, Regularizer, Shannon, Tsallis, Zero
from polymax.regularizers.entropies import positive
from polymax.smoothing.base import Smoothing
from polymax.smoothing.temperature import cooled, warmed
from polymax.structures.base import Parts
from polymax.structures.dynamic import HARD, SHANNON, DynamicProgram, checked, narrow


@dataclass(frozen=True, eq=False)
class LocalMax(Smoothing):
    """Every maximum in the recursion smoothed by a regularizer: differentiable dynamic programming.

        v_h = max_Omega over hyperedges e of (score_e + sum of v over its tails)

    Shannon gives Marginals. Gini and Tsallis give sparse expectations: parts that matter little get exactly 0.

    Example:
        >>> LocalMax(pm.Chain(), Gini())(torch.tensor([[0.2, 0.0, -1.0]]), torch.zeros(3, 3)).unary
        tensor([[0.6000, 0.4000, 0.0000]])

    See: Mensch and Blondel 2018, Differentiable dynamic programming for structured prediction and attention.
    """

    structure: DynamicProgram
    regularizer: Regularizer
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.structure, DynamicProgram):
            raise TypeError(f"{type(self.structure).__name__} is no dynamic program, so it has no maxima to smooth")
        if not isinstance(self.regularizer, Regularizer):
            raise TypeError(f"regularizer must be a Regularizer; got {type(self.regularizer).__name__}")
        positive(self.gamma, "gamma")

    def max(self, *scores: Tensor) -> Tensor:
        cold = cooled(self.structure, checked(scores), self._temperature)
        alpha = self._alpha
        if alpha is not None:
            cold_value = self.structure.problem(*cold).value(alpha)
        else:
            cold_value = self._general_value(cold)
        return warmed(cold_value, self._temperature).to(scores[0].dtype)

    def argmax(self, *scores: Tensor) -> Parts:
        full = self.structure.full(*checked(scores))
        cold = cooled(self.structure, full, self._temperature)
        alpha = self._alpha
        if alpha is not None:
            mu = self.structure.problem(*cold).expectation(alpha)
        else:
            mu = self._general_expectation(cold)
        return narrow(mu, scores[0].dtype)

    def omega_at(self, index: Tensor, *scores: Tensor) -> float:
        if not self.regularizer.zero_at_vertices:
            name = type(self.regularizer).__name__
            raise ValueError(f"the Omega of LocalMax has no closed form with {name}, which is not 0 at vertices")
        return 0.0

    def omega(self, mu: Parts) -> Tensor:
        """Known where expected parts determine the choices of the recursion, and at structures, where it is 0."""
        return warmed(local_omega(self.structure, mu, self.regularizer), self.gamma)

    def best_of(self, *scores: Tensor) -> Tensor:
        """All that are allowed count, as the recursion smooths them."""
        return self.max(*scores)

    def distribution(self, *scores: Tensor) -> Walk:
        """The random walk from the root: at each node a hyperedge, drawn by its weight."""
        cold = cooled(self.structure, checked(scores), self._temperature)
        return Walk(self.structure, cold, self._unit, scores[0].dtype)

    @property
    def _temperature(self) -> float | Tensor:
        """What divides the scores: the kernels know no gamma."""
        return self.gamma if self._alpha is None else self.gamma * self.regularizer.gamma

    @property
    def _unit(self) -> Regularizer:
        """The regularizer of the scores so divided."""
        if self._alpha in (None, HARD):
            return self.regularizer
        return replace(self.regularizer, gamma=1.0)  # type: ignore[type-var]

    @property
    def _learned(self) -> bool:
        """Whether the regularizer itself wants gradients, or may want them."""
        tensors = self.regularizer._tensors().values()
        return self.regularizer.closes_over_tensors or any(functional() or t.requires_grad for t in tensors)

    @property
    def _alpha(self) -> float | None:
        """The regularizer as the kernels know it, if they do."""
        match self.regularizer:
            case Zero():
                return HARD
            case Shannon():
                return SHANNON
            case Gini():
                return 2.0
            case Tsallis(alpha=float() | int() as alpha) if alpha >= 1:
                return float(alpha)
        return None

    def _general_value(self, scores: tuple[Tensor, ...]) -> Tensor:
        tree = self.structure.derivations(*scores)
        passes = LevelPasses(levels_of(tree.graph), self._unit)
        # deep recursions lose digits in float32
        inputs = (tree.scores.double(), tree.roots)
        found = passes.tape(inputs) if self._learned else value(passes, inputs)
        return found.to(tree.scores.dtype).reshape(tree.batch)

    def _general_expectation(self, scores: tuple[Tensor, ...]) -> Parts:
        tree = self.structure.derivations(*scores)
        passes = LevelPasses(levels_of(tree.graph), self._unit)
        inputs = (tree.scores.double(), tree.roots)
        if self._learned:

            def total(x: Tensor) -> Tensor:
                value = passes.tape((x, tree.roots))
                return torch.where(value == -math.inf, 0, value).sum()

            mu = torch.func.grad(total)(inputs[0])
        else:
            (mu,) = expectation(passes, inputs)
        return tree.shaped(mu.to(tree.scores.dtype))
