"""Smoothed maxima over a set of structures: a set, plus a smoothing.

    max(scores) = max over mu in conv(Y) of <scores, mu> - Omega(mu)        argmax(scores) = its maximizer mu

The gradient of max is argmax.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from polymax._function import functional
from polymax.distribution import Gibbs, TreeGibbs, Walk
from polymax.kernels.levels import levels_of
from polymax.regularizers import Gini, Regularizer, Shannon, Tsallis, Zero
from polymax.regularizers.entropies import positive
from polymax.structures.assignment import Assignment
from polymax.structures.base import Counted, Parts, Structure, tensors
from polymax.structures.dynamic import HARD, SHANNON, DynamicProgram, checked, narrow
from polymax.structures.entropy import local_omega
from polymax.structures.level_passes import LevelPasses
from polymax.structures.passes import expectation, value
from polymax.structures.spanning_tree import SpanningTree
from polymax.structures.temperature import cooled, warmed


class Smoothing(ABC):
    """A set and a smoothing; those with an Omega have a temperature `gamma`, which multiplies it."""

    structure: Structure

    @abstractmethod
    def max(self, *scores: Tensor) -> Tensor:
        """The smoothed maximum, (*batch,); its gradient is argmax."""

    @abstractmethod
    def argmax(self, *scores: Tensor) -> Parts:
        """The maximizer mu, shaped like the structures."""

    def __call__(self, *scores: Tensor) -> Parts:
        return self.argmax(*scores)

    @abstractmethod
    def omega(self, mu: Parts) -> Tensor:
        """Omega(mu), (*batch,)."""

    def omega_at(self, index: Tensor, *scores: Tensor) -> Tensor | float:
        """Omega of structures in compact form, (*batch,), up to a constant that all structures share."""
        return 0.0

    def best_of(self, *scores: Tensor) -> Tensor:
        """The score, less Omega, of a target known in part: `scores` are -inf where it forbids parts; by MAP here."""
        return self.structure.best_score(*scores)

    def with_lengths(self, lengths: Any) -> Self:
        """A copy for a batch of these lengths."""
        return replace(self, structure=self.structure.with_lengths(lengths))  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class HardMax(Smoothing):
    """No smoothing: the best structure and its score.

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
        """For a factor graph, whose maximum is a linear relaxation: the point, and if it is integral and so exact."""
        found = self.structure.relaxed(*checked(scores))
        if found is None:
            name = type(self.structure).__name__
            raise TypeError(f"solve reports on a relaxation, and {name} has none: HardMax(...)(...) is its best structure")
        return found

    def omega(self, mu: Parts) -> Tensor:
        first, dims = tensors(mu)[0], self.structure.event_dims(*tensors(mu))[0]
        return first.new_zeros(first.shape[: first.dim() - dims])


@dataclass(frozen=True, eq=False)
class Marginals(Smoothing):
    """The probabilities of parts under the Gibbs distribution over structures, p(y) = exp(<scores, y> / gamma) / Z.

        Omega(mu) = - gamma H(mu), the largest entropy of a distribution over Y whose mean is mu

    Example:
        >>> Marginals(pm.Chain()).max(torch.zeros(3, 2), torch.zeros(2, 2))
        tensor(2.0794)
    """

    structure: Counted
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Counted):
            name = type(self.structure).__name__
            why = ": the sum over assignments is #P-complete" if isinstance(self.structure, Assignment) else ""
            raise TypeError(f"{name} has no logsumexp, so Marginals are out of reach{why}; SparseMap needs map alone")
        positive(self.gamma, "gamma")

    def max(self, *scores: Tensor) -> Tensor:
        cold = cooled(self.structure, checked(scores), self.gamma)
        return warmed(self.structure.logsumexp(*cold), self.gamma).to(scores[0].dtype)

    def argmax(self, *scores: Tensor) -> Parts:
        cold = cooled(self.structure, self.structure.full(*checked(scores)), self.gamma)
        return narrow(self.structure.marginals(*cold), scores[0].dtype)

    def omega(self, mu: Parts) -> Tensor:
        return warmed(local_omega(self.structure, mu, Shannon()), self.gamma)

    def best_of(self, *scores: Tensor) -> Tensor:
        """All that are allowed count, by their probabilities."""
        return self.max(*scores)

    def distribution(self, *scores: Tensor) -> Gibbs:
        """p(y) = exp(<scores, y> / gamma) / Z."""
        cold = cooled(self.structure, checked(scores), self.gamma)
        if isinstance(self.structure, SpanningTree):
            return TreeGibbs(self.structure, cold, scores[0].dtype)
        if not isinstance(self.structure, DynamicProgram):
            raise TypeError(f"{type(self.structure).__name__} cannot be sampled: it is no dynamic program")
        return Gibbs(self.structure, cold, scores[0].dtype)


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
