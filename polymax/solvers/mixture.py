"""Weights and mean of a solution as differentiable functions of the scores.

    dp = Z M dscores        dmu = M^T dp        d value = <mu, dscores>

with the structures M fixed, as they are almost everywhere. Derivatives of any order are one linear map, `response`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.cpu_arrays import memory
from polymax.backend.dispatch import bare
from polymax.backend.function import Stepwise, apply_function, functional
from polymax.kernels.active_set.problem import UsedParts
from polymax.kernels.response import mixture, response
from polymax.kernels.response.reference import existing, sensitivity
from polymax.solvers.solution import Solution
from polymax.solvers.undefined import with_nan
from polymax.structures.base import Structure, tensors

# the NumPy types of the tensors that mixtures return
_NUMBERS: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def mean(
    structure: Structure, solution: Solution, scores: tuple[Tensor, ...], derived: bool = True
) -> tuple[Tensor, ...]:
    """mu, a tensor for each of the scores; differentiable if `derived`."""
    # `_mixed` is written out: a call costs microseconds, and mean is called for every small problem
    found = solution.found
    mixed = _Lists(found, solution) if isinstance(found, UsedParts) else _Dense(structure, solution)
    return apply_function(_MixtureMean, mixed, False, *scores) if derived else mixed.mean(scores[0].dtype)


def weights_and_mean(
    structure: Structure, solution: Solution, scores: tuple[Tensor, ...], derived: bool = True
) -> tuple[Tensor, ...]:
    """p (*batch, k) in float64, and mu, a tensor for each of the scores; differentiable if `derived`."""
    mixed = _mixed(structure, solution)
    if derived:
        return apply_function(_MixtureMean, mixed, True, *scores)
    return solution.probs, *mixed.mean(scores[0].dtype)


def best_value(structure: Structure, solution: Solution, scores: tuple[Tensor, ...], derived: bool = True) -> Tensor:
    """<scores, mu> - 1/2 ||mu||^2, (*batch,) in float64; differentiable if `derived`."""
    if not derived:
        return solution.value
    mixed = _mixed(structure, solution)
    return apply_function(_MixtureValue, mixed, *mixed.full(scores))


def response_of(structure: Structure, solution: Solution, moved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The derivative of mu along the direction `moved` of the scores, in full shape: a symmetric linear map."""
    return _mixed(structure, solution).response(None, moved)[1:]


def _mixed(structure: Structure, solution: Solution) -> "_Lists | _Dense":
    found = solution.found
    return _Lists(found, solution) if isinstance(found, UsedParts) else _Dense(structure, solution)


@dataclass(frozen=True, eq=False)
class _Lists:
    """A mixture of structures that are lists of parts."""

    found: UsedParts
    solution: Solution

    def full(self, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Scores in the shape of the structures, to which they broadcast."""
        batch, full = self.solution.gap.shape, []
        for x, event in zip(scores, self.found.events, strict=True):
            # a view is a node of the graph, too
            full.append(x if x.shape == batch + event else x.expand(batch + event))
        return tuple(full)

    def mean(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """mu, a tensor for each of the scores."""
        mu = self.solution.mean
        if mu is None:
            places, probs, _ = self._instances
            mu = mixture(places, probs, sum(map(torch.Size.numel, self.found.events)), dtype)
        return self._apart(mu, dtype)

    def response(self, h: Tensor | None, g: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """The derivatives of p and mu along h, of the scores of structures, and g, of parts; None stands for zeros."""
        dp, dmu = self._response(h, g)
        return dp.reshape(self.solution.probs.shape), *self._apart(dmu, dmu.dtype)

    def mean_response(self, h: Tensor | None, g: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """The derivative of mu along h, of the scores of structures, and g, of parts; None stands for zeros."""
        dmu = self._response(h, g)[1]
        return self._apart(dmu, dmu.dtype)

    def _response(self, h: Tensor | None, g: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
        """The derivatives of p (B, k) and mu (B, d) along h and g."""
        places, probs, overlaps = self._instances
        count, events, last = probs.shape[0], self.found.events, len(g)
        # directions of None at the end are not needed
        while last > 1 and g[last - 1] is None:
            last -= 1
        if last == 1 and g[0] is not None:
            joined = g[0].reshape(count, events[0].numel())
        else:
            each = zip(self._moves(g[:last]), events, strict=False)
            joined = torch.cat([x.reshape(count, event.numel()) for x, event in each], 1)
        h = None if h is None else h.reshape(probs.shape)
        dmu, dp = response(places, overlaps, probs, joined, h, sum(map(torch.Size.numel, events)))
        return dp, dmu

    def moves(self, h: Tensor | None, g: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
        """The directions h and g, with None replaced by zeros."""
        return torch.zeros_like(self.solution.probs) if h is None else h, *self._moves(g)

    def _moves(self, g: tuple[Tensor | None, ...]) -> list[Tensor]:
        batch, dtype = self.solution.gap.shape, next((x.dtype for x in g if x is not None), torch.float64)
        return [
            self.solution.gap.new_zeros(batch + event, dtype=dtype) if x is None else x
            for x, event in zip(g, self.found.events, strict=False)
        ]

    @property
    def _instances(self) -> tuple[Tensor, Tensor, Tensor]:
        """Places (B, k, parts), weights (B, k) and overlaps (B, k, k)."""
        places, solution = self.found.places, self.solution
        if places.dim() == 3:
            return places, solution.probs, solution.overlaps
        count, (k, parts) = solution.gap.numel(), places.shape[-2:]
        return places.reshape(count, k, parts), solution.probs.reshape(count, k), solution.overlaps.reshape(count, k, k)

    def _apart(self, flat: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Split (B, d), the parts of all tensors in a row, into new tensors; NaN in undefined parts."""
        batch, events = self.solution.gap.shape, self.found.events
        if bare(flat):
            # NumPy reshapes and casts in a third of the time of torch
            rows, number, at, found = memory(flat), _NUMBERS[dtype], 0, []
            for event in events:
                own = rows[:, at : at + event.numel()].astype(number)
                found.append(torch.from_numpy(own.reshape(batch + event)))
                at += event.numel()
            parts = tuple(found)
        else:
            sizes = [*map(torch.Size.numel, events)]
            # copied: the mean of the solution must not share memory with the result of a call
            flat = flat.to(dtype, copy=flat is self.solution.mean)
            each = (flat,) if len(events) == 1 else torch.split_with_sizes(flat, sizes, 1)
            parts = tuple(map(Tensor.reshape, each, map(batch.__add__, events)))
        return parts if self.solution.undefined is None else with_nan(parts, self.solution.undefined)


@dataclass(frozen=True, eq=False)
class _Dense:
    """A mixture of structures of any numbers, given by their first tensors."""

    structure: Structure
    solution: Solution

    def full(self, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Scores in the shape of the structures."""
        return self.structure.full(*scores)

    def mean(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """mu, a tensor for each of the scores."""
        return tuple(t.to(dtype) for t in self._mean(self.solution.probs))

    def response(self, h: Tensor | None, g: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The derivatives of p and mu along a change h of the scores of structures, None for zeros, and g of parts."""
        b = self.structure.rescore(self.solution.vertices, *(x.double() for x in g))
        b = b if h is None else b + h
        b = torch.where(existing(self.solution.overlaps, self.solution.probs), b, 0)
        dp = torch.einsum("...kl,...l->...k", self._sensitivity, b)
        dp = torch.where(torch.isnan(self.solution.probs), torch.nan, dp)
        return dp, *(t.to(x.dtype) for t, x in zip(self._mean(dp), g, strict=True))

    def mean_response(self, h: Tensor | None, g: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The derivative of mu along h, of the scores of structures (None for zeros), and g, of parts."""
        return self.response(h, g)[1:]

    def moves(self, h: Tensor | None, g: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The directions h and g, with None replaced by zeros."""
        return torch.zeros_like(self.solution.probs) if h is None else h, *g

    def _mean(self, probs: Tensor) -> tuple[Tensor, ...]:
        if self.solution.undefined is not None:
            probs = torch.where(torch.isnan(self.solution.probs), 0, probs)
        return with_nan(tensors(self.structure.mean(self.solution.vertices, probs)), self.solution.undefined)

    @cached_property
    def _sensitivity(self) -> Tensor:
        return sensitivity(self.solution.overlaps, self.solution.probs)


class _MixtureMean(Function):
    """The mean mu as a function of the scores; if `weighted`, the weights p come before it.

    Scores may be shared by instances and parts: backward sums over shared places, which costs less than an expand
    in the graph.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(mixed: _Lists | _Dense, weighted: bool, *scores: Tensor) -> tuple[Tensor, ...]:
        mu = mixed.mean(scores[0].dtype)
        return (mixed.solution.probs.clone(), *mu) if weighted else mu

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.mixed, ctx.weighted, *scores = inputs
        ctx.save_for_backward(*scores)
        # cotangents of unused outputs are None, not tensors of zeros
        if isinstance(ctx.mixed, _Lists):
            ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> tuple[Any, ...]:
        h, g = (g[0], g[1:]) if ctx.weighted else (None, g)
        scores = ctx.saved_tensors
        if torch.is_grad_enabled():
            moved = apply_function(_Response, ctx.mixed, *ctx.mixed.moves(h, g))[1:]
            moved = apply_function(Stepwise, len(scores), *scores, *moved)
        else:
            moved = ctx.mixed.mean_response(h, g)
        summed = [x if x.shape == to.shape else x.sum_to_size(to.shape) for x, to in zip(moved, scores, strict=True)]
        return None, None, *summed


class _Response(Function):
    """The symmetric map from changes of scores to changes of weights and mean."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mixed: _Lists | _Dense, h: Tensor, *g: Tensor) -> tuple[Tensor, ...]:
        return mixed.response(h, g)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.mixed = inputs[0]

    @staticmethod
    def backward(ctx: Any, h: Tensor, *g: Tensor) -> tuple[Any, ...]:
        return None, *apply_function(_Response, ctx.mixed, h, *g)


class _MixtureValue(Function):
    """The value, whose derivative is mu."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mixed: _Lists | _Dense, *scores: Tensor) -> Tensor:
        return mixed.solution.value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mixed, *scores = inputs
        ctx.save_for_backward(*scores)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        scores = ctx.saved_tensors
        again = functional() or torch.is_grad_enabled()
        mu = apply_function(_MixtureMean, ctx.mixed, False, *scores) if again else ctx.mixed.mean(scores[0].dtype)
        return None, *(m * g.to(m.dtype).reshape(*g.shape, *[1] * (m.dim() - g.dim())) for m in mu)
