"""Binary bracketings of a sentence, with or without labels: CKY."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.kernels.span_tree import span_tree_inside, span_tree_outside, span_tree_tangent
from polymax.structures import faults
from polymax.structures.base import checked_lengths, raveled, refuse_repeats
from polymax.structures.dynamic import Derivations, DynamicProgram, Problem, kernel_passes


@dataclass(frozen=True, eq=False)
class SpanTree(DynamicProgram):
    """Binary trees over n leaves; the parts are their spans [i, j], i <= j, leaves and the whole included.

    With labels each span carries one. Whether scores are labelled is read off their shape where that is clear
    (the last two dims are equal without labels), and from `lengths`; `labelled` says it where it is not.

    Shapes: scores (*batch, n, n) or (*batch, n, n, labels); lengths (*batch,)

    Example:
        >>> scores = torch.zeros(3, 3)
        >>> scores[1, 2] = 1.0
        >>> SpanTree().map(scores)
        tensor([[1., 0., 1.],
                [0., 1., 1.],
                [0., 0., 1.]])
    """

    lengths: Tensor | None = None
    labelled: bool | None = None

    parts_once = True

    def problem(self, *scores: Tensor) -> Problem:
        tensors, batch, shape = self._flat(*scores)
        passes = kernel_passes(span_tree_inside, span_tree_outside, span_tree_tangent, recorded=_recorded)
        return Problem(passes, tensors, batch, lambda mu: mu[0].reshape(shape))

    def derivations(self, *scores: Tensor) -> Derivations:
        from polymax.kernels.span_tree.reference import as_graph

        tensors, batch, shape = self._flat(*scores)
        flat, graph, roots = as_graph(*tensors)
        return Derivations(flat, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *shape))

    def most_parts(self, *events: torch.Size) -> int:
        return 2 * events[0][0]

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        (x,) = scores
        return (3,) if self._labelled(x) else (2,)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        n, labels = event_shape[0], event_shape[2] if len(event_shape) == 3 else 1
        trees = []
        for spans in _bracketings(0, n - 1):
            for labelling in itertools.product(range(labels), repeat=len(spans)):
                y = torch.zeros(n, n, labels)
                for (i, j), label in zip(spans, labelling, strict=True):
                    y[i, j, label] = 1
                trees.append(y)
        stack = torch.stack(trees)
        return stack if len(event_shape) == 3 else stack.squeeze(-1)

    def log_count(self, event_shape: tuple[int, ...]) -> Tensor:
        # (n, n, n) are labels here, and no batch
        known = replace(self, labelled=len(event_shape) == 3)
        return known.logsumexp(*known.unscored(tuple(event_shape)))

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        """Spans (*batch, used, 2) [i, j], or (*batch, used, 3) with labels, to indicators (n, n) or (n, n, labels)."""
        y = super().encode(index, *shape)
        if _check.readable(index) and index.shape[-2]:
            _check_brackets(index, 1 + index[..., 1].amax(-1, keepdim=True), shape[0])
        return y

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        (x, lengths), batch, _ = self._flat(*scores)
        super().check(index, *scores)
        if _check.readable(index):
            _check_brackets(index, lengths.reshape(*batch, 1), x.shape[1])
        return index

    def _labelled(self, x: Tensor) -> bool:
        if self.labelled is not None:
            return self.labelled
        if self.lengths is not None:
            return x.dim() - self.lengths.dim() == 3
        if x.dim() < 3 or x.shape[-3] != x.shape[-2]:
            return False
        if x.shape[-2] == x.shape[-1]:
            raise ValueError(
                f"scores of shape {tuple(x.shape)} are spans with labels or a batch without: say which, by labelled="
            )
        return True

    def _flat(self, *scores: Tensor) -> tuple[tuple[Tensor, Tensor], torch.Size, torch.Size]:
        (x,) = scores
        dims = 3 if x.dim() >= 2 and self._labelled(x) else 2
        if x.dim() < dims or x.shape[-dims] != x.shape[1 - dims]:
            expected = "(*batch, n, n, labels)" if dims == 3 else "(*batch, n, n)"
            raise ValueError(f"scores must be {expected}; got {tuple(x.shape)}")
        batch = x.shape[:-dims]
        n = x.shape[-dims]
        labels = x.shape[-1] if dims == 3 else 1
        lengths = checked_lengths(self.lengths, batch, n, x.device, "lengths")
        return (x.reshape(batch.numel(), n, n, labels), lengths), batch, x.shape


def _check_brackets(rows: Tensor, lengths: Tensor, n: int) -> None:
    """Spans (*batch, used, 2 or 3) of a binary tree over the leaves before lengths (*batch, 1).

    Spans that do not cross are at most 2 n - 1, and exactly so in a binary tree.
    """
    what = "binary tree"
    i, j = rows[..., 0], rows[..., 1]

    def span(instance: tuple[int, ...], place: int) -> str:
        return f"[{int(i[(*instance, place)])}, {int(j[(*instance, place)])}]"

    backward = (i > j) | (j >= lengths)
    faults.refuse(
        what, backward, lambda b, k: f"span {span(b, k)}{faults.of(b)} is none of its {int(lengths[b])} leaves"
    )
    refuse_repeats(what, rows[..., :2], raveled(rows[..., :2], (n, n)))
    a, b, c, d = i.unsqueeze(-1), j.unsqueeze(-1), i.unsqueeze(-2), j.unsqueeze(-2)
    cross = ((a < c) & (c <= b) & (b < d) & (a >= 0)).flatten(-2)

    def crossing(instance: tuple[int, ...], place: int) -> str:
        first, second = divmod(place, rows.shape[-2])
        return f"spans {span(instance, first)} and {span(instance, second)}{faults.of(instance)} cross"

    faults.refuse(what, cross, crossing)
    count = (i >= 0).sum(-1, keepdim=True)
    full = (2 * lengths - 1).clamp(min=0)

    def few(instance: tuple[int, ...], _: int) -> str:
        return f"it has {int(count[instance])} spans{faults.of(instance)}, leaves included, not {int(full[instance])}"

    faults.refuse(what, count != full, few)


def _bracketings(i: int, j: int) -> Iterator[list[tuple[int, int]]]:
    if i >= j:
        yield [(i, j)] if i == j else []
    for k in range(i, j):
        for left in _bracketings(i, k):
            for right in _bracketings(k + 1, j):
                yield [(i, j), *left, *right]


def _recorded(*args: Any) -> Tensor:
    from polymax.kernels.span_tree.reference import recorded

    return recorded(*args)
