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

    plain      no derivative is needed: `forward` itself
    eager      only autograd is active: one node in the form that torch calls at a third of the cost
    traced     under torch.compile with a gradient: without forward mode, which the compiler rejects
    whole      under torch.func or forward mode
    """
    return Derived(function)


def node(function: type[Function]) -> Callable[..., Any]:
    """Return `function.apply` of a Function whose `forward` takes ctx, for calls outside torch.func."""
    # Function.apply checks for torch.func, autograd's own apply does not
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
    """Return the function without `jvp`."""
    if "jvp" not in vars(function):
        return function
    kept = ("forward", "setup_context", "backward", "generate_vmap_rule")
    return type(function.__name__, (Function,), {name: vars(function)[name] for name in kept})
