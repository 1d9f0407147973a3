"""The passes by the kernels of the general hypergraph, for what the fast ones leave to them."""

from typing import Any

from torch import Tensor

from polymax.kernels.gapped.reference import as_graph, flat_scores, parts_of
from polymax.kernels.hypergraph import hypergraph_inside, hypergraph_outside, hypergraph_tangent


def inside(*args: Any) -> Tensor:
    """The value; its chart is not kept."""
    x, graph, roots = as_graph(*args[:5])
    return hypergraph_inside(x, *graph.arrays, roots, args[5])[0]


def outside(*args: Any) -> tuple[Tensor, ...]:
    """The derivative of g v in each score tensor."""
    given, (g, alpha) = args[:5], args[5:]
    x, graph, roots = as_graph(*given)
    chart = hypergraph_inside(x, *graph.arrays, roots, alpha)[1]
    return parts_of(given[:3], hypergraph_outside(x, *graph.arrays, roots, chart, g.contiguous(), alpha))


def tangent(*args: Any) -> tuple[Tensor, ...]:
    """The derivative of v along `along`, and that of the derivative of g v."""
    given, (g, *along, alpha) = args[:5], args[5:]
    x, graph, roots = as_graph(*given)
    chart = hypergraph_inside(x, *graph.arrays, roots, alpha)[1]
    slope, dmu = hypergraph_tangent(x, *graph.arrays, roots, chart, g, flat_scores(*along), alpha)
    return slope, *parts_of(given[:3], dmu)
