"""Alignments of two sequences with gaps: Needleman-Wunsch and Smith-Waterman, with linear and affine gap scores."""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymax._parts import Parts, tensors
from polymax.hypergraphs import Builder, Derivations, Family, Graph
from polymax.hypergraphs.entropy import UnknownOmega
from polymax.regularizers import Regularizer
from polymax.structures.base import checked_pairs, zeros_of
from polymax.structures.compact.base import indicators
from polymax.structures.compact.pairs import Pairs
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.usable import usable_cells

MODES = ("global", "local")
GAPS = ("linear", "affine")


class LinearGaps(NamedTuple):
    """Pairs [row, column] (*batch, n, m), and where positions of gaps are scored."""

    pairs: Tensor
    extend: Tensor


class AffineGaps(NamedTuple):
    """Pairs [row, column] (*batch, n, m), and where the first position of a gap, and the others, are scored."""

    pairs: Tensor
    open: Tensor
    extend: Tensor


@dataclass(frozen=True, eq=False)
class GappedAlignment(DynamicProgram):
    """Pairs of positions in order, and gaps: rows that no column is paired with are deleted, such columns inserted.

    A gap of length L scores open + (L - 1) extend, with gap="linear" L extend: scores, negative for penalties. Between
    two pairs deletions come before insertions, so that the pairs determine the alignment. Mode "global" scores all
    gaps, mode "local" those between the first pair and the last: it has the empty alignment, of score 0.

    A gap score may differ by position. That of row i, deleted after j columns, is in cell (i, max(j - 1, 0)); that of
    column j, inserted after i rows, in cell (max(i - 1, 0), j). With an empty sequence there is no cell, and the score
    is 0. The compact form is the list of pairs.

    Shapes:
        pairs (*batch, n, m); open, only if gaps are affine, and extend: numbers, or tensors that broadcast to pairs;
        lengths a pair of (*batch,), rows and columns of each instance

    Example:
        >>> first, second = "ACGT", "AGT"
        >>> pairs = torch.tensor([[2.0 if a == b else -1.0 for b in second] for a in first])
        >>> gapped = GappedAlignment()
        >>> gapped.decode(gapped.map(pairs, -2.0, -0.5))
        tensor([[0, 0],
                [2, 1],
                [3, 2]])

    See: Gotoh 1982, An improved algorithm for matching biological sequences.
    """

    mode: str = "global"
    gap: str = "affine"
    lengths: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        for name, value, known in (("mode", self.mode, MODES), ("gap", self.gap, GAPS)):
            if value not in known:
                raise ValueError(f"{name} must be one of {known}; got {value!r}")

    def derivations(self, *scores: Tensor) -> Derivations:
        full = self.full(*scores)
        (x, rows, columns), batch = checked_pairs(self, full[0])
        n, m = x.shape[-2:]
        if self.mode == "local":
            row, column = torch.arange(n, device=x.device)[:, None], torch.arange(m, device=x.device)
            within = (row < rows[:, None, None]) & (column < columns[:, None, None])
            x = torch.where(within, x, -torch.inf)
            roots = torch.full_like(rows, 4 * (n + 1) * (m + 1))
        else:
            roots = 4 * (rows * (m + 1) + columns) + 3
        roots = torch.where((rows > 0) & (columns > 0), roots, -1)
        flat = torch.cat([x.flatten(1), *(t.reshape(batch.numel(), n * m) for t in full[1:])], 1)

        def shaped(mu: Tensor) -> Parts:
            return self.named(*mu.reshape(*mu.shape[:-2], *batch, len(full), n, m).unbind(-3))

        graph = _graph.beside(flat, n, m, int(self.mode == "local"), len(full))
        return Derivations(flat, graph, roots, batch, shaped)

    def full(self, *scores: Any) -> tuple[Tensor, ...]:
        count = 3 if self.gap == "affine" else 2
        names = ("pairs", "open", "extend")[-count:] if count == 3 else ("pairs", "extend")
        if len(scores) != count:
            raise TypeError(f"{self.gap} gaps have score tensors {', '.join(names)}; got {len(scores)}")
        pairs = scores[0]
        if pairs.dim() < 2:
            raise ValueError(f"pairs must be (*batch, n, m); got {tuple(pairs.shape)}")
        found = [pairs]
        for name, x in zip(names[1:], scores[1:], strict=True):
            x = torch.as_tensor(x, dtype=pairs.dtype, device=pairs.device) if not isinstance(x, Tensor) else x
            try:
                found.append(x.expand(pairs.shape))
            except RuntimeError:
                message = f"{name} must broadcast to the pairs {tuple(pairs.shape)}; got {tuple(x.shape)}"
                raise ValueError(message) from None
        return tuple(found)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2,) * len(scores)

    def score(self, y: Any, *scores: Tensor) -> Tensor:
        return super().score(y, *self.full(*scores))

    def named(self, *parts: Tensor) -> Parts:
        return AffineGaps(*parts) if self.gap == "affine" else LinearGaps(*parts)

    def unscored(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        first = zeros_of(self, event_shape)
        return (first,) * (3 if self.gap == "affine" else 2)

    def vertices(self, event_shape: tuple[int, ...]) -> Parts:
        n, m = event_shape
        rows = [
            list(zip(i, j, strict=True))
            for k in range(min(n, m) + 1)
            for i in itertools.combinations(range(n), k)
            for j in itertools.combinations(range(m), k)
        ]
        index = torch.full((len(rows), min(n, m), 2), -1)
        for k, row in enumerate(rows):
            index[k, : len(row)] = torch.tensor(row, dtype=torch.long).reshape(-1, 2)
        return self.with_lengths(None).complete(indicators(index, event_shape))

    def complete(self, first: Tensor) -> Parts:
        """Alignments from their pairs, (*lead, *batch, n, m) where there are lengths."""
        n, m = first.shape[-2:]
        if not first.numel():
            return self.named(first, *(torch.zeros_like(first) for _ in range(2 if self.gap == "affine" else 1)))
        (_, rows, columns), _ = checked_pairs(self.with_lengths(None), first)
        rows, columns = rows.reshape(first.shape[:-2]), columns.reshape(first.shape[:-2])
        if self.lengths is not None:
            rows, columns = (t.to(first.device).expand(first.shape[:-2]) for t in self.lengths)
        deleted, inserted = (first != 0).sum(-1) == 0, (first != 0).sum(-2) == 0
        at_row, at_column = torch.arange(n, device=first.device), torch.arange(m, device=first.device)
        # how many columns come before a row, and how many rows before a column
        column = torch.where(deleted, 0, (first != 0).long().argmax(-1) + 1).cummax(-1).values
        row = torch.where(inserted, rows.unsqueeze(-1), (first != 0).long().argmax(-2))
        row = row.flip(-1).cummin(-1).values.flip(-1)
        inside = (rows > 0) & (columns > 0)
        some_rows, some_columns = (at_row < rows.unsqueeze(-1)), (at_column < columns.unsqueeze(-1))
        if self.mode == "local":
            last = (~deleted).long().mul(at_row + 1).amax(-1, keepdim=True)
            some_rows = (column > 0) & (at_row < last)
            begun = (~inserted).long().cummax(-1).values > 0
            some_columns = begun & (row < rows.unsqueeze(-1))
        deleted, inserted = deleted & some_rows & inside.unsqueeze(-1), inserted & some_columns & inside.unsqueeze(-1)
        cells_x = torch.nn.functional.one_hot((column - 1).clamp(min=0), m) * deleted.unsqueeze(-1)
        cells_y = torch.nn.functional.one_hot((row - 1).clamp(min=0), n).mT * inserted.unsqueeze(-2)
        if self.gap == "linear":
            return self.named(first, (cells_x + cells_y).to(first.dtype))
        opens_x = deleted & ~torch.nn.functional.pad(deleted[..., :-1], (1, 0))
        opens_y = inserted & ~torch.nn.functional.pad(inserted[..., :-1], (1, 0))
        opens = cells_x * opens_x.unsqueeze(-1) + cells_y * opens_y.unsqueeze(-2)
        return self.named(first, opens.to(first.dtype), (cells_x + cells_y - opens).to(first.dtype))

    def mean(self, vertices: Tensor, probs: Tensor) -> Parts:
        dim = probs.dim() - 1
        parts = tensors(self.complete_each(vertices, dim))
        return self.named(*(super(GappedAlignment, self).mean(t, probs) for t in parts))

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        n, m = parts[0].shape[-2:]
        (within,) = usable_cells(self.lengths, parts[0])
        (_, rows, columns), batch = checked_pairs(self, parts[0])
        i, j = torch.arange(n, device=within.device)[:, None], torch.arange(m, device=within.device)
        rows, columns = rows.reshape(*batch, 1, 1), columns.reshape(*batch, 1, 1)
        if self.mode == "global":
            # the last column is inserted after all rows only: deletions come before insertions
            later = (j < columns - 1) | (i == rows - 1)
            opened = within & ((i >= 1) | (j == 0) | later)
            extended = within & (((i >= 1) & (j == 0)) | (i >= 2) | ((j >= 1) & later))
        else:
            # a pair comes before a gap, and another after it
            inner = (i < rows - 1) & (j < columns - 1)
            opened, extended = inner & ((i >= 1) | (j >= 1)), inner & ((i >= 2) | (j >= 2))
        return (within, opened) if self.gap == "linear" else (within, opened, extended)

    def omega(self, mu: Parts, regularizer: Regularizer) -> Tensor:
        found = self.omega_of_structures(mu, regularizer)
        if found is None:
            raise UnknownOmega("the expected parts of GappedAlignment do not determine its Omega between them")
        return found

    @property
    def compact(self) -> Pairs:
        return Pairs(self)


@Family
def _graph(n: int, m: int, local: int, tensors: int) -> Graph:
    """At i rows and j columns: M pairs the last ones, X deletes a row, Y inserts a column, P is any of these."""
    point = 4 * np.arange((n + 1) * (m + 1)).reshape(n + 1, m + 1)
    cell = np.arange(n * m).reshape(n, m)
    builder = Builder(parts=tensors * n * m)
    if not n or not m:
        return builder.build(4 * (n + 1) * (m + 1) + 1)
    opens, extends = n * m + cell, (tensors - 1) * n * m + cell
    builder.add(point[1:, 1:], cell, point[:-1, :-1] + 3)
    # the cell of a gap score: the border has none of its own
    left, top = np.maximum(np.arange(m + 1) - 1, 0), np.maximum(np.arange(n + 1) - 1, 0)
    open_x, extend_x, open_y, extend_y = opens[:, left], extends[:, left], opens[top], extends[top]
    # a gap is extended, or opened after a pair, an insertion also after a deletion
    x, y = point + 1, point + 2
    if local:
        builder.add(x[3:, 1:], extend_x[2:, 1:], x[2:-1, 1:])
        builder.add(x[2:, 1:], open_x[1:, 1:], point[1:-1, 1:])
        builder.add(y[1:, 3:], extend_y[1:, 2:], y[1:, 2:-1])
        builder.add(y[1:, 2:], open_y[1:, 1:], point[1:, 1:-1])
        builder.add(y[2:, 2:], open_y[2:, 1:], x[2:, 1:-1])
        builder.add(point + 3, -1)
        builder.add(point[1:, 1:] + 3, -1, point[1:, 1:])
        builder.add(point[2:, 1:] + 3, -1, x[2:, 1:])
        builder.add(point[1:, 2:] + 3, -1, y[1:, 2:])
        root = 4 * (n + 1) * (m + 1)
        builder.add(root, -1)
        builder.add(root, -1, point[1:, 1:])
        return builder.build(root + 1)
    builder.add(x[2:, 0], extend_x[1:, 0], x[1:-1, 0])
    builder.add(x[1, 0], open_x[0, 0], point[0, 0] + 3)
    builder.add(x[3:, 1:], extend_x[2:, 1:], x[2:-1, 1:])
    builder.add(x[2:, 1:], open_x[1:, 1:], point[1:-1, 1:])
    builder.add(y[0, 2:], extend_y[0, 1:], y[0, 1:-1])
    builder.add(y[0, 1], open_y[0, 0], point[0, 0] + 3)
    builder.add(y[1:, 2:], extend_y[1:, 1:], y[1:, 1:-1])
    builder.add(y[1:, 2:], open_y[1:, 1:], point[1:, 1:-1])
    builder.add(y[1:, 1], open_y[1:, 0], x[1:, 0])
    builder.add(y[2:, 2:], open_y[2:, 1:], x[2:, 1:-1])
    builder.add(point[1:, 1:] + 3, -1, point[1:, 1:])
    builder.add(point[1:, 0] + 3, -1, x[1:, 0])
    builder.add(point[2:, 1:] + 3, -1, x[2:, 1:])
    builder.add(point[0, 1:] + 3, -1, y[0, 1:])
    builder.add(point[1:, 1:] + 3, -1, y[1:, 1:])
    return builder.build(4 * (n + 1) * (m + 1) + 1)
