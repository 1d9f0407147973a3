"""Draws without replacement: structures that differ, in the order in which successive draws would find them.

Add Gumbel noise to the log-probability of every structure: the k largest sums are k successive draws without
replacement. They are found from the top down. A partial structure knows the largest sum below it; opening it divides
that sum among its choices, by noise that is conditioned on its maximum. Only partial structures on the way to the k
drawn ones are ever opened, so that the cost is that of k draws.

See: Kool, van Hoof and Welling 2019, Stochastic beams and where to find them.
"""

import heapq
import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax.backend.cpu_arrays import memory
from polymax.graphs.graph import Graph

# annotations of generators are strings: np.random is loaded when it is first used, and not by `import polymax`


def from_list(probs: Tensor, k: int, generator: torch.Generator | None) -> Tensor:
    """Places (*batch, k) of distinct draws by probs (*batch, count); -1 after the last one of positive probability."""
    _check.whole(k, "k")
    rows = probs.detach().cpu().double().reshape(-1, probs.shape[-1])
    places = np.full((len(rows), k), -1)
    for row, p, random in zip(places, memory(rows), streams(len(rows), generator), strict=True):
        (some,) = (p > 0).nonzero()
        sums = np.log(p[some]) - np.log(random.exponential(size=len(some)))
        found = some[np.argsort(-sums, kind="stable")[:k]]
        row[: len(found)] = found
    return torch.from_numpy(places).reshape(*probs.shape[:-1], k).to(probs.device)


def structures_at(vertices: Any, probs: Tensor, places: Tensor) -> tuple[Any, Tensor]:
    """Structures (*batch, k, ...) at places (*batch, k) of a list, and their probabilities; 0 at -1."""
    at, there = places.clamp(min=0), places >= 0

    def pick(t: Tensor) -> Tensor:
        event = [1] * (t.dim() - at.dim())
        index = at.reshape(*at.shape, *event).expand(*at.shape, *t.shape[at.dim() :])
        return torch.where(there.reshape(*at.shape, *event), t.gather(at.dim() - 1, index), 0)

    listed = pick(vertices) if isinstance(vertices, Tensor) else type(vertices)(*map(pick, vertices))
    return listed, pick(probs)


def from_walk(
    p: Tensor, graph: Graph, roots: Tensor, k: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """The number of uses of each part in k distinct derivations, (B, k, parts), and a mask (B, k), False for none.

    Shapes: p (B, edges), the weights of the choices at each node; roots (B,)
    """
    _check.whole(k, "k")
    first, tails, part = (memory(t.cpu()) for t in graph.arrays)
    weights = memory(p.cpu().double())
    y, there = np.zeros((len(weights), k, graph.parts + 1)), np.zeros((len(weights), k), bool)
    for b, random in enumerate(streams(len(weights), generator)):
        root = int(roots[b])
        frontier = Frontier(random, ((root, None) if root >= 0 else None, None, None))
        drawn = 0
        while drawn < k and frontier:
            total, log, (waiting, edge, used) = frontier.pop()
            # the tails of a hyperedge are looked up when it is popped, which most never are
            if edge is not None:
                waiting, used = _with_tails(waiting, tails[edge]), (edge, used)
            # nodes without a choice cost no noise; one without weight has no derivation, and is opened to nothing
            while waiting is not None:
                node, others = waiting
                own = range(first[node], first[node + 1])
                if len(own) > 1 or any(not weights[b, e] > 0 for e in own):
                    break
                waiting = others
                for e in own:
                    waiting, used = _with_tails(waiting, tails[e]), (e, used)
            if waiting is None:
                there[b, drawn] = True
                while used is not None:
                    edge, used = used
                    y[b, drawn, part[edge]] += 1
                drawn += 1
                continue
            node, others = waiting
            edges = [e for e in range(first[node], first[node + 1]) if weights[b, e] > 0]
            if edges:
                frontier.open(total, log, np.log(weights[b, edges]), [(others, e, used) for e in edges])
    return torch.from_numpy(y[..., :-1]).to(p.device), torch.from_numpy(there).to(p.device)


class Frontier:
    """Partial structures, the one with the largest sum of log-probability and noise below it first."""

    def __init__(self, random: "np.random.Generator", whole: Any) -> None:
        self._random = random
        self._order = itertools.count()
        self._heap: list[tuple[float, int, float, Any]] = []
        self._push(-np.log(random.exponential()), 0.0, whole)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def pop(self) -> tuple[float, float, Any]:
        """The largest sum, the log-probability, and the partial structure itself."""
        total, _, log, state = heapq.heappop(self._heap)
        return -total, log, state

    def open(self, total: float, log: float, choices: np.ndarray, states: list[Any]) -> None:
        """Divide a partial structure by its choices, whose conditional log-probabilities are given."""
        logs = log + choices
        sums = logs - np.log(self._random.exponential(size=len(choices)))
        for value, own, state in zip(_gumbels_given_maximum(sums, total), logs, states, strict=True):
            self._push(value, own, state)

    def _push(self, total: float, log: float, state: Any) -> None:
        heapq.heappush(self._heap, (-float(total), next(self._order), float(log), state))


def _gumbels_given_maximum(sums: np.ndarray, largest: float) -> np.ndarray:
    """Gumbel variables conditioned on their maximum, `largest`: -log(exp(-largest) - exp(-max) + exp(-sum)).

    See: Kool, van Hoof and Welling 2019, appendix B.3, for the form that does not lose digits.
    """
    gap = sums - sums.max()
    with np.errstate(divide="ignore"):
        # log(1 - exp(gap)), -inf at the maximum, which becomes `largest`
        rest = np.where(gap > -np.log(2), np.log(-np.expm1(gap)), np.log1p(-np.exp(gap)))
    v = largest - sums + rest
    return largest - np.maximum(v, 0) - np.log1p(np.exp(-np.abs(v)))


def _with_tails(waiting: Any, tails: np.ndarray) -> Any:
    """The nodes that are still to be derived, after the tails of a hyperedge have joined them."""
    for tail in tails:
        if tail >= 0:
            waiting = (int(tail), waiting)
    return waiting


def streams(count: int, generator: torch.Generator | None) -> "list[np.random.Generator]":
    """A random generator for each instance, so that its draws do not depend on the other instances."""
    device = generator.device if generator is not None else "cpu"
    seeds = torch.randint(0, 2**63 - 1, (count,), generator=generator, device=device)
    return [np.random.Generator(np.random.PCG64(seed)) for seed in seeds.tolist()]
