"""Distributions over a list of structures, as SparseMap and TopKSparsemax return them."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from polymax import _check
from polymax._parts import Parts, map_parts, narrow, tensors
from polymax.distinct import from_list, structures_at
from polymax.kernels.active_set.problem import UsedParts
from polymax.solvers.solution import Solution
from polymax.solvers.undefined import with_nan
from polymax.structures.base import Structure


class Finite(Distribution):
    """A few structures and their probabilities, best first, differentiable in the scores.

    Structures are given by their first tensors (*batch, k, *event), or as lists of parts; weights are (*batch, k) in
    float64. `mean` holds the tensors of the expected structure, or None if they are not known yet. `undefined` marks
    the parts of instances with NaN among their scores: structures and probabilities are NaN there. An instance without
    a structure has weights of 0. `solution` is the SparseMAP solution from which the distribution was made, or None. If
    the face of the solution is degenerate, several distributions have the same mean; every call returns the same one.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(
        self,
        structure: Structure,
        found: Tensor | UsedParts,
        weights: Tensor,
        dtype: torch.dtype,
        *,
        mean: tuple[Tensor, ...] | None = None,
        undefined: tuple[Tensor, ...] | None = None,
        solution: Solution | None = None,
    ) -> None:
        self.structure = structure
        self.solution = solution
        self._found = found
        self._weights = weights
        self._dtype = dtype
        self._mean = mean
        self._undefined = undefined
        super().__init__(weights.shape[:-1], validate_args=False)

    @property
    def probs(self) -> Tensor:
        """The probabilities (*batch, k) of the structures, best first, 0 after the last."""
        return self._weights.to(self._dtype)

    @cached_property
    def vertices(self) -> Parts:
        """The structures, (*batch, k, ...); zeros after the last if there are fewer than k."""
        dim, masks = len(self.batch_shape), self._undefined
        whole = tensors(self.structure.complete_each(self._firsts, dim))
        whole = with_nan(whole, None if masks is None else tuple(m.unsqueeze(dim) for m in masks))
        return narrow(self.structure.named(*whole), self._dtype)

    @property
    def support_size(self) -> Tensor:
        """The number of structures with positive weight, (*batch,)."""
        return (self._weights > 0).sum(-1)

    @property
    def mean(self) -> Parts:
        """The expected structure, mu."""
        mu = self._mean
        if mu is None:
            weights = torch.where(torch.isnan(self._weights), 0, self._weights)
            mu = with_nan(tensors(self.structure.mean(self._firsts, weights)), self._undefined)
        return narrow(self.structure.named(*mu), self._dtype)

    @property
    def mode(self) -> Parts:
        """The most probable structure."""
        return self._complete(self._firsts.select(len(self.batch_shape), 0), self._undefined)

    def expectation(self, fn: Callable[[Parts], Tensor]) -> Tensor:
        """sum over structures of p(y) fn(y): fn maps structures (*batch, k, ...) to (*batch, k, ...)."""
        values = fn(self.vertices)
        weights = self.probs.reshape(*self.probs.shape, *[1] * (values.dim() - self.probs.dim()))
        return torch.where(weights == 0, 0, weights * values).sum(self.probs.dim() - 1)

    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Parts:
        """Independent draws, (*sample_shape, *batch, ...)."""
        shape, p = torch.Size(sample_shape), self._weights.detach()
        some = (p > 0).any(-1, keepdim=True)
        # torch refuses to draw from a row without weight, or with NaN
        rows = torch.where(some, torch.where(p > 0, p, 0), 1).reshape(self.batch_shape.numel(), p.shape[-1])
        drawn = torch.multinomial(rows, max(shape.numel(), 1), replacement=True, generator=generator)
        drawn = drawn.T[: shape.numel()]
        flat = self._firsts.reshape(len(rows), p.shape[-1], *self._firsts.shape[p.dim() :])
        first = flat[torch.arange(len(rows), device=p.device), drawn]
        return self._complete(first.reshape(*shape, *self.batch_shape, *first.shape[2:]), self._undefined)

    def sample_distinct(self, k: int, generator: torch.Generator | None = None) -> tuple[Parts, Tensor]:
        """k structures that differ (*batch, k, ...), drawn without replacement, and probabilities; see `Walk`."""
        return structures_at(self.vertices, self.probs, from_list(self._weights, k, generator))

    def log_prob(self, y: Parts) -> Tensor:
        """log p(y), (*lead, *batch); -inf if y is not among the structures, or has no weight."""
        first, p = tensors(y)[0], self._weights
        dims = self._firsts.dim() - p.dim()
        same = (first.unsqueeze(-1 - dims).double() == self._firsts).flatten(-dims).all(-1)
        p = torch.where(same & (p > 0), p, 0).sum(-1)
        found = torch.where(p > 0, torch.log(torch.where(p > 0, p, 1)), -torch.inf)
        return self._nan_if_undefined(found).to(self._dtype)

    def prob(self, y: Parts) -> Tensor:
        """The probability p(y), (*lead, *batch)."""
        return self.log_prob(y).exp()

    def entropy(self) -> Tensor:
        """The entropy - sum p log p, (*batch,)."""
        p = self._weights
        found = -torch.where(p > 0, p * torch.log(torch.where(p > 0, p, 1)), 0).sum(-1)
        return self._nan_if_undefined(found).to(self._dtype)

    def topk(self, k: int) -> tuple[Parts, Tensor]:
        """The k most probable structures (*batch, k, ...) and their probabilities; zeros if there are fewer than k."""
        _check.whole(k, "k")
        dim = len(self.batch_shape)

        def first(t: Tensor) -> Tensor:
            t = t.narrow(dim, 0, min(k, t.shape[dim]))
            missing = list(t.shape)
            missing[dim] = k - t.shape[dim]
            return torch.cat([t, t.new_zeros(missing)], dim)

        return map_parts(first, self.vertices), first(self.probs)

    def support(self) -> tuple[Parts, Tensor]:  # type: ignore[override]
        """The structures and their probabilities; those of probability 0 come last."""
        return self.vertices, self.probs

    def listed(self) -> tuple[Parts, Tensor]:
        """The structures of positive weight in all instances, one after the other, (count, ...), and `probs`."""
        probs, found = self.probs, self._found
        chosen = probs != 0
        # a dense structure of a set with lengths is completed beside its instance
        ragged = getattr(self.structure, "lengths", None) is not None and not isinstance(found, UsedParts)
        if self._undefined is not None or ragged:
            return map_parts(lambda t: t[chosen], self.vertices), probs
        # parts are few: structures without weight are dropped before the lists become dense
        first = UsedParts(found.places[chosen], found.events).dense() if isinstance(found, UsedParts) else found[chosen]
        return self._complete(first, None), probs

    @cached_property
    def _firsts(self) -> Tensor:
        """The first tensors of the structures, (*batch, k, *event)."""
        return self._found.dense() if isinstance(self._found, UsedParts) else self._found

    def _complete(self, first: Tensor, undefined: tuple[Tensor, ...] | None) -> Parts:
        """Structures from their first tensors, NaN in the parts that are undefined."""
        whole = with_nan(tensors(self.structure.complete(first)), undefined)
        return narrow(self.structure.named(*whole), self._dtype)

    def _nan_if_undefined(self, t: Tensor) -> Tensor:
        """Numbers (*lead, *batch), with NaN for instances whose weights are NaN."""
        return torch.where(torch.isnan(self._weights).any(-1), torch.nan, t)
