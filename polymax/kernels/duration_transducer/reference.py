"""The recursion as a hypergraph: its specification."""

import torch
from torch import Tensor

from polymax.graphs.graph import Graph
from polymax.kernels.duration_transducer import chart_like
from polymax.kernels.duration_transducer.lattice import graph
from polymax.kernels.hypergraph.general import GeneralPasses
from polymax.kernels.hypergraph.lowered import by_graph


def flat_scores(blank: Tensor, label: Tensor, duration: Tensor) -> Tensor:
    """Return scores of all steps, (B, n (2 m + 1) durations)."""
    blanks = blank.unsqueeze(-1) + duration
    labels = label.unsqueeze(-1) + duration[:, :, :-1]
    return torch.cat([blanks.flatten(1), labels.flatten(1)], 1)


def as_graph(
    blank: Tensor, label: Tensor, duration: Tensor, frames: Tensor, tokens: Tensor, durations: list[int]
) -> tuple[Tensor, Graph, Tensor]:
    """Return scores of parts, the hypergraph, and the root of each instance."""
    n, m = label.shape[1:]
    flat = flat_scores(blank, label, duration)
    found = graph.beside(flat, n, m, *durations)
    roots = n * (m + 1) + frames * (m + 1) + tokens
    # a root without hyperedges cannot be reached: the last node has a score of -inf in the place of its value
    none = (frames > 0) & (found.first[roots + 1] == found.first[roots])
    flat = torch.where(none[:, None], -torch.inf, flat)
    roots = torch.where(none, found.first.shape[0] - 2, roots)
    return flat, found, torch.where(frames > 0, roots, -1)


def parts_of(problem: tuple[Tensor, ...], mu: Tensor) -> tuple[Tensor, ...]:
    """Return the derivative in each score tensor."""
    label, duration = problem[1:3]
    first, second = mu.split([duration[0].numel(), mu.shape[1] - duration[0].numel()], 1)
    blanks = first.reshape(duration.shape)
    labels = second.reshape(*label.shape, duration.shape[-1])
    both = blanks + torch.nn.functional.pad(labels, (0, 0, 0, 1))
    return blanks.sum(-1), labels.sum(-1), both


(
    duration_transducer_inside,
    duration_transducer_outside,
    duration_transducer_tangent,
    recorded,
) = by_graph(as_graph, chart_like, 2, flat_scores, 3)
general = GeneralPasses(as_graph, flat_scores, parts_of, 6)
