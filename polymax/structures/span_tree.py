"""Binary bracketings of a sentence, with or without labels: CKY."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from polymax.hypergraphs import Derivations
from polymax.hypergraphs.passes import Problem, kernel_passes
from polymax.kernels.active_set.problem import Search
from polymax.kernels.span_tree import span_tree_inside, span_tree_outside, span_tree_tangent
from polymax.kernels.span_tree.reference import as_graph, recorded
from polymax.structures.base import checked_lengths
from polymax.structures.compact.spans import Spans
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.usable import before_end, places

_PASSES = kernel_passes(span_tree_inside, span_tree_outside, span_tree_tangent, recorded=recorded)


@dataclass(frozen=True, eq=False)
class SpanTree(DynamicProgram):
    """Binary trees over n leaves; the parts are their spans [i, j], i <= j, leaves and the whole included.

    With labels each span has one. The shape of the scores and `lengths` say whether scores are labelled (without labels
    the last two dims are equal); if they do not, set `labelled`.

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
    may_be_empty = False
    form = Spans
    parts_once = True

    def problem(self, *scores: Tensor) -> Problem:
        tensors, batch, shape = self._flat(*scores)
        return Problem(_PASSES, tensors, batch, lambda mu: mu[0].reshape(shape))

    def derivations(self, *scores: Tensor) -> Derivations:
        tensors, batch, shape = self._flat(*scores)
        flat, graph, roots = as_graph(*tensors)
        return Derivations(flat, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *shape))

    def search(self, *scores: Tensor) -> Search:
        tensors, batch, shape = self._flat(*scores)
        events = (shape[len(batch) :],)
        return Search("spans", tensors, batch, events, self.most_parts(*events), (partial(as_graph, *tensors),))

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
        # event shapes have no batch: (n, n, n) has labels
        known = replace(self, labelled=len(event_shape) == 3)
        return known.logsumexp(*known.zero_scores(tuple(event_shape)))

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        (x,) = parts
        dims = self.event_dims(x)[0]
        n = x.shape[-dims]
        left, right = places(x.device, n, n)
        # places that are not spans get a position beyond every length
        return (before_end(self.lengths, n, torch.where(left <= right, right, n), dims),)

    def stack(self, count: int, *scores: Tensor) -> Self:
        # the new dimension must not be read as labels
        return super(SpanTree, replace(self, labelled=self.event_dims(*scores) == (3,))).stack(count, *scores)

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
        return (x.reshape(math.prod(batch), n, n, labels), lengths), batch, x.shape


def _bracketings(i: int, j: int) -> Iterator[list[tuple[int, int]]]:
    if i >= j:
        yield [(i, j)] if i == j else []
    for k in range(i, j):
        for left in _bracketings(i, k):
            for right in _bracketings(k + 1, j):
                yield [(i, j), *left, *right]
