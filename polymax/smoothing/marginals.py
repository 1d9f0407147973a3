"""The Gibbs distribution over structures, the probabilities of their parts, and its log-partition function."""

from dataclasses import dataclass

from torch import Tensor

from polymax.distributions.walk import Gibbs, TreeGibbs
from polymax.hypergraphs.entropy import local_omega
from polymax.regularizers import Shannon
from polymax.regularizers.entropies import positive
from polymax.smoothing.base import Smoothing
from polymax.smoothing.temperature import cooled, warmed
from polymax.structures.assignment import Assignment
from polymax.structures.base import Counted, Parts
from polymax.structures.dynamic import DynamicProgram, checked, narrow
from polymax.structures.spanning_tree import SpanningTree


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
