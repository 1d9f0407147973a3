"""SparseMAP solvers: from MAP calls to the point of the polytope nearest to the scores, and its vertices.

    max over p in the simplex of Y of  sum_y p_y <scores, y> - 1/2 ||mu||^2,        mu = sum_y p_y y (first tensor)

All solvers share the loop: ask MAP for the structure that most improves on mu, and shift weight to it. They differ in
how. The loop ends when the duality gap, how much better than the current weights any structure does, is small.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from polymax.structures.base import Structure


class UsedParts(NamedTuple):
    """Structures as lists of the parts they use, their tensors flat and one after the other.

    Shapes: places (*batch, k, parts), those of the first tensor first, -1 after the last; events, of each tensor
    """

    places: Tensor
    events: tuple[torch.Size, ...]

    def dense(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """Indicators of the first tensors, (*batch, k, *event)."""
        event, places = self.events[0], self.places.long()
        y = torch.zeros(*places.shape[:-1], event.numel() + 1, dtype=dtype, device=places.device)
        # what is not used, or not of the first tensor, goes to a part of its own, and off
        y.scatter_(-1, torch.where((places < 0) | (places >= event.numel()), event.numel(), places), 1.0)
        return y[..., :-1].reshape(*places.shape[:-1], *event)


@dataclass(frozen=True, eq=False)
class Solution:
    """The weights of a few structures.

    Shapes:
        found, the structures by their first tensors: (*batch, k, *event), or as lists of parts; none after the last
        probs (*batch, k), heaviest first, 0 for structures that only span the face; overlaps (*batch, k, k)
        value, what is reached, -inf without a structure; iterations and gap (*batch,)
        undefined, the parts of mu that are NaN because a score of their instance is: bool, a tensor for each of mu

    An undefined instance has no structures; its weights, value and gap are NaN.
    """

    found: Tensor | UsedParts
    probs: Tensor
    overlaps: Tensor
    value: Tensor
    iterations: Tensor
    gap: Tensor
    undefined: tuple[Tensor, ...] | None = None

    @cached_property
    def vertices(self) -> Tensor:
        """The first tensor of each structure, (*batch, k, *event); zeros where there are fewer than k."""
        return self.found.dense() if isinstance(self.found, UsedParts) else self.found

    def without(self, structure: Structure, undefined: tuple[Tensor, ...]) -> "Solution":
        """The same, but for instances whose parts are undefined."""
        from polymax.solvers.undefined import instances

        bad = instances(structure, undefined)
        used = torch.where(bad.unsqueeze(-1), 0, self.probs) != 0
        # as many weights of NaN as another instance has weights
        width = torch.arange(self.probs.shape[-1], device=bad.device) < used.sum(-1).max().clamp(min=1)

        def cleared(t: Tensor, empty: float) -> Tensor:
            return torch.where(bad.reshape(bad.shape + (1,) * (t.dim() - bad.dim())), empty, t)

        found = self.found
        return replace(
            self,
            found=UsedParts(cleared(found.places, -1), found.events)
            if isinstance(found, UsedParts)
            else cleared(found, 0),
            probs=torch.where(bad.unsqueeze(-1), torch.where(width, torch.nan, 0.0), self.probs),
            overlaps=cleared(self.overlaps, 0),
            value=cleared(self.value, torch.nan),
            gap=cleared(self.gap, torch.nan),
            undefined=undefined,
        )


@dataclass(frozen=True)
class Solver:
    """A step rule; stops when gap <= tol (1 + size), and warns with the gap when max_iter ends it.

    The size is that of the value, or of its distance to the score of the best structure, whichever is smaller.
    """

    max_iter: int = 1000
    tol: float = 1e-9

    def __post_init__(self) -> None:
        if not isinstance(self.max_iter, int) or self.max_iter < 1:
            raise ValueError(f"max_iter must be a positive integer; got {self.max_iter!r}")
        if not self.tol >= 0:
            raise ValueError(f"tol must not be negative; got {self.tol!r}")

    def solve(
        self, structure: Structure, scores: tuple[Tensor, ...], start: Solution | None = None, whole: bool = False
    ) -> Solution:
        """The weights that solve the problem, from `start` or from the best structure.

        With `whole`, exact weights come with structures of weight 0 that span the face of the solution: derivatives
        need them.
        """
        from polymax.kernels.active_set import reference as lockstep
        from polymax.solvers import compiled
        from polymax.solvers.reduced import all_small, reduced
        from polymax.solvers.undefined import infeasible_instead, undefined_parts

        with torch.no_grad():
            plain = all_small(scores)
            undefined = None if plain else undefined_parts(structure, scores)
            if undefined is not None:
                scores = infeasible_instead(structure, scores, undefined)
            if start is not None and start.undefined is not None:
                start = replace(start, probs=torch.nan_to_num(start.probs))
            inner, total = (None if plain else reduced(structure, scores)) or (scores, None)
            found = compiled.solve(self, structure, inner, start, whole)
            solution, converged = found or lockstep.solve(self, structure, inner, start, whole)
            if total is not None:
                solution = replace(solution, value=solution.value + total)
        if not bool(converged.all()):
            worst = float(solution.gap[~converged].max())
            warnings.warn(
                f"{type(self).__name__} stopped after {self.max_iter} iterations with a duality gap of {worst:.2g};"
                " a larger max_iter or tol ends this",
                stacklevel=3,
            )
        return solution if undefined is None else solution.without(structure, undefined)


@dataclass(frozen=True)
class ActiveSet(Solver):
    """Exact weights for the structures found so far, before the next is asked for: Wolfe's min-norm-point method.

    Ends after finitely many steps at the solution, up to rounding, or where a turn leaves the structures as they were.

    See: Niculae et al. 2018, SparseMAP, section 3.2; Nocedal and Wright 2006, chapter 16.
    """

    # as many as there are structures in a large support
    max_iter: int = 10_000
    tol: float = 1e-12


@dataclass(frozen=True)
class FrankWolfe(Solver):
    """A step towards the best structure, as long as it pays; many steps for few digits.

    See: Frank and Wolfe 1956.
    """

    max_iter: int = 10_000
    tol: float = 1e-4


@dataclass(frozen=True)
class AwayStep(Solver):
    """A step towards the best structure, or away from the worst that has weight, whichever promises more.

    See: Lacoste-Julien and Jaggi 2015, On the global linear convergence of Frank-Wolfe, algorithm 1.
    """

    max_iter: int = 10_000
    tol: float = 1e-7


@dataclass(frozen=True)
class Pairwise(Solver):
    """Weight goes from the worst structure that has any straight to the best.

    See: Lacoste-Julien and Jaggi 2015, algorithm 2.
    """

    max_iter: int = 10_000
    tol: float = 1e-7
