"""Labelled segments that follow each other."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import Parts
from polymax.structures.base import checked_lengths
from polymax.structures.compact import faults
from polymax.structures.compact.base import Compact, check_rows, indicators
from polymax.structures.compact.tags import steps_at


@dataclass(frozen=True, eq=False)
class Segments(Compact):
    """Start, width - 1 and label of each segment, (*batch, used, 3), -1 after the last; `encode` takes n and s."""

    def encode(self, index: Tensor, *shape: int) -> Parts:
        n, s = faults.sizes(shape, "the number of positions", "the number of labels")
        event = (n, self.structure.max_width, s)
        check_rows(index, event)
        if _check.readable(index):
            rows = _sorted_by_start(index, n)
            ends = torch.where(rows[..., 0] < n, rows[..., 0] + rows[..., 1] + 1, 0)
            length = ends.amax(-1, keepdim=True) if rows.shape[-2] else ends.new_zeros(*ends.shape[:-1], 1)
            _check_cover(rows, length.clamp(max=n), n)
        return self.structure.complete(indicators(index, event))

    def first(self, index: Tensor, *scores: Tensor) -> Tensor:
        return indicators(index, scores[0].shape[-3:])

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The scores (*batch, 2 used - 1) of the segments, then of the steps between their labels."""
        # not `full`: instances and steps may share transitions
        segments, transition = self.structure.broadcast_scores(*scores)
        start, width, label = _sorted_by_start(index, segments.shape[-3]).unbind(-1)
        there = start < segments.shape[-3]
        flat = torch.nn.functional.pad(segments.flatten(-3), (0, 1))
        places = (start * segments.shape[-2] + width) * segments.shape[-1] + label
        whole = flat.gather(-1, torch.where(there, places, flat.shape[-1] - 1))
        label, boundary = torch.where(there, label, 0), torch.where(there, start - 1, 0)
        if transition.shape[-3] == 0:
            return whole
        steps = steps_at(transition, label[..., :-1], label[..., 1:], boundary[..., 1:])
        return torch.cat([whole, torch.where(there[..., 1:], steps, 0)], -1)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        segments, _ = self.structure.broadcast_scores(*scores)
        super().check(index, *scores)
        if _check.readable(index):
            batch, n = segments.shape[:-3], segments.shape[-3]
            lengths = checked_lengths(self.structure.lengths, batch, n, index.device, "lengths")
            _check_cover(_sorted_by_start(index, n), lengths.reshape(*batch, 1), n)
        return index


def _sorted_by_start(index: Tensor, n: int) -> Tensor:
    """Segments (*batch, used, 3) sorted by their start, which is n for rows of -1."""
    rows = torch.where(index < 0, torch.tensor([n, 0, 0], device=index.device), index)
    order = rows[..., 0].argsort(dim=-1, stable=True)
    return rows.gather(-2, order.unsqueeze(-1).expand(rows.shape))


def _check_cover(rows: Tensor, lengths: Tensor, n: int) -> None:
    """Refuse segments, in order, that do not follow each other without a gap from 0 to the length (*batch, 1)."""
    there = rows[..., 0] < n
    start = torch.where(there, rows[..., 0], lengths)
    end = torch.where(there, rows[..., 0] + rows[..., 1] + 1, lengths)

    def beyond(instance: tuple[int, ...], place: int) -> str:
        row, length = tuple(rows[(*instance, place)].tolist()), int(lengths[instance])
        return f"segment {row}{faults.of(instance)} ends beyond its length {length}"

    faults.refuse("segmentation", end > lengths, beyond)
    start, end = torch.cat([start, lengths], -1), torch.cat([torch.zeros_like(lengths), end], -1)

    def explain(instance: tuple[int, ...], place: int) -> str:
        left, right = int(end[(*instance, place)]), int(start[(*instance, place)])
        if left > right:
            return f"segments{faults.of(instance)} overlap at position {right}"
        return f"positions {left} to {right - 1}{faults.of(instance)} are in no segment"

    faults.refuse("segmentation", start != end, explain)
