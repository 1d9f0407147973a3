"""Weights and mean of a solution as differentiable functions of the scores.

    dp = Z M dscores        dmu = M^T dp        d value = <mu, dscores>

with the structures M fixed, as they are almost everywhere. Derivatives of any order are one linear map, `response`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax._function import applied, functional
from polymax.kernels.response import mixture, response
from polymax.kernels.response.reference import held, sensitivity
from polymax.solvers.rules import Solution, UsedParts
from polymax.solvers.undefined import with_nan
from polymax.structures.base import Structure, tensors


def weights_and_mean(structure: Structure, solution: Solution, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """p (*batch, k) in float64, and mu, a tensor for each of the scores, which `structure.full` has made."""
    return _mean(_of(structure, solution), scores)


def best_value(structure: Structure, solution: Solution, scores: tuple[Tensor, ...]) -> Tensor:
    """<scores, mu> - 1/2 ||mu||^2, (*batch,) in float64."""
    return applied(_Value, _of(structure, solution), *scores)


@dataclass(frozen=True, eq=False)
class _Listed:
    """Structures as lists of parts."""

    solution: Solution
    found: UsedParts

    def mean(self, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """mu in the dtype of the scores."""
        places, probs = (_instances(t, len(self.batch)) for t in (self.found.places, self.solution.probs))
        mu = self._apart(mixture(places, probs, sum(e.numel() for e in self.found.events), scores[0].dtype))
        return with_nan(mu, self.solution.undefined)

    def response(self, h: Tensor, g: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """How p and mu follow the scores of structures and of parts."""
        dims = len(self.batch)
        given = (self.found.places, self.solution.overlaps, self.solution.probs)
        flat = [x.reshape(self.batch.numel(), e.numel()) for x, e in zip(g, self.found.events, strict=True)]
        joined = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        dmu, dp = response(*(_instances(t, dims) for t in given), joined, _instances(h, dims))
        return dp.reshape(h.shape), *with_nan(self._apart(dmu), self.solution.undefined)

    @property
    def batch(self) -> torch.Size:
        return self.solution.gap.shape

    def _apart(self, flat: Tensor) -> tuple[Tensor, ...]:
        """The tensors of parts that stand one after the other, (B, d)."""
        events = self.found.events
        return tuple(
            x.reshape(*self.batch, *e) for x, e in zip(flat.split([e.numel() for e in events], 1), events, strict=True)
        )


@dataclass(frozen=True, eq=False)
class _Dense:
    """Structures of any numbers, by their first tensors."""

    solution: Solution
    structure: Structure

    def mean(self, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(t.to(scores[0].dtype) for t in self._mean(self.solution.probs))

    def response(self, h: Tensor, g: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        b = h + self.structure.rescore(self.solution.vertices, *(x.double() for x in g))
        b = torch.where(held(self.solution.overlaps, self.solution.probs), b, 0)
        dp = torch.einsum("...kl,...l->...k", self._sensitivity, b)
        dp = torch.where(torch.isnan(self.solution.probs), torch.nan, dp)
        return dp, *(t.to(x.dtype) for t, x in zip(self._mean(dp), g, strict=True))

    def _mean(self, probs: Tensor) -> tuple[Tensor, ...]:
        if self.solution.undefined is not None:
            probs = torch.where(torch.isnan(self.solution.probs), 0, probs)
        return with_nan(tensors(self.structure.mean(self.solution.vertices, probs)), self.solution.undefined)

    @cached_property
    def _sensitivity(self) -> Tensor:
        return sensitivity(self.solution.overlaps, self.solution.probs)


def _of(structure: Structure, solution: Solution) -> _Listed | _Dense:
    if isinstance(solution.found, UsedParts):
        return _Listed(solution, solution.found)
    return _Dense(solution, structure)


def _mean(held: _Listed | _Dense, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if functional() or (torch.is_grad_enabled() and any(x.requires_grad for x in scores)):
        return applied(_Mean, held, *scores)
    return held.solution.probs, *held.mean(scores)


class _Mean(Function):
    """p and mu, of scores."""

    generate_vmap_rule = True

    @staticmethod
    def forward(held: _Listed | _Dense, *scores: Tensor) -> tuple[Tensor, ...]:
        return held.solution.probs.clone(), *held.mean(scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.held = inputs[0]

    @staticmethod
    def backward(ctx: Any, h: Tensor, *g: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            return None, *applied(_Response, ctx.held, h, *g)[1:]
        return None, *ctx.held.response(h, g)[1:]


class _Response(Function):
    """The symmetric map from changes of scores to changes of weights and mean."""

    generate_vmap_rule = True

    @staticmethod
    def forward(held: _Listed | _Dense, h: Tensor, *g: Tensor) -> tuple[Tensor, ...]:
        return held.response(h, g)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.held = inputs[0]

    @staticmethod
    def backward(ctx: Any, h: Tensor, *g: Tensor) -> tuple[Any, ...]:
        return None, *applied(_Response, ctx.held, h, *g)


class _Value(Function):
    """The value, whose derivative is mu."""

    generate_vmap_rule = True

    @staticmethod
    def forward(held: _Listed | _Dense, *scores: Tensor) -> Tensor:
        return held.solution.value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.held, *scores = inputs
        ctx.save_for_backward(*scores)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        mu = _mean(ctx.held, ctx.saved_tensors)[1:]
        return None, *(m * g.to(m.dtype).reshape(*g.shape, *[1] * (m.dim() - g.dim())) for m in mu)


def _instances(t: Tensor, dims: int) -> Tensor:
    """(*batch, ...) as (B, ...)."""
    return t.reshape(t.shape[:dims].numel(), *t.shape[dims:])


def response_of(structure: Structure, solution: Solution, moved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """How mu follows scores that move along `moved`, in full shape: a symmetric linear map."""
    return _of(structure, solution).response(torch.zeros_like(solution.probs), moved)[1:]
