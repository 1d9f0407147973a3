"""The recursion as a hypergraph: its specification."""

import torch
from torch import Tensor

from polymax.graphs.graph import Graph
from polymax.kernels.gapped import chart_like
from polymax.kernels.gapped.lattice import graph
from polymax.kernels.hypergraph.general import GeneralPasses
from polymax.kernels.hypergraph.lowered import by_graph


def as_graph(
    pairs: Tensor, opened: Tensor, extended: Tensor, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Graph, Tensor]:
    """Return scores of parts (B, 3 n m), the hypergraph, and the root of each instance."""
    _, n, m = pairs.shape
    flat = flat_scores(pairs, opened, extended)
    roots = torch.where((rows > 0) & (columns > 0), 4 * (rows * (m + 1) + columns) + 3, -1)
    return flat, graph.beside(flat, n, m, 0, 3), roots


def flat_scores(pairs: Tensor, opened: Tensor, extended: Tensor) -> Tensor:
    """Return scores of all parts, (B, 3 n m)."""
    return torch.cat([pairs.flatten(1), *(t.expand(pairs.shape).flatten(1) for t in (opened, extended))], 1)


def parts_of(problem: tuple[Tensor, ...], mu: Tensor) -> tuple[Tensor, ...]:
    """Return the derivative in each score tensor; for a number shared by all cells, the sum."""
    scores = problem[:3]
    whole = mu.unflatten(1, (3, *scores[0].shape[1:])).unbind(1)
    return tuple(
        t.contiguous() if t.shape == x.shape else t.sum((1, 2), keepdim=True)
        for t, x in zip(whole, scores, strict=True)
    )


gapped_inside, gapped_outside, gapped_tangent, recorded = by_graph(as_graph, chart_like, 2, flat_scores, 3)
general = GeneralPasses(as_graph, flat_scores, parts_of, 5)
