"""The edges of a path in a graph, and the hyperedges of a derivation."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.structures.compact import faults
from polymax.structures.compact.base import Compact, check_rows, indicators, refuse_repeats, used_parts


@dataclass(frozen=True, eq=False)
class Edges(Compact):
    """The edges (*batch, used) of a path, -1 after the last; `encode` needs no size."""

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        y = super().encode(index, len(self.structure.edges))
        if _check.readable(index):
            self._check_path(index, (index >= 0).any(-1, keepdim=True))
        return y

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        super().check(index, *scores)
        if _check.readable(index):
            refuse_repeats("path", index.unsqueeze(-1), index)
            self._check_path(index, torch.ones(1, dtype=torch.bool, device="cpu"))
        return index

    def _check_path(self, index: Tensor, there: Tensor) -> None:
        """Refuse edges that are not a path from source to sink; `there` marks instances that have a path."""
        edges, source, sink = self.structure.edges, self.structure.source, self.structure.sink
        used = indicators(index, (len(edges),)).to(torch.long)
        u, v = torch.tensor(edges, dtype=torch.long, device="cpu").reshape(-1, 2).T
        nodes = 1 + max((v for _, v in edges), default=0)
        surplus = used.new_zeros(*used.shape[:-1], nodes).index_add(-1, u, used).index_add(-1, v, -used)
        surplus[..., source] -= there.squeeze(-1).long()
        surplus[..., sink] += there.squeeze(-1).long()

        def explain(instance: tuple[int, ...], place: int) -> str:
            broken = "left, but not reached" if surplus[(*instance, place)] > 0 else "reached, but not left"
            ends = {source: "the source, and not left", sink: "the sink, and not reached"}
            return f"node {place}{faults.of(instance)} is {ends.get(place, broken)}"

        faults.refuse("path", surplus != 0, explain)


@dataclass(frozen=True, eq=False)
class Hyperedges(Compact):
    """The hyperedges (*batch, used) of a derivation, repeated as often as it uses them; -1 after the last."""

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        check_rows(index, (len(self.structure.tails),), repeats=True)
        if _check.readable(index):
            self._check_derivation(index, (index >= 0).any(-1, keepdim=True))
        return self._times(index)

    def decode(self, y: Any) -> Tensor:
        times = y.round().long()
        most = int(times.amax()) if times.numel() else 0
        each = (times.unsqueeze(-1) > torch.arange(most, device=y.device)).flatten(-2)
        used = used_parts(each, 1)
        return torch.where(used < 0, -1, used // max(most, 1))

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        super().check(index, *scores)
        if _check.readable(index):
            self._check_derivation(index, torch.ones(1, dtype=torch.bool, device="cpu"))
        return index

    def whole(self, y: Any) -> bool:
        return bool((y == y.round()).all())

    def hamming(self, first: Tensor) -> Tensor:
        return (first == 0).to(first.dtype)

    def _times(self, index: Tensor) -> Tensor:
        """The number of uses of each hyperedge, (*batch, E)."""
        count = len(self.structure.tails)
        y = torch.zeros(*index.shape[:-1], count + 1, device=index.device)
        places = torch.where(index < 0, count, index)
        return y.scatter_add(-1, places, torch.ones(places.shape, device=index.device))[..., :-1]

    def _check_derivation(self, index: Tensor, there: Tensor) -> None:
        """Refuse nodes that are not derived as often as they are used; `there` marks instances that use the root."""
        tails, root = self.structure.tails, self.structure.root
        heads = torch.tensor(self.structure.heads, dtype=torch.long, device="cpu")
        nodes = 1 + max(self.structure.heads, default=-1)
        if not nodes:
            return
        used = self._times(index).to(torch.long)
        derived = used.new_zeros(*used.shape[:-1], nodes).index_add(-1, heads, used)
        asked = torch.zeros_like(derived)
        asked[..., root] += there.squeeze(-1)
        edge = [e for e, tail in enumerate(tails) for _ in tail]
        node = torch.tensor([t for tail in tails for t in tail], dtype=torch.long, device="cpu")
        asked = asked.index_add(-1, node, used[..., edge])
        axiom = torch.ones(nodes, dtype=torch.bool, device="cpu").index_fill(0, heads, False)

        def explain(instance: tuple[int, ...], place: int) -> str:
            ways, times = int(derived[(*instance, place)]), int(asked[(*instance, place)])
            return f"node {place}{faults.of(instance)} is derived {ways} times, but asked for {times} times"

        faults.refuse("derivation", (derived != asked) & ~axiom, explain)
