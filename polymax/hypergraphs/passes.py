"""The passes of a smoothed dynamic program as one differentiable function.

    value         v                                  its derivative is g mu
    expectation   g mu = the derivative of g v       its derivative along u is (<mu, u>, g H u)
    tangent       (<mu, u>, g H u)                   its derivative, the third of the value, by a tape

Each derivative is the next pass of the kernels: no tape is kept over the recursion, except for the third. The
Hessian is symmetric, so that derivatives in forward mode are made of the same passes.

See: Mensch and Blondel 2018, Differentiable dynamic programming, section 3.3 and appendix B.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from polymax._parts import Parts
from polymax.backend.derived import derived, node
from polymax.backend.dispatch import transforming, wrapped
from polymax.backend.function import once_differentiable, under_transform

# alphas of Tsallis' entropies: SHANNON of Shannon's entropy, HARD for no smoothing
SHANNON, HARD = 1.0, math.inf
_requires_grad = attrgetter("requires_grad")


class Passes(Protocol):
    """The passes over one kind of problem; `tensors` are the scores, then the tensors that define the problem."""

    @property
    def scores(self) -> int:
        """The number of score tensors among `tensors`, which come first."""

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

    def unit(self, v: Tensor) -> Tensor:
        """See `Slopes.unit`; `Slopes` describes the next three methods, too."""

    def slope(self, tensors: tuple[Tensor, ...], v: Tensor, chart: Tensor, g: Tensor) -> tuple[Tensor, ...]: ...

    def mean(
        self, tensors: tuple[Tensor, ...], full: torch.Size | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]: ...

    def mean_slope(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor | None, ...]
    ) -> Sequence[Tensor]: ...


class Slopes:
    """Derivatives that are not differentiated again, computed by the passes; subclasses may have faster ways.

    The derivatives of an instance whose value is NaN are NaN.
    """

    def unit(self, v: Tensor) -> Tensor:
        """1 for each value, or NaN if it is NaN: as a factor, it makes all derivatives of the instance NaN."""
        return v.clamp(1, 1)

    def slope(self: Any, tensors: tuple[Tensor, ...], v: Tensor, chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """The derivative of g v in each score tensor."""
        # g, but NaN if the value is NaN: g * unit(v) in one operation
        return self.outside(tensors, chart, v.clamp(g, g))

    def mean(
        self: Any, tensors: tuple[Tensor, ...], full: torch.Size | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
        """Return (chart, g), which `mean_slope` takes, and the derivative of v in each score tensor, the last one
        expanded to `full`.

        g (batch,) is 1, or NaN if the value is NaN; a subclass may return the value instead.
        """
        v, chart = self.inside(tensors)
        g = self.unit(v)
        return (chart, g), self.outside(tensors if full is None else _expanded(self, tensors, full), chart, g)

    def mean_slope(
        self: Any, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor | None, ...]
    ) -> Sequence[Tensor]:
        """The derivative of the mean along tangents, in each score tensor, summed over shared dimensions."""
        return self.tangent(tensors, chart, g, _materialized(self, tensors, along))[1:]


# not frozen: both are made at every call, and a frozen dataclass takes four times as long to make
@dataclass(eq=False)
class KernelPasses(Slopes):
    """The passes of a kernel folder, for one alpha."""

    # the passes inside, outside and tangent first
    ops: tuple[Any, ...]
    recorded: Callable[..., Tensor]
    scores: int
    options: tuple[Any, ...]
    alpha: float

    def inside(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        return self.ops[0](*tensors, *self.options, self.alpha)

    def outside(self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        mu = self.ops[1](*tensors, chart, g, *self.options, self.alpha)
        return (mu,) if isinstance(mu, Tensor) else mu

    def tangent(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        return self.ops[2](*tensors, chart, g, *along, *self.options, self.alpha)

    def tape(self, tensors: tuple[Tensor, ...]) -> Tensor:
        return self.recorded(*tensors, *self.options, self.alpha)


def kernel_passes(
    *ops: Any, recorded: Any, scores: int = 1, options: tuple[Any, ...] = ()
) -> Callable[[float], KernelPasses]:
    """The passes of a kernel folder, as a function of alpha."""
    return partial(KernelPasses, ops, recorded, scores, options)


@dataclass(eq=False)
class Problem:
    """Scores of a batch in the form that passes take, and how to give results their shape.

    `passes` are those of a smoothing: of an alpha for kernels, of a regularizer for the passes in torch.
    """

    passes: Callable[[Any], Passes]
    tensors: tuple[Tensor, ...]
    batch: torch.Size
    shaped: Callable[[tuple[Tensor, ...]], Parts]
    # the shape of the last expectation if it is larger than its scores, which instances or steps then share
    full: torch.Size | None = None

    def value(self, smoothing: Any) -> Tensor:
        """The smoothed maximum, (*batch,)."""
        passes, tensors = self.passes(smoothing), self.tensors
        if torch.compiler.is_compiling() or transforming() or forward_ad._current_level >= 0:
            found = _value(passes, *tensors)[0]
        elif torch.is_grad_enabled() and any(map(_requires_grad, tensors)):
            found = (_PlainValue.apply if any(map(wrapped, tensors)) else _plain_value)(passes, *tensors)
        else:
            found = passes.inside(tensors)[0]
        return found if len(self.batch) == 1 else found.reshape(self.batch)

    def expectation(self, smoothing: Any) -> Parts:
        """The gradient of the value: a structure if nothing is smoothed, expected parts otherwise."""
        passes, tensors = self.passes(smoothing), self.tensors
        if torch.compiler.is_compiling() or transforming() or forward_ad._current_level >= 0:
            each = tensors if self.full is None else _expanded(passes, tensors, self.full)
            v, chart = passes.inside(tuple(map(Tensor.detach, each)))
            return self.shaped(_expectation(passes, chart, passes.unit(v), *each))
        call = _mean
        if torch.is_grad_enabled() and any(map(_requires_grad, tensors)):
            call = _PlainMean.apply if any(map(wrapped, tensors)) else _plain_mean
        return self.shaped(call(passes, self.full, *tensors))


class _Value(Function):
    """The value and its chart."""

    generate_vmap_rule = True

    @staticmethod
    def forward(passes: Passes, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        return passes.inside(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.passes, *tensors = inputs
        # no zeros for the gradient of the chart, which is not used
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output, *tensors)
        ctx.save_for_forward(*output, *tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
        v, chart, *tensors = ctx.saved_tensors
        return _nothing(1 + len(tensors)) if g is None else _value_slope(ctx.passes, v, chart, tensors, g)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor, None]:
        v, chart, *tensors = ctx.saved_tensors
        along = _materialized(ctx.passes, tensors, tangents)
        return _tangent(ctx.passes, chart, ctx.passes.unit(v), *tensors, *along)[0], None


_value = derived(_Value)


def _value_slope(passes: Passes, v: Tensor, chart: Tensor, tensors: Sequence[Tensor], g: Tensor) -> tuple[Any, ...]:
    """The gradients of `_Value`: None for the passes, g mu for the scores, None for the tensors after the scores."""
    if _last():
        mu = passes.slope(tuple(tensors), v, chart, g)
    else:
        mu = _expectation(passes, chart, g * passes.unit(v.detach()), *tensors)
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
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *along: Tensor) -> tuple[Any, ...]:
        chart, g, *tensors = ctx.saved_tensors
        # the Hessian is symmetric: its product with the cotangents is the derivative along them
        if _last():
            dv, *dmu = ctx.passes.tangent(tuple(tensors), chart, g, along)
        else:
            dv, *dmu = _tangent(ctx.passes, chart, g, *tensors, *along)
        return None, None, dv, *dmu, *_nothing(len(tensors) - len(dmu))

    @staticmethod
    def jvp(ctx: Any, _: None, __: Tensor | None, dg: Tensor | None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        chart, g, *tensors = ctx.saved_tensors
        along = _materialized(ctx.passes, tensors, tangents)
        _, *moved = _tangent(ctx.passes, chart, g, *tensors, *along)
        if dg is not None:
            scaled = _expectation(ctx.passes, chart, dg, *tensors)
            moved = [a + b for a, b in zip(moved, scaled, strict=True)]
        return tuple(moved)


_expectation = derived(_Expectation)


class _PlainValue(Function):
    """The value alone, in the form that costs least, if no transformation is active."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, *tensors: Tensor) -> Tensor:
        v, chart = passes.inside(tensors)
        ctx.passes = passes
        ctx.save_for_backward(v, chart, *tensors)
        return v

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        v, chart, *tensors = ctx.saved_tensors
        return _value_slope(ctx.passes, v, chart, tensors, g)


_plain_value = node(_PlainValue)


def _mean(passes: Passes, full: torch.Size | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The derivative of v in each score tensor, the last one expanded to `full`."""
    return passes.mean(tensors, full)[1]


class _PlainMean(Function):
    """`_mean` in one node, if no transformation is active."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, full: torch.Size | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        kept, mu = passes.mean(tensors, full)
        ctx.passes, ctx.full = passes, full
        # if only one of several expectations is used, no zeros are filled in for the others
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept, *tensors)
        return mu

    @staticmethod
    def backward(ctx: Any, *along: Tensor | None) -> tuple[Any, ...]:
        chart, g, *tensors = ctx.saved_tensors
        if _last():
            dmu = ctx.passes.mean_slope(tuple(tensors), chart, g, along)
        else:
            each = tuple(tensors) if ctx.full is None else _expanded(ctx.passes, tuple(tensors), ctx.full)
            given = _materialized(ctx.passes, each, along)
            _, *found = _tangent(ctx.passes, chart, ctx.passes.unit(g), *each, *given)
            dmu = [d.sum_to_size(x.shape) for d, x in zip(found, tensors, strict=False)]
        return None, None, *dmu, *_nothing(len(tensors) - len(dmu))


_plain_mean = node(_PlainMean)


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
        ctx.save_for_forward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        passes = ctx.passes
        g, *rest = ctx.saved_tensors
        tensors, along = _split(passes, tuple(rest))
        scores, index = tensors[: passes.scores], tensors[passes.scores :]

        def value(scores: tuple[Tensor, ...], g: Tensor) -> Tensor:
            v = passes.tape((*scores, *index))
            return g @ torch.where(v == -torch.inf, 0, v)

        def slope(g: Tensor, scores: tuple[Tensor, ...], along: tuple[Tensor, ...]) -> Tensor:
            """<g mu, u>, whose derivatives in g and in the scores the forward pass computes."""
            mu = torch.func.grad(value)(scores, g)
            return torch.stack([(m * u).sum() for m, u in zip(mu, along, strict=True)]).sum()

        pull = torch.func.vjp(torch.func.grad(slope, argnums=(0, 1)), g, scores, along)[1]
        dg, dscores, dalong = pull((cotangents[0], cotangents[1:]))
        return None, None, dg, *dscores, *_nothing(len(index)), *dalong

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        raise NotImplementedError(
            "forward mode differentiates the recursion of a structure once, around reverse mode: torch.func.hessian and"
            " jacfwd(jacrev(max)) have it, jacfwd(jacfwd(max)) and third derivatives do not; take jacrev for these"
        )


_tangent = derived(_Tangent)


def _materialized(passes: Passes, like: Any, tangents: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Tangents of the scores, with zeros for None."""
    count = passes.scores
    return tuple(torch.zeros_like(x) if t is None else t for x, t in zip(like[:count], tangents[:count], strict=True))


def _expanded(passes: Passes, tensors: tuple[Tensor, ...], full: torch.Size) -> tuple[Tensor, ...]:
    """The tensors, with the last score tensor expanded to `full`."""
    last = passes.scores - 1
    return *tensors[:last], tensors[last].expand(full), *tensors[last + 1 :]


def _last() -> bool:
    """True if the results of a backward pass are not differentiated again: torch.compile never does so."""
    return torch.compiler.is_compiling() or not (torch.is_grad_enabled() or under_transform())


def _split(passes: Passes, joined: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return joined[: len(joined) - passes.scores], joined[len(joined) - passes.scores :]


def _nothing(count: int) -> tuple[None, ...]:
    return (None,) * count
