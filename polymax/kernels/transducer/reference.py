"""The recursion as a hypergraph: its specification."""

import torch
from torch import Tensor

from polymax.graphs.graph import Graph
from polymax.kernels.hypergraph.general import GeneralPasses
from polymax.kernels.hypergraph.lowered import by_graph
from polymax.kernels.transducer import chart_like
from polymax.kernels.transducer.lattice import graph


def flat_scores(blank: Tensor, label: Tensor) -> Tensor:
    """Return scores of all parts, (B, n (2 m + 1))."""
    return torch.cat([blank.flatten(1), label.flatten(1)], 1)


def as_graph(blank: Tensor, label: Tensor, frames: Tensor, tokens: Tensor) -> tuple[Tensor, Graph, Tensor]:
    """Return scores of parts, the hypergraph, and the root of each instance."""
    n, m = label.shape[1:]
    flat = flat_scores(blank, label)
    roots = torch.where(frames > 0, n * (m + 1) + (frames - 1) * (m + 1) + tokens, -1)
    return flat, graph.beside(flat, n, m), roots


def parts_of(problem: tuple[Tensor, ...], mu: Tensor) -> tuple[Tensor, ...]:
    """Return the derivative in both score tensors."""
    blank, label = problem[:2]
    first, second = mu.split([blank[0].numel(), label[0].numel()], 1)
    return first.reshape(blank.shape).contiguous(), second.reshape(label.shape).contiguous()


transducer_inside, transducer_outside, transducer_tangent, recorded = by_graph(as_graph, chart_like, 2, flat_scores)
general = GeneralPasses(as_graph, flat_scores, parts_of, 4)
