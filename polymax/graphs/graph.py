"""An acyclic hypergraph in arrays: the form every dynamic program can be written in.

A node is derived by one of its hyperedges, a hyperedge from all of its tails. Nodes are numbered so that tails come
before heads; a node without hyperedges is an axiom, of value 0.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax.backend.dispatch import declare_function
from polymax.backend.function import outside_transforms


@dataclass(frozen=True, eq=False)
class Graph:
    """Hyperedges sorted by head.

    Shapes:
        first (nodes + 1,): the hyperedges of node h are first[h], ..., first[h + 1] - 1
        tails (edges, 2): node numbers, -1 for none; wider hyperedges are split by nodes of their own
        part (edges,): which score the hyperedge carries, -1 for a score of 0
    """

    first: Tensor
    tails: Tensor
    part: Tensor
    parts: int
    _elsewhere: dict[torch.device, "Graph"] = field(default_factory=dict, repr=False)

    @property
    def nodes(self) -> int:
        return self.first.shape[0] - 1

    @property
    def edges(self) -> int:
        return self.part.shape[0]

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.first, self.tails, self.part

    def to(self, device: torch.device) -> "Graph":
        """This graph on a device, kept for the next call."""
        if device == self.part.device:
            return self
        if device not in self._elsewhere:
            # torch.func would wrap the copies, which outlive its call
            with outside_transforms():
                first, tails, part = (t.to(device) for t in self.arrays)
            self._elsewhere[device] = Graph(first, tails, part, self.parts)
        return self._elsewhere[device]


class Builder:
    """Collects hyperedges in blocks of NumPy arrays; hyperedges of one head keep the order they came in."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._heads: list[np.ndarray] = []
        self._tails: list[np.ndarray] = []
        self._part: list[np.ndarray] = []

    def add(self, head: np.ndarray | int, part: np.ndarray | int, *tails: np.ndarray | int) -> None:
        """Hyperedges from at most two tails each; the arrays broadcast."""
        none = np.int64(-1)
        head, part, left, right = np.broadcast_arrays(head, part, *tails, *[none] * (2 - len(tails)))
        self._heads.append(head.ravel())
        self._part.append(part.ravel())
        self._tails.append(np.stack([left.ravel(), right.ravel()], axis=-1))

    def build(self, nodes: int) -> Graph:
        """The graph on nodes 0, ..., nodes - 1."""
        heads = _concatenate(self._heads, (0,))
        tails = _concatenate(self._tails, (0, 2))
        if (tails >= heads[:, None]).any():
            raise ValueError("the tails of a hyperedge must have lower numbers than its head")
        order = np.argsort(heads, kind="stable")
        first = np.zeros(nodes + 1, np.int64)
        np.cumsum(np.bincount(heads, minlength=nodes), out=first[1:])
        part = _concatenate(self._part, (0,))[order]
        # torch.func would wrap the arrays, which outlive its call
        with outside_transforms():
            return Graph(torch.from_numpy(first), torch.from_numpy(tails[order]), torch.from_numpy(part), self.parts)


class Family:
    """Graphs that follow from a few sizes, built once for each; a decorator of the function that builds them.

    torch.compile cannot follow a function in NumPy, so it sees an operator that returns the graph.
    """

    def __init__(self, build: Callable[..., Graph]) -> None:
        self.name = f"{build.__module__}.{build.__qualname__}"
        self._built = lru_cache(maxsize=64)(build)
        _FAMILIES[self.name] = self

    def beside(self, scores: Tensor, *sizes: int) -> Graph:
        """The graph of these sizes on the device of the scores of its parts, (*batch, parts)."""
        if torch.compiler.is_compiling():
            first, tails, part = graph_arrays(scores.detach(), self.name, sizes)
            return Graph(first, tails, part, scores.shape[-1])
        return self._built(*sizes).to(scores.device)


_FAMILIES: dict[str, Family] = {}


def _arrays(like: Tensor, name: str, sizes: list[int]) -> tuple[Tensor, ...]:
    return tuple(t.clone() for t in _FAMILIES[name].beside(like, *sizes).arrays)


def _fake_arrays(like: Tensor, name: str, sizes: list[int]) -> tuple[Tensor, ...]:
    nodes, edges = (torch.library.get_ctx().new_dynamic_size() for _ in range(2))
    return tuple(like.new_empty(shape, dtype=torch.long) for shape in ((nodes,), (edges, 2), (edges,)))


graph_arrays = declare_function(
    "graph_arrays(Tensor like, str name, SymInt[] sizes) -> (Tensor, Tensor, Tensor)", _arrays, _fake_arrays
)


def _concatenate(blocks: Iterable[np.ndarray], empty: tuple[int, ...]) -> np.ndarray:
    blocks = list(blocks)
    return np.concatenate(blocks).astype(np.int64) if blocks else np.zeros(empty, np.int64)
