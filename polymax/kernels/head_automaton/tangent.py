"""Second derivatives of trees that score pairs of arcs, by the kernels of the general hypergraph.

They are needed if expected arcs are themselves differentiated. The hypergraph has O(n^3) edges with siblings and O(n^4)
with grandparents.
"""

from torch import Tensor

from polymax.kernels.head_automaton.reference import as_graph, parts
from polymax.kernels.hypergraph import hypergraph_inside, hypergraph_tangent


def head_automaton_tangent(
    arcs: Tensor, pairs: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, d_arcs: Tensor, d_pairs: Tensor,
    single_root: bool, order: int, alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    flat, graph, roots = as_graph(arcs, pairs, lengths, single_root, order)
    _, table = hypergraph_inside(flat, *graph.arrays, roots, alpha)
    slope, moved = hypergraph_tangent(flat, *graph.arrays, roots, table, g, parts(d_arcs, d_pairs), alpha)
    first, second = moved.split([arcs.shape[1:].numel(), pairs.shape[1:].numel()], 1)
    return slope, first.reshape(arcs.shape).contiguous(), second.reshape(pairs.shape).contiguous()
