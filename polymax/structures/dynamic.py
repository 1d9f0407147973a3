"""Structures that a dynamic program can search: one recursion, smoothed in every way."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.hypergraphs.graph import Graph
from polymax.hypergraphs.passes import KernelPasses, Passes, expectation, value
from polymax.kernels.hypergraph import hypergraph_inside, hypergraph_outside, hypergraph_tangent
from polymax.kernels.widen import wide
from polymax.structures.base import Counted, Parts

SHANNON, HARD = 1.0, math.inf


@dataclass(frozen=True)
class Problem:
    """Scores of a batch in the form that passes take, and how to give results their shape."""

    passes: Callable[[float], Passes]
    tensors: tuple[Tensor, ...]
    batch: torch.Size
    shaped: Callable[[tuple[Tensor, ...]], Parts]

    def value(self, alpha: float) -> Tensor:
        """The maximum smoothed by the Tsallis entropy of alpha, (*batch,)."""
        found = value(self.passes(alpha), self.tensors)
        return found if len(self.batch) == 1 else found.reshape(self.batch)

    def expectation(self, alpha: float) -> Parts:
        """The gradient of the value: a structure for alpha = inf, expected parts otherwise."""
        return self.shaped(expectation(self.passes(alpha), self.tensors))


@dataclass(frozen=True)
class Derivations:
    """A batch of hypergraph problems.

    Shapes: scores (B, parts), roots (B,), one node for each instance, -1 for the empty problem.
    """

    scores: Tensor
    graph: Graph
    roots: Tensor
    batch: torch.Size
    # (*lead, B, parts) -> indicators or marginals in the structure's own shape
    shaped: Callable[[Tensor], Parts]
    # a structure, of whatever leading dims, to its parts (*lead, parts); as they are where it is None
    flat: Callable[[Tensor], Tensor] | None = None

    def problem(self) -> Problem:
        """For the kernels of the general hypergraph."""
        tensors = (self.scores, *self.graph.arrays, self.roots)
        return Problem(hypergraph_passes, tensors, self.batch, lambda mu: self.shaped(mu[0]))


class DynamicProgram(Counted):
    """A set whose structures are the derivations of a hypergraph, one for each.

    A subclass says what the hypergraph is, by `derivations`; one with kernels of its own offers them by `problem`.
    """

    @abstractmethod
    def derivations(self, *scores: Tensor) -> Derivations:
        """The structures as derivations of a hypergraph."""

    def problem(self, *scores: Tensor) -> Problem:
        """The scores as the kernels take them."""
        return self.derivations(*scores).problem()

    def best_score(self, *scores: Tensor) -> Tensor:
        return self.problem(*checked(scores)).value(HARD).to(scores[0].dtype)

    def map(self, *scores: Tensor) -> Parts:
        with torch.no_grad():
            return narrow(self.problem(*self.full(*checked(scores))).expectation(HARD), scores[0].dtype)

    def logsumexp(self, *scores: Tensor) -> Tensor:
        return self.problem(*checked(scores)).value(SHANNON).to(scores[0].dtype)

    def marginals(self, *scores: Tensor) -> Parts:
        return narrow(self.problem(*self.full(*checked(scores))).expectation(SHANNON), scores[0].dtype)


def hypergraph_passes(alpha: float) -> Passes:
    """The passes of the general hypergraph: tensors are scores, first, tails, part, roots."""
    return KernelPasses((hypergraph_inside, hypergraph_outside, hypergraph_tangent), _recorded, alpha)


def kernel_passes(
    *ops: Any, recorded: Any, scores: int = 1, options: tuple[Any, ...] = ()
) -> Callable[[float], Passes]:
    """The passes of a kernel folder, for any alpha."""
    return partial(_kernel_passes, ops, recorded, scores, options)


def _kernel_passes(ops: Any, recorded: Any, scores: int, options: tuple[Any, ...], alpha: float) -> Passes:
    return KernelPasses(ops, recorded, alpha, scores, options)


def checked(scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Scores of one floating-point type, at least in float32."""
    for x in scores:
        _check.floating(x, "scores")
    if len({(x.dtype, x.device) for x in scores}) > 1:
        came = ", ".join(f"{x.dtype} on {x.device}" for x in scores)
        raise TypeError(f"scores must have one dtype and one device; got {came}")
    return tuple(wide(x) for x in scores)


def narrow(y: Parts, dtype: torch.dtype) -> Parts:
    """The dtype the scores came in."""
    return y.to(dtype) if isinstance(y, Tensor) else y._make(t.to(dtype) for t in y)


def _recorded(*args: Any) -> Tensor:
    from polymax.kernels.hypergraph.tape import recorded

    return recorded(*args)
