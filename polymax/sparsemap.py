"""SparseMAP: the point of the polytope nearest to the scores, as a mean of few structures."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from polymax.regularizers.entropies import positive
from polymax.smoothing import Smoothing
from polymax.solvers import ActiveSet, Solution, Solver
from polymax.solvers.base import UsedParts
from polymax.structures.base import Parts, Structure, tensors
from polymax.structures.dynamic import checked, narrow
from polymax.structures.semi_markov import SemiMarkov
from polymax.structures.temperature import cooled, warmed


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
    solver: Solver = ActiveSet()  # noqa: RUF009
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Structure):
            raise TypeError(f"structure must be a Structure; got {type(self.structure).__name__}")
        if not isinstance(self.solver, Solver):
            raise TypeError(f"solver must be a Solver; got {type(self.solver).__name__}")
        positive(self.gamma, "gamma")

    def max(self, *scores: Tensor) -> Tensor:
        found = self.distribution(*scores)
        return warmed(found.cold_value, self.gamma).to(scores[0].dtype)

    def argmax(self, *scores: Tensor) -> Parts:
        cold = cooled(self.structure, checked(scores), self.gamma)
        mu = self.structure.projection(*cold)
        if mu is not None:
            return narrow(mu, scores[0].dtype)
        return self.distribution(*scores).mean

    def omega(self, mu: Parts) -> Tensor:
        first = tensors(mu)[0]
        dims = self.structure.event_dims(*tensors(mu))[0]
        return warmed(first.square().flatten(-dims).sum(-1) / 2, self.gamma)

    def solve(self, *scores: Tensor, start: Solution | None = None) -> Solution:
        """The structures and their weights, from those of an earlier solution where one is given."""
        cold = cooled(self.structure, checked(scores), self.gamma)
        return self.solver.solve(self.structure, tuple(x.detach() for x in cold), start)

    def distribution(self, *scores: Tensor, start: Solution | None = None) -> "Sparse":
        """The distribution over the structures that make up mu; `start` is for a warm start."""
        cold = cooled(self.structure, checked(scores), self.gamma)
        solution = self.solver.solve(self.structure, tuple(x.detach() for x in cold), start)
        return Sparse(self.structure, cold, solution, scores[0].dtype)


class Sparse(Distribution):
    """A few structures and their probabilities, differentiable in the scores.

    Where the optimal face is degenerate there is more than one such distribution; the one returned is the same at
    every call. On the structures found, weights p solve  gram p + tau = b,  sum p = 1  with b their scores, so that
    dp = Z db with Z the inverse of that system on p, and Z does not depend on the scores.
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
        return self._probs.to(self._dtype)

    @cached_property
    def vertices(self) -> Parts:
        """The structures, (*batch, k, ...)."""
        return narrow(self.structure.complete(self.solution.vertices), self._dtype)

    @property
    def support_size(self) -> Tensor:
        """How many structures have weight, (*batch,)."""
        return (self.solution.probs > 0).sum(-1)

    @property
    def mean(self) -> Parts:
        """mu."""
        return narrow(self._mean, self._dtype)

    @property
    def mode(self) -> Parts:
        """The heaviest structure."""
        dim = len(self.batch_shape)
        return _map(lambda t: t.select(dim, 0), self.vertices)

    @cached_property
    def cold_value(self) -> Tensor:
        """<scores, mu> - 1/2 ||mu||^2 at gamma = 1, (*batch,); its gradient is mu."""
        dims = self.structure.event_dims(*self._scores)[0]
        mu = tensors(self._mean)[0]
        linear = torch.where(self._used, self._probs * self._each, 0).sum(-1)
        value = linear - mu.square().flatten(-dims).sum(-1) / 2
        # without a structure there is nothing to weigh
        return torch.where(self._used.any(-1), value, -torch.inf)

    def expectation(self, fn: Any) -> Tensor:
        """sum over structures of p(y) fn(y): fn maps structures (*batch, k, ...) to (*batch, k, ...)."""
        values = fn(self.vertices)
        weights = self.probs.reshape(*self.probs.shape, *[1] * (values.dim() - self.probs.dim()))
        return torch.where(weights == 0, 0, weights * values).sum(self.probs.dim() - 1)

    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Parts:
        """Independent draws, (*sample_shape, *batch, ...)."""
        shape = torch.Size(sample_shape)
        p = self.solution.probs
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

    def log_prob(self, y: Parts) -> Tensor:
        """log p(y), (*lead, *batch); -inf for what is not among the structures."""
        first = tensors(y)[0]
        dims = self.structure.event_dims(*tensors(y))[0]
        same = (first.unsqueeze(-1 - dims).double() == self.solution.vertices).flatten(-dims).all(-1) & self._used
        p = torch.where(same, self._probs, 0).sum(-1)
        return torch.where(p > 0, torch.log(torch.where(p > 0, p, 1)), -torch.inf).to(self._dtype)

    def prob(self, y: Parts) -> Tensor:
        """p(y)."""
        return self.log_prob(y).exp()

    def entropy(self) -> Tensor:
        """- sum p log p, (*batch,)."""
        p = self._probs
        return -torch.where(p > 0, p * torch.log(torch.where(p > 0, p, 1)), 0).sum(-1).to(self._dtype)

    def topk(self, k: int) -> tuple[Parts, Tensor]:
        """The k heaviest structures (*batch, k, ...) and their probabilities; zeros where there are fewer."""
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be a positive integer; got {k!r}")
        dim = len(self.batch_shape)

        def fit(t: Tensor) -> Tensor:
            t = t.narrow(dim, 0, min(k, t.shape[dim]))
            missing = list(t.shape)
            missing[dim] = k - t.shape[dim]
            return torch.cat([t, t.new_zeros(missing)], dim)

        return _map(fit, self.vertices), fit(self.probs)

    def support(self) -> tuple[Parts, Tensor]:  # type: ignore[override]
        """All structures that have weight, as `topk` gives them."""
        return self.vertices, self.probs

    @cached_property
    def _used(self) -> Tensor:
        return self.solution.probs > 0

    @cached_property
    def _each(self) -> Tensor:
        """b: the score of each structure, (*batch, k)."""
        scores = tuple(x.double() for x in self._scores)
        found = self.solution.found
        if isinstance(found, UsedParts) and not isinstance(self.structure, SemiMarkov):
            b = self.structure.rescore_used(found.places, *scores)
        else:
            b = self.structure.rescore(self.solution.vertices, *scores)
        return torch.where(self._used, b, 0)

    @cached_property
    def _mean(self) -> Parts:
        found = self.solution.found
        # the parts of segments do not tell those of transitions
        if isinstance(found, UsedParts) and not isinstance(self.structure, SemiMarkov):
            return self.structure.mean_used(found.places, self._probs, found.event)
        return self.structure.mean(self.solution.vertices, self._probs)

    @cached_property
    def _probs(self) -> Tensor:
        p = self.solution.probs
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in self._scores)):
            return p
        b = self._each
        return p + torch.einsum("...kl,...l->...k", self._sensitivity, b - b.detach())

    @cached_property
    def _sensitivity(self) -> Tensor:
        """Z (*batch, k, k) = A^-1 - A^-1 1 1^T A^-1 / (1^T A^-1 1), A = gram + 1."""
        used = self._used
        both = used.unsqueeze(-1) & used.unsqueeze(-2)
        gram = torch.where(both, self.solution.overlaps + 1, 0) + torch.diag_embed((~used).double())
        inverse = torch.where(both, _inverse(gram), 0)
        row = inverse.sum(-1)
        total = row.sum(-1, keepdim=True).unsqueeze(-1)
        return inverse - row.unsqueeze(-1) * row.unsqueeze(-2) / torch.where(total == 0, 1, total)


def _inverse(gram: Tensor) -> Tensor:
    """The inverse, or the pseudo-inverse where structures depend on each other, as Frank-Wolfe's may."""
    factor, info = torch.linalg.cholesky_ex(gram)
    # overlaps are whole numbers: the distance of a structure to the others is far from 0, or rounding
    if bool((info == 0).all()) and bool((factor.diagonal(dim1=-1, dim2=-2) > 1e-4).all()):
        return torch.cholesky_inverse(factor)
    return torch.linalg.pinv(gram, hermitian=True)


def _map(change: Any, y: Parts) -> Parts:
    return change(y) if isinstance(y, Tensor) else type(y)(*(change(t) for t in y))
