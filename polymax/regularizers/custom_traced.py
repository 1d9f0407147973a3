"""`Custom` for torch.compile: its solver, and the Jacobian of the solution, as operators that take a number in place of
fn.

The function is looked up while torch.compile traces, and the graph is valid for this one function only. Tensors that fn
closes over are read at each call, as in eager mode.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.dispatch import declare_function
from polymax.backend.function import with_autograd
from polymax.backend.widen import wide

if TYPE_CHECKING:
    from polymax.regularizers.custom import Custom

_FUNCTIONS: dict[int, Callable[[Tensor], Tensor]] = {}


def traced_argmax(omega: "Custom", x: Tensor) -> Tensor:
    """The mapping of rows; differentiable once, in the scores and in tensors that fn closes over."""
    scores = wide(x)
    number = _number(omega.fn)
    # reading the id makes torch.compile guard the identity of the function
    id(omega.fn)
    tol = -1.0 if omega.tol is None else float(omega.tol)
    p = custom_argmax(scores.detach(), number, omega.max_iter, tol)
    learned = omega.fn(p).requires_grad
    if not (torch.is_grad_enabled() and (learned or scores.requires_grad)):
        return p.to(x.dtype)
    residual = torch.where(scores > -torch.inf, scores, 0)
    if learned:
        residual = residual - _slope(omega.fn, p)
    return _Implicit.apply(residual, p, number).to(x.dtype)


class _Implicit(Function):
    """p as a function of x - grad Omega(p), as `custom.Implicit` has it."""

    @staticmethod
    def forward(residual: Tensor, p: Tensor, number: int) -> Tensor:
        return p.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, p, ctx.number = inputs
        ctx.save_for_backward(p)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None]:
        (p,) = ctx.saved_tensors
        return custom_jacobian(p, v, ctx.number), None, None


def _slope(fn: Callable[[Tensor], Tensor], p: Tensor) -> Tensor:
    """grad Omega(p) on the support, recorded for the tensors of fn."""
    # an entry of exactly 0 is outside the face: use a constant slightly above 0, where derivatives are finite
    inside = torch.where(p > 0, p, torch.finfo(p.dtype).eps ** 2)
    return torch.where(p > 0, torch.func.grad(lambda q: fn(q).sum())(inside), 0)


def _number(fn: Callable[[Tensor], Tensor]) -> int:
    """The number by which operators find the function."""
    _FUNCTIONS[id(fn)] = fn
    return id(fn)


# torch.compiler.assume_constant_result sets this mark, but imports all of torch.compile
_number._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _argmax(x: Tensor, number: int, max_iter: int, tol: float) -> Tensor:
    from polymax.regularizers.custom import Custom

    omega = Custom(_FUNCTIONS[number], max_iter=max_iter, tol=None if tol < 0 else tol)
    with with_autograd():
        return omega.argmax_rows(x.clone())


def _jacobian(p: Tensor, v: Tensor, number: int) -> Tensor:
    from polymax.regularizers.custom import conjugate_gradients

    with with_autograd():
        return conjugate_gradients(_FUNCTIONS[number], p, v)


def _like_first(p: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(p, memory_format=torch.contiguous_format)


custom_argmax = declare_function(
    "custom_argmax(Tensor x, int number, int max_iter, float tol) -> Tensor", _argmax, _like_first
)
custom_jacobian = declare_function("custom_jacobian(Tensor p, Tensor v, int number) -> Tensor", _jacobian, _like_first)
