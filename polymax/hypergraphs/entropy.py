"""The Omega of smoothed recursions as a function of expected parts, where these determine it."""

import torch
from torch import Tensor

from polymax.hypergraphs.levels import Levels, levels_of
from polymax.kernels.hypergraph.reference import of_edges
from polymax.regularizers import Regularizer
from polymax.structures.base import Parts, Structure, tensors
from polymax.structures.dynamic import Derivations, DynamicProgram
from polymax.structures.hypergraph import Hypergraph
from polymax.structures.simplex import Explicit


class UnknownOmega(ValueError):
    """Omega has no closed form at this point."""


def local_omega(structure: Structure, mu: Parts, omega: Regularizer) -> Tensor:
    """sum over nodes h of E_h Omega(q_e / E_h, over the hyperedges e of h), (*batch,); by Shannon - H(mu).

    q and E are the expected hyperedges and nodes. Expected parts must determine them: true of chains, segmentations,
    paths and hypergraphs, false of alignments and trees, whose cells and spans do not tell the steps that led to
    them; of these, only structures themselves are taken, where a regularizer that is 0 at vertices leaves 0.

    See: Mensch and Blondel 2018, Differentiable dynamic programming, section 3.2.
    """
    points = tensors(mu)
    # a derivation that uses parts several times may be a mean of others
    if omega.zero_at_vertices and not isinstance(structure, Hypergraph) and structure.whole(mu):
        return points[0].new_zeros(points[0].shape[: points[0].dim() - structure.event_dims(*points)[0]])
    if isinstance(structure, Explicit) or not isinstance(structure, DynamicProgram):
        raise UnknownOmega(f"Omega is known at the structures of {type(structure).__name__} alone, not between them")
    tree = structure.derivations(*points)
    levels = levels_of(tree.graph)
    if not _determined(tree, levels):
        raise UnknownOmega(f"the expected parts of {type(structure).__name__} do not determine its Omega between them")
    q = of_edges(tree.scores, tree.graph.part)
    visits = _visits(q, levels)
    # the root passes on to one node each, visited from nowhere else
    own = ((tree.graph.part < 0) & torch.isin(levels.heads, tree.roots))[:, None]
    q = torch.where(own & (levels.heads[:, None] == tree.roots), visits[tree.graph.tails[:, 0]], q)
    visits = _visits(q, levels)
    total = q.new_zeros(q.shape[1])
    for rise in levels.rises:
        if rise.edges.shape[1] > 1:
            reached = visits[rise.nodes]
            p = torch.where(reached > 0, q[rise.edges].movedim(1, 0) / torch.where(reached > 0, reached, 1), 0.5)
            total = total + torch.where(reached > 0, reached * omega.omega(p, dim=0), 0).sum(0)
    return total.reshape(tree.batch)


def _determined(tree: Derivations, levels: Levels) -> bool:
    """Whether every choice that a derivation has is between parts of its own; the root may choose its end, too."""
    graph, heads = tree.graph, levels.heads
    into = torch.zeros(graph.nodes, dtype=torch.long, device=heads.device).index_add(0, heads, torch.ones_like(heads))
    every = tree.scores.new_ones(graph.edges, tree.roots.shape[0])
    reached = (levels.outside(every, tree.roots, every.new_ones(tree.roots.shape))[1] > 0).any(-1)
    silent = (graph.part < 0) & (into[heads] > 1) & reached[heads]
    # a part of several hyperedges does not tell which of them it was
    used = graph.part[(graph.part >= 0) & reached[heads]]
    once = used.unique().numel() == used.numel()
    return once and not bool((silent & ~torch.isin(heads, tree.roots)).any())


def _visits(q: Tensor, levels: Levels) -> Tensor:
    return q.new_zeros(levels.graph.nodes, q.shape[1]).index_add(0, levels.heads, q)
