"""Dynamic programs as hypergraphs, by which users write their own.

A node stands for a subproblem, a hyperedge for one way to solve it. Its tails are the smaller subproblems that it
needs, its part is the score that it adds. A structure lists these once (`Builder`, `Family`) and gives the batch as
`Derivations`; maxima, marginals, samples, k-best lists and derivatives follow. docs/adding.md shows how.

graph        hypergraphs in arrays, builders, and families of hypergraphs by size.
derivations  a batch of scores for a hypergraph, with roots and shapes.
passes       the value, the expectation and the tangent of a smoothed recursion as one differentiable function.
levels       the smoothed recursion in torch, level by level, for any regularizer.
smoothed     the choice between passes and levels for a regularizer.
entropy      the Omega of a smoothed recursion as a function of expected parts.
"""

from polymax.graphs.graph import Builder, Family, Graph
from polymax.hypergraphs.derivations import Derivations

__all__ = ["Builder", "Derivations", "Family", "Graph"]
