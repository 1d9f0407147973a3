"""Dynamic programs on an acyclic hypergraph, every max of the recursion smoothed.

    a_e = score_e + sum of v over the tails of e        v_h = max_Omega of a_e over the hyperedges e of node h
    p_e = argmax_Omega                                  q_e = p_e E_h,   E_tail += q_e,   E_root = g

`value` is v at the root, `mu` sums q over the edges that share a part. Omega is the Tsallis entropy of `alpha`:
1 is Shannon, 2 is Gini, inf is no smoothing (the first maximal edge). A node with one edge passes it through. A node
without edges is an axiom of value 0. A node whose arguments are all -inf has the value -inf and no weights.

The graph is int64: the edges of node h are first[h] .. first[h+1] - 1, and every tail is below its head; tails (E, 2)
are node indices, -1 for a missing tail; part (E,) is the index of an edge's score among the P scores, -1 for the score
0; roots (B,) is -1 for the empty problem, whose value is 0. A derivation is a tree: a node that it visits twice is
derived twice, so that its parts count twice, in sums and in samples.

Shapes: scores (B, P), chart (1 or 2, B, N) in float64, g and value (B,), mu and tangents (B, P), weights p (B, E);
seeds (B, S), sampled parts (B, S, P).
See: Mensch and Blondel 2018, Sections 2 and 3; Huang and Chiang 2005, Section 4 (k best derivations).
"""

import torch
from torch import Tensor

from polymax.backend.dispatch import declare_instances
from polymax.kernels.passes import declare_passes

_GRAPH = "Tensor first, Tensor tails, Tensor part, Tensor roots"


def chart_shape(count: int, nodes: int, alpha: float) -> tuple[int, int, int]:
    """Return the shape of a chart: values of the nodes and, except for Shannon, one more number for their weights."""
    return (1 if alpha == 1 else 2, count, nodes)


def chart_of(chart: Tensor, count: int) -> Tensor:
    """Return the chart of `count` instances, repeated if it belongs to fewer instances."""
    return chart if chart.shape[1] == count else chart.repeat(1, count // chart.shape[1], 1)


def _chart(scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, alpha: float) -> Tensor:
    return scores.new_empty(chart_shape(scores.shape[0], first.shape[0] - 1, alpha), dtype=torch.float64)


def _fake_weights(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, alpha: float
) -> Tensor:
    return scores.new_empty((scores.shape[0], tails.shape[0]))


def _fake_visits(p: Tensor, first: Tensor, tails: Tensor, roots: Tensor) -> Tensor:
    return p.new_empty((p.shape[0], first.shape[0] - 1))


def _fake_sample(
    p: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, seeds: Tensor, parts: int
) -> Tensor:
    return p.new_empty((*seeds.shape, parts))


def _fake_kbest(
    weights: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, k: int, parts: int
) -> tuple[Tensor, Tensor]:
    count = weights.shape[0]
    return weights.new_empty((count, k)), weights.new_empty((count, k, parts))


def _fake_count(p: Tensor, first: Tensor, tails: Tensor, roots: Tensor) -> Tensor:
    return p.new_empty(p.shape[:1], dtype=torch.float64)


hypergraph_inside, hypergraph_outside, hypergraph_tangent = declare_passes(
    __name__, "scores", "first tails part roots", _chart
)
hypergraph_weights = declare_instances(
    __name__,
    f"hypergraph_weights(Tensor scores, {_GRAPH}, Tensor chart, float alpha) -> Tensor",
    _fake_weights,
)
hypergraph_visits = declare_instances(
    __name__, "hypergraph_visits(Tensor p, Tensor first, Tensor tails, Tensor roots) -> Tensor", _fake_visits
)
hypergraph_sample = declare_instances(
    __name__, f"hypergraph_sample(Tensor p, {_GRAPH}, Tensor seeds, int parts) -> Tensor", _fake_sample
)
hypergraph_kbest = declare_instances(
    __name__, f"hypergraph_kbest(Tensor weights, {_GRAPH}, int k, int parts) -> (Tensor, Tensor)", _fake_kbest
)
hypergraph_count = declare_instances(
    __name__, "hypergraph_count(Tensor p, Tensor first, Tensor tails, Tensor roots) -> Tensor", _fake_count
)
