"""Functions with derivatives of their own, called at the least cost."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import Function, forward_ad


def applied(function: type[Function], *args: Any) -> Any:
    """function.apply(*args), without the price of torch.func and torch.compile where neither looks at the call.

    To be ready for both, torch binds the arguments of each call by a signature: dozens of microseconds, more than the
    kernel of a small row takes.
    """
    # `transformed`, written out
    if torch.compiler.is_compiling() or functional():
        return function.apply(*args)
    if not torch.is_grad_enabled():
        return function.forward(*args)
    return eager(function).apply(*args)


def transformed() -> bool:
    """True if torch.compile, torch.func or derivatives in forward mode look at the call."""
    return torch.compiler.is_compiling() or functional()


def functional() -> bool:
    """True if torch.func or derivatives in forward mode look at the call: `requires_grad` does not tell all then."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def untransformed() -> AbstractContextManager[Any]:
    """A context in which torch.func does not look: for tables that outlive its call, and solvers that read numbers."""
    # the compiler does not follow it, and has nothing to leave
    return nullcontext() if torch.compiler.is_compiling() else temporarily_clear_interpreter_stack()


def recording(x: Tensor) -> bool:
    """True if a CUDA graph records what is done with x: nothing can be read then."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def constant(t: Tensor, mapped: str) -> Tensor:
    """The tensor below what torch.func wraps it in for derivatives; a ValueError, `mapped`, if vmap maps over it."""
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            raise ValueError(mapped)
        t = torch._C._functorch.get_unwrapped(t)
    return t


@cache
def eager(function: type[Function]) -> type[Function]:
    """The same function in the form that torch calls at a third of the cost, and cannot transform."""

    def forward(ctx: Any, *args: Any) -> Any:
        output = function.forward(*args)
        function.setup_context(ctx, args, output)
        return output

    members = {"forward": staticmethod(forward), "backward": staticmethod(function.backward)}
    return type(function.__name__, (Function,), members)
