"""Solutions of a graph's relaxation: a point on which the factors agree, and its residual."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polymax.factors.distribution import GraphDistribution, distributions
from polymax.factors.solved_graph import SolvedGraph


@dataclass(frozen=True, eq=False)
class GraphSolution:
    """A point on which the factors of a graph agree, and how well they agree.

    Shapes:
        iterations (*batch,): the number of rounds
        residual (*batch,): the largest difference between factors
        integral (*batch,): True if all variables are 0 or 1
        feasible (*batch,): False if scores of -inf forbid all structures
    """

    parts: Any
    iterations: Tensor
    residual: Tensor
    feasible: Tensor
    solved: SolvedGraph = field(repr=False)
    scores: tuple[Tensor, ...] = field(repr=False)

    @property
    def variables(self) -> Tensor:
        return self.parts.variables

    @property
    def factors(self) -> Any:
        return self.parts.factors

    @property
    def integral(self) -> Tensor:
        variables = self.parts.variables
        return ((variables == 0) | (variables == 1)).all(-1) & self.feasible

    def distribution(self) -> GraphDistribution:
        """The distributions over structures of each factor."""
        return GraphDistribution(self.parts, distributions(self.solved, self.scores, self.parts[0].dtype))

    @property
    def converged(self) -> Tensor:
        """True for instances whose factors agree; False if the limit of rounds ended the search before."""
        return self.residual <= 1e-8


def solution_of(solved: SolvedGraph, parts: tuple[Tensor, ...], scores: tuple[Tensor, ...]) -> GraphSolution:
    """The solution with its parts, for scores in full shape."""
    agreed = solved.agreed
    shape = solved.batch
    residual = torch.where(solved.feasible, agreed.residual.reshape(shape), 0)
    return GraphSolution(
        solved.graph.named(*parts), agreed.rounds.reshape(shape), residual, solved.feasible, solved, scores
    )
