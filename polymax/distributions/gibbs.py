"""The Gibbs distribution over structures, p(y) = exp(<scores, y>) / Z."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import register_kl

from polymax._parts import Parts, narrow
from polymax.distributions.walk import Walk, refuse_large_support
from polymax.hypergraphs.passes import SHANNON
from polymax.kernels.hypergraph import hypergraph_inside, hypergraph_weights
from polymax.regularizers import Shannon


class Gibbs(Walk):
    """p(y) = exp(<scores, y>) / Z, the distribution of `Marginals`; it draws by a walk over derivations."""

    def __init__(self, structure: Any, scores: tuple[Tensor, ...], dtype: torch.dtype) -> None:
        super().__init__(structure, scores, Shannon(), dtype)

    @property
    def mean(self) -> Parts:
        return narrow(self._mean, self._dtype)

    @property
    def mode(self) -> Parts:
        return narrow(self.structure.map(*self._scores), self._dtype)

    @cached_property
    def log_partition(self) -> Tensor:
        """log Z, (*batch,)."""
        return self.structure.logsumexp(*self._scores)

    def log_prob(self, y: Parts) -> Tensor:
        # without a structure nothing has a probability
        dead = self.log_partition == -torch.inf
        found = self.structure.score(y, *self._scores) - torch.where(dead, 0, self.log_partition)
        return torch.where(dead, -torch.inf, found).to(self._dtype)

    def entropy(self) -> Tensor:
        found = self.cross_entropy(self)
        return torch.where(self.log_partition == -torch.inf, 0, found)

    def cross_entropy(self, other: Walk) -> Tensor:
        if not isinstance(other, Gibbs):
            return super().cross_entropy(other)
        return (other.log_partition - self.structure.score(self._mean, *other._scores)).to(self._dtype)

    @cached_property
    def _mean(self) -> Parts:
        return self.structure.marginals(*self.structure.full(*self._scores))

    @cached_property
    def _weights(self) -> Tensor:
        tree = self._tree
        tensors = (tree.scores.detach(), *tree.graph.arrays, tree.roots)
        _, chart = hypergraph_inside(*tensors, SHANNON)
        return hypergraph_weights(*tensors, chart, SHANNON)


class TreeGibbs(Gibbs):
    """p(y) = exp(<scores, y>) / Z over structures that are not derivations, by methods of the set.

    The set has the methods `sample`, `sample_distinct` and `kbest`, such as SpanningTree.
    """

    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Parts:
        return narrow(self.structure.sample(self._scores, sample_shape, generator), self._dtype)

    def sample_distinct(self, k: int, generator: torch.Generator | None = None) -> tuple[Parts, Tensor]:
        return self._distinct(*self.structure.sample_distinct(self._scores, k, generator))

    def topk(self, k: int) -> tuple[Parts, Tensor]:
        best, values = self.structure.kbest(self._scores, k)
        return self._distinct(best, values > -torch.inf)

    def support(self) -> tuple[Parts, Tensor]:  # type: ignore[override]
        possible = tuple(torch.where(x > -torch.inf, 0, x).detach().double() for x in self._scores)
        count = self.structure.logsumexp(*possible).exp().round()
        return self.topk(refuse_large_support(count))


@register_kl(Gibbs, Gibbs)
def _kl_of_gibbs(p: Gibbs, q: Gibbs) -> Tensor:
    # the difference of scores first: log Z may be large
    differences = tuple(
        torch.where(a == b, 0, a - b)
        for a, b in zip(p.structure.full(*p._scores), q.structure.full(*q._scores), strict=True)
    )
    return (p.structure.score(p._mean, *differences) - p.log_partition + q.log_partition).to(p._dtype)
