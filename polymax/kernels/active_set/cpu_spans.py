"""Span trees for SparseMAP on the CPU: the derivations of their hypergraph."""

from polymax.kernels.active_set import cpu_derivations
from polymax.kernels.active_set.cpu_derivations import best as best


def problem(search):
    """The scores and roots of the derivations that the last option gives, as the search takes them."""
    scores, graph, roots = search.options[-1]()
    return cpu_derivations.problem(search._replace(tensors=(scores, roots), options=(graph,)))
