"""Trees that score pairs of arcs as hypergraphs: their specification. Derivations and trees correspond one to one."""

import torch
from torch import Tensor

from polymax.graphs.graph import Graph
from polymax.kernels.head_automaton import chart_like
from polymax.kernels.head_automaton.graphs import both, first_root, grandparents, siblings
from polymax.kernels.hypergraph.lowered import by_graph

_FAMILIES = {1: siblings, 2: grandparents, 3: both}


def as_graph(
    arcs: Tensor, pairs: Tensor, lengths: Tensor, single_root: bool, order: int
) -> tuple[Tensor, Graph, Tensor]:
    """Return scores (B, parts), the hypergraph, and the root of each instance."""
    positions = arcs.shape[1]
    flat = parts(arcs, pairs)
    graph = _FAMILIES[order].beside(flat, positions, int(single_root))
    return flat, graph, torch.where(lengths > 0, first_root(order, positions, single_root) + lengths, -1)


def parts(arcs: Tensor, pairs: Tensor) -> Tensor:
    """Return the scores of an instance in a row."""
    return torch.cat([arcs.flatten(1), pairs.flatten(1)], 1)


head_automaton_inside, head_automaton_outside, head_automaton_tangent, recorded = by_graph(
    as_graph, chart_like, 1, parts
)
