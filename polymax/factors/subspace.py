"""The projection onto the directions that a graph leaves free near a solution: an intersection of subspaces.

    argmin of 1/2 ||x - b||^2  over x  with  x_v = 0 where not free,
    <a_r, x> = 0 for tight rows  and  M_f x along the face of each structure f

In terms of the constraints C and the free variables D:  x = D (b - C^T y)  with  C D C^T y = C D b.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from polymax.factors.blocks import Block
from polymax.factors.rows import Rows

# conjugate gradients take at most _TURNS turns for each constraint, and at most _MOST turns
_TURNS, _MOST = 2, 1000
# the squared norm of the residual at which conjugate gradients end, relative to the first
_ENOUGH = 1e-29
# systems of at most _DENSE constraints and _NUMBERS numbers are solved by eigenvectors instead; relative eigenvalues
# below _RANK count as 0, those of dependent constraints
_DENSE, _NUMBERS, _RANK = 160, 500_000, 1e-10


@dataclass(frozen=True, eq=False)
class Subspace:
    """The directions that are free near a point.

    Shapes: free (B, n) and tight (B, R) bool; bases (B, F, d, k) of the blocks; by_variable (G, n, degree): the places
    of each variable among the edges of all blocks, -1 after the last
    """

    rows: Rows
    blocks: tuple[Block, ...]
    by_variable: Tensor
    free: Tensor
    tight: Tensor
    bases: tuple[Tensor, ...]

    def projection(self, b: Tensor) -> Tensor:
        """The nearest point (B, n) of the subspace to b."""
        start = torch.where(self.free, b, 0)
        return start - torch.where(self.free, self.adjoint(self.multipliers(self.violation(start))), 0)

    def multipliers(self, missed: Tensor) -> Tensor:
        """y with C D C^T y = missed; the shortest such y if constraints are dependent."""
        if missed.shape[1] <= _DENSE and len(missed) * missed.shape[1] ** 2 <= _NUMBERS:
            sizes, axes = self._spectrum
            along = (axes.mT @ missed.unsqueeze(-1)).squeeze(-1)
            kept = sizes > _RANK
            return (axes @ torch.where(kept, along / torch.where(kept, sizes, 1), 0).unsqueeze(-1)).squeeze(-1)
        y, r = torch.zeros_like(missed), missed.clone()
        p, rr = r.clone(), r.square().sum(1)
        enough = _ENOUGH * rr + 1e-300
        for turn in range(min(_TURNS * missed.shape[1] + 20, _MOST)):
            running = rr > enough
            # every 8 turns, since reading a value from a device costs time
            if turn % 8 == 0 and not bool(running.any()):
                break
            q = self.violation(torch.where(self.free, self.adjoint(p), 0))
            pq = (p * q).sum(1)
            # directions without curvature are rounding errors of dependent constraints
            running = running & (pq > 1e-14 * p.square().sum(1))
            rate = torch.where(running, rr / torch.where(running, pq, 1), 0).unsqueeze(1)
            y = y + rate * p
            r = r - rate * q
            new = r.square().sum(1)
            p = torch.where(running.unsqueeze(1), r + (new / torch.where(rr > 0, rr, 1)).unsqueeze(1) * p, p)
            rr = torch.where(running, new, 0)
        return y

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (B, edges + R) and vectors of C D C^T, by its columns."""
        count, size = len(self.free), sum(b.edges for b in self.blocks) + self.tight.shape[1]
        units = torch.eye(size, dtype=torch.float64, device=self.free.device).unsqueeze(1).expand(size, count, size)
        columns = torch.vmap(lambda y: self.violation(torch.where(self.free, self.adjoint(y), 0)))(units)
        square = columns.permute(1, 2, 0)
        return tuple(torch.linalg.eigh((square + square.mT) / 2))

    def violation(self, x: Tensor) -> Tensor:
        """C x, (B, edges + R): the violation of each constraint."""
        parts = [self.outside(k, block.gather(x)).flatten(1) for k, block in enumerate(self.blocks)]
        return torch.cat([*parts, torch.where(self.tight, self.rows.sums(x), 0) / self.sizes], 1)

    def adjoint(self, y: Tensor) -> Tensor:
        """C^T y, (B, n): the sums of the multipliers y of the constraints at each variable."""
        *edges, rows = y.split([*(b.edges for b in self.blocks), self.tight.shape[1]], 1)
        total = self.rows.spread(torch.where(self.tight, rows / self.sizes, 0))
        outside = [
            self.outside(k, e.reshape(len(y), *block.at.shape[1:]))
            for k, (e, block) in enumerate(zip(edges, self.blocks, strict=True))
        ]
        return total + sum_edges(outside, self.by_variable)

    def outside(self, k: int, w: Tensor) -> Tensor:
        """The part of w (B, F, d) that is orthogonal to the faces of block k."""
        q = self.bases[k]
        w = torch.where(self.blocks[k].shared, w, 0)
        return w - (q @ (q.mT @ w.unsqueeze(-1))).squeeze(-1)

    @property
    def sizes(self) -> Tensor:
        """The norms of rows, by which they are divided."""
        return (self.rows.signs != 0).sum(-1).clamp(min=1).double().sqrt()


def sum_edges(edges: list[Tensor], by_variable: Tensor) -> Tensor:
    """M^T times the edges, (B, n): the sums of the edges (B, F, d) of all blocks at each variable."""
    if not edges:
        return torch.zeros((), dtype=torch.float64, device=by_variable.device)
    flat = torch.cat([e.flatten(1) for e in edges], 1)
    count = len(flat)
    places = torch.where(by_variable < 0, flat.shape[1], by_variable)
    places = places.expand(count, *places.shape[1:])
    found = torch.nn.functional.pad(flat, (0, 1)).gather(1, places.flatten(1))
    return found.reshape(places.shape).sum(-1)
