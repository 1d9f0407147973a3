"""Labelled segmentations: the semi-Markov chain."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax.hypergraphs import Builder, Derivations, Family, Graph
from polymax.structures.base import checked_lengths, zeros_of
from polymax.structures.chain import fitted_transition
from polymax.structures.compact.base import indicators
from polymax.structures.compact.segments import Segments
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.usable import before_end, places


class SegmentParts(NamedTuple):
    """Segments [start, width - 1, label] (*batch, n, widths, s), and labels before and after a boundary."""

    segments: Tensor
    transition: Tensor


@dataclass(frozen=True, eq=False)
class SemiMarkov(DynamicProgram):
    """Segmentations of n positions into labelled segments of at most max_width, scored as wholes and between labels.

    The recursion first chooses the label before a boundary, then the width of the segment after it:

        U(t, s) = max over s' of V(t, s') + transition[s', s]        V(t, s) = max over w of U(t - w, s) + segment

    Shapes:
        segments (*batch, n, max_width, s) by start and width - 1; transition (s, s), or broadcasting to
        (*batch, n - 1, s, s), whose entry t - 1 is for a boundary before position t; lengths (*batch,)

    Example:
        >>> segments = torch.tensor([[[0.0], [3.0]], [[1.0], [0.0]]])
        >>> SemiMarkov(2).decode(SemiMarkov(2).map(segments, torch.zeros(1, 1)))
        tensor([[0, 1, 0]])

    See: Sarawagi and Cohen 2004, Semi-Markov conditional random fields.
    """

    max_width: int
    lengths: Tensor | None = None
    may_be_empty = False
    form = Segments
    parts_once = True

    def __post_init__(self) -> None:
        _check.whole(self.max_width, "max_width")

    def derivations(self, *scores: Tensor) -> Derivations:
        segments, transition = self.full(*scores)
        batch = segments.shape[:-3]
        n, widths, s = segments.shape[-3:]
        lengths = checked_lengths(self.lengths, batch, n, segments.device, "lengths")
        sizes = [n * widths * s, max(n - 1, 0) * s * s]
        flat = torch.cat([x.reshape(math.prod(batch), size) for x, size in zip((segments, transition), sizes)], 1)
        roots = torch.where(lengths > 0, 2 * s * (n + 1) + lengths, -1)

        def shaped(mu: Tensor) -> SegmentParts:
            spans, steps = mu.split(sizes, -1)
            lead = (*mu.shape[:-2], *batch)
            return SegmentParts(spans.reshape(*lead, n, widths, s), steps.reshape(*lead, max(n - 1, 0), s, s))

        return Derivations(flat, _graph.beside(flat, n, widths, s), roots, batch, shaped)

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        segments, transition = self.broadcast_scores(*scores)
        *batch, n, _, s = segments.shape
        return segments, transition.expand(*batch, max(n - 1, 0), s, s)

    def broadcast_scores(self, *scores: Tensor) -> tuple[Tensor, Tensor]:
        """The scores with transitions of as many dims as their batch; shared dims have size 1."""
        if len(scores) != 2:
            raise TypeError(f"a segmentation has two score tensors, segments and transition; got {len(scores)}")
        segments, transition = scores
        if segments.dim() < 3 or segments.shape[-2] != self.max_width:
            raise ValueError(f"segments must be (*batch, n, {self.max_width}, s); got {tuple(segments.shape)}")
        *batch, n, _, s = segments.shape
        return segments, fitted_transition(transition, (*batch, max(n - 1, 0), s, s))

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        n, widths = parts[0].shape[-3:-1]
        start, width = places(parts[0].device, n, widths)
        return before_end(self.lengths, n, start + width, 3), before_end(self.lengths, n, start[1:, 0], 3)

    def most_parts(self, *events: torch.Size) -> int:
        return max(2 * events[0][0] - 1, 0)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return 3, 3

    def vertices(self, event_shape: tuple[int, ...]) -> SegmentParts:
        n, widths, s = event_shape
        rows = [
            [(start, width - 1, label) for (start, width), label in zip(cut, labels, strict=True)]
            for cut in _cuts(0, n, widths)
            for labels in itertools.product(range(s), repeat=len(cut))
        ]
        index = torch.full((len(rows), n, 3), -1)
        for k, row in enumerate(rows):
            index[k, : len(row)] = torch.tensor(row, dtype=torch.long).reshape(-1, 3)
        return self.complete(indicators(index, event_shape))

    def zero_scores(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        first = zeros_of(self, event_shape)
        return first, first.new_zeros(event_shape[-1], event_shape[-1])

    def complete(self, first: Tensor) -> SegmentParts:
        n, _, s = first.shape[-3:]
        # labels of segments that end before, and start at, each boundary
        ends = first.new_zeros(*first.shape[:-3], n + 1, s)
        for width in range(1, min(self.max_width, n) + 1):
            ends[..., width:, :] += first[..., : n + 1 - width, width - 1, :]
        starts = first.sum(-2)
        return SegmentParts(first, ends[..., 1:n, :, None] * starts[..., 1:, None, :])

    def named(self, *parts: Tensor) -> SegmentParts:
        return SegmentParts(*parts)


@Family
def _graph(n: int, widths: int, s: int) -> Graph:
    t, a, b = np.ogrid[: n + 1, :s, :s]
    ended, before = 2 * s * t, 2 * s * t + s
    transition = n * widths * s + np.arange(max(n - 1, 0) * s * s).reshape(max(n - 1, 0), s, s)
    builder = Builder(parts=n * widths * s + transition.size)
    builder.add((before + b)[1:n], transition, (ended + a)[1:n])
    start, w, label = (x.ravel() for x in np.indices((n, widths, s)))
    inside = start + w + 1 <= n
    start, w, label = start[inside], w[inside], label[inside]
    end = start + w + 1
    builder.add(2 * s * end + label, (start * widths + w) * s + label, 2 * s * start + s + label)
    builder.add(2 * s * (n + 1) + t[1:], -1, (ended + a)[1:])
    return builder.build(2 * s * (n + 1) + n + 1)


def _cuts(start: int, n: int, widths: int) -> Iterator[list[tuple[int, int]]]:
    if start == n:
        yield []
    for width in range(1, min(widths, n - start) + 1):
        for rest in _cuts(start + width, n, widths):
            yield [(start, width), *rest]
