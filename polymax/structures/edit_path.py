"""Paths of edits: pairs, deletions and insertions in any order, each with a score of its own at each place."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polymax.hypergraphs import Builder, Derivations, Family, Graph
from polymax.structures.base import checked_lengths
from polymax.structures.dynamic import DynamicProgram

# the parts of a point: the step that ends there; in affine gaps, the first step of a run and its others
STEPS: dict[str, tuple[str, ...]] = {"linear": ("pair", "deletion", "insertion")}
STEPS["affine"] = ("pair", "deletion_open", "deletion_extend", "insertion_open", "insertion_extend")


@dataclass(frozen=True, eq=False)
class EditPath(DynamicProgram):
    """Paths from (0, 0) to (n, m) by steps that pair a row with a column, delete a row, or insert a column.

    The parts are steps: the score of a step that ends at i rows and j columns is in cell (i, j). So deletions and
    insertions have scores of their own, also before the first pair (column 0, row 0) and after the last one (column m,
    row n). With gap="affine", the first step of a run of deletions, or of insertions, opens it, and others extend it.
    `GappedAlignment` has one path for the same pairs; here, orders of deletions and insertions are different paths.

    Shapes:
        scores (*batch, n + 1, m + 1, k): k = 3 for pair, deletion, insertion; with gap="affine", k = 5 for pair,
        deletion that opens, that extends, insertion that opens, that extends. `steps` makes them from tensors;
        lengths a pair of (*batch,), rows and columns of each instance

    Example:
        >>> pairs = torch.tensor([[2.0, -1.0, -1.0], [-1.0, -1.0, 2.0]])
        >>> edits = EditPath()
        >>> scores = edits.steps(pairs, -1.0, -0.5)
        >>> pm.HardMax(edits).max(scores)
        tensor(3.5000)
        >>> edits.map(scores)[1:, 1:, 0]
        tensor([[1., 0., 0.],
                [0., 0., 1.]])

    See: Needleman and Wunsch 1970; Gotoh 1982.
    """

    gap: str = "linear"
    lengths: tuple[Tensor, Tensor] | None = None
    parts_once = True

    def __post_init__(self) -> None:
        if self.gap not in STEPS:
            raise ValueError(f"gap must be one of {tuple(STEPS)}; got {self.gap!r}")

    def steps(self, pairs: Tensor, *gaps: float | Tensor, ends: tuple[float | Tensor, ...] | None = None) -> Tensor:
        """Return scores (*batch, n + 1, m + 1, k) from those of the pairs (*batch, n, m) and of the gaps.

        With gap="linear", gaps are deletion and insertion. With gap="affine", they are deletion_open, deletion_extend,
        insertion_open, insertion_extend. Each is a number, or broadcasts to (*batch, n + 1, m + 1). `ends` are gaps in
        the same order, for steps before the first row or column and after the last one: (0.0, 0.0) makes ends free.

        Example:
            >>> pm.EditPath("affine").steps(torch.zeros(2, 3), -2.0, -0.5, -3.0, -1.0).shape
            torch.Size([3, 4, 5])
        """
        names = STEPS[self.gap][1:]
        for given, what in ((gaps, "gap scores"), (ends, "ends")):
            if given is not None and len(given) != len(names):
                raise TypeError(f"{what} of {self.gap} gaps are {', '.join(names)}; got {len(given)}")
        if pairs.dim() < 2:
            raise ValueError(f"pairs must be (*batch, n, m); got {tuple(pairs.shape)}")
        n, m = pairs.shape[-2:]
        shape = *pairs.shape[:-2], n + 1, m + 1
        found = [torch.nn.functional.pad(pairs, (1, 0, 1, 0))]
        row, column = torch.arange(n + 1, device=pairs.device)[:, None], torch.arange(m + 1, device=pairs.device)
        at_ends = {"deletion": (column == 0) | (column == m), "insertion": (row == 0) | (row == n)}
        for k, name in enumerate(names):
            each = [torch.as_tensor(g, dtype=pairs.dtype, device=pairs.device) for g in (gaps[k], (ends or gaps)[k])]
            try:
                inner, end = (t.expand(shape) for t in each)
            except RuntimeError:
                came = [tuple(t.shape) for t in each]
                raise ValueError(f"{name} must broadcast to {shape}; got {came[0]}, at ends {came[1]}") from None
            found.append(inner if ends is None else torch.where(at_ends[name.partition("_")[0]], end, inner))
        return torch.stack(found, -1)

    def derivations(self, *scores: Tensor) -> Derivations:
        (x,) = scores
        count = len(STEPS[self.gap])
        if x.dim() < 3 or x.shape[-1] != count or 0 in x.shape[-3:]:
            raise ValueError(f"scores must be (*batch, n + 1, m + 1, {count}); got {tuple(x.shape)}")
        batch, (n, m) = x.shape[:-3], (size - 1 for size in x.shape[-3:-1])
        if self.lengths is not None and (not isinstance(self.lengths, tuple) or len(self.lengths) != 2):
            raise TypeError("lengths must be a pair of tensors, rows and columns")
        rows, columns = (
            checked_lengths(t, batch, size, x.device, f"lengths[{k}]")
            for k, (t, size) in enumerate(zip(self.lengths or (None, None), (n, m), strict=True))
        )
        flat = x.reshape(batch.numel(), x.shape[-3:].numel())
        if self.gap == "linear":
            graph, roots = _linear.beside(flat, n, m), rows * (m + 1) + columns
        else:
            graph, roots = _affine.beside(flat, n, m), 4 * (rows * (m + 1) + columns) + 3
        return Derivations(flat, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *x.shape))

    def most_parts(self, *events: torch.Size) -> int:
        return events[0][0] + events[0][1]

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (3,)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        paths = list(_paths(event_shape[0] - 1, event_shape[1] - 1))
        y = torch.zeros(len(paths), *event_shape)
        for k, path in enumerate(paths):
            for at, (i, j, step) in enumerate(path):
                if self.gap == "linear" or step == 0:
                    y[k, i, j, step] = 1
                else:
                    follows = at > 0 and path[at - 1][2] == step
                    y[k, i, j, 2 * step - 1 + follows] = 1
        return y


@Family
def _linear(n: int, m: int) -> Graph:
    """Nodes are points (i, j); (0, 0) is the axiom."""
    point = np.arange((n + 1) * (m + 1)).reshape(n + 1, m + 1)
    builder = Builder(parts=3 * point.size)
    builder.add(point[1:, 1:], 3 * point[1:, 1:], point[:-1, :-1])
    builder.add(point[1:], 3 * point[1:] + 1, point[:-1])
    builder.add(point[:, 1:], 3 * point[:, 1:] + 2, point[:, :-1])
    return builder.build(point.size)


@Family
def _affine(n: int, m: int) -> Graph:
    """Nodes of a point: M ends with a pair, X a deletion, Y an insertion, P any of these; P(0, 0) is the axiom."""
    at = np.arange((n + 1) * (m + 1)).reshape(n + 1, m + 1)
    pair, x, y, p = (4 * at + k for k in range(4))
    builder = Builder(parts=5 * at.size)
    builder.add(pair[1:, 1:], 5 * at[1:, 1:], p[:-1, :-1])
    # a run is extended, or opened after a pair, after a step of the other kind, or at the beginning
    builder.add(x[2:], 5 * at[2:] + 2, x[1:-1])
    builder.add(x[2:, 1:], 5 * at[2:, 1:] + 1, pair[1:-1, 1:])
    builder.add(x[1:, 1:], 5 * at[1:, 1:] + 1, y[:-1, 1:])
    builder.add(x[1:2, :1], 5 * at[1:2, :1] + 1, p[:1, :1])
    builder.add(y[:, 2:], 5 * at[:, 2:] + 4, y[:, 1:-1])
    builder.add(y[1:, 2:], 5 * at[1:, 2:] + 3, pair[1:, 1:-1])
    builder.add(y[1:, 1:], 5 * at[1:, 1:] + 3, x[1:, :-1])
    builder.add(y[:1, 1:2], 5 * at[:1, 1:2] + 3, p[:1, :1])
    builder.add(p[1:, 1:], -1, pair[1:, 1:])
    builder.add(p[1:], -1, x[1:])
    builder.add(p[:, 1:], -1, y[:, 1:])
    return builder.build(4 * at.size)


def _paths(n: int, m: int) -> Iterator[list[tuple[int, int, int]]]:
    """The steps of each path, as points where they end and the number of the step."""
    if not n and not m:
        yield []
    for step, (down, right) in enumerate(((1, 1), (1, 0), (0, 1))):
        if n >= down and m >= right:
            for path in _paths(n - down, m - right):
                yield [*path, (n, m, step)]
