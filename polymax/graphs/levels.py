"""Smoothed dynamic programming over a hypergraph, level by level, in torch and for any regularizer.

    value        v_h = max_Omega over hyperedges e of h of a_e,    a_e = score_e + sum of v over the tails of e
    weights      p_h = argmax_Omega(a)
    expectation  E_root = g,  q_e = p_e E_head,  E_tail += q_e:   q_e is the derivative of the value in score_e
    tangent      the derivative of all three along d, with J the Jacobian of argmax_Omega:
                 da_e = d_e + sum dv_tails,  dv_h = <p, da>,  dp = J da,  dq_e = dp_e E_head + p_e dE_head

Every function is differentiable by autograd, to any order: it specifies the compiled kernels, and runs on devices
without them. The batch is innermost: scores of hyperedges are (edges, batch), values of nodes (nodes, batch).

See: Mensch and Blondel 2018, Differentiable dynamic programming, sections 2 and 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.function import constant, outside_transforms
from polymax.graphs.graph import Graph

# the change of weights at arguments a along da; the integer is the dim of the maximum
Changes = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class _Rise:
    """Nodes of one level and one number of hyperedges: nodes (k,), edges (k, d), tails (k, d)."""

    nodes: Tensor
    edges: Tensor
    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class _Fall:
    """Nodes of one level that are tails of the same number of hyperedges: nodes (k,), above (k, d).

    `below` are the hyperedges that these nodes head.
    """

    nodes: Tensor
    above: Tensor
    below: Tensor


class Levels:
    """The order in which a graph is computed, as index tables."""

    def __init__(self, graph: Graph) -> None:
        mapped = "torch.vmap cannot map over the arrays of a hypergraph, which all instances share"
        first, tails, part = (constant(t, mapped) for t in graph.arrays)
        self.graph = Graph(first, tails, part, graph.parts)
        # torch.func would wrap the tables, which are kept for other calls
        with outside_transforms():
            self._build()

    def _build(self) -> None:
        graph = self.graph
        first, tails = memory(graph.first.cpu()), memory(graph.tails.cpu())
        self.heads = torch.repeat_interleave(torch.arange(graph.nodes, device="cpu"), graph.first.cpu().diff()).to(
            graph.part.device
        )
        level = _levels(first, tails)
        self.rises = [self._rise(nodes, first, tails) for nodes in _groups(level, np.diff(first)) if level[nodes[0]]]
        outgoing, start = _outgoing(tails, graph.nodes)
        self.falls = [self._fall(nodes, first, outgoing, start) for nodes in reversed(_groups(level, np.diff(start)))]

    def inside(self, scores: Tensor, omega: Any) -> tuple[Tensor, Tensor]:
        """Values (nodes, batch) and arguments a (edges, batch)."""
        v = scores.new_zeros(self.graph.nodes + 1, scores.shape[-1])
        arguments = torch.empty_like(scores)
        for rise in self.rises:
            a = scores[rise.edges] + v[rise.left] + v[rise.right]
            arguments[rise.edges] = a
            v[rise.nodes] = a[:, 0] if a.shape[1] == 1 else omega.max(a, dim=1)
        return v[:-1], arguments

    def weights(self, arguments: Tensor, omega: Any) -> Tensor:
        """Weights p (edges, batch)."""
        p = torch.empty_like(arguments)
        for rise in self.rises:
            a = arguments[rise.edges]
            # the maximum of one argument is that argument; its weight is 1, but not at -inf
            p[rise.edges] = _sure(a) if a.shape[1] == 1 else omega.argmax(a, dim=1)
        return p

    def outside(self, p: Tensor, roots: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Expectations of hyperedges q (edges, batch) and of nodes E (nodes, batch), from g (batch,) at the roots."""
        q = _blank(p, g).new_zeros(p.shape[0] + 1, p.shape[1])
        visits = self._at_roots(p, roots, g)
        for fall in self.falls:
            visits[fall.nodes] += q[fall.above].sum(1)
            reached = visits[self.heads[fall.below]]
            # weights at nodes that the root does not reach are undefined
            q[fall.below] = torch.where(reached == 0, 0, p[fall.below] * reached)
        return q[:-1], visits

    def tangent(
        self, arguments: Tensor, p: Tensor, roots: Tensor, g: Tensor, d: Tensor, changes: Changes
    ) -> tuple[Tensor, Tensor]:
        """Derivatives along d (edges, batch): of the values (nodes, batch), and of the expectations q.

        `changes(a, da, dim)` is the derivative along da of the weights of a maximum.
        """
        blank = _blank(arguments, p, g, d)
        dv = blank.new_zeros(self.graph.nodes + 1, d.shape[-1])
        dp = blank.new_zeros(p.shape)
        for rise in self.rises:
            weights = p[rise.edges]
            # a hyperedge without weight does not move the value, whatever its tangent
            da = torch.where(weights == 0, 0, d[rise.edges] + dv[rise.left] + dv[rise.right])
            dv[rise.nodes] = (weights * da).sum(1)
            if da.shape[1] > 1:
                dp[rise.edges] = changes(arguments[rise.edges], da, 1)
        _, visits = self.outside(p, roots, g)
        dq = blank.new_zeros(p.shape[0] + 1, p.shape[1])
        moved = blank.new_zeros(visits.shape)
        for fall in self.falls:
            moved[fall.nodes] += dq[fall.above].sum(1)
            heads = self.heads[fall.below]
            change = dp[fall.below] * visits[heads] + p[fall.below] * moved[heads]
            dq[fall.below] = torch.where(visits[heads] == 0, 0, change)
        return dv[:-1], dq[:-1]

    def _at_roots(self, p: Tensor, roots: Tensor, g: Tensor) -> Tensor:
        visits = _blank(p, g).new_zeros(self.graph.nodes + 1, p.shape[1])
        columns = torch.arange(p.shape[1], device=p.device)
        return visits.index_put((torch.where(roots < 0, self.graph.nodes, roots), columns), g)[:-1].clone()

    def _rise(self, nodes: np.ndarray, first: np.ndarray, tails: np.ndarray) -> _Rise:
        edges = first[nodes][:, None] + np.arange(first[nodes[0] + 1] - first[nodes[0]])
        # the row after the last holds 0, for an absent tail
        left, right = (np.where(tails[edges, k] < 0, self.graph.nodes, tails[edges, k]) for k in (0, 1))
        return _Rise(*(self._tensor(x) for x in (nodes, edges, left, right)))

    def _fall(self, nodes: np.ndarray, first: np.ndarray, outgoing: np.ndarray, start: np.ndarray) -> _Fall:
        above = outgoing[start[nodes][:, None] + np.arange(start[nodes[0] + 1] - start[nodes[0]])]
        below = np.concatenate([np.arange(first[h], first[h + 1]) for h in nodes])
        return _Fall(*(self._tensor(x) for x in (nodes, above, below)))

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self.graph.part.device)


def _sure(a: Tensor) -> Tensor:
    """The weights of single arguments of a maximum: 1, or 0 if the argument is -inf, or NaN if it is NaN."""
    return torch.where(torch.isnan(a), a, (a > -torch.inf).to(a.dtype))


def _blank(*tensors: Tensor) -> Tensor:
    """A zero, shape (), over which torch.vmap maps if it maps over one of the tensors."""
    return torch.stack([t.flatten()[:0].sum() for t in tensors]).sum()


def _levels(first: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """The largest number of hyperedges on a way from the axioms to each node."""
    starts, pairs = first.tolist(), tails.tolist()
    level = [0] * (len(starts) - 1)
    for h in range(len(level)):
        for left, right in pairs[starts[h] : starts[h + 1]]:
            below = max(level[left] if left >= 0 else 0, level[right] if right >= 0 else 0)
            level[h] = max(level[h], below + 1)
    return np.array(level, np.int64)


def _groups(level: np.ndarray, degree: np.ndarray) -> list[np.ndarray]:
    """Nodes of equal level and degree, levels rising."""
    order = np.lexsort((degree, level))
    changes = np.flatnonzero((np.diff(level[order]) != 0) | (np.diff(degree[order]) != 0)) + 1
    return [g for g in np.split(order, changes) if g.size]


def _outgoing(tails: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """For each node the hyperedges it is a tail of, as one array and the starts of its slices."""
    edge = np.repeat(np.arange(tails.shape[0]), 2)
    tail = tails.ravel()
    edge, tail = edge[tail >= 0], tail[tail >= 0]
    start = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(tail, minlength=nodes), out=start[1:])
    return edge[np.argsort(tail, kind="stable")], start


_KNOWN: WeakKeyDictionary[Graph, Levels] = WeakKeyDictionary()


def levels_of(graph: Graph) -> Levels:
    """The levels of a graph, computed once."""
    if graph not in _KNOWN:
        _KNOWN[graph] = Levels(graph)
    return _KNOWN[graph]
