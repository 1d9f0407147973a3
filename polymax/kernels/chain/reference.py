"""The chain as a hypergraph: its specification.

Node A(t, j) chooses the state before j, node B(t, j) adds the unary score; root R(length) chooses the last state.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax.graphs.graph import Builder, Graph
from polymax.kernels.chain import chart_like
from polymax.kernels.hypergraph.lowered import by_graph


@lru_cache(maxsize=64)
def graph(n: int, states: int) -> Graph:
    """Return the hypergraph of sequences of at most n positions."""
    t, i, j = np.ogrid[:n, :states, :states]
    unary = np.arange(n * states).reshape(n, 1, states)
    transition = n * states + np.arange(max(n - 1, 0) * states * states).reshape(max(n - 1, 0), states, states)
    before, after = 2 * states * t + j, 2 * states * t + states + j
    builder = Builder(parts=n * states + transition.size)
    builder.add(after, unary, before)
    builder.add(before[1:], transition, 2 * states * t[:-1] + states + i)
    builder.add(2 * states * n + t, -1, after)
    return builder.build(2 * states * n + n)


def as_graph(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Graph, Tensor]:
    """Return scores of parts (B, unary and transition), the hypergraph, and the root of each instance."""
    _, n, states = unary.shape
    roots = torch.where(lengths > 0, 2 * states * n + lengths - 1, -1)
    return parts(unary, transition), graph(n, states).to(unary.device), roots


def parts(unary: Tensor, transition: Tensor) -> Tensor:
    """Return both score tensors joined to one row for each instance."""
    batch, n, states = unary.shape
    each = transition.repeat_interleave(batch // max(transition.shape[0], 1), 0)
    steps = max(n - 1, 0)
    if each.shape[1] != steps:
        each = each[:, :1].expand(batch, steps, states, states)
    return torch.cat([unary.flatten(1), each.reshape(batch, steps * states * states)], 1)


chain_inside, chain_outside, chain_tangent, recorded = by_graph(as_graph, chart_like, 1, parts)
