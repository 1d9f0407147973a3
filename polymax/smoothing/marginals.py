"""The Gibbs distribution over structures, the probabilities of their parts, and its log-partition function."""

from dataclasses import dataclass

from torch import Tensor

from polymax._parts import checked_scores, narrow
from polymax.distributions.gibbs import Gibbs
from polymax.hypergraphs.passes import SHANNON
from polymax.regularizers import Shannon
from polymax.regularizers.entropies import positive
from polymax.smoothing.base import Smoothing
from polymax.smoothing.temperature import restore_scale, scaled_scores
from polymax.structures.base import Counted, Parts, Sampled, Structure


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
            if not isinstance(self.structure, Structure):
                raise TypeError(f"structure must be a Structure; got {type(self.structure).__name__}")
            raise TypeError(f"{self.structure.why_uncounted()}; SparseMap needs map alone")
        positive(self.gamma, "gamma")

    def max(self, *scores: Tensor) -> Tensor:
        if not isinstance(self.gamma, Tensor) and self.gamma == 1:
            return self.structure.logsumexp(*scores)
        scaled = scaled_scores(self.structure, checked_scores(scores), self.gamma)
        return restore_scale(self.structure.logsumexp(*scaled), self.gamma).to(scores[0].dtype)

    def argmax(self, *scores: Tensor) -> Parts:
        if not isinstance(self.gamma, Tensor) and self.gamma == 1:
            return self.structure.marginals(*scores)
        scaled = scaled_scores(self.structure, self.structure.full(*checked_scores(scores)), self.gamma)
        return narrow(self.structure.marginals(*scaled), scores[0].dtype)

    def omega(self, mu: Parts) -> Tensor:
        return restore_scale(self.structure.omega(mu, Shannon()), self.gamma)

    def omega_at(self, index: Tensor, *scores: Tensor) -> float:
        """Return 0: the entropy of a structure is 0."""
        return 0.0

    def loss_at(self, index: Tensor, *scores: Tensor) -> Tensor | None:
        # scores divided by gamma have rounding errors, which differences of large scores would show
        scaled = isinstance(self.gamma, Tensor) or self.gamma != 1
        problem = None if scaled else self.structure.less(index, *scores)
        return None if problem is None else problem.value(SHANNON)

    def best_of(self, *scores: Tensor) -> Tensor:
        """gamma times the log of the sum over the structures that the scores allow."""
        return self.max(*scores)

    def distribution(self, *scores: Tensor) -> Gibbs:
        """The Gibbs distribution p(y) = exp(<scores, y> / gamma) / Z over whole structures."""
        if not isinstance(self.structure, Sampled):
            raise TypeError(f"{type(self.structure).__name__} cannot be sampled: it has no `gibbs`")
        return self.structure.gibbs(scaled_scores(self.structure, checked_scores(scores), self.gamma), scores[0].dtype)
