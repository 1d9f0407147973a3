"""Recursions whose every maximum is smoothed by a regularizer: in kernels if they have it, else in torch."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from polymax._parts import Parts
from polymax.backend.function import functional, under_transform
from polymax.graphs.levels import Levels, levels_of
from polymax.hypergraphs.passes import HARD, SHANNON, Problem, Slopes
from polymax.kernels.hypergraph.reference import at_roots, of_edges, of_parts
from polymax.kernels.hypergraph.tape import recorded_by
from polymax.regularizers import Gini, Regularizer, Shannon, Tsallis, Zero


def kernel_alpha(omega: Regularizer) -> float | None:
    """The alpha of a regularizer that kernels have, whatever its gamma; None for other regularizers."""
    match omega:
        case Zero():
            return HARD
        case Shannon():
            return SHANNON
        case Gini():
            return 2.0
        case Tsallis(alpha=float() | int() as alpha) if alpha >= 1:
            return float(alpha)
    return None


def regularizer_of(alpha: float) -> Regularizer:
    """The regularizer that kernels have under this alpha."""
    return Zero() if alpha == HARD else Tsallis(alpha)


def smoothed_value(structure: Any, omega: Regularizer, scores: tuple[Tensor, ...]) -> Tensor:
    """The maximum of a dynamic program smoothed by `omega`, whose gamma is 1 if kernels have it, (*batch,)."""
    alpha = kernel_alpha(omega)
    if alpha is not None:
        return structure.problem(*scores).value(alpha)
    problem = _level_problem(structure, scores)
    if _wants_gradients(omega):
        return problem.passes(omega).tape(problem.tensors).to(scores[0].dtype).reshape(problem.batch)
    return problem.value(omega).to(scores[0].dtype)


def smoothed_expectation(structure: Any, omega: Regularizer, scores: tuple[Tensor, ...]) -> Parts:
    """The gradient of the smoothed maximum, for scores that no instances share."""
    alpha = kernel_alpha(omega)
    if alpha is not None:
        return structure.problem(*scores).expectation(alpha)
    problem = _level_problem(structure, scores)
    if not _wants_gradients(omega):
        return problem.expectation(omega)
    x, roots = problem.tensors

    def total(x: Tensor) -> Tensor:
        value = problem.passes(omega).tape((x, roots))
        return torch.where(value == -torch.inf, 0, value).sum()

    return problem.shaped((torch.func.grad(total)(x),))


def _level_problem(structure: Any, scores: tuple[Tensor, ...]) -> Problem:
    """The problem for the passes in torch; in float64, since deep recursions lose digits in float32."""
    tree = structure.derivations(*scores)
    passes = partial(LevelPasses, levels_of(tree.graph))
    dtype = tree.scores.dtype
    return Problem(passes, (tree.scores.double(), tree.roots), tree.batch, lambda mu: tree.shaped(mu[0].to(dtype)))


def _wants_gradients(omega: Regularizer) -> bool:
    """True if a parameter of the regularizer requires a gradient, or may require one."""
    return omega.closes_over_tensors or any(functional() or t.requires_grad for t in omega._tensors().values())


@dataclass(frozen=True, eq=False)
class LevelPasses(Slopes):
    """Every maximum smoothed by `omega`; tensors are scores (B, parts) and roots (B,)."""

    levels: Levels
    omega: Regularizer
    scores: ClassVar[int] = 1

    def inside(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        scores, roots = tensors
        v, arguments = self.levels.inside(of_edges(scores, self.levels.graph.part), self.omega)
        return at_roots(v, roots), arguments

    def outside(self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        scores, roots = tensors
        q, _ = self.levels.outside(self.levels.weights(chart, self.omega), roots, g)
        return (of_parts(q, self.levels.graph.part, scores.shape[1]),)

    def tangent(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        scores, roots = tensors
        part = self.levels.graph.part
        p = self.levels.weights(chart, self.omega)
        dv, dq = self.levels.tangent(chart, p, roots, g, of_edges(along[0], part), partial(_changes, self.omega))
        return at_roots(dv, roots), of_parts(dq, part, scores.shape[1])

    def tape(self, tensors: tuple[Tensor, ...]) -> Tensor:
        scores, roots = tensors
        return recorded_by(self.levels, scores, roots, self.omega)


def _changes(omega: Regularizer, a: Tensor, da: Tensor, dim: int) -> Tensor:
    """The derivative of argmax along da, J da.

    The Jacobian of a gradient is symmetric, so the backward pass of argmax applies it.
    """
    if under_transform():
        return torch.func.vjp(lambda x: omega.argmax(x, dim=dim), a)[1](da)[0]
    keep_graph = torch.is_grad_enabled() and (a.requires_grad or da.requires_grad)
    with torch.enable_grad():
        x = a if a.requires_grad else a.detach().requires_grad_()
        y = omega.argmax(x, dim=dim)
        if not y.requires_grad:
            return torch.zeros_like(da)
        (out,) = torch.autograd.grad(y, x, da, create_graph=keep_graph)
    return out if keep_graph else out.detach()
