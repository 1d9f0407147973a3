"""Span trees for SparseMAP on the CPU: the derivations of their hypergraph."""

from polymax.kernels.active_set import cpu_derivations
from polymax.kernels.active_set.cpu_derivations import best as best


def problem(search):
    """Return the problem of the derivations (scores, graph and roots) that the last option returns."""
    scores, graph, roots = search.options[-1]()
    return cpu_derivations.problem(search._replace(tensors=(scores, roots), options=(graph,)))
