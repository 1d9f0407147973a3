"""SparseMAP: the point of the polytope nearest to the scores, as a mean of few structures."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polymax._parts import checked_scores, narrow
from polymax.backend.function import constant, functional, outside_transforms
from polymax.regularizers.entropies import positive
from polymax.smoothing.base import Smoothing
from polymax.smoothing.temperature import restore_scale, scaled_scores
from polymax.solvers import ActiveSet, Solution, Solver
from polymax.solvers.finite import Finite
from polymax.solvers.loops import path
from polymax.solvers.mixture import best_value, mean, weights_and_mean
from polymax.solvers.traced import traced_value_and_mean
from polymax.structures.base import Parts, Structure, tensors


def _active_set() -> Solver:
    """The default, made by a function: torch.compile traces neither an object nor a class as a default."""
    return ActiveSet()


@dataclass(frozen=True, eq=False)
class SparseMap(Smoothing):
    """The projection of scores / gamma onto the hull of the structures, computed from MAP calls alone.

        Omega(mu) = gamma / 2 ||mu||^2, for chains and segmentations of the first tensor only

    Example:
        >>> SparseMap(pm.Simplex())(torch.tensor([0.2, 0.0, -1.0]))
        tensor([0.6000, 0.4000, 0.0000])

    See: Niculae, Martins, Blondel and Cardie 2018, SparseMAP: differentiable sparse structured inference.
    """

    structure: Structure
    solver: Solver = field(default_factory=_active_set)
    gamma: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Structure):
            raise TypeError(f"structure must be a Structure; got {type(self.structure).__name__}")
        if not isinstance(self.solver, Solver):
            raise TypeError(f"solver must be a Solver; got {type(self.solver).__name__}")
        if type(self.gamma) is not float or not self.gamma > 0:
            positive(self.gamma, "gamma")

    def max(self, *scores: Tensor) -> Tensor:
        cold = scaled_scores(self.structure, checked_scores(scores), self.gamma)
        relaxed = self.structure.relaxed_projection_value(*cold)
        if relaxed is not None:
            value = relaxed
        elif torch.compiler.is_compiling():
            value = traced_value_and_mean(self.solver, self.structure, cold)[0]
        else:
            derived = _derived(cold)
            value = best_value(self.structure, self._solved(cold, None, derived), cold, derived)
        return restore_scale(value, self.gamma).to(scores[0].dtype)

    def argmax(self, *scores: Tensor) -> Parts:
        cold = checked_scores(scores)
        if type(self.gamma) is not float or self.gamma != 1:
            cold = scaled_scores(self.structure, cold, self.gamma)
        mu = self.structure.projection(*cold)
        if mu is None:
            if torch.compiler.is_compiling():
                parts = traced_value_and_mean(self.solver, self.structure, cold)[1:]
            else:
                derived = _derived(cold)
                parts = mean(self.structure, self._solved(cold, None, derived), cold, derived)
            mu = self.structure.named(*parts)
        return mu if cold[0].dtype == scores[0].dtype else narrow(mu, scores[0].dtype)

    def omega(self, mu: Parts) -> Tensor:
        first = tensors(mu)[0]
        dims = self.structure.event_dims(*tensors(mu))[0]
        return restore_scale(first.square().flatten(-dims).sum(-1) / 2, self.gamma)

    def omega_at(self, index: Tensor, *scores: Tensor) -> Tensor:
        first = self.structure.compact.first(index, *scores).double()
        return self.omega((first, *scores[1:]) if len(scores) > 1 else first)

    def solve(self, *scores: Tensor, start: Solution | None = None) -> Any:
        """The solution, searched from `start`, an earlier solution; for a graph, a `GraphSolution`."""
        cold = scaled_scores(self.structure, checked_scores(scores), self.gamma)
        relaxed = self.structure.relaxed_projection(*cold)
        return self._solved(cold, start, whole=False) if relaxed is None else relaxed

    def distribution(self, *scores: Tensor, start: Solution | None = None) -> Any:
        """The distribution over the structures that make up mu; for a graph, those of its `factors`.

        `start` is for a warm start.
        """
        cold = scaled_scores(self.structure, checked_scores(scores), self.gamma)
        relaxed = self.structure.relaxed_projection(*cold)
        if relaxed is not None:
            return relaxed.distribution()
        derived = _derived(cold)
        solution = self._solved(cold, start, derived)
        p, *mu = weights_and_mean(self.structure, solution, cold, derived)
        found = solution.with_weight()
        return Finite(
            self.structure,
            found,
            # without structures of weight 0, which serve only derivatives
            p[..., : (found if isinstance(found, Tensor) else found.places).shape[p.dim() - 1]],
            scores[0].dtype,
            mean=tuple(mu),
            undefined=solution.undefined,
            solution=solution,
        )

    def path(self, *scores: Tensor) -> str:
        """A sentence that says which loop solves problems of this kind, and why.

        Example:
            >>> SparseMap(pm.Ranking()).path(torch.zeros(3))
            'argmax is the closed form of Ranking.projection; for other results: a loop in torch calls Ranking.map \
for the whole batch at each iteration, because Ranking.search is None.'
        """
        cold = scaled_scores(self.structure, checked_scores(scores), self.gamma)
        loop = path(self.solver.rule, self.structure, cold)
        if self.structure.projection(*cold) is None:
            return loop
        closed = f"argmax is the closed form of {type(self.structure).__name__}.projection; for other results:"
        return f"{closed} {loop[0].lower()}{loop[1:]}"

    def _solved(self, cold: tuple[Tensor, ...], start: Solution | None, whole: bool) -> Solution:
        if not functional():
            return self._found(cold, start, whole)
        # the solver reads numbers: those below what torch.func.jacrev wraps; torch.vmap hides them
        mapped = "SparseMap's solver reads the scores, which torch.vmap hides; give them as a batch, (*batch, ...)"
        values = tuple(constant(x.detach(), mapped).detach() for x in cold)
        with outside_transforms():
            return self._found(values, start, whole)

    def _found(self, cold: tuple[Tensor, ...], start: Solution | None, whole: bool) -> Solution:
        solution = self.solver.solve(self.structure, cold, start, whole)
        # structures of weight 0 are the face of the solution by exact weights; a user's may be anything
        rule = self.solver.rule
        own = not rule.step and type(rule).solve is not Solver.solve
        return solution.of_support() if own else solution


def _derived(scores: tuple[Tensor, ...]) -> bool:
    """True if derivatives in the scores may be required."""
    if not torch.is_grad_enabled():
        return functional()
    for x in scores:
        if x.requires_grad:
            return True
    return functional()
