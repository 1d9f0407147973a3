"""Sparsemax over the k best structures, and distributions that list their structures."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from polymax.distinct import from_list, picked
from polymax.hypergraphs.entropy import UnknownOmega
from polymax.kernels.hypergraph import hypergraph_kbest
from polymax.regularizers import Gini
from polymax.regularizers.entropies import positive
from polymax.smoothing.base import Smoothing
from polymax.smoothing.hard_max import HardMax
from polymax.smoothing.temperature import cooled, warmed
from polymax.solvers.undefined import instances, nan_of, undefined_parts, with_nan
from polymax.structures.base import Parts, tensors
from polymax.structures.dynamic import DynamicProgram, checked, narrow
from polymax.structures.spanning_tree import SpanningTree


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
        _, values, _ = self._best(scores)
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
        y, values, undefined = self._best(scores)
        return Listed(self.structure, y, Gini().argmax(values), scores[0].dtype, undefined)

    def _best(self, scores: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, tuple[Tensor, ...] | None]:
        """The k best structures, by first tensors (*batch, k, ...), and their scores over gamma (*batch, k).

        Where there are fewer, zeros of score -inf follow. The parts of instances with NaN among their scores are the
        third; there, structures are zeros and scores NaN.
        """
        cold = cooled(self.structure, checked(scores), self.gamma)
        with torch.no_grad():
            y, known = self._listed(cold)
            undefined = undefined_parts(self.structure, cold)
        values = torch.where(known, self.structure.rescore(y, *(x.double() for x in cold)), -torch.inf)
        if undefined is not None:
            bad = instances(self.structure, undefined).unsqueeze(-1)
            y = torch.where(bad.reshape(*bad.shape, *[1] * (y.dim() - bad.dim())), 0, y)
            values = torch.where(bad, nan_of(self.structure, cold, undefined).unsqueeze(-1), values)
        return y, values, undefined

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
    """Structures, given by first tensors (*batch, k, ...), and their probabilities (*batch, k), best first.

    `undefined` are the parts of instances that have NaN among their scores: so are their structures and probabilities.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(
        self,
        structure: Any,
        first: Tensor,
        probs: Tensor,
        dtype: torch.dtype,
        undefined: tuple[Tensor, ...] | None = None,
    ) -> None:
        self.structure = structure
        self._undefined = undefined
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
        return self._spelt(self._first, len(self.batch_shape))

    @property
    def support_size(self) -> Tensor:
        """How many structures have weight, (*batch,)."""
        return (self._probs > 0).sum(-1)

    @property
    def mean(self) -> Parts:
        """The expected structure."""
        probs = torch.where(torch.isnan(self._probs), 0, self._probs)
        mu = with_nan(tensors(self.structure.mean(self._first, probs)), self._undefined)
        return narrow(self.structure.named(*mu), self._dtype)

    @property
    def mode(self) -> Parts:
        """The most probable structure."""
        return self._spelt(self._first.select(len(self.batch_shape), 0))

    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Parts:
        """Independent draws, (*sample_shape, *batch, ...)."""
        shape, p = torch.Size(sample_shape), self._probs.detach()
        some = (p > 0).any(-1, keepdim=True)
        # torch draws from no row without a weight, or with NaN
        rows = torch.where(some, torch.where(p > 0, p, 0), 1).reshape(self.batch_shape.numel(), p.shape[-1])
        drawn = torch.multinomial(rows, shape.numel(), replacement=True, generator=generator)
        flat = self._first.reshape(len(rows), p.shape[-1], *self._first.shape[p.dim() :])
        first = flat[torch.arange(len(rows), device=p.device), drawn.T]
        return self._spelt(first.reshape(*shape, *self.batch_shape, *first.shape[2:]))

    def sample_distinct(self, k: int, generator: torch.Generator | None = None) -> tuple[Parts, Tensor]:
        """k structures that differ (*batch, k, ...), drawn without replacement, and probabilities; see `Walk`."""
        return picked(self.vertices, self.probs, from_list(self._probs, k, generator))

    def log_prob(self, y: Parts) -> Tensor:
        """log p(y), (*lead, *batch); -inf for what is not listed, or has no weight."""
        first = tensors(y)[0]
        dims = self._first.dim() - self._probs.dim()
        same = (first.unsqueeze(-1 - dims).double() == self._first).flatten(-dims).all(-1) & (self._probs > 0)
        p = torch.where(same, self._probs, 0).sum(-1)
        found = torch.where(p > 0, torch.log(torch.where(p > 0, p, 1)), -torch.inf)
        return torch.where(torch.isnan(self._probs).any(-1), torch.nan, found).to(self._dtype)

    def prob(self, y: Parts) -> Tensor:
        """p(y)."""
        return self.log_prob(y).exp()

    def entropy(self) -> Tensor:
        """- sum p log p, (*batch,)."""
        return -torch.special.xlogy(self._probs, torch.where(self._probs > 0, self._probs, 1)).sum(-1).to(self._dtype)

    def support(self) -> tuple[Parts, Tensor]:  # type: ignore[override]
        """The structures and their probabilities; those of probability 0 come last."""
        return self.vertices, self.probs

    def topk(self, k: int) -> tuple[Parts, Tensor]:
        """The k most probable structures (*batch, k, ...) and their probabilities; zeros where there are fewer."""
        return first_of(self.vertices, self.probs, k)

    def _spelt(self, first: Tensor, dim: int | None = None) -> Parts:
        """Structures from their first tensors, listed along `dim` of each instance where it is given."""
        whole = tensors(self.structure.complete(first))
        masks = self._undefined
        if masks is not None and dim is not None:
            masks = tuple(m.unsqueeze(dim) for m in masks)
        return narrow(self.structure.named(*with_nan(whole, masks)), self._dtype)


def first_of(vertices: Parts, probs: Tensor, k: int) -> tuple[Parts, Tensor]:
    """The first k of structures (*batch, size, ...) and of their probabilities (*batch, size), or zeros after them."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k must be a positive integer; got {k!r}")
    dim = probs.dim() - 1

    def fit(t: Tensor) -> Tensor:
        t = t.narrow(dim, 0, min(k, t.shape[dim]))
        missing = list(t.shape)
        missing[dim] = k - t.shape[dim]
        return torch.cat([t, t.new_zeros(missing)], dim)

    return (fit(vertices) if isinstance(vertices, Tensor) else type(vertices)(*map(fit, vertices))), fit(probs)
