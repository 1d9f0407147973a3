"""The Omega of smoothed recursions as a function of expected parts, where these determine it."""

import torch
from torch import Tensor

from polymax.graphs.levels import Levels, levels_of
from polymax.hypergraphs.derivations import Derivations
from polymax.kernels.hypergraph.reference import of_edges
from polymax.regularizers import Regularizer


class UnknownOmega(ValueError):
    """Omega has no closed form at this point."""


def omega_of_choices(mu: Derivations, omega: Regularizer) -> Tensor | None:
    """sum over nodes h of E_h Omega(q_e / E_h, over the hyperedges e of h), (*batch,); by Shannon - H(mu).

    q and E are the expected hyperedges and nodes; `mu` has expected parts in the place of scores. These must determine
    q: true of chains, segmentations, paths and hypergraphs, false of alignments and trees, whose cells and spans do
    not tell the steps that led to them; for these it is None.

    See: Mensch and Blondel 2018, Differentiable dynamic programming, section 3.2.
    """
    levels = levels_of(mu.graph)
    if not _parts_determine_choices(mu, levels):
        return None
    q = of_edges(mu.scores, mu.graph.part)
    visits = _visits(q, levels)
    # the root passes on to one node each, visited from nowhere else
    own = ((mu.graph.part < 0) & torch.isin(levels.heads, mu.roots))[:, None]
    q = torch.where(own & (levels.heads[:, None] == mu.roots), visits[mu.graph.tails[:, 0]], q)
    visits = _visits(q, levels)
    total = q.new_zeros(q.shape[1])
    for rise in levels.rises:
        if rise.edges.shape[1] > 1:
            reached = visits[rise.nodes]
            p = torch.where(reached > 0, q[rise.edges].movedim(1, 0) / torch.where(reached > 0, reached, 1), 0.5)
            total = total + torch.where(reached > 0, reached * omega.omega(p, dim=0), 0).sum(0)
    return total.reshape(mu.batch)


def _parts_determine_choices(mu: Derivations, levels: Levels) -> bool:
    """True if parts determine derivations: hyperedges of a node with a choice carry parts of their own.

    Those of the root need none, which only choose where a derivation ends.
    """
    graph, heads = mu.graph, levels.heads
    into = torch.zeros(graph.nodes, dtype=torch.long, device=heads.device).index_add(0, heads, torch.ones_like(heads))
    every = mu.scores.new_ones(graph.edges, mu.roots.shape[0])
    reached = (levels.outside(every, mu.roots, every.new_ones(mu.roots.shape))[1] > 0).any(-1)
    silent = (graph.part < 0) & (into[heads] > 1) & reached[heads]
    # a part of several hyperedges does not tell which of them it was
    used = graph.part[(graph.part >= 0) & reached[heads]]
    once = used.unique().numel() == used.numel()
    return once and not bool((silent & ~torch.isin(heads, mu.roots)).any())


def _visits(q: Tensor, levels: Levels) -> Tensor:
    return q.new_zeros(levels.graph.nodes, q.shape[1]).index_add(0, levels.heads, q)
