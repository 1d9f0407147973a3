"""SparseMAP solvers: from MAP calls to the point of the polytope nearest to the scores, and its vertices.

    max over p in the simplex of Y of  sum_y p_y <scores, y> - 1/2 ||mu||^2,        mu = sum_y p_y y (first tensor)

All solvers share the loop: ask MAP for the structure that most improves on mu, and shift weight to it. They differ in
how. The loop ends when the duality gap, how much better than the current weights any structure does, is small.
"""

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from polymax.backend.function import recording
from polymax.solvers import loops
from polymax.solvers.reduced import reduce_scores
from polymax.solvers.solution import Solution
from polymax.solvers.undefined import infeasible_instead, undefined_parts
from polymax.structures.base import Structure


@dataclass(frozen=True)
class Solver:
    """A step rule; stops when gap <= tol (1 + size), and warns with the gap when max_iter ends it.

    The size is that of the value, or of its distance to the score of the best structure, whichever is smaller.

    A solver of your own is a frozen dataclass with a method `direction`, or with a `solve` that replaces the loop. The
    structures of weight 0 that a `solve` of your own lists have no part in derivatives.

    Example:
        >>> class Half(pm.Solver):
        ...     def direction(self, weights, gains, new):
        ...         towards = torch.nn.functional.one_hot(new, weights.shape[-1]) - weights
        ...         return towards, torch.full_like(weights[:, 0], 0.5)
        >>> unary, transition = torch.tensor([[0.3, 0.0], [0.0, 0.2]]), torch.zeros(2, 2)
        >>> pm.SparseMap(pm.Chain(), Half(tol=1e-3))(unary, transition).unary.sum(-1)
        tensor([1., 1.])
    """

    # the step rule, by which the loops know it; that of `direction` has no name
    step: ClassVar[str] = ""
    max_iter: int = 1000
    tol: float = 1e-9

    def __post_init__(self) -> None:
        if not isinstance(self.max_iter, int) or self.max_iter < 1:
            raise ValueError(f"max_iter must be a positive integer; got {self.max_iter!r}")
        if not self.tol >= 0:
            raise ValueError(f"tol must not be negative; got {self.tol!r}")

    @property
    def rule(self) -> "Solver":
        """The solver whose steps are taken: this one, but for solvers that look up where it starts."""
        return self

    def direction(self, weights: Tensor, gains: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """The change of weights (B, k) of an iteration, and the longest step along it, (B,), for the line search.

        `new` is the place of the structure that improves most on the mean. A change of weights sums to 0 in each
        instance, and weights stay at least 0 up to the longest step. Places without weight are free, but for `new`.

        Shapes: weights, gains (B, k), how much weight on each structure adds to the objective; new (B,)
        """
        raise TypeError(f"{type(self).__name__} must have a method `direction` or a method `solve`; it has neither")

    def solve(
        self, structure: Structure, scores: tuple[Tensor, ...], start: Solution | None = None, whole: bool = False
    ) -> Solution:
        """The weights that solve the problem, from `start` or from the best structure.

        With `whole`, exact weights come with structures of weight 0 that span the face of the solution: derivatives
        need them. While a CUDA graph is recorded nothing is read: not whether scores are so large that their sums lose
        digits, not whether one is NaN, nor whether max_iter, which must be small then, has ended the search.
        """
        with torch.no_grad():
            undefined = total = None
            recorded = scores[0].device.type == "cuda" and recording(scores[0])
            if start is not None and start.undefined is not None:
                start = replace(start, probs=torch.nan_to_num(start.probs))
            found = loops.solve(self, structure, scores, start, whole, not recorded)
            if found is None:
                # some are large, or undefined
                undefined = undefined_parts(structure, scores)
                if undefined is not None:
                    scores = infeasible_instead(structure, scores, undefined)
                scores, total = reduce_scores(structure, scores) or (scores, None)
                found = loops.solve(self, structure, scores, start, whole, False)
                assert found is not None, "only who is wary gives none"
            solution, converged = found
            if total is not None:
                solution = replace(solution, value=solution.value + total)
        # what a graph will compute is not there to be read
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
    """The exact solver, Wolfe's min-norm-point method: after each new structure, all found so far get exact weights.

    It ends after finitely many iterations, at the solution up to rounding, or where an iteration leaves the set of
    structures as it is.

    Example:
        >>> unary, transition = torch.tensor([[0.3, 0.0], [0.0, 0.2]]), torch.zeros(2, 2)
        >>> pm.SparseMap(pm.Chain(), ActiveSet(max_iter=100))(unary, transition).unary
        tensor([[0.6500, 0.3500],
                [0.4000, 0.6000]])

    See: Niculae et al. 2018, SparseMAP, section 3.2; Nocedal and Wright 2006, chapter 16.
    """

    step: ClassVar[str] = "exact"
    # as many as there are structures in a large support
    max_iter: int = 10_000
    tol: float = 1e-12


@dataclass(frozen=True)
class FrankWolfe(Solver):
    """Frank-Wolfe's method: each iteration is a step towards the best structure. It needs many steps for few digits.

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
    """Frank-Wolfe with away steps: towards the best structure, or away from the worst one, whichever promises more.

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
    """Pairwise Frank-Wolfe: each iteration moves weight from the worst structure that has any to the best one.

    Example:
        >>> unary, transition = torch.tensor([[0.3, 0.0], [0.0, 0.2]]), torch.zeros(2, 2)
        >>> pm.SparseMap(pm.Chain(), Pairwise()).solve(unary, transition).gap < 1e-6
        tensor(True)

    See: Lacoste-Julien and Jaggi 2015, algorithm 2.
    """

    step: ClassVar[str] = "pairwise"
    max_iter: int = 10_000
    tol: float = 1e-7
