"""Dynamic programs that users define: derivations of the root of an acyclic hypergraph, and paths in a DAG."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from polymax._parts import Parts
from polymax.hypergraphs import Builder, Derivations, Graph
from polymax.regularizers import Regularizer
from polymax.structures.compact.edges import Edges, Hyperedges
from polymax.structures.dynamic import DynamicProgram


@dataclass(frozen=True, eq=False)
class Hypergraph(DynamicProgram):
    """Derivations of the root: a hyperedge derives its head from all of its tails.

    Tails have lower numbers than their head. A node that is not the head of a hyperedge is an axiom, of value 0. If a
    derivation uses a node twice, it derives the node twice.

    Shapes: heads (E,), tails a sequence of E sequences of node numbers; scores (*batch, E)

    Example:
        >>> two_ways = Hypergraph(heads=[2, 2], tails=[(0,), (0, 1)])
        >>> two_ways.map(torch.tensor([1.0, 3.0]))
        tensor([0., 1.])
    """

    heads: Sequence[int] | Tensor
    tails: Sequence[Sequence[int]]
    root: int = -1
    form = Hyperedges

    def __post_init__(self) -> None:
        heads = [int(h) for h in self.heads]
        tails = [tuple(int(t) for t in tail) for tail in self.tails]
        if len(heads) != len(tails):
            raise ValueError(f"heads and tails must be equally many; got {len(heads)} and {len(tails)}")
        for e, (head, tail) in enumerate(zip(heads, tails, strict=True)):
            if head < 0 or any(not 0 <= t < head for t in tail):
                raise ValueError(f"tails must be nodes below their head; hyperedge {e} derives {head} from {tail}")
        object.__setattr__(self, "heads", heads)
        object.__setattr__(self, "tails", tails)
        nodes = 1 + max(heads, default=-1)
        if not -nodes <= self.root < max(nodes, 1):
            raise ValueError(f"root must be one of {nodes} nodes; got {self.root}")
        # the graph is built when the set is made: torch.compile cannot follow that
        _ = self._binary_graph

    def derivations(self, *scores: Tensor) -> Derivations:
        (x,) = scores
        edges = len(self.tails)
        if x.dim() < 1 or x.shape[-1] != edges:
            raise ValueError(f"scores must be (*batch, {edges}), one for each hyperedge; got {tuple(x.shape)}")
        graph, number = self._binary_graph
        return _of_rows(x, graph, number[self.root] if number else -1)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (1,)

    def vertices(self, event_shape: tuple[int, ...] = ()) -> Tensor:
        nodes = 1 + max(self.heads, default=-1)
        used = list(self._derivations_of(self.root % nodes if nodes else 0))
        y = torch.zeros(len(used), len(self.tails))
        for k, edges in enumerate(used):
            for e in edges:
                y[k, e] += 1
        return y

    def omega_of_structures(self, mu: Parts, regularizer: Regularizer) -> Tensor | None:
        """None: a derivation that uses parts several times may be a mean of others, and its Omega is not known."""
        return None

    @cached_property
    def _binary_graph(self) -> tuple[Graph, list[int]]:
        """A graph with at most two tails for each hyperedge, and the new number of each node."""
        heads = np.array(self.heads, np.int64)
        nodes = int(heads.max(initial=-1)) + 1
        extra = np.array([max(len(t) - 2, 0) for t in self.tails], np.int64)
        # the nodes that split a wide hyperedge come before its head
        before = np.bincount(heads, extra, minlength=nodes).astype(np.int64)
        number = np.arange(nodes) + np.cumsum(before)
        builder = Builder(parts=len(self.tails))
        free = number - before
        for e, (head, tail) in enumerate(zip(self.heads, self.tails, strict=True)):
            ends = [int(number[t]) for t in tail]
            while len(ends) > 2:
                builder.add(int(free[head]), -1, *ends[:2])
                ends = [int(free[head]), *ends[2:]]
                free[head] += 1
            builder.add(int(number[head]), e, *ends)
        return builder.build(nodes + int(extra.sum())), number.tolist()

    def _derivations_of(self, node: int) -> Iterator[tuple[int, ...]]:
        own = [e for e, head in enumerate(self.heads) if head == node]
        if not own:
            yield ()
        for e in own:
            for below in itertools.product(*(list(self._derivations_of(t)) for t in self.tails[e])):
                yield (e, *itertools.chain.from_iterable(below))


@dataclass(frozen=True, eq=False)
class Dag(DynamicProgram):
    """Paths from the source to the sink of a directed acyclic graph; the parts are its edges (u, v), u < v.

    Shapes: edges (E, 2); scores (*batch, E)

    Example:
        >>> diamond = Dag([(0, 1), (0, 2), (1, 3), (2, 3)])
        >>> diamond.map(torch.tensor([1.0, 0.0, 1.0, 1.0]))
        tensor([1., 0., 1., 0.])
    """

    edges: Sequence[tuple[int, int]] | Tensor
    source: int = 0
    sink: int = -1
    form = Edges

    parts_once = True

    def __post_init__(self) -> None:
        edges = [(int(u), int(v)) for u, v in self.edges]
        for e, (u, v) in enumerate(edges):
            if not 0 <= u < v:
                raise ValueError(f"edges must go from lower to higher nodes; edge {e} is ({u}, {v})")
        object.__setattr__(self, "edges", edges)
        nodes = 1 + max((v for _, v in edges), default=0)
        for name in ("source", "sink"):
            if not -nodes <= getattr(self, name) < nodes:
                raise ValueError(f"{name} must be one of {nodes} nodes; got {getattr(self, name)}")
            object.__setattr__(self, name, getattr(self, name) % nodes)
        if self.sink not in self._nodes_from_source:
            raise ValueError(f"there is no path from source {self.source} to sink {self.sink}")
        # the graph is built when the set is made: torch.compile cannot follow that
        _ = self._graph

    def derivations(self, *scores: Tensor) -> Derivations:
        (x,) = scores
        if x.dim() < 1 or x.shape[-1] != len(self.edges):
            raise ValueError(f"scores must be (*batch, {len(self.edges)}), one for each edge; got {tuple(x.shape)}")
        return _of_rows(x, self._graph, int(self.sink))

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (1,)

    def vertices(self, event_shape: tuple[int, ...] = ()) -> Tensor:
        paths = list(self._paths_to(self.sink))
        y = torch.zeros(len(paths), len(self.edges))
        for k, path in enumerate(paths):
            y[k, list(path)] = 1
        return y

    @property
    def may_be_empty(self) -> bool:  # type: ignore[override]
        return self.source == self.sink

    @cached_property
    def _nodes_from_source(self) -> set[int]:
        reached = {self.source}
        for u, v in sorted(self.edges):
            if u in reached:
                reached.add(v)
        return reached

    @cached_property
    def _graph(self) -> Graph:
        builder = Builder(parts=len(self.edges))
        # drop edges from nodes that the source does not reach: such nodes would count as axioms
        useful = [(e, u, v) for e, (u, v) in enumerate(self.edges) if u in self._nodes_from_source and v != self.source]
        e, u, v = np.array(useful, np.int64).reshape(-1, 3).T
        builder.add(v, e, u)
        return builder.build(1 + max((v for _, v in self.edges), default=0))

    def _paths_to(self, node: int) -> Iterator[tuple[int, ...]]:
        if node == self.source:
            yield ()
            return
        for e, (u, v) in enumerate(self.edges):
            if v == node:
                for path in self._paths_to(u):
                    yield (*path, e)


def _of_rows(x: Tensor, graph: Graph, root: int) -> Derivations:
    batch = x.shape[:-1]
    roots = torch.full((math.prod(batch),), root, dtype=torch.long, device=x.device)
    flat = x.reshape(math.prod(batch), x.shape[-1])
    return Derivations(
        flat, graph.to(x.device), roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *batch, x.shape[-1])
    )
