"""Alignments of two sequences with gaps: Needleman-Wunsch and Smith-Waterman, with linear and affine gap scores."""

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax._parts import Parts, checked_scores, narrow, tensors
from polymax.hypergraphs import Derivations
from polymax.hypergraphs.entropy import UnknownOmega
from polymax.hypergraphs.passes import SHANNON, Problem, kernel_passes
from polymax.kernels.gapped import gapped_inside, gapped_outside, gapped_tangent
from polymax.kernels.gapped.reference import recorded
from polymax.regularizers import Regularizer
from polymax.structures.base import checked_pairs, zeros_of
from polymax.structures.compact.base import indicators
from polymax.structures.compact.pairs import Pairs
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.gapped_graph import ends_of, free_ends, graph, used_ends
from polymax.structures.usable import usable_cells

_PASSES = kernel_passes(gapped_inside, gapped_outside, gapped_tangent, recorded=recorded, scores=3)
MODES = ("global", "local", "semi-global")
GAPS = ("linear", "affine")


class LinearGaps(NamedTuple):
    """Pairs [row, column] (*batch, n, m), and the cells (*batch, n, m) that score positions of gaps."""

    pairs: Tensor
    extend: Tensor


class AffineGaps(NamedTuple):
    """Pairs [row, column], and the cells that score the first position of a gap, and its others; all (*batch, n, m)."""

    pairs: Tensor
    open: Tensor
    extend: Tensor


@dataclass(frozen=True, eq=False)
class GappedAlignment(DynamicProgram):
    """Alignments of two sequences: pairs of positions, in order, and gaps; unpaired rows are deleted, columns inserted.

    A gap of length L scores open + (L - 1) extend, or L extend with gap="linear"; for penalties these scores are
    negative. Between two pairs deletions come before insertions, so that the pairs determine the alignment. Mode
    "global" scores all gaps. Mode "local" scores the gaps between the first pair and the last. Mode "semi-global" lets
    a sequence begin before the other, or end after it, for free: before the first pair, and after the last, it scores
    only the gap of the sequence with fewer positions there (deletions if both have equally many). Both contain the
    empty alignment, of score 0.

    Gap scores may differ by position. The score of row i, deleted after j columns, is in cell (i, max(j - 1, 0)). The
    score of column j, inserted after i rows, is in cell (max(i - 1, 0), j). If a sequence is empty, the score is 0. The
    compact form is the list of pairs.

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
        points = (n + 1) * (m + 1)
        if self.mode == "global":
            roots = 4 * (rows * (m + 1) + columns) + 3
        else:
            row, column = torch.arange(n, device=x.device)[:, None], torch.arange(m, device=x.device)
            x = torch.where((row < rows[:, None, None]) & (column < columns[:, None, None]), x, -torch.inf)
            roots = torch.full_like(rows, (4 if self.mode == "local" else 10) * points)
        roots = torch.where((rows > 0) & (columns > 0), roots, -1)
        flat = torch.cat([x.flatten(1), *(t.reshape(math.prod(batch), n * m) for t in full[1:])], 1)
        if self.mode == "semi-global":
            ends = torch.cat([t.flatten(1) for t in ends_of(rows, columns, n, m)], 1)
            flat = torch.cat([flat, torch.where(ends, 0.0, -torch.inf).to(x.dtype)], 1)
        sizes = n * m * len(full)

        def shaped(mu: Tensor) -> Parts:
            return self.named(*mu[..., :sizes].reshape(*mu.shape[:-2], *batch, len(full), n, m).unbind(-3))

        def with_ends(y: Parts) -> Tensor:
            parts = [t.flatten(-2) for t in tensors(y)]
            pairs = parts[0].reshape(*parts[0].shape[: -1 - len(batch)], math.prod(batch), n, m)
            ends = [t.flatten(-t.dim() + pairs.dim() - 2) for t in used_ends(pairs, rows, columns)]
            shape = parts[0].shape[:-1]
            return torch.cat([*parts, *(t.reshape(*shape, t.shape[-1]).to(parts[0].dtype) for t in ends)], -1)

        if self.mode == "semi-global":
            found = free_ends.beside(flat, n, m, len(full))
            return Derivations(flat, found, roots, batch, shaped, with_ends)
        found = graph.beside(flat, n, m, int(self.mode == "local"), len(full))
        return Derivations(flat, found, roots, batch, shaped)

    def logsumexp(self, *scores: Tensor) -> Tensor:
        problem = self._sums(*checked_scores(scores))
        return super().logsumexp(*scores) if problem is None else problem.value(SHANNON).to(scores[0].dtype)

    def marginals(self, *scores: Tensor) -> Parts:
        # expectations of gaps have the shape of the cells
        problem = self._sums(*self.full(*checked_scores(scores)))
        return super().marginals(*scores) if problem is None else narrow(problem.expectation(SHANNON), scores[0].dtype)

    def _sums(self, *scores: Tensor) -> Problem | None:
        """The problem for the set's own kernels of the sum, or None: they take mode "global" in float32.

        A gap score that is one number for all cells is not expanded.
        """
        pairs = scores[0]
        if self.mode != "global" or pairs.dtype != torch.float32 or pairs.device.type not in ("cpu", "cuda"):
            return None
        full = self.full(*scores)
        (x, rows, columns), batch = checked_pairs(self, pairs)
        count = math.prod(batch)
        gaps = []
        for given, whole in zip(scores[1:], full[1:], strict=True):
            single = not isinstance(given, Tensor) or given.numel() == 1
            gaps.append(whole[..., :1, :1].reshape(count, 1, 1) if single and x.numel() else whole.reshape(x.shape))
        if self.gap == "linear":
            gaps = [gaps[0], gaps[0]]

        def shaped(mu: tuple[Tensor, ...]) -> Parts:
            whole = [t.reshape(pairs.shape) for t in mu]
            return self.named(whole[0], whole[1] + whole[2]) if self.gap == "linear" else self.named(*whole)

        return Problem(_PASSES, (x, *gaps, rows, columns), batch, shaped)

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
            x = pairs.new_full((), x) if not isinstance(x, Tensor) else x
            try:
                found.append(x.expand(pairs.shape))
            except RuntimeError:
                message = f"{name} must broadcast to the pairs {tuple(pairs.shape)}; got {tuple(x.shape)}"
                raise ValueError(message) from None
        return tuple(found)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2,) * len(scores)

    def named(self, *parts: Tensor) -> Parts:
        return AffineGaps(*parts) if self.gap == "affine" else LinearGaps(*parts)

    def zero_scores(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
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
        """Alignments from their pairs, (*lead, *batch, n, m) if the set has lengths."""
        n, m = first.shape[-2:]
        if not first.numel():
            return self.named(first, *(torch.zeros_like(first) for _ in range(2 if self.gap == "affine" else 1)))
        (_, rows, columns), _ = checked_pairs(self.with_lengths(None), first)
        rows, columns = rows.reshape(first.shape[:-2]), columns.reshape(first.shape[:-2])
        if self.lengths is not None:
            rows, columns = (t.to(first.device).expand(first.shape[:-2]) for t in self.lengths)
        deleted, inserted = (first != 0).sum(-1) == 0, (first != 0).sum(-2) == 0
        at_row, at_column = torch.arange(n, device=first.device), torch.arange(m, device=first.device)
        # the number of columns before a row, and of rows before a column
        column = torch.where(deleted, 0, (first != 0).long().argmax(-1) + 1).cummax(-1).values
        row = torch.where(inserted, rows.unsqueeze(-1), (first != 0).long().argmax(-2))
        row = row.flip(-1).cummin(-1).values.flip(-1)
        inside = (rows > 0) & (columns > 0)
        some_rows, some_columns = (at_row < rows.unsqueeze(-1)), (at_column < columns.unsqueeze(-1))
        if self.mode != "global":
            last = (~deleted).long().mul(at_row + 1).amax(-1, keepdim=True)
            some_rows = (column > 0) & (at_row < last)
            begun = (~inserted).long().cummax(-1).values > 0
            some_columns = begun & (row < rows.unsqueeze(-1))
        if self.mode == "semi-global":
            # rows and columns before the first pair, and after the last one
            before_i, before_j = (t.long().cumprod(-1).sum(-1, keepdim=True) for t in (deleted, inserted))
            last_j = (~inserted).long().mul(at_column + 1).amax(-1, keepdim=True)
            after_i, after_j = rows.unsqueeze(-1) - last, columns.unsqueeze(-1) - last_j
            any_pair = last > 0
            lead, trail = before_i <= before_j, after_i <= after_j
            in_trail = (at_row >= last) & (at_row < rows.unsqueeze(-1)) & trail & (after_j > 0)
            some_rows = some_rows | (any_pair & (((at_row < before_i) & lead & (before_j > 0)) | in_trail))
            column = torch.where(at_row < before_i, before_j, column)
            after_last = at_column >= last_j
            in_trail = after_last & (at_column < columns.unsqueeze(-1)) & ~trail & (after_i > 0)
            some_columns = some_columns | (any_pair & (((at_column < before_j) & ~lead & (before_i > 0)) | in_trail))
            row = torch.where(after_last, last, row)
        deleted, inserted = deleted & some_rows & inside.unsqueeze(-1), inserted & some_columns & inside.unsqueeze(-1)
        cells_x = torch.nn.functional.one_hot((column - 1).clamp(min=0), m) * deleted.unsqueeze(-1)
        cells_y = torch.nn.functional.one_hot((row - 1).clamp(min=0), n).mT * inserted.unsqueeze(-2)
        if self.gap == "linear":
            return self.named(first, (cells_x + cells_y).to(first.dtype))
        opens_x = deleted & ~torch.nn.functional.pad(deleted[..., :-1], (1, 0))
        opens_y = inserted & ~torch.nn.functional.pad(inserted[..., :-1], (1, 0))
        opens = cells_x * opens_x.unsqueeze(-1) + cells_y * opens_y.unsqueeze(-2)
        return self.named(first, opens.to(first.dtype), (cells_x + cells_y - opens).to(first.dtype))

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        n, m = parts[0].shape[-2:]
        (within,) = usable_cells(self.lengths, parts[0])
        (_, rows, columns), batch = checked_pairs(self, parts[0])
        i, j = torch.arange(n, device=within.device)[:, None], torch.arange(m, device=within.device)
        rows, columns = rows.reshape(*batch, 1, 1), columns.reshape(*batch, 1, 1)
        if self.mode == "global":
            # deletions come before insertions: the last column is inserted only after all rows
            later = (j < columns - 1) | (i == rows - 1)
            opened = within & ((i >= 1) | (j == 0) | later)
            extended = within & (((i >= 1) & (j == 0)) | (i >= 2) | ((j >= 1) & later))
        else:
            # a scored gap lies between two pairs
            inner = (i < rows - 1) & (j < columns - 1)
            opened, extended = inner & ((i >= 1) | (j >= 1)), inner & ((i >= 2) | (j >= 2))
        if self.mode == "semi-global":
            opened = inner & (rows > 0) | _trailing(i, j, rows, columns, 1)
            extended = inner & (((i >= 1) & (j >= 1)) | (i >= 2) | (j >= 2)) | _trailing(i, j, rows, columns, 2)
        return (within, opened) if self.gap == "linear" else (within, opened, extended)

    def omega(self, mu: Parts, regularizer: Regularizer) -> Tensor:
        found = self.omega_of_structures(mu, regularizer)
        if found is None:
            raise UnknownOmega("the expected parts of GappedAlignment do not determine its Omega between them")
        return found

    @property
    def compact(self) -> Pairs:
        return Pairs(self)


def _trailing(i: Tensor, j: Tensor, rows: Tensor, columns: Tensor, k: int) -> Tensor:
    """The cells of the k-th and later positions of those gaps after the last pair that are scored."""
    deleted = (i >= k) & (i < rows) & (j < columns - 1) & (rows - i + k - 1 <= columns - 1 - j)
    return deleted | ((j >= k) & (j < columns) & (i < rows - 1) & (columns - j + k - 1 < rows - 1 - i))
