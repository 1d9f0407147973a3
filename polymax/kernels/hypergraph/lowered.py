"""The passes of a recursion by those of its hypergraph: the references of kernel folders."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from polymax.kernels.hypergraph import reference, tape

Pass = Callable[..., Any]


def by_graph(
    as_graph: Callable[..., Any],
    chart: Callable[..., Tensor],
    index: int,
    flat: Callable[..., Tensor] | None = None,
    count: int = 2,
) -> tuple[Pass, Pass, Pass, Pass]:
    """Return the three passes, and the value on autograd's tape, of a problem that `as_graph` writes as a hypergraph.

    The arguments are those of kernels/passes.py, with `index` tensors besides the scores. `flat` joins `count` score
    tensors to one row for each instance; without it the single score tensor is flattened. Charts are empty: the passes
    compute values again.
    """
    count = 1 if flat is None else count
    rows: Callable[..., Tensor] = flat or (lambda x: x.flatten(1))

    def shaped(scores: tuple[Tensor, ...], mu: Tensor) -> tuple[Tensor, ...]:
        # sum over the instances that share a score: the transpose of `rows`
        return (mu.view(scores[0].shape),) if flat is None else torch.func.vjp(flat, *scores)[1](mu)

    def inside(*args: Any) -> tuple[Tensor, Tensor]:
        *problem, alpha = args
        x, graph, roots = as_graph(*problem)
        return reference.hypergraph_inside(x, *graph.arrays, roots, alpha)[0], chart(*args).zero_()

    def outside(*args: Any) -> Any:
        given, (table, g, *options, alpha) = args[: count + index], args[count + index :]
        x, graph, roots = as_graph(*given, *options)
        mu = reference.hypergraph_outside(x, *graph.arrays, roots, table, g, alpha)
        return shaped(given[:count], mu) if count > 1 else shaped(given[:count], mu)[0]

    def tangent(*args: Any) -> tuple[Tensor, ...]:
        given, (table, g, *rest) = args[: count + index], args[count + index :]
        along, (*options, alpha) = rest[:count], rest[count:]
        x, graph, roots = as_graph(*given, *options)
        slope, dmu = reference.hypergraph_tangent(x, *graph.arrays, roots, table, g, rows(*along), alpha)
        return slope, *shaped(given[:count], dmu)

    def recorded(*args: Any) -> Tensor:
        *problem, alpha = args
        x, graph, roots = as_graph(*problem)
        return tape.taped_value(x, *graph.arrays, roots, alpha)

    return inside, outside, tangent, recorded
