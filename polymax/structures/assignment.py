"""Assignments of rows to columns: matchings in a bipartite graph."""

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from polymax import _check
from polymax.kernels.assignment import assignment
from polymax.kernels.exact_sums import exact_sum, exact_total
from polymax.kernels.widen import wide
from polymax.solvers.search import Search
from polymax.structures import faults
from polymax.structures.base import Structure, checked_lengths, zeros_of

_WHAT = "assignment"


class Duals(NamedTuple):
    """Dual variables of the rows (*batch, n) and the columns (*batch, m)."""

    rows: Tensor
    columns: Tensor


@dataclass(frozen=True, eq=False)
class Assignment(Structure):
    """Each row one column and each column at most one row (n <= m), or the transpose (n > m); the parts are pairs.

    The sum over assignments is a permanent, and #P-complete: the set has no Marginals.

    Shapes: scores (*batch, n, m); lengths a pair of (*batch,), rows and columns of each instance

    Example:
        >>> Assignment().map(torch.tensor([[3.0, 2.0, 0.0], [2.0, 0.0, 0.0]]))
        tensor([[0., 1., 0.],
                [1., 0., 0.]])

    See: Jonker and Volgenant 1987.
    """

    lengths: tuple[Tensor, Tensor] | None = None

    def map(self, *scores: Tensor) -> Tensor:
        """The best assignment as indicators (*batch, n, m).

        An instance that -inf leaves without one is zeros: `feasible` tells. NaN fills its own instance.
        """
        return self._indicators(*self._solved(*scores)).to(scores[0].dtype)

    def best_score(self, *scores: Tensor) -> Tensor:
        match, u, v = self._solved(*scores)
        total = self.score(self._indicators(match, u, v).to(scores[0].dtype), *scores)
        return torch.where((u == -math.inf).any(-1), -math.inf, total)

    def _indicators(self, match: Tensor, u: Tensor, v: Tensor) -> Tensor:
        y = u.new_zeros(*u.shape, v.shape[-1])
        if v.shape[-1]:
            y = y.scatter(-1, match.clamp(min=0).unsqueeze(-1), (match >= 0).to(y.dtype).unsqueeze(-1))
        if not _check.readable(u) or bool(torch.isnan(u).any()):
            y = y.masked_fill(torch.isnan(u).unsqueeze(-1) & torch.isnan(v).unsqueeze(-2), math.nan)
        return y

    def duals(self, *scores: Tensor) -> Duals:
        """Optimal duals, a certificate that no assignment is better.

            rows_i + columns_j >= scores[i, j],    sum rows + sum columns = the best score

        with equality on assigned pairs. For n <= m, columns_j >= 0, with 0 at unassigned columns; for n > m,
        rows_i >= 0, with 0 at unassigned rows. Without an assignment, rows are -inf.

        Example:
            >>> Assignment().duals(torch.tensor([[3.0, 2.0], [2.0, 0.0]]))
            Duals(rows=tensor([2., 0.]), columns=tensor([2., 0.]))
        """
        _, u, v = self._solved(*scores)
        return Duals(u.to(scores[0].dtype), v.to(scores[0].dtype))

    def feasible(self, *scores: Tensor) -> Tensor:
        """Whether -inf leaves an assignment, bool (*batch,)."""
        return (self._solved(*scores)[1] != -math.inf).all(-1)

    def search(self, *scores: Tensor) -> Search:
        x, rows, columns, batch = self._flat(*scores)
        return Search("cells", (x, rows, columns), batch, (x.shape[1:],), min(x.shape[1:]))

    def potentials(self, *scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Cells less the dual prices of rows and columns, or, of the smaller side, the scores of the best cells."""
        (x,) = scores
        n, m = x.shape[-2:]
        u, v = self.duals(x)
        rows, columns = (
            torch.full(u.shape[:-1], size, device=u.device) if given is None else given.to(u.device)
            for given, size in zip(self.lengths or (None, None), (n, m), strict=True)
        )
        there = torch.arange(n, device=u.device) < rows.unsqueeze(-1)
        beside = torch.arange(m, device=u.device) < columns.unsqueeze(-1)
        best = torch.where(self.map(x) > 0, x, 0)
        square = (rows == columns).unsqueeze(-1)
        u = torch.where(there & (rows <= columns).unsqueeze(-1), torch.where(square, u, best.sum(-1)), 0)
        v = torch.where(beside & (rows >= columns).unsqueeze(-1), torch.where(square, v, best.sum(-2)), 0)
        return (exact_sum(x, -u.unsqueeze(-1), -v.unsqueeze(-2)),), exact_total(u, v)

    def logsumexp(self, *scores: Tensor) -> NoReturn:
        """Out of reach."""
        raise TypeError("the sum over assignments is a permanent (#P-complete): Assignment has no logsumexp")

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        n, m = event_shape
        ways = list(itertools.permutations(range(max(n, m)), min(n, m)))
        y = torch.zeros(len(ways), min(n, m), max(n, m))
        for k, way in enumerate(ways):
            y[k, range(len(way)), way] = 1
        return y if n <= m else y.transpose(1, 2)

    def log_count(self, event_shape: tuple[int, ...]) -> Tensor:
        zeros = zeros_of(self, event_shape)
        rows, columns = (
            checked_lengths(t, zeros.shape[:-2], n, zeros.device, "lengths").reshape(zeros.shape[:-2]).double()
            for t, n in zip(self.lengths or (None, None), event_shape, strict=True)
        )
        more, fewer = torch.maximum(rows, columns), torch.minimum(rows, columns)
        return torch.lgamma(more + 1) - torch.lgamma(more - fewer + 1)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2,)

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        """Columns (*batch, n) of the rows, -1 at unassigned rows, to indicators (*batch, n, m); m ends the shape."""
        faults.integers(index)
        m = shape[-1] if shape else index.shape[-1]
        if _check.readable(index) and index.numel() and bool(((index < -1) | (index >= m)).any()):
            came = int(index[(index < -1) | (index >= m)][0])
            raise ValueError(f"columns must be in [0, {m}), or -1 at unassigned rows; got {came}")
        if _check.readable(index):
            _refuse_repeated_columns(index)
        return (index.unsqueeze(-1) == torch.arange(m, device=index.device)).float()

    def decode(self, y: Any) -> Tensor:
        """The columns (*batch, n) of the rows, -1 at unassigned rows."""
        if y.shape[-1] == 0:
            return y.new_full(y.shape[:-1], -1, dtype=torch.long)
        return torch.where((y == 0).all(-1), -1, y.argmax(-1))

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        n, m = scores[0].shape[-2:]
        return torch.where(index < 0, -1, torch.arange(n, device=index.device) * m + index)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        within, columns = self._sizes(index, *scores)
        if _check.readable(index):
            rows = within.sum(-1, keepdim=True)
            # rows in excess stay without a column
            padded = torch.where(within & (rows > columns) & (index == -1), 0, index)
            faults.padded(_WHAT, "row", "column", padded, within)
            _check_columns(index, within, columns)
        return torch.where(within, index, -1)

    def check_parts(self, y: Any, *scores: Tensor) -> None:
        count = (y != 0).sum(-1)
        faults.refuse(
            _WHAT, count > 1, lambda i, r: f"row {r}{faults.of(i)} has {int(count[(*i, r)])} columns, not one"
        )
        super().check_parts(y, *scores)

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        """Columns (*batch, n) of the rows, -2 where not known, -1 at unassigned rows."""
        within, columns = self._sizes(index, *scores)
        if _check.readable(index):
            _refuse_columns(index, within, columns)
        every = torch.arange(scores[0].shape[-1], device=index.device)
        return (index.unsqueeze(-1) == every) | (index == -2).unsqueeze(-1)

    def _sizes(self, index: Tensor, *scores: Tensor) -> tuple[Tensor, Tensor]:
        """Which rows there are, (*batch, n), and how many columns, (*batch, 1)."""
        *batch, n, m = scores[0].shape
        faults.shaped(index, (*batch, n), "columns (*batch, n) of the rows")
        rows, columns = self.lengths or (None, None)
        within = faults.inside(rows, torch.Size(batch), n, index.device)
        size = index.new_full((*batch, 1), m) if columns is None else columns.to(index.device).unsqueeze(-1)
        return within, size

    def _solved(self, *scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The column of each row, or -1, (*batch, n), and the duals (*batch, n) and (*batch, m)."""
        x, rows, columns, batch = self._flat(*scores)
        match, u, v = assignment(wide(x.detach()), rows, columns)
        n, m = x.shape[1:]
        return match.reshape(*batch, n), u.reshape(*batch, n), v.reshape(*batch, m)

    def _flat(self, *scores: Tensor) -> tuple[Tensor, Tensor, Tensor, torch.Size]:
        """Scores (B, n, m), and how many rows and columns instances have, (B,) each; and the batch."""
        (x,) = scores
        _check.floating(x, "scores")
        if x.dim() < 2:
            raise ValueError(f"scores must be (*batch, n, m); got {tuple(x.shape)}")
        if self.lengths is not None and (not isinstance(self.lengths, tuple) or len(self.lengths) != 2):
            raise TypeError("lengths must be a pair of tensors, rows and columns")
        *_, n, m = x.shape
        batch = x.shape[:-2]
        rows, columns = self.lengths or (None, None)
        return (
            x.reshape(batch.numel(), n, m),
            checked_lengths(rows, batch, n, x.device, "lengths[0]"),
            checked_lengths(columns, batch, m, x.device, "lengths[1]"),
            batch,
        )


def _refuse_columns(index: Tensor, within: Tensor, columns: Tensor) -> None:
    """Columns (*batch, n) are among those there are."""

    def explain(instance: tuple[int, ...], row: int) -> str:
        came = int(index[(*instance, row)])
        return f"row {row}{faults.of(instance)} has column {came}, not one in [0, {int(columns[instance])})"

    faults.refuse(_WHAT, within & (index >= columns), explain)


def _check_columns(index: Tensor, within: Tensor, columns: Tensor) -> None:
    """No column belongs to two rows; where there are fewer columns than rows, each belongs to one."""
    _refuse_columns(index, within, columns)
    _refuse_repeated_columns(index)

    def unassigned(instance: tuple[int, ...], _: int) -> str:
        free = set(range(int(columns[instance]))) - set(index[instance].tolist())
        return f"column {min(free)}{faults.of(instance)} has no row"

    matched = (index >= 0).sum(-1, keepdim=True)
    faults.refuse(_WHAT, (within.sum(-1, keepdim=True) > columns) & (matched < columns), unassigned)


def _refuse_repeated_columns(index: Tensor) -> None:
    """No column of index (*batch, n) belongs to two rows."""
    ordered = index.sort(-1).values
    twice = torch.zeros_like(index, dtype=torch.bool)
    twice[..., 1:] = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)

    def repeated(instance: tuple[int, ...], place: int) -> str:
        column = int(ordered[(*instance, place)])
        rows = (index[instance] == column).nonzero()[:, 0].tolist()
        return f"column {column}{faults.of(instance)} belongs to rows {faults.listed(rows)}"

    faults.refuse(_WHAT, twice, repeated)
