"""The passes of a smoothed dynamic program as one differentiable function.

    value         v                                  its derivative is g mu
    expectation   g mu = the derivative of g v       its derivative along u is (<mu, u>, g H u)
    tangent       (<mu, u>, g H u)                   its derivative, the third of the value, by a tape

Each derivative is the next pass of the kernels: no tape is kept over the recursion, except for the third.

See: Mensch and Blondel 2018, Differentiable dynamic programming, section 3.3 and appendix B.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from polymax._function import applied, transformed


class Passes(Protocol):
    """The passes over one kind of problem; `tensors` are the scores, and after them what tells the problem."""

    @property
    def scores(self) -> int:
        """How many of the tensors are scores."""

    def inside(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Value (batch,), and a chart for the other passes."""

    def outside(self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """The derivative of g v in each score tensor."""

    def tangent(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """The derivative of v along `along`, and of the derivative of g v in each score tensor."""

    def tape(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """Value (batch,), recorded by autograd."""


@dataclass(frozen=True)
class KernelPasses:
    """The passes of a kernel folder, for one alpha."""

    ops: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]
    recorded: Callable[..., Tensor]
    alpha: float
    scores: int = 1
    options: tuple[Any, ...] = ()

    def inside(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        return self.ops[0](*tensors, *self.options, self.alpha)

    def outside(self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        mu = self.ops[1](*tensors, chart, g, *self.options, self.alpha)
        return (mu,) if isinstance(mu, Tensor) else tuple(mu)

    def tangent(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        return self.ops[2](*tensors, chart, g, *along, *self.options, self.alpha)

    def tape(self, tensors: tuple[Tensor, ...]) -> Tensor:
        return self.recorded(*tensors, *self.options, self.alpha)


def value(passes: Passes, tensors: tuple[Tensor, ...]) -> Tensor:
    """The smoothed maximum, (batch,)."""
    if torch.compiler.is_compiling() and not _wants_gradient(tensors):
        # torch.compile cannot call a function of any number of tensors that nobody derives
        return passes.inside(tensors)[0]
    return applied(_Value, passes, *tensors)[0]


def expectation(passes: Passes, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradient of the smoothed maximum in each score tensor."""
    v, chart = passes.inside(tuple(t.detach() for t in tensors))
    g = _one(v)
    if torch.compiler.is_compiling() and not _wants_gradient(tensors):
        return passes.outside(tensors, chart, g)
    return applied(_Expectation, passes, chart, g, *tensors)


class _Value(Function):
    """The value and its chart."""

    generate_vmap_rule = True

    @staticmethod
    def forward(passes: Passes, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        return passes.inside(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.passes, *tensors = inputs
        # no zeros for a chart that nobody derives
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output, *tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
        v, chart, *tensors = ctx.saved_tensors
        if g is None:
            return _nothing(1 + len(tensors))
        g = g * _one(v.detach())
        if _last():
            mu = ctx.passes.outside(tuple(tensors), chart, g)
        else:
            mu = applied(_Expectation, ctx.passes, chart, g, *tensors)
        return None, *mu, *_nothing(len(tensors) - len(mu))


class _Expectation(Function):
    """The derivative of g v, a tensor for each score tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(passes: Passes, chart: Tensor, g: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return passes.outside(tensors, chart, g)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.passes, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *along: Tensor) -> tuple[Any, ...]:
        chart, g, *tensors = ctx.saved_tensors
        # the Hessian is symmetric: its product with the cotangents is the derivative along them
        if _last():
            dv, *dmu = ctx.passes.tangent(tuple(tensors), chart, g, along)
        else:
            dv, *dmu = applied(_Tangent, ctx.passes, chart, g, *tensors, *along)
        return None, None, dv, *dmu, *_nothing(len(tensors) - len(dmu))


class _Tangent(Function):
    """The derivative of v, and of the derivative of g v, along tangents of the scores."""

    generate_vmap_rule = True

    @staticmethod
    def forward(passes: Passes, chart: Tensor, g: Tensor, *tensors_and_along: Tensor) -> tuple[Tensor, ...]:
        tensors, along = _split(passes, tensors_and_along)
        return passes.tangent(tensors, chart, g, along)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.passes, _, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        passes = ctx.passes
        g, *rest = ctx.saved_tensors
        tensors, along = _split(passes, tuple(rest))
        with torch.enable_grad():
            scores = tuple(t.detach().requires_grad_() for t in tensors[: passes.scores])
            g = g.detach().requires_grad_()
            along = tuple(u.detach().requires_grad_() for u in along)
            v = passes.tape((*scores, *tensors[passes.scores :]))
            v = torch.where(v == -torch.inf, 0, v)
            mu = torch.autograd.grad(g @ v, scores, create_graph=True, materialize_grads=True)
            slope = sum(((m * u).sum() for m, u in zip(mu, along, strict=True)), torch.zeros_like(v).sum())
            # <g mu, u>, derived in g and in the scores
            dv, *dmu = torch.autograd.grad(slope, (g, *scores), create_graph=True, materialize_grads=True)
            total = (cotangents[0] * dv).sum()
            for c, d in zip(cotangents[1:], dmu, strict=True):
                total = total + (c * d).sum()
            inputs = (g, *scores, *along)
            grads = torch.autograd.grad(total, inputs, materialize_grads=True, allow_unused=True)
        count = passes.scores
        index = _nothing(len(tensors) - count)
        return None, None, grads[0], *grads[1 : 1 + count], *index, *grads[1 + count :]


def _one(v: Tensor) -> Tensor:
    """1 for every value, but NaN for one that is NaN: by it, so are all derivatives of the instance."""
    return v.clamp(1, 1)


def _last() -> bool:
    """Whether nobody derives what a backward pass computes: torch.compile never does."""
    return torch.compiler.is_compiling() or not (torch.is_grad_enabled() or transformed())


def _split(passes: Passes, joined: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return joined[: len(joined) - passes.scores], joined[len(joined) - passes.scores :]


def _wants_gradient(tensors: tuple[Tensor, ...]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _nothing(count: int) -> tuple[None, ...]:
    return (None,) * count
