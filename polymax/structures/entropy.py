"""The entropy of the Gibbs distribution as a function of its marginals, where these determine it."""

import torch
from torch import Tensor

from polymax.kernels.hypergraph.reference import of_edges
from polymax.kernels.levels import levels_of
from polymax.structures.base import Parts, Structure, tensors
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.simplex import Explicit


def negative_entropy(structure: Structure, mu: Parts) -> Tensor:
    """sum over nodes and their hyperedges of q_e log(q_e / E_head), (*batch,).

    The marginals of parts must determine those of hyperedges: true of chains, segmentations, paths and hypergraphs,
    false of alignments and trees, whose cells and spans do not tell the steps that led to them; of these, only
    structures themselves, of entropy 0, are taken.
    """
    points = tensors(mu)
    dims = structure.event_dims(*points)
    if isinstance(structure, Explicit):
        if bool((structure.decode(mu) < 0).any()):
            raise ValueError("the entropy of Explicit is known at its vertices alone")
        return points[0].new_zeros(points[0].shape[:-1])
    if all(bool(((m == 0) | (m == 1)).all()) for m in points):
        return points[0].new_zeros(points[0].shape[: points[0].dim() - dims[0]])
    if not isinstance(structure, DynamicProgram):
        raise ValueError(f"the marginals of {type(structure).__name__} do not determine its entropy")
    tree = structure.derivations(*points)
    graph, levels = tree.graph, levels_of(tree.graph)
    heads = levels.heads
    into = torch.zeros(graph.nodes, dtype=torch.long, device=heads.device).index_add(0, heads, torch.ones_like(heads))
    at_root = torch.isin(heads, tree.roots)
    every = points[0].new_ones(graph.edges, tree.roots.shape[0])
    reached = (levels.outside(every, tree.roots, every.new_ones(tree.roots.shape))[1] > 0).any(-1)
    if bool(((graph.part < 0) & (into[heads] > 1) & ~at_root & reached[heads]).any()):
        raise ValueError(f"the marginals of {type(structure).__name__} do not determine its entropy")
    q = of_edges(tree.scores, graph.part)
    visits = q.new_zeros(graph.nodes, q.shape[1]).index_add(0, heads, q)
    # the root passes on to one node each, visited from nowhere else
    own = at_root & (graph.part < 0)
    q = torch.where((own[:, None]) & (heads[:, None] == tree.roots), visits[graph.tails[:, 0]], q)
    visits = q.new_zeros(graph.nodes, q.shape[1]).index_add(0, heads, q)
    terms = torch.where((q > 0) & (into[heads] > 1)[:, None], q * (_log(q) - _log(visits)[heads]), 0)
    return terms.sum(0).reshape(tree.batch)


def _log(x: Tensor) -> Tensor:
    return torch.log(torch.where(x > 0, x, 1))
