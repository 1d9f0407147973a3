"""Who takes part in a benchmark: polymax, a baseline, and peers, which may be absent."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
Mapping = Callable[..., Any]


class Function(ABC):
    """A function that can run forward, and forward and backward, on arrays of its own kind."""

    @abstractmethod
    def prepare(self, inputs: Tensors, cotangents: Tensors) -> Any:
        """What both passes take; not timed."""

    @abstractmethod
    def forward(self, problem: Any) -> Any:
        """The outputs."""

    @abstractmethod
    def both(self, problem: Any) -> tuple[Any, Any]:
        """The outputs, and the gradient of <outputs, cotangents> in the inputs."""

    @abstractmethod
    def tensors(self, arrays: Any) -> Tensors:
        """What a pass returned, as tensors; not timed."""


@dataclass(frozen=True)
class TorchFunction(Function):
    """Tensors to a tensor, a tuple of tensors or a list of integers, differentiated by autograd."""

    call: Mapping

    def prepare(self, inputs: Tensors, cotangents: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        # tensors of its own: some mark what they are given as requiring a gradient
        return tuple(x.detach() for x in inputs), tuple(x.detach().requires_grad_() for x in inputs), cotangents

    def forward(self, problem: tuple[Tensors, Tensors, Tensors]) -> Any:
        return self.call(*problem[0])

    def both(self, problem: tuple[Tensors, Tensors, Tensors]) -> tuple[Any, Any]:
        _, leaves, cotangents = problem
        y = self.call(*leaves)
        return y, torch.autograd.grad(y, leaves, cotangents)

    def tensors(self, arrays: Any) -> Tensors:
        if isinstance(arrays, list):
            return (torch.tensor(arrays),)
        return tuple(t.detach() for t in ((arrays,) if isinstance(arrays, Tensor) else arrays))


@dataclass(frozen=True)
class JaxFunction(Function):
    """A compiled function of JAX arrays, on the CPU."""

    call: Mapping

    def prepare(self, inputs: Tensors, cotangents: Tensors) -> tuple[Mapping, Mapping, list[Any], Any]:
        x, (v,) = ([import_module("jax").numpy.asarray(t.numpy()) for t in ts] for ts in (inputs, cotangents))
        return *_compiled(self.call), x, v

    def forward(self, problem: tuple[Mapping, Mapping, list[Any], Any]) -> Any:
        call, _, x, _ = problem
        return call(*x).block_until_ready()

    def both(self, problem: tuple[Mapping, Mapping, list[Any], Any]) -> tuple[Any, Any]:
        _, both, x, v = problem
        return import_module("jax").block_until_ready(both(v, *x))

    def tensors(self, arrays: Any) -> Tensors:
        # a copy: JAX arrays cannot be written, and torch warns of that
        copy = import_module("numpy").array
        return tuple(torch.tensor(copy(array)) for array in (arrays if isinstance(arrays, tuple) else (arrays,)))


@cache
def _compiled(call: Mapping) -> tuple[Mapping, Mapping]:
    """Compiled once, for all inputs of a shape."""
    jax = import_module("jax")

    def both(v: Any, *x: Any) -> Any:
        y, pullback = jax.vjp(call, *x)
        return y, pullback(v)

    return jax.jit(call), jax.jit(both)


@dataclass(frozen=True)
class Competitor:
    """A function with a name, and the float64 function that says what it should return.

    Its errors may be `slack` times those of polymax, and its time should be at least `margin` times that of
    polymax.
    """

    name: str
    function: Function
    oracle: Mapping
    slack: float = 1.0
    margin: float | None = None


@dataclass(frozen=True)
class Peer:
    """A function of another package: `load` takes the imported package."""

    name: str
    load: Callable[[Any], Function]
    devices: tuple[str, ...] = ("cpu", "cuda")
    slack: float = 1.0
    margin: float | None = None

    def behind(self, margin: float) -> "Peer":
        """The peer, of which polymax should be this many times as fast."""
        return replace(self, margin=margin)

    def competitor(self, device: str, oracle: Mapping) -> "Competitor | str":
        """The peer on this device, or why it is absent."""
        if device not in self.devices:
            return f"runs on {', '.join(self.devices)} only"
        package = self.name.partition(".")[0]
        try:
            return Competitor(self.name, self.load(import_module(package)), oracle, self.slack, self.margin)
        # packages fail to load in their own ways: a missing compiler, a missing GPU, an old attribute
        except Exception as error:
            return f"{type(error).__name__}: {error}".partition("\n")[0]


def ours(call: Mapping, oracle: Mapping) -> Competitor:
    return Competitor("polymax", TorchFunction(call), oracle)
