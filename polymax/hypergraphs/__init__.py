"""Dynamic programs as hypergraphs: the way to write one of your own.

A node stands for a subproblem, a hyperedge for one way to solve it, its tails for the smaller subproblems that it needs
and its part for the score that it adds. A structure lists these once (`Builder`, `Family`) and gives the batch as
`Derivations`; maxima, marginals, samples, k-best lists and derivatives follow. docs/adding.md shows how.

graph        hypergraphs in arrays, how they are built, and families of them by size
derivations  a batch of scores for a hypergraph, with roots and shapes
passes       the value, the expectation and the tangent of a smoothed recursion as one differentiable function
levels       the same recursion in torch, level by level, for any regularizer
smoothed     which of the two, passes or levels, serves a regularizer
entropy      the Omega of a smoothed recursion as a function of expected parts
"""

from polymax.graphs.graph import Builder, Family, Graph
from polymax.hypergraphs.derivations import Derivations

__all__ = ["Builder", "Derivations", "Family", "Graph"]
