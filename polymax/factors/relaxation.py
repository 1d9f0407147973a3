"""LP-SparseMAP of a graph: the nearest point on which the factors agree, its value, and their derivatives."""

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.function import (
    Stepwise,
    apply_function,
    constant,
    functional,
    has_values,
    leave_graph,
    outside_transforms,
)
from polymax.factors.infeasible import refuse_infeasible
from polymax.factors.magnitudes import largest, without_gaps
from polymax.factors.solution import GraphSolution, solution_of
from polymax.factors.solved_graph import Response, SolvedGraph

if TYPE_CHECKING:
    from polymax.factors.graph import FactorGraph

# factors with a larger residual than this after all rounds may have no common point
_APART = 1e-5
# scores above _LARGE leave too few digits for other scores and for the quadratic term, which counts as a score of
# _ORDINARY
_LARGE, _ORDINARY = 1e6, 10.0
# rounds after which the solver tests whether the factors have a common point
_DOUBT = 100
# torch 2.6 has no is_exporting
_EXPORTING = getattr(torch.compiler, "is_exporting", lambda: False)


def nearest(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> GraphSolution:
    """The nearest point on which the factors agree (LP-SparseMAP), differentiable in the scores."""
    full = graph.full(*scores)
    solved = solve(graph, full)
    if functional() or (torch.is_grad_enabled() and any(t.requires_grad for t in full)):
        parts = apply_function(_GraphParts, solved, *full)
    else:
        parts = solved.parts(full[0].dtype)
    return solution_of(solved, parts, full)


def value_of(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> Tensor:
    """<scores, mu> - 1/2 ||mu||^2, (*batch,), -inf if scores forbid every point; its gradient is mu."""
    full = graph.full(*scores)
    return apply_function(_GraphValue, solve(graph, full), *full)


def numbers_of(scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Scores without the wrappers of torch.func; an error under torch.vmap, which hides their values."""
    mapped = "the solver of a FactorGraph reads the scores, which torch.vmap hides; give them as a batch, (*batch, ...)"
    return tuple(constant(t.detach(), mapped).detach() for t in scores)


def leave_program(scores: tuple[Tensor, ...]) -> None:
    """Break the graph of torch.compile: the number of rounds depends on the values of the scores.

    A RuntimeError under torch.export, which allows no break, and for tensors without values.
    """
    if _EXPORTING() or not (torch.compiler.is_compiling() or has_values(scores[0])):
        raise RuntimeError(
            "the solver of a FactorGraph reads the scores, which torch.export and tensors without values hide; export "
            "the module that gives the scores, and solve for these outside of it"
        )
    if torch.compiler.is_compiling():
        leave_graph()


def solve(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> SolvedGraph:
    """The nearest point to scores of full shape."""
    if functional():
        numbers = numbers_of(scores)
        with outside_transforms():
            return _agreed(graph, numbers)
    return _agreed(graph, scores)


def _agreed(graph: "FactorGraph", scores: tuple[Tensor, ...]) -> SolvedGraph:
    batch = scores[0].shape[:-1]
    leave_program(scores)
    with torch.no_grad():
        dims = graph.event_dims()
        # with +inf, as with NaN, no point is best
        known = [t.detach() < torch.inf for t in scores]
        bad = [~(k.flatten(k.dim() - d).all(-1) if d else k) for k, d in zip(known, dims, strict=True)]
        undefined = torch.stack(torch.broadcast_tensors(*bad)).any(0) if len(bad) > 1 else bad[0]
        clean = scores
        plain = not bool(undefined.any())
        if not plain:
            clean = tuple(
                torch.where(undefined.reshape((*batch, *[1] * d)), 0, t.detach())
                for t, d in zip(scores, dims, strict=True)
            )
        if bool((largest(clean, dims) > _LARGE).any()):
            clean = without_gaps(clean, dims, _ORDINARY, _LARGE)
        problem = graph._agreement(clean)
        agreed = problem.solve(min(graph.max_iter, _DOUBT))
        feasible = torch.ones(batch, dtype=torch.bool, device=scores[0].device)
        apart = agreed.residual > _APART
        if bool(apart.any()):
            # most problems take few rounds: test for a common point before the others get more
            feasible = refuse_infeasible(graph, clean, apart).reshape(batch)
            plain = plain and bool(feasible.all())
            apart = apart & feasible.reshape(apart.shape)
            if graph.max_iter > _DOUBT and bool(apart.any()):
                agreed = problem.solve(graph.max_iter)
                apart = (agreed.residual > _APART) & feasible.reshape(apart.shape)
            if bool(apart.any()):
                warnings.warn(
                    f"the factors are {float(agreed.residual[apart].max()):.2g} apart after {graph.max_iter} rounds;"
                    " a larger max_iter of the graph brings them closer",
                    stacklevel=4,
                )
    return SolvedGraph(graph, agreed, batch, feasible, undefined, plain)


class _GraphParts(Function):
    """The parts as a function of the scores."""

    generate_vmap_rule = True

    @staticmethod
    def forward(solved: SolvedGraph, *scores: Tensor) -> tuple[Tensor, ...]:
        return solved.parts(scores[0].dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.solved, *scores = inputs
        ctx.save_for_backward(*scores)

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Any, ...]:
        scores = ctx.saved_tensors
        if torch.is_grad_enabled():
            moved = apply_function(Response, ctx.solved, *g)
            return None, *apply_function(Stepwise, len(scores), *scores, *moved)
        return None, *ctx.solved.response(g)


class _GraphValue(Function):
    """The value, whose derivative is the parts."""

    generate_vmap_rule = True

    @staticmethod
    def forward(solved: SolvedGraph, *scores: Tensor) -> Tensor:
        exact = tuple(t.double() for t in scores)
        parts = solved.parts(torch.float64)
        value = solved.graph.score(solved.graph.named(*parts), *exact) - parts[0].square().sum(-1) / 2
        return torch.where(solved.feasible, value, -torch.inf)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.solved, *scores = inputs
        ctx.save_for_backward(*scores)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        scores = ctx.saved_tensors
        if torch.is_grad_enabled():
            mu = apply_function(_GraphParts, ctx.solved, *scores)
        else:
            mu = ctx.solved.parts(scores[0].dtype)
        return None, *(m * g.to(m.dtype).reshape((*g.shape, *[1] * (m.dim() - g.dim()))) for m in mu)
