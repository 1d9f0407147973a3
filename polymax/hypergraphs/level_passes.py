"""The passes over a hypergraph for any regularizer, in torch."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from polymax.hypergraphs.levels import Levels
from polymax.kernels.hypergraph.reference import at_roots, of_edges, of_parts
from polymax.kernels.hypergraph.tape import recorded_by
from polymax.regularizers import Regularizer


@dataclass(frozen=True, eq=False)
class LevelPasses:
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
        dv, dq = self.levels.tangent(chart, p, roots, g, of_edges(along[0], part), self.omega)
        return at_roots(dv, roots), of_parts(dq, part, scores.shape[1])

    def tape(self, tensors: tuple[Tensor, ...]) -> Tensor:
        scores, roots = tensors
        return recorded_by(self.levels, scores, roots, self.omega)
