"""Structures as derivations of a hypergraph: scores of its parts, the root of each instance, the shape of results."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax._parts import Parts
from polymax.backend.cpu_arrays import memory
from polymax.backend.dispatch import declare_function
from polymax.backend.function import outside_transforms
from polymax.graphs.graph import Graph
from polymax.hypergraphs.passes import Problem, kernel_passes
from polymax.kernels.hypergraph import (
    hypergraph_inside,
    hypergraph_kbest,
    hypergraph_outside,
    hypergraph_tangent,
)
from polymax.kernels.hypergraph.tape import taped_value


@dataclass(frozen=True)
class Derivations:
    """A batch of hypergraph problems.

    Shapes: scores (B, parts), roots (B,), one node for each instance, -1 for the empty problem.
    """

    scores: Tensor
    graph: Graph
    roots: Tensor
    batch: torch.Size
    # (*lead, B, parts) -> indicators or marginals in the structure's own shape
    shaped: Callable[[Tensor], Parts]
    # maps a structure with any leading dims to its parts (*lead, parts); None for the identity
    flat: Callable[[Tensor], Tensor] | None = None

    def problem(self) -> Problem:
        """The problem for the kernels of the general hypergraph."""
        tensors = (self.scores, *self.graph.arrays, self.roots)
        return Problem(_PASSES, tensors, self.batch, lambda mu: self.shaped(mu[0]))

    def kbest(self, weights: Tensor, k: int) -> tuple[Parts, Tensor]:
        """The k best structures (k, *batch, ...), best first, and their weights (*batch, k).

        If there are fewer, zeros of weight -inf follow.

        Shapes: weights (B, edges), those of hyperedges
        """
        _check.whole(k, "k")
        values, y = hypergraph_kbest(weights, *self.graph.arrays, self.roots, k, self.graph.parts)
        return self.shaped(y.movedim(1, 0).to(self.scores.dtype)), values.reshape(*self.batch, k)

    def edge_scores(self) -> Tensor:
        """The score of each hyperedge, (B, edges) in float64; 0 for a hyperedge without a part."""
        padded = torch.nn.functional.pad(self.scores.double(), (0, 1))
        return padded[:, torch.where(self.graph.part < 0, self.graph.parts, self.graph.part)]

    def usable(self) -> Parts:
        """The parts that some derivation uses, as 0 and 1 in the structure's own shape."""
        if torch.compiler.is_compiling():
            used = derived_parts(*self.graph.arrays, self.roots, self.graph.parts)
        else:
            used = _used_parts(self.graph, self.roots)
        return self.shaped(used.to(self.scores.dtype))


_PASSES = kernel_passes(hypergraph_inside, hypergraph_outside, hypergraph_tangent, recorded=taped_value)


def _used_parts(graph: Graph, roots: Tensor) -> Tensor:
    """The parts that derivations of the roots (B,) use, bool (B, parts)."""
    distinct, instance = roots.unique(return_inverse=True)
    each = [_derivable_parts(graph, int(root)) for root in distinct]
    return torch.from_numpy(np.array(each, bool).reshape(len(each), graph.parts)).to(roots.device)[instance]


def _used_of_arrays(first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, parts: int) -> Tensor:
    return _used_parts(Graph(first, tails, part, parts), roots)


def _fake_used(first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, parts: int) -> Tensor:
    return roots.new_zeros((roots.shape[0], parts), dtype=torch.bool)


# torch.compile cannot follow the walk
derived_parts = declare_function(
    "derived_parts(Tensor first, Tensor tails, Tensor part, Tensor roots, SymInt parts) -> Tensor",
    _used_of_arrays,
    _fake_used,
)


@lru_cache(maxsize=64)
def _derivable_parts(graph: Graph, root: int) -> np.ndarray:
    """True for each part that a derivation of the root uses."""
    with outside_transforms():
        first, tails, part = (memory(t.cpu()) for t in graph.arrays)
    used, seen = np.zeros(graph.parts + 1, bool), np.zeros(graph.nodes + 1, bool)
    seen[root] = True
    # heads come after tails, and the last place is for absent tails and parts
    for node in range(root, -1, -1):
        if seen[node]:
            edges = slice(first[node], first[node + 1])
            seen[tails[edges]] = True
            used[part[edges]] = True
    return used[:-1]
