"""Assignments of rows to columns: matchings in a bipartite graph."""

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.widen import wide
from polymax.kernels.active_set.problem import Search
from polymax.kernels.assignment import assignment
from polymax.kernels.exact_sums import exact_sum, exact_total
from polymax.structures.base import Structure, checked_lengths, checked_pairs, zeros_of
from polymax.structures.compact.columns import Columns
from polymax.structures.usable import usable_cells


class Duals(NamedTuple):
    """Dual variables of the rows (*batch, n) and the columns (*batch, m)."""

    rows: Tensor
    columns: Tensor


@dataclass(frozen=True, eq=False)
class Assignment(Structure):
    """Matchings: each row has one column and each column at most one row (n <= m), or the transpose; parts are pairs.

    The sum over assignments is a permanent, and #P-complete: the set has no Marginals.

    Shapes: scores (*batch, n, m); lengths a pair of (*batch,), rows and columns of each instance

    Example:
        >>> Assignment().map(torch.tensor([[3.0, 2.0, 0.0], [2.0, 0.0, 0.0]]))
        tensor([[0., 1., 0.],
                [1., 0., 0.]])

    See: Jonker and Volgenant 1987.
    """

    lengths: tuple[Tensor, Tensor] | None = None
    may_be_empty = False
    form = Columns

    def map(self, *scores: Tensor) -> Tensor:
        """The best assignment as indicators (*batch, n, m).

        An instance in which -inf forbids every assignment gets zeros; see `feasible`. An instance with a NaN score is
        NaN.
        """
        return self._indicators(*self._solution(*scores)).to(scores[0].dtype)

    def columns(self, *scores: Tensor) -> Tensor:
        """The column (*batch, n) of each row in the best assignment: `decode(map(scores))`, without cells.

        It is -1 in rows without a column, and in instances whose scores are undefined or forbid every assignment.

        Example:
            >>> Assignment().columns(torch.tensor([[3.0, 2.0, 0.0], [2.0, 0.0, 0.0]]))
            tensor([1, 0])
        """
        return self._solution(*scores)[0]

    def best_score(self, *scores: Tensor) -> Tensor:
        match, u, v = self._solution(*scores)
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
        _, u, v = self._solution(*scores)
        return Duals(u.to(scores[0].dtype), v.to(scores[0].dtype))

    def feasible(self, *scores: Tensor) -> Tensor:
        """A bool tensor (*batch,), True for instances in which scores of -inf allow an assignment."""
        return (self._solution(*scores)[1] != -math.inf).all(-1)

    def search(self, *scores: Tensor) -> Search:
        (x, rows, columns), batch = checked_pairs(self, *scores)
        return Search("cells", (x, rows, columns), batch, (x.shape[1:],), min(x.shape[1:]))

    def potentials(self, *scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The scores less the dual prices of their rows and columns, and the sum of these prices."""
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
        """Raise TypeError: the sum over assignments is a permanent."""
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

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return usable_cells(self.lengths, *parts)

    def why_uncounted(self) -> str:
        return f"{super().why_uncounted()}: the sum over assignments is #P-complete"

    def _solution(self, *scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The column of each row, or -1, (*batch, n), and the duals (*batch, n) and (*batch, m)."""
        for x in scores:
            _check.floating(x, "scores")
        (x, rows, columns), batch = checked_pairs(self, *scores)
        n, m = x.shape[1:]
        match, u, v = assignment(wide(x.detach()), rows, columns)
        return match.reshape(*batch, n), u.reshape(*batch, n), v.reshape(*batch, m)
