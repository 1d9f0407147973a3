"""Who takes part in a benchmark: torch, polymax, and peers, which may be absent."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from benchmarks import oracles

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
    """Tensors to a tensor or a tuple of tensors, differentiated by autograd."""

    call: Mapping

    def prepare(self, inputs: Tensors, cotangents: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        return inputs, tuple(x.detach().requires_grad_() for x in inputs), cotangents

    def forward(self, problem: tuple[Tensors, Tensors, Tensors]) -> Any:
        return self.call(*problem[0])

    def both(self, problem: tuple[Tensors, Tensors, Tensors]) -> tuple[Any, Any]:
        _, leaves, cotangents = problem
        y = self.call(*leaves)
        return y, torch.autograd.grad(y, leaves, cotangents)

    def tensors(self, arrays: Any) -> Tensors:
        return tuple(t.detach() for t in ((arrays,) if isinstance(arrays, Tensor) else arrays))


@dataclass(frozen=True)
class JaxFunction(Function):
    """A compiled function of one JAX array, on the CPU."""

    call: Mapping

    def prepare(self, inputs: Tensors, cotangents: Tensors) -> tuple[Any, Any, Any, Any]:
        jax = import_module("jax")

        def both(x: Any, v: Any) -> Any:
            y, pullback = jax.vjp(self.call, x)
            return y, pullback(v)[0]

        x, v = (jax.numpy.asarray(t.numpy()) for t in (*inputs, *cotangents))
        return jax.jit(self.call), jax.jit(both), x, v

    def forward(self, problem: tuple[Any, Any, Any, Any]) -> Any:
        call, _, x, _ = problem
        return call(x).block_until_ready()

    def both(self, problem: tuple[Any, Any, Any, Any]) -> tuple[Any, Any]:
        _, both, x, v = problem
        y, dx = both(x, v)
        return y.block_until_ready(), dx.block_until_ready()

    def tensors(self, arrays: Any) -> Tensors:
        # a copy: JAX arrays cannot be written, and torch warns of that
        return (torch.tensor(import_module("numpy").array(arrays)),)


@dataclass(frozen=True)
class Competitor:
    """A function with a name, and the float64 function that says what it should return."""

    name: str
    function: Function
    oracle: Mapping


@dataclass(frozen=True)
class Peer:
    """A function of another package: `load` takes the imported package."""

    name: str
    load: Callable[[Any], Function]
    devices: tuple[str, ...] = ("cpu", "cuda")

    def competitor(self, device: str, oracle: Mapping) -> "Competitor | str":
        """The peer on this device, or why it is absent."""
        if device not in self.devices:
            return f"runs on {', '.join(self.devices)} only"
        package = self.name.partition(".")[0]
        try:
            return Competitor(self.name, self.load(import_module(package)), oracle)
        # packages fail to load in their own ways: a missing compiler, a missing GPU, an old attribute
        except Exception as error:
            return f"{type(error).__name__}: {error}".partition("\n")[0]


def ours(call: Mapping, oracle: Mapping) -> Competitor:
    return Competitor("polymax", TorchFunction(call), oracle)


SOFTMAX = Competitor("torch.softmax", TorchFunction(lambda x: torch.softmax(x, -1)), oracles.softmax)


def _entmax(function: str, **options: float) -> Peer:
    def load(package: Any) -> Function:
        call = getattr(package, function)
        return TorchFunction(lambda x: call(x, dim=-1, **options))

    return Peer(f"entmax.{function}", load)


def _adasplash(alpha: float) -> Peer:
    def load(package: Any) -> Function:
        return TorchFunction(lambda x: package.triton_entmax(x, alpha=alpha))

    return Peer("adasplash.triton_entmax", load, devices=("cuda",))


def _projection(package: Any) -> Function:
    project = import_module("jaxopt.projection").projection_simplex
    return JaxFunction(import_module("jax").vmap(project))


PROJECTION = Peer("jaxopt.projection_simplex", _projection, devices=("cpu",))

SPARSEMAX = (_entmax("sparsemax"), _adasplash(2.0), PROJECTION)
ENTMAX15 = (_entmax("entmax15"), _adasplash(1.5))
NORMMAX = (_entmax("normmax_bisect", alpha=2.0),)


def entmax_peers(alpha: float) -> tuple[Peer, ...]:
    """Peers at an alpha that has no closed form."""
    return _entmax("entmax_bisect", alpha=alpha), _adasplash(alpha)
