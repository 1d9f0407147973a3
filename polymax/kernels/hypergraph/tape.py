"""The hypergraph recursion recorded by autograd: derivatives of any order, and in any parameter of the smoothing."""

from typing import Any

import torch
from torch import Tensor

from polymax.graphs.graph import Graph
from polymax.graphs.levels import Levels
from polymax.kernels.hypergraph.reference import at_roots, of_edges, of_parts
from polymax.kernels.local_max.reference import TsallisMax


def taped_value(scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, alpha: float) -> Tensor:
    """Return the value of each root, (batch,)."""
    return recorded_by(Levels(Graph(first, tails, part, scores.shape[1])), scores, roots, TsallisMax(alpha))


def recorded_by(levels: Levels, scores: Tensor, roots: Tensor, omega: Any) -> Tensor:
    """Return the value of each root, with every maximum smoothed by `omega`."""
    v, _ = levels.inside(of_edges(usable_scores(levels, scores, roots), levels.graph.part), omega)
    return at_roots(v, roots)


def usable_scores(levels: Levels, scores: Tensor, roots: Tensor) -> Tensor:
    """Return the scores, with 0 for parts that no derivation of the root uses: a NaN there would reach the tape."""
    with torch.no_grad():
        every = torch.ones(levels.graph.edges, scores.shape[0], dtype=scores.dtype, device=scores.device)
        q, _ = levels.outside(every, roots, every.new_ones(scores.shape[0]))
        reached = of_parts((q > 0).to(q.dtype), levels.graph.part, scores.shape[1]) > 0
    return torch.where(reached, scores, 0)
