"""SparseMAP solvers: from MAP calls to the point of the polytope nearest to the scores, and its vertices.

    max over p in the simplex of Y of  sum_y p_y <scores, y> - 1/2 ||mu||^2,        mu = sum_y p_y y (first tensor)

All solvers share the loop: find by MAP the structure that improves most on mu, and shift weight to it. They differ in
the step that shifts weight. The loop ends when the duality gap, the most by which a structure improves on the current
weights, is small.
"""

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.function import recording
from polymax.solvers import loops
from polymax.solvers.reduced import reduce_scores
from polymax.solvers.solution import Solution
from polymax.solvers.undefined import infeasible_instead, undefined_parts
from polymax.structures.base import Structure


@dataclass(frozen=True)
class Solver:
    """A step rule; it stops when gap <= tol (1 + size), and warns with the gap if max_iter ends it before.

    The size is the absolute value of the objective, or its distance to the score of the best structure, whichever is
    smaller.

    Write your own solver as a frozen dataclass with a method `direction`, or with a `solve` that replaces the loop. If
    your `solve` lists structures of weight 0, derivatives ignore them.

    Example:
        >>> class Half(pm.Solver):
        ...     def direction(self, weights, gains, new):
        ...         towards = torch.nn.functional.one_hot(new, weights.shape[-1]) - weights
        ...         return towards, torch.full_like(weights[:, 0], 0.5)
        >>> unary, transition = torch.tensor([[0.3, 0.0], [0.0, 0.2]]), torch.zeros(2, 2)
        >>> pm.SparseMap(pm.Chain(), Half(tol=1e-3))(unary, transition).unary.sum(-1)
        tensor([1., 1.])
    """

    # the name of the step rule in the loops; "" for rules given by `direction`
    step: ClassVar[str] = ""
    max_iter: int = 1000
    tol: float = 1e-9

    def __post_init__(self) -> None:
        _check.whole(self.max_iter, "max_iter")
        if not self.tol >= 0:
            raise ValueError(f"tol must not be negative; got {self.tol!r}")

    @property
    def rule(self) -> "Solver":
        """The solver whose steps are taken: this one, or, for a warm start, the solver that it wraps."""
        return self

    def direction(self, weights: Tensor, gains: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """Return the change of weights (B, k) of an iteration and the longest step along it, (B,), for the line search.

        `new` is the place of the structure that improves most on the mean. A change of weights must sum to 0 in each
        instance, and weights must stay at least 0 up to the longest step. Places of weight 0, except `new`, hold no
        structure.

        Shapes: weights (B, k); gains (B, k), the derivative of the objective in each weight; new (B,)
        """
        raise TypeError(f"{type(self).__name__} must have a method `direction` or a method `solve`; it has neither")

    def solve(
        self, structure: Structure, scores: tuple[Tensor, ...], start: Solution | None = None, whole: bool = False
    ) -> Solution:
        """The weights that solve the problem, from `start` or from the best structure.

        With `whole`, exact weights come with structures of weight 0 that span the face of the solution: derivatives
        need them. While a CUDA graph is recorded, nothing is read from the device: scores are not checked for size or
        NaN, and there is no warning if max_iter ends the search. max_iter must be small then.
        """
        with torch.no_grad():
            undefined = total = None
            recorded = scores[0].device.type == "cuda" and recording(scores[0])
            if start is not None and start.undefined is not None:
                start = replace(start, probs=torch.nan_to_num(start.probs))
            found = loops.solve(self, structure, scores, start, whole, not recorded)
            if found is None:
                # some scores are large, NaN or +inf
                undefined = undefined_parts(structure, scores)
                if undefined is not None:
                    scores = infeasible_instead(structure, scores, undefined)
                scores, total = reduce_scores(structure, scores) or (scores, None)
                found = loops.solve(self, structure, scores, start, whole, False)
                assert found is not None, "only a wary search returns None"
            solution, converged = found
            if total is not None:
                solution = replace(solution, value=solution.value + total)
        # while a graph is recorded, its results do not exist yet
        if not recorded and converged is not None and not converged.all():
            worst = float(solution.gap[~converged].max())
            warnings.warn(
                f"{type(self).__name__} stopped after {self.max_iter} iterations with a duality gap of {worst:.2g};"
                " a larger max_iter or tol ends this",
                stacklevel=3,
            )
        return solution if undefined is None else solution.without(structure, undefined)


@dataclass(frozen=True)
class ActiveSet(Solver):
    """The exact solver, Wolfe's min-norm-point method: each new structure is followed by exact weights for all of them.

    It ends after finitely many iterations at the solution, up to rounding; it also ends if an iteration does not change
    the set of structures.

    Example:
        >>> unary, transition = torch.tensor([[0.3, 0.0], [0.0, 0.2]]), torch.zeros(2, 2)
        >>> pm.SparseMap(pm.Chain(), ActiveSet(max_iter=100))(unary, transition).unary
        tensor([[0.6500, 0.3500],
                [0.4000, 0.6000]])

    See: Niculae et al. 2018, SparseMAP, section 3.2; Nocedal and Wright 2006, chapter 16.
    """

    step: ClassVar[str] = "exact"
    # iterations: one for each structure of a large support
    max_iter: int = 10_000
    tol: float = 1e-12


@dataclass(frozen=True)
class FrankWolfe(Solver):
    """Frank-Wolfe's method: each iteration is a step towards the best structure. It converges slowly.

    Example:
        >>> unary, transition = torch.tensor([[0.3, 0.0], [0.0, 0.2]]), torch.zeros(2, 2)
        >>> pm.SparseMap(pm.Chain(), FrankWolfe(tol=1e-3))(unary, transition).unary.sum(-1)
        tensor([1., 1.])

    See: Frank and Wolfe 1956.
    """

    step: ClassVar[str] = "frank_wolfe"
    max_iter: int = 10_000
    tol: float = 1e-4


@dataclass(frozen=True)
class AwayStep(Solver):
    """Frank-Wolfe with away steps: towards the best structure, or away from the worst, whichever has the larger slope.

    Example:
        >>> unary, transition = torch.tensor([[0.3, 0.0], [0.0, 0.2]]), torch.zeros(2, 2)
        >>> pm.SparseMap(pm.Chain(), AwayStep()).solve(unary, transition).gap < 1e-6
        tensor(True)

    See: Lacoste-Julien and Jaggi 2015, On the global linear convergence of Frank-Wolfe, algorithm 1.
    """

    step: ClassVar[str] = "away"
    max_iter: int = 10_000
    tol: float = 1e-7


@dataclass(frozen=True)
class Pairwise(Solver):
    """Pairwise Frank-Wolfe: each iteration moves weight from the worst structure with weight to the best structure.

    Example:
        >>> unary, transition = torch.tensor([[0.3, 0.0], [0.0, 0.2]]), torch.zeros(2, 2)
        >>> pm.SparseMap(pm.Chain(), Pairwise()).solve(unary, transition).gap < 1e-6
        tensor(True)

    See: Lacoste-Julien and Jaggi 2015, algorithm 2.
    """

    step: ClassVar[str] = "pairwise"
    max_iter: int = 10_000
    tol: float = 1e-7
