"""Who else maps scores to the simplex."""

from importlib import import_module
from typing import Any

import torch

from benchmarks.baselines import Competitor, Function, JaxFunction, Peer, TorchFunction
from benchmarks.simplex import oracles

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


def entmax(alpha: float) -> tuple[Peer, ...]:
    """Peers at an alpha that has no closed form."""
    return _entmax("entmax_bisect", alpha=alpha), _adasplash(alpha)
