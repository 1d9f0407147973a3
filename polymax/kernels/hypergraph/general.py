"""The passes of a recursion by the kernels of the general hypergraph, for cases that a folder's own kernels lack."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from polymax.kernels.hypergraph import hypergraph_inside, hypergraph_outside, hypergraph_tangent


class GeneralPasses:
    """The passes of a problem that `as_graph` writes as a hypergraph; `given` tensors describe the problem.

    `flat_scores` joins the score tensors of each instance to one row; `parts_of` takes the tensors of the problem and
    derivatives in such rows, and returns the derivatives in each score tensor.
    """

    def __init__(
        self,
        as_graph: Callable[..., Any],
        flat_scores: Callable[..., Tensor],
        parts_of: Callable[..., tuple[Tensor, ...]],
        given: int,
    ) -> None:
        self._as_graph, self._flat_scores, self._parts_of, self._given = as_graph, flat_scores, parts_of, given

    def inside(self, *args: Any) -> Tensor:
        """Return the value, from the tensors of the problem, then alpha; its chart is not kept."""
        x, graph, roots = self._as_graph(*args[: self._given])
        return hypergraph_inside(x, *graph.arrays, roots, args[self._given])[0]

    def outside(self, *args: Any) -> tuple[Tensor, ...]:
        """Return the derivative of g v in each score tensor, from the tensors of the problem, then g and alpha."""
        given, (g, alpha) = args[: self._given], args[self._given :]
        x, graph, roots = self._as_graph(*given)
        chart = hypergraph_inside(x, *graph.arrays, roots, alpha)[1]
        return self._parts_of(given, hypergraph_outside(x, *graph.arrays, roots, chart, g.contiguous(), alpha))

    def tangent(self, *args: Any) -> tuple[Tensor, ...]:
        """Return derivatives of v and of g mu along tangents, from the tensors of the problem, then g, the tangents and
        alpha.
        """
        given, (g, *along, alpha) = args[: self._given], args[self._given :]
        x, graph, roots = self._as_graph(*given)
        chart = hypergraph_inside(x, *graph.arrays, roots, alpha)[1]
        slope, dmu = hypergraph_tangent(x, *graph.arrays, roots, chart, g, self._flat_scores(*along), alpha)
        return slope, *self._parts_of(given, dmu)
