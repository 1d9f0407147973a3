"""Warm starts of SparseMAP: the search for an example begins with the structures found for it before."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymax.kernels.active_set.problem import UsedParts
from polymax.solvers.rules import ActiveSet, Solver
from polymax.solvers.solution import Solution
from polymax.structures.base import Structure


class WarmStart:
    """A memory of the structures that SparseMAP has found for each example of a data set.

    `at(keys)` returns a solver for a batch of these examples. It begins with the structures found for each example the
    last time, and stores the structures it finds. A warm start does not change solutions, up to rounding. From the
    second epoch on it saves iterations: the less the scores have changed, the more. An example whose length has changed
    starts afresh. Examples may be padded to another size in each batch.

    Example:
        >>> memory, chain = WarmStart(), pm.Chain()
        >>> scores = torch.randn(3, 6, 4), torch.randn(4, 4)
        >>> cold = pm.SparseMap(chain, memory.at([7, 8, 9])).solve(*scores)
        >>> pm.SparseMap(chain, memory.at([9, 7])).solve(scores[0][[2, 0]], scores[1]).iterations
        tensor([0, 0])
    """

    def __init__(self, solver: Solver | None = None) -> None:
        if solver is not None and not isinstance(solver, Solver):
            raise TypeError(f"solver must be a Solver; got {type(solver).__name__}")
        self.solver = ActiveSet() if solver is None else solver
        self._known: dict[Hashable, _Remembered] = {}

    def at(self, keys: Tensor | Iterable[Hashable]) -> Solver:
        """Return a solver for a batch of examples, given one key for each: integers, or any hashable names."""
        named = keys.flatten().tolist() if isinstance(keys, Tensor) else list(keys)
        return _Warm(self.solver.max_iter, self.solver.tol, self, tuple(named))

    def clear(self) -> None:
        """Forget all examples."""
        self._known.clear()

    def __len__(self) -> int:
        """The number of stored examples."""
        return len(self._known)


class _Remembered(NamedTuple):
    """The structures of one example that had weight, the shapes of its scores, and its lengths.

    Shapes: structures (k, parts) as lists of parts, or (k, *event); probs (k,); events: the shape of each score tensor
    """

    structures: Tensor
    probs: Tensor
    events: tuple[torch.Size, ...]
    size: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Warm(Solver):
    """A solver for a batch of examples that are given by their keys."""

    memory: WarmStart | None = None
    keys: tuple[Hashable, ...] = ()

    @property
    def rule(self) -> Solver:
        """The solver that is given a start."""
        assert self.memory is not None
        return self.memory.solver

    def solve(
        self, structure: Structure, scores: tuple[Tensor, ...], start: Solution | None = None, whole: bool = False
    ) -> Solution:
        full = structure.full(*scores)
        dims = structure.event_dims(*full)
        batch = full[0].shape[: full[0].dim() - dims[0]]
        events = tuple(x.shape[x.dim() - d :] for x, d in zip(full, dims, strict=True))
        count = batch.numel()
        if len(self.keys) != count:
            raise ValueError(f"keys must be as many as the instances of the batch, {count}; got {len(self.keys)}")
        sizes = _sizes(structure, batch, events[0])
        if start is None:
            start = self._start(batch, events, sizes, full[0].device)
        solution = self.rule.solve(structure, scores, start, whole)
        self._remember(solution, count, events, sizes)
        return solution

    def _start(
        self, batch: torch.Size, events: tuple[torch.Size, ...], sizes: list[tuple[int, ...]], device: torch.device
    ) -> Solution | None:
        """A solution to start from, made of the stored structures of the examples; None if none is stored."""
        assert self.memory is not None
        known = [self.memory._known.get(key) for key in self.keys]
        moved = [
            _fit(one, events) if one is not None and one.size == size else None
            for one, size in zip(known, sizes, strict=True)
        ]
        found = [(one, y) for one, y in zip(known, moved, strict=True) if one is not None and y is not None]
        if not found:
            return None
        first, lists = found[0][1], found[0][1].dtype == torch.int32
        # all structures of a set are lists of parts, or none are
        k = max(y.shape[0] for _, y in found)
        rest = (max(y.shape[1] for _, y in found),) if lists else first.shape[1:]
        structures = first.new_full((len(moved), k, *rest), -1 if lists else 0, device=device)
        probs = torch.zeros(len(moved), k, dtype=torch.float64, device=device)
        for i, (one, y) in enumerate(zip(known, moved, strict=True)):
            if one is not None and y is not None:
                structures[i, : y.shape[0], : y.shape[1]] = y
                probs[i, : y.shape[0]] = one.probs
        shaped = structures.reshape(*batch, k, *rest)
        none = torch.zeros(batch, dtype=torch.float64, device=device)
        return Solution(
            UsedParts(shaped, events) if lists else shaped, probs.reshape(*batch, k),
            none.new_zeros(*batch, k, k), none, none.long(), none,
        )  # fmt: skip

    def _remember(
        self, solution: Solution, count: int, events: tuple[torch.Size, ...], sizes: list[tuple[int, ...]]
    ) -> None:
        assert self.memory is not None
        found = solution.with_weight()
        structures = found.places.int() if isinstance(found, UsedParts) else found
        batched = solution.probs.dim() - 1
        k = structures.shape[batched]
        structures = structures.reshape(count, *structures.shape[batched:])
        probs = solution.probs.narrow(batched, 0, k).reshape(count, k).nan_to_num()
        for key, y, p, size in zip(self.keys, structures.unbind(), probs.unbind(), sizes, strict=True):
            self.memory._known[key] = _Remembered(y, p, events, size)


def _sizes(structure: Structure, batch: torch.Size, event: torch.Size) -> list[tuple[int, ...]]:
    """The sizes that each example must share with its stored structures: lengths, or the shape of its scores."""
    if structure.lengths is None:
        return [tuple(event)] * batch.numel()
    lengths = structure.lengths if isinstance(structure.lengths, tuple | list) else (structure.lengths,)
    return list(zip(*(one.expand(batch).flatten().tolist() for one in lengths), strict=True))


def _fit(one: _Remembered, events: tuple[torch.Size, ...]) -> Tensor | None:
    """The structures of an example in a batch padded to these sizes; None if they do not fit."""
    if one.events == events:
        return one.structures
    if one.structures.dtype != torch.int32:
        return _resized(one.structures, events[0])
    places, before, after = one.structures.long(), 0, 0
    moved = torch.full_like(places, -1)
    for old, new in zip(one.events, events, strict=True):
        if len(old) != len(new):
            return None
        mine = (places >= before) & (places < before + old.numel())
        at = torch.unravel_index(torch.where(mine, places - before, 0), old) if old.numel() else ()
        flat = torch.zeros_like(places)
        for index, size in zip(at, new, strict=bool(old.numel())):
            if bool((mine & (index >= size)).any()):
                return None
            flat = flat * size + index
        moved = torch.where(mine, after + flat, moved)
        before, after = before + old.numel(), after + new.numel()
    return moved.int()


def _resized(structures: Tensor, event: torch.Size) -> Tensor | None:
    """Indicators (k, *event) cut or padded with zeros to the shape `event`; None if a cut would lose a used part."""
    if structures.dim() - 1 != len(event):
        return None
    resized = structures.new_zeros(structures.shape[0], *event)
    common = tuple(slice(0, min(old, new)) for old, new in zip(structures.shape[1:], event, strict=True))
    resized[(slice(None), *common)] = structures[(slice(None), *common)]
    return resized if bool(resized.sum() == structures.sum()) else None
