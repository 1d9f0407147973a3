"""Structures of one kind among the factors of a graph: one batched call solves all of them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from polymax.factors.factor import PRIVATE, Factor
from polymax.factors.shared import Shared
from polymax.kernels.response.reference import existing
from polymax.solvers import ActiveSet, Solution
from polymax.solvers.mixture import mean, response_of
from polymax.structures.base import Structure

# squared lengths of directions below this, relative to the longest, count as 0
_RANK = 1e-9


@dataclass(frozen=True, eq=False)
class Block:
    """F structures of a kind, for B instances.

    Shapes: at (G, F, d): the variables of the d parts of the first tensor; members: the F indices among the factors
    """

    structure: Structure
    at: Tensor
    event: torch.Size
    members: tuple[int, ...]
    mixed: bool

    @property
    def edges(self) -> int:
        """The number of parts of all structures together, F d."""
        return self.at.shape[1:].numel()

    @property
    def shared(self) -> Tensor:
        """A bool tensor (G, F, d), True for parts that are variables."""
        return self.at >= 0

    def gather(self, x: Tensor) -> Tensor:
        """M x, (B, F, d): variables (B, n) at their parts, 0 elsewhere."""
        flat = torch.nn.functional.pad(x, (0, 1))
        at = torch.where(self.at < 0, x.shape[1], self.at).flatten(1)
        return flat.gather(1, at.expand(len(x), at.shape[1])).reshape(len(x), *self.at.shape[1:])

    def scores(self, t: Tensor, private: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Scores of the structures: t (B, F, d) for shared parts, private tensors (B, F, ...) for others."""
        first = torch.where(self.shared, t, 0).reshape(*t.shape[:2], *self.event)
        return first, *private

    def problem(self, private: tuple[Tensor, ...]) -> Structure:
        """The structures as sets whose quadratic term has shared parts only."""
        if not self.mixed:
            return self.structure
        shape = private[0].shape
        return Shared(self.structure, self.shared.reshape(len(self.at), *shape[1:]).expand(shape), private)

    def solve(self, t: Tensor, private: tuple[Tensor, ...], start: Solution | None) -> "Projected":
        """The projections of t, from the weights of an earlier solution."""
        structure, scores = self.problem(private), self.scores(t, private)
        solution = ActiveSet().solve(structure, scores, start, whole=True)
        full = structure.full(*scores)
        first, *others = mean(structure, solution, full, derived=False)
        return Projected(self, structure, full, solution, first.reshape(t.shape), tuple(others))


@dataclass(frozen=True, eq=False)
class Projected:
    """The projections of a block, and their derivatives.

    Shapes: z (B, F, d): the shared parts; private (B, F, ...): the parts of the private tensors
    """

    block: Block
    structure: Structure
    scores: tuple[Tensor, ...]
    solution: Solution
    z: Tensor
    private: tuple[Tensor, ...]

    @property
    def feasible(self) -> Tensor:
        """A bool tensor (B,), True for instances in which every factor of the block has a structure."""
        return (self.solution.value > -torch.inf).all(1)

    def basis(self) -> Tensor:
        """Orthonormal directions (B, F, d, k) of the faces, in shared parts; zeros if a face has fewer than k."""
        solution = self.solution
        some = existing(solution.overlaps, solution.probs)
        rows = solution.vertices.double().flatten(3)
        shared = self.block.shared.unsqueeze(2)
        rows = torch.where(some.unsqueeze(-1) & shared, rows - self.z.unsqueeze(2), 0)
        gram = rows @ rows.mT
        size, turn = torch.linalg.eigh(gram)
        top = size.amax(-1, keepdim=True)
        keep = size > _RANK * top.clamp(min=1e-6)
        scale = torch.where(keep, torch.where(keep, size, 1).rsqrt(), 0)
        return rows.mT @ (turn * scale.unsqueeze(-2))

    def response(self, t: Tensor, private: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The derivatives of shared and private parts along directions `t` and `private` of their scores."""
        first, *others = response_of(self.structure, self.solution, self.block.scores(t, private))
        moved = torch.where(self.block.shared, first.reshape(t.shape), 0)
        return moved, tuple(others)


def blocks(factors: Sequence[tuple[int, Any]], batch: torch.Size, lead: torch.Size) -> list[Block]:
    """The structures among the factors, grouped by kind."""
    groups: dict[Any, list[tuple[int, Factor]]] = defaultdict(list)
    for f, factor in factors:
        if isinstance(factor, Factor):
            groups[_kind(factor)].append((f, factor))
    found = []
    for members in groups.values():
        first = members[0][1]
        size = first.event.numel()
        at = torch.stack([m.at.expand(*lead, *m.event).reshape(lead.numel(), size) for _, m in members], 1)
        structure = _stacked([m.structure for _, m in members], batch)
        mixed = bool((at == PRIVATE).any())
        found.append(Block(structure, at, first.event, tuple(f for f, _ in members), mixed))
    return found


def _kind(factor: Factor) -> Any:
    structure = factor.structure
    if not is_dataclass(structure):
        own = type(structure) if not vars(structure) else id(structure)
        return own, factor.event, factor.mixed
    plain: list[Any] = []
    for f in fields(structure):
        value = getattr(structure, f.name)
        if f.name == "lengths":
            plain.append(value is None)
        else:
            plain.append(value if isinstance(value, int | float | str | bool | None) else id(value))
    return type(structure), *plain, factor.event, factor.mixed


def _stacked(structures: list[Structure], batch: torch.Size) -> Structure:
    """The structures of F factors as a structure for instances (B, F), with their lengths stacked."""
    lengths: list[Any] = [getattr(s, "lengths", None) for s in structures]
    if lengths[0] is None:
        return structures[0]

    def joined(each: list[Tensor]) -> Tensor:
        return torch.stack([t.expand(batch).reshape(batch.numel()) for t in each], 1)

    if isinstance(lengths[0], tuple):
        return structures[0].with_lengths(tuple(joined([t[k] for t in lengths]) for k in range(2)))
    return structures[0].with_lengths(joined(lengths))
