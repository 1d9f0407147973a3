"""The cheapest pairs of rows and columns under the name and with the conventions of SciPy, for batches."""

import torch
from torch import Tensor

from polymax import _check
from polymax.structures import Assignment
from polymax.structures.usable import usable_cells

Pair = tuple[Tensor, Tensor]


def linear_sum_assignment(
    cost: Tensor, maximize: bool = False, lengths: Pair | None = None, infeasible: str = "raise"
) -> Pair:
    """Return the rows and columns of the pairs that cost least, each row and each column in one pair at most.

        min over assignments of the sum of cost[rows_k, columns_k]

    Each row has a column if n <= m, each column a row if n >= m. Rows ascend, as in SciPy; -1 follows the last pair of
    a shorter problem. A cost of +inf forbids a pair, or -inf with `maximize`. NaN and the other infinity are a
    ValueError, and so is a problem in which each assignment has a forbidden pair. With `infeasible="skip"` such a
    problem gets -1 everywhere. The call then does not wait for an accelerator: values there are not checked, and a
    problem with NaN gets -1 as well. torch.compile, torch.func and CUDA graphs take `infeasible="skip"` alone.

    Shapes:
        cost (*batch, n, m), of any real dtype; lengths a pair of (*batch,), rows and columns; result two tensors
        (*batch, min(n, m)), int64

    Example:
        >>> linear_sum_assignment(torch.tensor([[4, 1, 3], [2, 0, 5], [3, 2, 2]]))
        (tensor([0, 1, 2]), tensor([1, 0, 2]))

    See: Jonker and Volgenant 1987.
    """
    if infeasible not in ("raise", "skip"):
        raise ValueError(f"infeasible must be 'raise' or 'skip'; got {infeasible!r}")
    x = _real(cost).detach()
    scores = x if maximize else -x
    match = Assignment(lengths).columns(scores)
    if infeasible == "raise" or _check.readable(match):
        _refuse_unmatched(match, scores, lengths, infeasible == "raise", "-inf" if maximize else "+inf")
    n, m = scores.shape[-2:]
    return _pairs(match, n, m, lengths is not None)


def _real(cost: Tensor) -> Tensor:
    """The costs in a floating-point dtype."""
    if isinstance(cost, Tensor) and not cost.is_floating_point() and not cost.is_complex():
        cost = cost.double()
    _check.floating(cost, "cost")
    if cost.dim() < 2:
        raise ValueError(f"cost must be (*batch, n, m); got {tuple(cost.shape)}")
    return cost


def _pairs(match: Tensor, n: int, m: int, ragged: bool) -> Pair:
    """The pairs of rows and columns, given the column of each row, or -1."""
    row = torch.arange(n, device=match.device).expand(match.shape)
    found = match >= 0
    if n <= m and not ragged:
        return torch.where(found, row, -1), match
    size = min(n, m)
    # rows without a column go to one more place after all pairs
    place = torch.where(found, found.cumsum(-1) - 1, size)
    empty = match.new_full((*match.shape[:-1], size + 1), -1)
    rows, columns = (empty.scatter(-1, place, t)[..., :size].contiguous() for t in (row, match))
    return rows, columns


def _refuse_unmatched(match: Tensor, scores: Tensor, lengths: Pair | None, needed: bool, forbidden: str) -> None:
    """Refuse undefined costs and, if an assignment is `needed`, problems without one."""
    sizes = [torch.tensor(k) for k in scores.shape[-2:]] if lengths is None else lengths
    missing = (match >= 0).sum(-1) < torch.minimum(*sizes).to(match.device)
    if not bool(missing.any()):
        return
    (inside,) = usable_cells(lengths, scores)
    undefined = missing & (~(scores < torch.inf) & inside).flatten(-2).any(-1)
    if bool(undefined.any()):
        other = "+inf" if forbidden == "-inf" else "-inf"
        came = f"NaN or {other}{_where(undefined)}"
        raise ValueError(f"cost must be numbers, or {forbidden} to forbid a pair; got {came}")
    if needed:
        raise ValueError(
            f"cost is infeasible{_where(missing)}: each assignment has a pair that {forbidden} forbids; allow more "
            "pairs, or use infeasible='skip' for rows and columns of -1"
        )


def _where(some: Tensor) -> str:
    """Words for an error that name the first instance for which a bool tensor is True."""
    place = some.nonzero()[0].tolist()
    return f" in instance {tuple(place)}" if place else ""
