"""The recursion as a hypergraph: its specification."""

from typing import Any

import torch
from torch import Tensor

from polymax.hypergraphs.graph import Graph
from polymax.kernels.gapped import chart_like
from polymax.kernels.gapped.lattice import graph
from polymax.kernels.hypergraph import reference, tape


def as_graph(
    pairs: Tensor, opened: Tensor, extended: Tensor, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Graph, Tensor]:
    """Scores of parts (B, 3 n m), the hypergraph, and the root of each instance."""
    _, n, m = pairs.shape
    flat = flat_scores(pairs, opened, extended)
    roots = torch.where((rows > 0) & (columns > 0), 4 * (rows * (m + 1) + columns) + 3, -1)
    return flat, graph.beside(flat, n, m, 0, 3), roots


def gapped_inside(*args: Any) -> tuple[Tensor, Tensor]:
    *problem, alpha = args
    x, found, roots = as_graph(*problem)
    return reference.hypergraph_inside(x, *found.arrays, roots, alpha)[0], chart_like(*args).zero_()


def gapped_outside(*args: Any) -> tuple[Tensor, ...]:
    x, found, roots = as_graph(*args[:5])
    mu = reference.hypergraph_outside(x, *found.arrays, roots, *args[5:])
    return parts_of(args[:3], mu)


def gapped_tangent(*args: Any) -> tuple[Tensor, ...]:
    x, found, roots = as_graph(*args[:5])
    chart, g, *along, alpha = args[5:]
    slope, dmu = reference.hypergraph_tangent(x, *found.arrays, roots, chart, g, flat_scores(*along), alpha)
    return slope, *parts_of(args[:3], dmu)


def recorded(*args: Any) -> Tensor:
    """The value on autograd's tape."""
    *problem, alpha = args
    x, found, roots = as_graph(*problem)
    return tape.recorded(x, *found.arrays, roots, alpha)


def flat_scores(pairs: Tensor, opened: Tensor, extended: Tensor) -> Tensor:
    """Scores of all parts, (B, 3 n m)."""
    return torch.cat([pairs.flatten(1), *(t.expand(pairs.shape).flatten(1) for t in (opened, extended))], 1)


def parts_of(scores: tuple[Tensor, ...], mu: Tensor) -> tuple[Tensor, ...]:
    """The derivative in each score tensor; that of a number for all cells is the sum."""
    whole = mu.unflatten(1, (3, *scores[0].shape[1:])).unbind(1)
    return tuple(
        t.contiguous() if t.shape == x.shape else t.sum((1, 2), keepdim=True)
        for t, x in zip(whole, scores, strict=True)
    )
