"""Distributions over the structures of each factor of a graph."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.function import apply_function, functional
from polymax.factors.blocks import Projected
from polymax.factors.factor import Factor
from polymax.factors.shared import Shared
from polymax.factors.subspace import sum_edges
from polymax.kernels.active_set.problem import UsedParts
from polymax.solvers.finite import Finite
from polymax.solvers.mixture import weights_and_mean
from polymax.solvers.solution import Solution
from polymax.structures.base import Structure

if TYPE_CHECKING:
    from polymax.factors.solved_graph import SolvedGraph


class GraphDistribution:
    """The distributions of a graph's factors, which agree on the mean of each variable, and on nothing else.

    `factors` holds a finite distribution over structures for each factor of the graph, differentiable in the scores,
    and None for logic and pairs. If some parts of a structure's first tensor are private, it comes as two tensors: the
    shared parts and the private parts. `mean` is mu.
    """

    def __init__(self, mean: Any, factors: tuple[Finite | None, ...]) -> None:
        self.mean = mean
        self.factors = factors

    @property
    def whole(self) -> Finite:
        """The distribution of the first factor that has every variable: its structures are structures of the graph."""
        graph = self.mean.graph
        for factor, found in zip(graph.factors, self.factors, strict=True):
            if found is not None and not factor.mixed and len(set(factor.at.flatten().tolist())) == graph.variables:
                return found
        raise TypeError("no factor names all variables of the graph, so that it has no distribution over structures")

    def support(self) -> tuple[Any, Tensor]:
        """The structures of `whole` that have weight, (*batch, k, ...), and their probabilities."""
        return self.whole.support()


def distributions(solved: "SolvedGraph", scores: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Finite | None, ...]:
    """The distribution of each factor, from scores in full shape."""
    agreed = solved.agreed
    derived = functional() or (torch.is_grad_enabled() and any(t.requires_grad for t in scores))
    moved = apply_function(_Scores, solved, *scores) if derived else solved.factor_scores()
    found: list[Finite | None] = [None] * len(solved.graph.factors)
    own: dict[int, tuple[Tensor, ...]] = {}
    place = 1
    for f, factor in enumerate(solved.graph.factors):
        own[f] = scores[place : place + len(factor.private)]
        place += len(factor.private)
    for projected, t in zip(agreed.projected, moved, strict=True):
        block = projected.block
        for k, f in enumerate(block.members):
            first = t[:, k].reshape(solved.batch + block.event)
            solution = _one(projected.solution, k, solved.batch)
            structure = _structure(projected, k, solved.graph.factors[f], solved.batch)
            p, *mu = weights_and_mean(structure, solution, (first, *(s.double() for s in own[f])), derived)
            used = solution.with_weight()
            width = (used if isinstance(used, Tensor) else used.places).shape[p.dim() - 1]
            found[f] = Finite(structure, used, p[..., :width], dtype, mean=tuple(mu), solution=solution)
    return tuple(found)


def _one(solution: Solution, k: int, batch: torch.Size) -> Solution:
    """The solution of the k-th structure of a block."""

    def pick(t: Tensor) -> Tensor:
        return t[:, k].reshape(batch + t.shape[2:])

    found = solution.found
    return Solution(
        UsedParts(pick(found.places), found.events) if isinstance(found, UsedParts) else pick(found),
        pick(solution.probs),
        pick(solution.overlaps),
        pick(solution.value),
        pick(solution.iterations),
        pick(solution.gap),
    )


def _structure(projected: Projected, k: int, factor: Factor, batch: torch.Size) -> Structure:
    solved = projected.structure
    if not isinstance(solved, Shared):
        return factor.structure
    parts = tuple(t[:, k].reshape(batch + t.shape[2:]) for t in (solved.shared, *solved.private))
    return replace(solved, structure=factor.structure, shared=parts[0], private=parts[1:])


class _Scores(Function):
    """The scores of shared parts by which each structure was solved, (B, F, d) for each block.

    Along a face they move by M dmu - B ds; directions across it do not change the structures.
    """

    @staticmethod
    def forward(solved: "SolvedGraph", *scores: Tensor) -> tuple[Tensor, ...]:
        return solved.factor_scores()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.solved = inputs[0]
        ctx.shapes = [t.shape for t in inputs[1:]]
        ctx.dtype = inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, *w: Tensor) -> tuple[Any, ...]:
        solved = ctx.solved
        total = sum_edges(list(w), solved.agreed.graph.by_variable).reshape(ctx.shapes[0])
        none = [w[0].new_zeros(shape) for shape in ctx.shapes[1:]]
        found = solved.response_with_grad((total, *none))
        back = solved.private_of_blocks(w)
        moved = (found[0], *(a - b for a, b in zip(found[1:], back, strict=True)))
        return None, *(t.to(ctx.dtype) for t in moved)
