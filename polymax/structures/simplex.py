"""Choices of one of n items, of k of n items, and of a vertex from a list."""

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax._parts import Parts
from polymax.hypergraphs import Builder, Derivations, Family, Graph
from polymax.hypergraphs.smoothed import regularizer_of
from polymax.regularizers import Gini, Regularizer
from polymax.regularizers.bounded import Budget
from polymax.structures.base import Counted, Structure
from polymax.structures.compact.choices import Classes, Items, Places
from polymax.structures.dynamic import DynamicProgram


@dataclass(frozen=True, eq=False)
class Simplex(DynamicProgram):
    """The choices of one of n items: Marginals is softmax, SparseMap is sparsemax, LocalMax is the regularizer itself.

    Shapes: scores (*batch, n)

    Example:
        >>> Simplex().map(torch.tensor([0.0, 2.0, 1.0]))
        tensor([0., 1., 0.])
    """

    parts_once = True
    may_be_empty = False
    form = Classes
    one_part = True

    def derivations(self, *scores: Tensor) -> Derivations:
        x = _rows(scores)
        return of_choices(x, x.shape[:-1], lambda mu: mu.reshape(*mu.shape[:-2], *x.shape))

    def problem(self, *scores: Tensor) -> "Choice":  # type: ignore[override]
        return Choice(_rows(scores))

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (1,)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        return torch.eye(event_shape[0])

    def projection(self, *scores: Tensor) -> Tensor:
        return Gini().argmax(_rows(scores))

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return Structure.usable(self, *parts)


@dataclass(frozen=True)
class Choice:
    """The problem of one of n items: its smoothed maximum is the regularizer's own, without a recursion."""

    x: Tensor

    def value(self, alpha: float) -> Tensor:
        """The smoothed maximum, (*batch,)."""
        return regularizer_of(alpha).max(self.x)

    def expectation(self, alpha: float) -> Tensor:
        """The gradient of the value, (*batch, n)."""
        return regularizer_of(alpha).argmax(self.x)


@dataclass(frozen=True, eq=False)
class Subset(DynamicProgram):
    """Choices of k of n items, or with `at_most` of up to k.

    Shapes: scores (*batch, n)

    Example:
        >>> Subset(2).map(torch.tensor([0.5, 2.0, 1.0]))
        tensor([0., 1., 1.])
    """

    k: int
    at_most: bool = False
    form = Items

    parts_once = True

    def __post_init__(self) -> None:
        _check.whole(self.k, "k", least=0)

    def derivations(self, *scores: Tensor) -> Derivations:
        x = self._checked(scores)
        n = x.shape[-1]
        batch = x.shape[:-1]
        flat = x.reshape(math.prod(batch), n)
        k = min(self.k, n)
        graph = _subsets.beside(flat, n, k, int(self.at_most))
        roots = torch.full((math.prod(batch),), (n + 1) * (k + 1), dtype=torch.long, device=x.device)
        return Derivations(flat, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *batch, n))

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (1,)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        (n,) = event_shape
        sizes = range(min(self.k, n) + 1) if self.at_most else [self.k]
        chosen = [c for size in sizes for c in combinations(range(n), size)]
        y = torch.zeros(len(chosen), n)
        for row, c in zip(y, chosen, strict=True):
            row[list(c)] = 1
        return y

    def projection(self, *scores: Tensor) -> Tensor:
        x = self._checked(scores)
        inside = x.clamp(0, 1)
        # a total of k needs at least k allowed entries
        enough = (x != -torch.inf).sum(-1, keepdim=True) >= self.k
        if self.at_most and self.k < x.shape[-1]:
            few = inside.sum(-1, keepdim=True) <= self.k
            # if the clipped scores sum to at most k, they are the projection; otherwise the total is k
            mu = torch.where(few, inside, self._budget(x, enough))
        elif self.at_most:
            mu = inside
        else:
            mu = self._budget(x, enough) if 0 < self.k < x.shape[-1] else 0 * inside + bool(self.k)
            mu = torch.where(enough, mu, 0)
        # comparisons ignore NaN; by this factor, derivatives are NaN in rows with NaN, and in no others
        bad = torch.isnan(x).any(-1, keepdim=True)
        return torch.where(bad, x * torch.where(bad, torch.nan, 0.0), mu)

    def _budget(self, x: Tensor, enough: Tensor) -> Tensor:
        """The projection of each row onto weights that sum to k; rows with fewer than k allowed entries count as 0."""
        return Budget(float(self.k)).argmax(torch.where(enough, x, 0))

    @property
    def may_be_empty(self) -> bool:  # type: ignore[override]
        return self.at_most or self.k == 0

    def _checked(self, scores: tuple[Tensor, ...]) -> Tensor:
        x = _rows(scores)
        if not self.at_most and x.shape[-1] < self.k:
            raise ValueError(f"scores must have at least {self.k} entries; got {tuple(x.shape)}")
        return x


@dataclass(frozen=True, eq=False)
class Explicit(DynamicProgram):
    """A set that is given by the list of its vertices, which may be any vectors.

    Shapes: vertices (count, d); scores (*batch, d)

    Example:
        >>> Explicit(torch.tensor([[0.0, 1.0], [1.0, 1.0]])).map(torch.tensor([-1.0, 0.0]))
        tensor([0., 1.])
    """

    listed: Tensor
    form = Places

    def __post_init__(self) -> None:
        if not isinstance(self.listed, Tensor) or self.listed.dim() != 2 or self.listed.shape[0] == 0:
            came = tuple(self.listed.shape) if isinstance(self.listed, Tensor) else type(self.listed).__name__
            raise ValueError(f"vertices must be a tensor (count, d) of at least one; got {came}")

    def derivations(self, *scores: Tensor) -> Derivations:
        x = _rows(scores)
        if x.shape[-1] != self.listed.shape[1]:
            raise ValueError(f"scores must be (*batch, {self.listed.shape[1]}); got {tuple(x.shape)}")
        rows = self.listed.to(x)
        each = torch.where(rows == 0, 0, rows * x.unsqueeze(-2)).sum(-1)

        def chosen(y: Tensor) -> Tensor:
            return (y.unsqueeze(-2) == rows.to(y)).all(-1).to(x.dtype)

        return of_choices(each, x.shape[:-1], lambda mu: (mu @ rows).reshape(*mu.shape[:-2], *x.shape), chosen)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (1,)

    def vertices(self, event_shape: tuple[int, ...] = ()) -> Tensor:
        return self.listed

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return ((self.listed != 0).any(0).to(parts[0].device),)

    def omega(self, mu: Parts, regularizer: Regularizer) -> Tensor:
        # a mean of vertices does not determine their weights
        return Counted.omega(self, mu, regularizer)


def of_choices(each: Tensor, batch: torch.Size, shaped: object, flat: object = None) -> Derivations:
    """A root that chooses one of the columns of `each` (*batch, count)."""
    count = math.prod(batch)
    graph = _star.beside(each, each.shape[-1])
    # without columns the problem is empty: the root would be an axiom
    roots = torch.full((count,), 0 if each.shape[-1] else -1, dtype=torch.long, device=each.device)
    return Derivations(each.reshape(count, each.shape[-1]), graph, roots, batch, shaped, flat)  # type: ignore[arg-type]


@Family
def _star(n: int) -> Graph:
    builder = Builder(parts=n)
    builder.add(np.zeros(n, np.int64), np.arange(n))
    return builder.build(1)


@Family
def _subsets(n: int, k: int, at_most: int) -> Graph:
    """Node (i, j) has chosen j of the first i; the root is the last node."""
    i, j = np.ogrid[: n + 1, : k + 1]
    number = i * (k + 1) + j
    reached = np.broadcast_to(j <= i, number.shape)
    builder = Builder(parts=n)
    skip = reached[:-1] & reached[1:]
    builder.add(number[1:][skip], -1, number[:-1][skip])
    take = reached[:-1, :-1]
    part = np.broadcast_to(i[:-1], take.shape)
    builder.add(number[1:, 1:][take], part[take], number[:-1, :-1][take])
    last = number.size
    ends = number[-1] if at_most else number[-1, k:]
    builder.add(np.full(ends.shape, last), -1, ends)
    return builder.build(last + 1)


def _rows(scores: tuple[Tensor, ...]) -> Tensor:
    (x,) = scores
    if x.dim() < 1:
        raise ValueError(f"scores must be (*batch, n); got {tuple(x.shape)}")
    return x
