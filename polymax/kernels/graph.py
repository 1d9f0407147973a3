"""An acyclic hypergraph in arrays: the form every dynamic program can be written in.

A node is derived by one of its hyperedges, a hyperedge from all of its tails. Nodes are numbered so that tails come
before heads; a node without hyperedges is an axiom, of value 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from polymax._function import untransformed


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
            with untransformed():
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
        heads = _joined(self._heads, (0,))
        tails = _joined(self._tails, (0, 2))
        if (tails >= heads[:, None]).any():
            raise AssertionError("tails come before heads")
        order = np.argsort(heads, kind="stable")
        first = np.zeros(nodes + 1, np.int64)
        np.cumsum(np.bincount(heads, minlength=nodes), out=first[1:])
        part = _joined(self._part, (0,))[order]
        # torch.func would wrap the arrays, which outlive its call
        with untransformed():
            return Graph(torch.from_numpy(first), torch.from_numpy(tails[order]), torch.from_numpy(part), self.parts)


def _joined(blocks: Iterable[np.ndarray], empty: tuple[int, ...]) -> np.ndarray:
    blocks = list(blocks)
    return np.concatenate(blocks).astype(np.int64) if blocks else np.zeros(empty, np.int64)
