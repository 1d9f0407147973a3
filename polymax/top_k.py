"""Sparsemax over the k best structures, and distributions that list their structures."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from polymax.distinct import from_list, picked
from polymax.kernels.hypergraph import hypergraph_kbest
from polymax.regularizers import Gini
from polymax.regularizers.entropies import positive
from polymax.smoothing import HardMax, Smoothing
from polymax.structures.base import Parts, tensors
from polymax.structures.dynamic import DynamicProgram, checked, narrow
from polymax.structures.entropy import UnknownOmega
from polymax.structures.spanning_tree import SpanningTree
from polymax.structures.temperature import cooled, warmed


@dataclass(frozen=True, eq=False)
class TopKSparsemax(Smoothing):
    """Sparsemax over whole structures, of which the k best compete.

        argmax over p in the simplex of Y, at most k of them not 0, of  sum_y p_y <scores, y> - gamma / 2 (sum p^2 - 1)

    Where fewer than k have weight, it is the sparsemax over all structures. SparseMap, in contrast, penalises the mean
    of the structures and not their weights.

    Example:
        >>> TopKSparsemax(pm.Subset(2), k=4).distribution(torch.tensor([1.0, 0.2, 0.1, -3.0])).probs
        tensor([0.5500, 0.4500, 0.0000, 0.0000])

    See: Correia et al. 2020, Efficient marginalization of discrete and structured latent variables via sparsity.
    """

    structure: Any
    k: int
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.structure, DynamicProgram | SpanningTree):
            raise TypeError(f"{type(self.structure).__name__} does not know its k best structures")
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ValueError(f"k must be a positive integer; got {self.k!r}")
        positive(self.gamma, "gamma")

    def max(self, *scores: Tensor) -> Tensor:
        _, values = self._best(scores)
        return warmed(Gini().max(values), self.gamma).to(scores[0].dtype)

    def argmax(self, *scores: Tensor) -> Parts:
        return self.distribution(*scores).mean

    def omega(self, mu: Parts) -> Tensor:
        """Known at structures, where it is 0; in between it has no closed form."""
        if not self.structure.whole(mu):
            raise UnknownOmega("the Omega of TopKSparsemax has no closed form away from structures")
        return HardMax(self.structure).omega(mu)

    def distribution(self, *scores: Tensor) -> "Listed":
        """The k best structures and their weights."""
        y, values = self._best(scores)
        return Listed(self.structure, y, Gini().argmax(values), scores[0].dtype)

    def _best(self, scores: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The k best structures, by first tensors (*batch, k, ...), and their scores over gamma (*batch, k).

        Where there are fewer, zeros of score -inf follow.
        """
        cold = cooled(self.structure, checked(scores), self.gamma)
        with torch.no_grad():
            y, known = self._listed(cold)
        return y, torch.where(known, self.structure.rescore(y, *(x.double() for x in cold)), -torch.inf)

    def _listed(self, scores: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        if isinstance(self.structure, SpanningTree):
            trees, values = self.structure.kbest(scores, self.k)
            return trees.double(), values > -torch.inf
        tree = self.structure.derivations(*scores)
        padded = torch.nn.functional.pad(tree.scores.double(), (0, 1))
        each = padded[:, torch.where(tree.graph.part < 0, tree.graph.parts, tree.graph.part)]
        values, y = hypergraph_kbest(each, *tree.graph.arrays, tree.roots, self.k, tree.graph.parts)
        first = tensors(tree.shaped(y.movedim(1, 0).to(tree.scores.dtype)))[0].double()
        return first.movedim(0, len(tree.batch)), values.reshape(*tree.batch, self.k) > -torch.inf


class Listed(Distribution):
    """Structures, given by first tensors (*batch, k, ...), and their probabilities (*batch, k), best first."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(self, structure: Any, first: Tensor, probs: Tensor, dtype: torch.dtype) -> None:
        self.structure = structure
        self._first = first
        self._probs = probs
        self._dtype = dtype
        super().__init__(probs.shape[:-1], validate_args=False)

    @property
    def probs(self) -> Tensor:
        """(*batch, k), best first, 0 after the last."""
        return self._probs.to(self._dtype)

    @property
    def vertices(self) -> Parts:
        """The structures, (*batch, k, ...)."""
        return narrow(self.structure.complete(self._first), self._dtype)

    @property
    def support_size(self) -> Tensor:
        """How many structures have weight, (*batch,)."""
        return (self._probs > 0).sum(-1)

    @property
    def mean(self) -> Parts:
        """The expected structure."""
        return narrow(self.structure.mean(self._first, self._probs), self._dtype)

    @property
    def mode(self) -> Parts:
        """The most probable structure."""
        return narrow(self.structure.complete(self._first.select(len(self.batch_shape), 0)), self._dtype)

    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Parts:
        """Independent draws, (*sample_shape, *batch, ...)."""
        shape, p = torch.Size(sample_shape), self._probs.detach()
        some = (p > 0).any(-1, keepdim=True)
        # torch draws from no row without a weight, or with NaN
        rows = torch.where(some, torch.where(p > 0, p, 0), 1).reshape(self.batch_shape.numel(), p.shape[-1])
        drawn = torch.multinomial(rows, shape.numel(), replacement=True, generator=generator)
        flat = self._first.reshape(len(rows), p.shape[-1], *self._first.shape[p.dim() :])
        first = flat[torch.arange(len(rows), device=p.device), drawn.T]
        return narrow(self.structure.complete(first.reshape(*shape, *self.batch_shape, *first.shape[2:])), self._dtype)

    def sample_distinct(self, k: int, generator: torch.Generator | None = None) -> tuple[Parts, Tensor]:
        """k structures that differ (*batch, k, ...), drawn without replacement, and probabilities; see `Walk`."""
        return picked(self.vertices, self.probs, from_list(self._probs, k, generator))

    def log_prob(self, y: Parts) -> Tensor:
        """log p(y), (*lead, *batch); -inf for what is not listed, or has no weight."""
        first = tensors(y)[0]
        dims = self._first.dim() - self._probs.dim()
        same = (first.unsqueeze(-1 - dims).double() == self._first).flatten(-dims).all(-1) & (self._probs > 0)
        p = torch.where(same, self._probs, 0).sum(-1)
        return torch.where(p > 0, torch.log(torch.where(p > 0, p, 1)), -torch.inf).to(self._dtype)

    def prob(self, y: Parts) -> Tensor:
        """p(y)."""
        return self.log_prob(y).exp()

    def entropy(self) -> Tensor:
        """- sum p log p, (*batch,)."""
        return -torch.special.xlogy(self._probs, torch.where(self._probs > 0, self._probs, 1)).sum(-1).to(self._dtype)

    def support(self) -> tuple[Parts, Tensor]:  # type: ignore[override]
        """The structures and their probabilities; those of probability 0 come last."""
        return self.vertices, self.probs
