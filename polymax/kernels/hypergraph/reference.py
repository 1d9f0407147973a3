"""The hypergraph operators level by level in torch; walks and k best derivations one node at a time in Python."""

import itertools
import math

import torch
from torch import Tensor

from polymax.graphs.graph import Graph
from polymax.graphs.levels import Levels
from polymax.kernels.hypergraph import chart_shape
from polymax.kernels.local_max.reference import TsallisMax


def hypergraph_inside(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    graph = Graph(first, tails, part, scores.shape[1])
    v, _ = Levels(graph).inside(of_edges(scores, part), TsallisMax(alpha))
    # the chart is empty: the other passes compute the values again
    chart = torch.zeros(chart_shape(scores.shape[0], graph.nodes, alpha), dtype=torch.float64, device=scores.device)
    return at_roots(v, roots), chart


def hypergraph_outside(
    scores: Tensor,
    first: Tensor,
    tails: Tensor,
    part: Tensor,
    roots: Tensor,
    chart: Tensor,
    g: Tensor,
    alpha: float,
) -> Tensor:
    levels = Levels(Graph(first, tails, part, scores.shape[1]))
    omega = TsallisMax(alpha)
    _, a = levels.inside(of_edges(scores, part), omega)
    q, _ = levels.outside(levels.weights(a, omega), roots, g)
    return of_parts(q, part, scores.shape[1])


def hypergraph_tangent(
    scores: Tensor,
    first: Tensor,
    tails: Tensor,
    part: Tensor,
    roots: Tensor,
    chart: Tensor,
    g: Tensor,
    d: Tensor,
    alpha: float,
) -> tuple[Tensor, Tensor]:
    levels = Levels(Graph(first, tails, part, scores.shape[1]))
    omega = TsallisMax(alpha)
    _, a = levels.inside(of_edges(scores, part), omega)
    p = levels.weights(a, omega)
    dv, dq = levels.tangent(a, p, roots, g, of_edges(d, part), omega.changes)
    return at_roots(dv, roots), of_parts(dq, part, scores.shape[1])


def hypergraph_weights(
    scores: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, chart: Tensor, alpha: float
) -> Tensor:
    levels = Levels(Graph(first, tails, part, scores.shape[1]))
    omega = TsallisMax(alpha)
    _, a = levels.inside(of_edges(scores, part), omega)
    p = levels.weights(a, omega)
    _, visits = levels.outside(p, roots, scores.new_ones(scores.shape[0]))
    return torch.where(visits[levels.heads] == 0, 0, p).T.contiguous()


def hypergraph_visits(p: Tensor, first: Tensor, tails: Tensor, roots: Tensor) -> Tensor:
    levels = Levels(Graph(first, tails, torch.full_like(tails[:, 0], -1), 0))
    return levels.outside(p.T, roots, p.new_ones(p.shape[0]))[1].T.contiguous()


def hypergraph_sample(
    p: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, seeds: Tensor, parts: int
) -> Tensor:
    y = torch.zeros(*seeds.shape, parts, dtype=p.dtype, device="cpu")
    starts, below, carried = first.tolist(), tails.tolist(), part.tolist()
    for b, s in itertools.product(*map(range, seeds.shape)):
        generator = torch.Generator().manual_seed(int(seeds[b, s]) % 2**63)
        waiting = [int(roots[b])]
        while waiting:
            h = waiting.pop()
            weights = p[b, starts[h] : starts[h + 1]].cpu() if h >= 0 else p.new_empty(0)
            if not weights.sum() > 0:
                continue
            e = starts[h] + int(torch.multinomial(weights, 1, generator=generator))
            if carried[e] >= 0:
                y[b, s, carried[e]] += 1
            waiting += below[e]
    return y.to(p.device)


def hypergraph_kbest(
    weights: Tensor, first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, k: int, parts: int
) -> tuple[Tensor, Tensor]:
    count = weights.shape[0]
    values = weights.new_full((count, k), -torch.inf)
    y = weights.new_zeros(count, k, parts)
    starts, below, carried = first.tolist(), tails.tolist(), part.tolist()
    for b in range(count):
        w = weights[b].tolist()
        # for each node its best derivations: their weights and the parts they use
        best: list[list[tuple[float, tuple[int, ...]]]] = []
        for h in range(int(roots[b]) + 1):
            found: list[tuple[float, tuple[int, ...]]] = [] if starts[h] < starts[h + 1] else [(0.0, ())]
            for e in range(starts[h], starts[h + 1]):
                own = (carried[e],) if carried[e] >= 0 else ()
                for choice in itertools.product(*(best[t] for t in below[e] if t >= 0)):
                    found.append((w[e] + sum(v for v, _ in choice), sum((u for _, u in choice), own)))
            found.sort(key=lambda derivation: -derivation[0])
            best.append([derivation for derivation in found if derivation[0] > -math.inf][:k])
        for i, (value, used) in enumerate(best[-1] if best else [(0.0, ())]):
            values[b, i] = value
            for u in used:
                y[b, i, u] += 1
    return values, y


def hypergraph_count(p: Tensor, first: Tensor, tails: Tensor, roots: Tensor) -> Tensor:
    starts, below = first.tolist(), tails.tolist()
    counts = [torch.ones(p.shape[0], dtype=torch.float64, device=p.device)]
    ways: list[Tensor] = []
    for h in range(len(starts) - 1):
        total = counts[0] if starts[h] == starts[h + 1] else torch.zeros_like(counts[0])
        for e in range(starts[h], starts[h + 1]):
            product = (p[:, e] > 0).double()
            for t in below[e]:
                product = product * ways[t] if t >= 0 else product
            total = total + product
        ways.append(total)
    if not ways:
        return counts[0]
    picked = torch.stack(ways)[roots.clamp(min=0), torch.arange(p.shape[0], device=p.device)]
    return torch.where(roots < 0, 1, picked)


def of_edges(scores: Tensor, part: Tensor) -> Tensor:
    """Return scores of hyperedges (edges, batch) from scores of parts (batch, parts)."""
    padded = torch.cat([scores, scores.new_zeros(scores.shape[0], 1)], 1)
    return padded.T[torch.where(part < 0, scores.shape[1], part)]


def of_parts(q: Tensor, part: Tensor, parts: int) -> Tensor:
    """Return expectations of parts (batch, parts) from those of hyperedges (edges, batch)."""
    # at most one of the hyperedges that share a part is used, so the order of the sum does not matter
    total = q.new_zeros(parts + 1, q.shape[1]).index_add(0, torch.where(part < 0, parts, part), q)
    return total[:-1].T.contiguous()


def at_roots(v: Tensor, roots: Tensor) -> Tensor:
    """Return the values at the roots (batch,) from values of nodes (nodes, batch)."""
    if v.shape[0] == 0:
        return v.new_zeros(roots.shape)
    picked = v[roots.clamp(min=0), torch.arange(roots.shape[0], device=v.device)]
    return torch.where(roots < 0, 0, picked)
