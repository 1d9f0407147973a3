"""Constraint rows as lists for Triton: the variables of rows, the rows of variables, and variables shared by two rows.

Lists are cached as long as the columns exist: the columns of a graph are the same tensors at every call.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from polymax.backend.triton_math import ceil_power

# _MATRIX: most rows of a system that is a matrix in registers
# _SHARED: most variables that two rows of such a matrix may share
# _PAIRS: most entries of all lists of pairs; larger systems are solved from lists
_MATRIX, _SHARED, _PAIRS = 128, 4, 1 << 22
# by the columns of rows: the signs of the call, kept alive so that their identity is unique, and the lists
_KNOWN: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class RowLists(NamedTuple):
    """Codes are indices plus 1, negative for a coefficient of -1, and 0 for no entry; int32.

    Shapes: rows (G, R, K) variables of rows, K a power of 2; by (G, degree, n) rows of variables; shared (G, S, R, R)
    variables that two rows share, with the product of both signs, S = 0 if there are too many
    """

    rows: Tensor
    by: Tensor
    shared: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.by, self.shared


def lists_of(columns: Tensor, signs: Tensor, n: int) -> RowLists:
    # tensors of inference mode have no version counter
    key = n, *((id(t), 0 if t.is_inference() else t._version) for t in (columns, signs))
    known = _KNOWN.get(columns)
    if known is None or known[0] != key:
        known = key, signs, _lists(columns, signs, n)
        _KNOWN[columns] = known
    return known[2]


def _lists(columns: Tensor, signs: Tensor, n: int) -> RowLists:
    rows = torch.where(columns < 0, 0, torch.where(signs < 0, -1 - columns, 1 + columns)).int()
    width = max(ceil_power(columns.shape[2]), 16)
    rows = torch.nn.functional.pad(rows, (0, width - rows.shape[2])).contiguous()
    by = _by_variable(columns, signs, n)
    shared = _shared(by, columns.shape[1])
    return RowLists(rows, by.mT.int().contiguous(), shared)


def _by_variable(columns: Tensor, signs: Tensor, n: int) -> Tensor:
    """Return the codes of the rows of each variable, (G, n, degree), in order."""
    graphs, _, width = columns.shape
    key = torch.where(columns < 0, n, columns).flatten(1)
    ordered, order = torch.sort(key, dim=1, stable=True)
    places = torch.arange(n + 1, device=columns.device).expand(graphs, n + 1).contiguous()
    begin = torch.searchsorted(ordered, places)
    size = begin.diff(dim=1)
    degree = max(int(size.max()), 1)
    along = torch.arange(degree, device=columns.device)
    there = along < size.unsqueeze(-1)
    entry = order.gather(1, torch.where(there, begin[:, :-1].unsqueeze(-1) + along, 0).flatten(1))
    code = 1 + entry // width
    code = torch.where(signs.flatten(1).gather(1, entry) < 0, -code, code)
    return torch.where(there, code.reshape(there.shape), 0)


def _shared(by: Tensor, count: int) -> Tensor:
    """Return the variables that two rows share, (G, S, R, R); S = 0 if the matrix of rows does not fit into
    registers.
    """
    graphs, n, degree = by.shape
    if count > _MATRIX or graphs * max(n * degree**2, _SHARED * count**2) > _PAIRS:
        return by.new_zeros(graphs, 0, count, count, dtype=torch.int32)
    first, second = by.unsqueeze(-1), by.unsqueeze(-2)
    there = (first != 0) & (second != 0) & (first.abs() != second.abs())
    pair = torch.where(there, (first.abs() - 1) * count + second.abs() - 1, count**2).flatten(1)
    code = torch.arange(1, n + 1, device=by.device).reshape(1, n, 1, 1) * first.sign() * second.sign()
    ordered, order = torch.sort(pair, dim=1, stable=True)
    rank = torch.arange(ordered.shape[1], device=by.device) - torch.searchsorted(ordered, ordered)
    most = int(torch.where(ordered < count**2, rank, -1).max()) + 1
    if most > _SHARED:
        return by.new_zeros(graphs, 0, count, count, dtype=torch.int32)
    # rows that share no variable form a matrix too
    most = max(most, 1)
    place = torch.where(ordered < count**2, rank * count**2 + ordered, most * count**2)
    shared = by.new_zeros(graphs, most * count**2 + 1)
    shared = shared.scatter(1, place, code.flatten(1).expand_as(order).gather(1, order))
    return shared[:, :-1].reshape(graphs, most, count, count).int().contiguous()
