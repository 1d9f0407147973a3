"""The passes by the kernels of the general hypergraph, for what the fast ones leave to them."""

from typing import Any

from torch import Tensor

from polymax.kernels.hypergraph import hypergraph_inside, hypergraph_outside, hypergraph_tangent
from polymax.kernels.transducer.reference import as_graph, flat_scores


def inside(*args: Any) -> Tensor:
    """The value; its chart is not kept."""
    x, graph, roots = as_graph(*args[:4])
    return hypergraph_inside(x, *graph.arrays, roots, args[4])[0]


def outside(*args: Any) -> tuple[Tensor, ...]:
    """The derivative of g v in both score tensors."""
    given, (g, alpha) = args[:4], args[4:]
    x, graph, roots = as_graph(*given)
    chart = hypergraph_inside(x, *graph.arrays, roots, alpha)[1]
    return _parts(given, hypergraph_outside(x, *graph.arrays, roots, chart, g.contiguous(), alpha))


def tangent(*args: Any) -> tuple[Tensor, ...]:
    """The derivative of v along tangents of the scores, and that of the derivative of g v."""
    given, (g, *along, alpha) = args[:4], args[4:]
    x, graph, roots = as_graph(*given)
    chart = hypergraph_inside(x, *graph.arrays, roots, alpha)[1]
    slope, dmu = hypergraph_tangent(x, *graph.arrays, roots, chart, g, flat_scores(*along), alpha)
    return slope, *_parts(given, dmu)


def _parts(given: tuple[Tensor, ...], mu: Tensor) -> tuple[Tensor, ...]:
    blank, label = given[:2]
    first, second = mu.split([blank[0].numel(), label[0].numel()], 1)
    return first.reshape(blank.shape).contiguous(), second.reshape(label.shape).contiguous()
