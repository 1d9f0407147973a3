"""SparseMAP: the point of the polytope nearest to the scores, as a mean of few structures."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from polymax._function import constant, functional, untransformed
from polymax.distinct import from_list, picked
from polymax.regularizers.entropies import positive
from polymax.smoothing.base import Smoothing
from polymax.smoothing.temperature import cooled, warmed
from polymax.smoothing.top_k import first_of
from polymax.solvers import ActiveSet, Solution, Solver
from polymax.solvers.mixture import best_value, weights_and_mean
from polymax.solvers.rules import UsedParts
from polymax.solvers.traced import traced
from polymax.solvers.undefined import with_nan
from polymax.structures.base import Parts, Structure, tensors
from polymax.structures.dynamic import checked, narrow


def _active_set() -> Solver:
    """The default, made by a function: torch.compile traces neither an object nor a class as a default."""
    return ActiveSet()


@dataclass(frozen=True, eq=False)
class SparseMap(Smoothing):
    """The projection of scores / gamma onto the hull of the structures, computed from MAP calls alone.

        Omega(mu) = gamma / 2 ||mu||^2, for chains and segmentations of the first tensor only

    Example:
        >>> SparseMap(pm.Simplex())(torch.tensor([0.2, 0.0, -1.0]))
        tensor([0.6000, 0.4000, 0.0000])

    See: Niculae, Martins, Blondel and Cardie 2018, SparseMAP: differentiable sparse structured inference.
    """

    structure: Structure
    solver: Solver = field(default_factory=_active_set)
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Structure):
            raise TypeError(f"structure must be a Structure; got {type(self.structure).__name__}")
        if not isinstance(self.solver, Solver):
            raise TypeError(f"solver must be a Solver; got {type(self.solver).__name__}")
        positive(self.gamma, "gamma")

    def max(self, *scores: Tensor) -> Tensor:
        relaxed = self.structure.projected_value(*cooled(self.structure, checked(scores), self.gamma))
        if relaxed is not None:
            return warmed(relaxed, self.gamma).to(scores[0].dtype)
        if torch.compiler.is_compiling():
            cold = cooled(self.structure, checked(scores), self.gamma)
            return warmed(traced(self.solver, self.structure, cold)[0], self.gamma).to(scores[0].dtype)
        found = self.distribution(*scores)
        return warmed(found.cold_value, self.gamma).to(scores[0].dtype)

    def argmax(self, *scores: Tensor) -> Parts:
        cold = cooled(self.structure, checked(scores), self.gamma)
        mu = self.structure.projection(*cold)
        if mu is not None:
            return narrow(mu, scores[0].dtype)
        if torch.compiler.is_compiling():
            _, *parts = traced(self.solver, self.structure, cold)
            return narrow(self.structure.named(*parts), scores[0].dtype)
        return self.distribution(*scores).mean

    def omega(self, mu: Parts) -> Tensor:
        first = tensors(mu)[0]
        dims = self.structure.event_dims(*tensors(mu))[0]
        return warmed(first.square().flatten(-dims).sum(-1) / 2, self.gamma)

    def omega_at(self, index: Tensor, *scores: Tensor) -> Tensor:
        first = self.structure.first(index, *scores).double()
        return self.omega((first, *scores[1:]) if len(scores) > 1 else first)

    def best_of(self, *scores: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.structure.map(*scores)
        return self.structure.best_score(*scores) - self.omega(y)

    def solve(self, *scores: Tensor, start: Solution | None = None) -> Solution:
        """The structures and their weights, from those of an earlier solution where one is given."""
        cold = cooled(self.structure, checked(scores), self.gamma)
        relaxed = self.structure.projected(*cold)
        if relaxed is not None:
            return relaxed
        return self._solved(cold, start)

    def distribution(self, *scores: Tensor, start: Solution | None = None) -> "Sparse":
        """The distribution over the structures that make up mu; `start` is for a warm start."""
        cold = cooled(self.structure, checked(scores), self.gamma)
        derived = functional() or (torch.is_grad_enabled() and any(x.requires_grad for x in cold))
        return Sparse(self.structure, cold, self._solved(cold, start, whole=derived), scores[0].dtype)

    def _solved(self, cold: tuple[Tensor, ...], start: Solution | None, **options: bool) -> Solution:
        """The solver reads numbers: those below what torch.func.jacrev wraps; torch.vmap hides them."""
        mapped = "SparseMap's solver reads the scores, which torch.vmap hides; give them as a batch, (*batch, ...)"
        values = tuple(constant(x.detach(), mapped).detach() for x in cold)
        with untransformed():
            return self.solver.solve(self.structure, values, start, **options)


class Sparse(Distribution):
    """A few structures and their probabilities, differentiable in the scores.

    Where the optimal face is degenerate there is more than one such distribution; the one returned is the same at
    every call. On the structures found, weights p solve  gram p + tau = b,  sum p = 1  with b their scores, so that
    dp = Z db with Z the inverse of that system on p, and Z does not depend on the scores. An instance without a
    structure has no weights; one with NaN among its scores has weights, and structures, of NaN.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(
        self, structure: Structure, scores: tuple[Tensor, ...], solution: Solution, dtype: torch.dtype
    ) -> None:
        self.structure = structure
        self.solution = solution
        self._scores = scores
        self._dtype = dtype
        super().__init__(solution.probs.shape[:-1], validate_args=False)

    @property
    def probs(self) -> Tensor:
        """(*batch, k), heaviest first, 0 after the last."""
        return self._weights.to(self._dtype)

    @cached_property
    def vertices(self) -> Parts:
        """The structures that have weight, (*batch, k, ...); zeros where there are fewer than k."""
        whole = tensors(self.structure.complete(self._firsts))
        undefined = self.solution.undefined
        if undefined is not None:
            dim = len(self.batch_shape)
            whole = with_nan(whole, tuple(m.unsqueeze(dim) for m in undefined))
        return narrow(self.structure.named(*whole), self._dtype)

    @property
    def support_size(self) -> Tensor:
        """How many structures have weight, (*batch,)."""
        return (self.solution.probs > 0).sum(-1)

    @property
    def mean(self) -> Parts:
        """mu."""
        return self.structure.named(*(t.to(self._dtype) for t in self._mixture[1:]))

    @property
    def mode(self) -> Parts:
        """The heaviest structure."""
        dim = len(self.batch_shape)
        return _map(lambda t: t.select(dim, 0), self.vertices)

    @property
    def cold_value(self) -> Tensor:
        """<scores, mu> - 1/2 ||mu||^2 at gamma = 1, (*batch,); its gradient is mu, and -inf without a structure."""
        return best_value(self.structure, self.solution, self.structure.full(*self._scores))

    def expectation(self, fn: Any) -> Tensor:
        """sum over structures of p(y) fn(y): fn maps structures (*batch, k, ...) to (*batch, k, ...)."""
        values = fn(self.vertices)
        weights = self.probs.reshape(*self.probs.shape, *[1] * (values.dim() - self.probs.dim()))
        return torch.where(weights == 0, 0, weights * values).sum(self.probs.dim() - 1)

    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Parts:
        """Independent draws, (*sample_shape, *batch, ...)."""
        shape = torch.Size(sample_shape)
        p = self._weights.detach()
        flat = p.reshape(-1, p.shape[-1])
        safe = torch.where((flat > 0).any(-1, keepdim=True), flat, 1)
        drawn = torch.multinomial(safe, max(shape.numel(), 1), replacement=True, generator=generator)
        drawn = drawn.T.reshape(*shape, *p.shape[:-1])
        dim = p.dim() - 1

        def pick(t: Tensor) -> Tensor:
            event = t.shape[p.dim() :]
            index = drawn.reshape(*drawn.shape, 1, *[1] * len(event)).expand(*drawn.shape, 1, *event)
            spread = t.expand(*shape, *t.shape)
            return spread.gather(len(shape) + dim, index).squeeze(len(shape) + dim)

        return _map(pick, self.vertices)

    def sample_distinct(self, k: int, generator: torch.Generator | None = None) -> tuple[Parts, Tensor]:
        """k structures that differ (*batch, k, ...), drawn without replacement, and probabilities; see `Walk`."""
        return picked(self.vertices, self.probs, from_list(self._weights, k, generator))

    def log_prob(self, y: Parts) -> Tensor:
        """log p(y), (*lead, *batch); -inf for what is not among the structures."""
        first = tensors(y)[0]
        dims = self.structure.event_dims(*tensors(y))[0]
        same = (first.unsqueeze(-1 - dims).double() == self._firsts).flatten(-dims).all(-1)
        p = torch.where(same & (self._weights > 0), self._weights, 0).sum(-1)
        found = torch.where(p > 0, torch.log(torch.where(p > 0, p, 1)), -torch.inf)
        return torch.where(self._undefined, torch.nan, found).to(self._dtype)

    def prob(self, y: Parts) -> Tensor:
        """p(y)."""
        return self.log_prob(y).exp()

    def entropy(self) -> Tensor:
        """- sum p log p, (*batch,)."""
        p = self._weights
        found = -torch.where(p > 0, p * torch.log(torch.where(p > 0, p, 1)), 0).sum(-1)
        return torch.where(self._undefined, torch.nan, found).to(self._dtype)

    def topk(self, k: int) -> tuple[Parts, Tensor]:
        """The k heaviest structures (*batch, k, ...) and their probabilities; zeros where there are fewer."""
        return first_of(self.vertices, self.probs, k)

    def support(self) -> tuple[Parts, Tensor]:  # type: ignore[override]
        """All structures that have weight, as `topk` gives them."""
        return self.vertices, self.probs

    def listed(self) -> tuple[Parts, Tensor]:
        """The structures that have weight one after the other, (count, ...), and `probs`, which are not 0 for these."""
        found, probs = self.solution.found, self.probs
        dim, chosen = len(self.batch_shape), probs != 0
        if self.solution.undefined is not None:
            return _map(lambda t: t[chosen], self.vertices), probs
        if isinstance(found, UsedParts):
            # parts are few: those of structures without weight, and of shorter lists, are never spelt out
            first = UsedParts(found.places.narrow(dim, 0, self._width)[chosen], found.events).dense(self._dtype)
        else:
            first = found.narrow(dim, 0, self._width)[chosen]
        return narrow(self.structure.complete(first), self._dtype), probs

    @cached_property
    def _weights(self) -> Tensor:
        """p of the structures that have weight, in float64; others are there for the derivatives of these."""
        return self._mixture[0][..., : self._width]

    @cached_property
    def _firsts(self) -> Tensor:
        """Their first tensors."""
        first = self.solution.vertices.narrow(len(self.batch_shape), 0, self._width)
        p = self.solution.probs[..., : self._width]
        return torch.where((p == 0).reshape(*p.shape, *[1] * (first.dim() - p.dim())), 0, first)

    @property
    def _undefined(self) -> Tensor:
        """Which instances have NaN among their scores, (*batch,)."""
        return torch.isnan(self.solution.value)

    @cached_property
    def _width(self) -> int:
        sizes = (self.solution.probs != 0).sum(-1)
        return max(int(sizes.max()) if sizes.numel() else 0, 1)

    @cached_property
    def _mixture(self) -> tuple[Tensor, ...]:
        """p in float64, and the tensors of mu."""
        return weights_and_mean(self.structure, self.solution, self.structure.full(*self._scores))


def _map(change: Any, y: Parts) -> Parts:
    return change(y) if isinstance(y, Tensor) else y._make(change(t) for t in y)
