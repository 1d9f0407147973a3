"""The chain as a hypergraph: its specification.

Node A(t, j) chooses the state before j, node B(t, j) adds the unary score; root R(length) chooses the last state.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax.hypergraphs.graph import Builder, Graph
from polymax.kernels.hypergraph import reference, tape


@lru_cache(maxsize=64)
def graph(n: int, states: int) -> Graph:
    """The hypergraph of sequences of at most n positions."""
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
    """Scores of parts (B, unary and transition), the hypergraph, and the root of each instance."""
    _, n, states = unary.shape
    roots = torch.where(lengths > 0, 2 * states * n + lengths - 1, -1)
    return parts(unary, transition), graph(n, states).to(unary.device), roots


def parts(unary: Tensor, transition: Tensor) -> Tensor:
    """Both score tensors as one row for each instance."""
    batch, n, states = unary.shape
    each = transition.repeat_interleave(batch // max(transition.shape[0], 1), 0)
    steps = max(n - 1, 0)
    if each.shape[1] != steps:
        each = each[:, :1].expand(batch, steps, states, states)
    return torch.cat([unary.flatten(1), each.reshape(batch, steps * states * states)], 1)


def chain_inside(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    flat, g, roots = as_graph(unary, transition, lengths)
    value, _ = reference.hypergraph_inside(flat, *g.arrays, roots, alpha)
    return value, unary.new_zeros(*unary.shape[:2], 2, unary.shape[2])


def chain_outside(
    unary: Tensor, transition: Tensor, lengths: Tensor, chart: Tensor, g: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    flat, h, roots = as_graph(unary, transition, lengths)
    mu = reference.hypergraph_outside(flat, *h.arrays, roots, chart, g, alpha)
    # what scores share is summed: the transpose of `parts`
    return torch.func.vjp(parts, unary, transition)[1](mu)


def chain_tangent(
    unary: Tensor,
    transition: Tensor,
    lengths: Tensor,
    chart: Tensor,
    g: Tensor,
    d_unary: Tensor,
    d_transition: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor, Tensor]:
    flat, h, roots = as_graph(unary, transition, lengths)
    d = parts(d_unary, d_transition)
    dvalue, dmu = reference.hypergraph_tangent(flat, *h.arrays, roots, chart, g, d, alpha)
    return dvalue, *torch.func.vjp(parts, unary, transition)[1](dmu)


def recorded(unary: Tensor, transition: Tensor, lengths: Tensor, alpha: float) -> Tensor:
    """The value, by autograd's tape."""
    flat, h, roots = as_graph(unary, transition, lengths)
    return tape.recorded(flat, *h.arrays, roots, alpha)
