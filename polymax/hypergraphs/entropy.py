"""The Omega of smoothed recursions as a function of expected parts, if these determine it."""

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
    not tell the steps that led to them; for these it is None. Hyperedges that the root of an instance does not reach
    have no part in it.

    See: Mensch and Blondel 2018, Differentiable dynamic programming, section 3.2.
    """
    levels = levels_of(mu.graph)
    graph, heads = mu.graph, levels.heads
    every = mu.scores.new_ones(graph.edges, mu.roots.shape[0])
    visited = levels.outside(every, mu.roots, every.new_ones(mu.roots.shape))[1] > 0
    reached = visited[heads]
    carries = (graph.part >= 0)[:, None]
    at_root = heads[:, None] == mu.roots
    into = torch.bincount(heads, minlength=graph.nodes)[heads][:, None]
    # hyperedges without a part are only known at the root
    if bool((reached & ~carries & (into > 1) & ~at_root).any()) or not _parts_are_distinct(graph.part, reached):
        return None
    q = torch.where(reached & carries, of_edges(mu.scores, graph.part), 0)
    silent = reached & ~carries & at_root & (into > 1)
    found = _silent_choices(q, silent, reached & ~carries, levels)
    if found is None:
        return None
    q = q + found
    visits = _summed(q, heads, graph.nodes)
    total = q.new_zeros(q.shape[1])
    for rise in levels.rises:
        if rise.edges.shape[1] > 1:
            here = visits[rise.nodes]
            p = torch.where(here > 0, q[rise.edges].movedim(1, 0) / torch.where(here > 0, here, 1), 0.5)
            total = total + torch.where(here > 0, here * omega.omega(p, dim=0), 0).sum(0)
    return total.reshape(mu.batch)


def _parts_are_distinct(part: Tensor, reached: Tensor) -> bool:
    """True if no instance reaches two hyperedges of one part: it would not tell which of them was used."""
    kept = part >= 0
    uses = _summed(reached[kept].int(), part[kept], int(part.max()) + 1 if kept.any() else 0)
    return not bool((uses > 1).any())


def _silent_choices(q: Tensor, silent: Tensor, unknown: Tensor, levels: Levels) -> Tensor | None:
    """Expectations of the root's hyperedges without a part, which only choose where a derivation ends; else 0.

    The node below such a hyperedge is visited by it, and by other hyperedges whose expectations are known. A hyperedge
    without a node below has 1 less the expectations of the root's other hyperedges. None if there are several such
    hyperedges.

    Shapes: q (edges, B), those of hyperedges with parts; silent, unknown bool (edges, B)
    """
    if not bool(silent.any()):
        return torch.zeros_like(q)
    nodes, heads, tails = levels.graph.nodes, levels.heads, levels.graph.tails
    # absent tails are a node of their own, after the last
    below = torch.where(tails < 0, nodes, tails)

    def above(values: Tensor) -> Tensor:
        return _summed(values, below[:, 0], nodes + 1) + _summed(values, below[:, 1], nodes + 1)

    from_unknown, into_unknown = above(unknown.to(q.dtype)), _summed(unknown.to(q.dtype), heads, nodes + 1)
    derived = torch.bincount(heads, minlength=nodes + 1)[:, None] > 0
    # the node after the last stands for absent tails
    known = (from_unknown == 1) & (into_unknown == 0) & derived
    known[-1] = False
    left = (_summed(q, heads, nodes + 1) - above(q)).clamp(min=0)
    by_node = torch.where(known[below[:, 0]], left[below[:, 0]], left[below[:, 1]])
    told = known[below[:, 0]] | known[below[:, 1]]
    found = torch.where(silent & told, by_node, 0)
    rest = silent & ~told
    if bool((rest.sum(0) > 1).any()):
        return None
    at_root = silent.any(0) & _of_same_root(silent, heads)
    others = torch.where(at_root, q + found, 0).sum(0)
    return torch.where(rest, (1 - others).clamp(min=0), found)


def _of_same_root(silent: Tensor, heads: Tensor) -> Tensor:
    """True for the hyperedges (edges, B) whose head is that of the silent ones of the instance."""
    root = torch.where(silent, heads[:, None], -1).amax(0)
    return heads[:, None] == root


def _summed(values: Tensor, at: Tensor, count: int) -> Tensor:
    """The rows of values (edges, B) added up at places (edges,), (count, B)."""
    return values.new_zeros(count, values.shape[1]).index_add(0, at, values)
