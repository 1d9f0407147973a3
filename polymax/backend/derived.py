"""Differentiable functions, declared once, in the forms in which torch calls them."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from polymax.backend.dispatch import transforming, wrapped
from polymax.backend.function import eager, straight

_requires_grad = attrgetter("requires_grad")


def derived(function: type[Function]) -> "Derived":
    """Return a callable for a Function with static methods `forward`, `setup_context`, `backward`, and perhaps `jvp`.

    Each call takes the form that costs least:

    plain      a call that nobody derives is `forward` itself
    eager      autograd alone looks: one node in the form that torch calls at a third of the cost
    traced     torch.compile looks, which refuses derivatives in forward mode, and functions that nobody derives
    whole      torch.func or forward mode look
    """
    return Derived(function)


def node(function: type[Function]) -> Callable[..., Any]:
    """`function.apply`, for a Function whose `forward` takes ctx, in a call that torch.func does not look at."""
    # torch's way to a function looks for torch.func on its way
    return super(Function, function).apply  # type: ignore[misc]


class Derived:
    """The forms of one differentiable function."""

    def __init__(self, function: type[Function]) -> None:
        self.__doc__ = function.__doc__
        self.whole = function
        self.plain = function.forward
        self.eager = eager(function)
        self.straight = straight(function)
        self.traced = _without_forward_mode(function)

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            wanted = torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args)
            return self.traced.apply(*args) if wanted else self.plain(*args)
        if transforming() or forward_ad._current_level >= 0:
            return self.whole.apply(*args)
        if not torch.is_grad_enabled():
            return self.plain(*args)
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not any(map(_requires_grad, tensors)):
            return self.plain(*args)
        # a tensor that torch.func wrapped may outlive the transformation
        return (self.eager.apply if any(map(wrapped, tensors)) else self.straight)(*args)


def _without_forward_mode(function: type[Function]) -> type[Function]:
    """The same function without `jvp`."""
    if "jvp" not in vars(function):
        return function
    kept = ("forward", "setup_context", "backward", "generate_vmap_rule")
    return type(function.__name__, (Function,), {name: vars(function)[name] for name in kept})
