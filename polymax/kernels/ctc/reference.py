"""The recursion in torch, a frame of all instances at a time."""

import torch
from torch import Tensor


def ctc_search(x: Tensor, targets: Tensor, counts: Tensor, frames: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    batch, n, classes = x.shape
    lane = torch.arange(targets.shape[1] + 1, device=x.device)
    # a lane for each target and the blank before it; the last lane has only the last blank
    label = torch.nn.functional.pad(targets, (0, 1), value=-1)
    label = torch.where((lane < counts[:, None]) & (label < classes), label, -1)
    before = torch.nn.functional.pad(label[:, :-1], (1, 0), value=-1)
    repeats = (label == before) & (label >= 0)
    # the first frame at which a target, and the blank before it, can be reached
    at_target = lane + repeats.cumsum(1)
    at_blank = at_target - repeats.long()
    scores = torch.where(label[:, None] >= 0, x.double().gather(2, label.clamp(min=0)[:, None].expand(-1, n, -1)), 0)
    blanks, labels = (torch.full(label.shape, -torch.inf, dtype=torch.float64, device=x.device) for _ in range(2))
    moves = []
    empty = (frames == 0) & (counts == 0)
    value = torch.where(empty, 0.0, torch.full((batch,), -torch.inf, dtype=torch.float64, device=x.device))
    on_blank = torch.ones(batch, dtype=torch.bool, device=x.device)
    for t in range(n):
        moved = torch.nn.functional.pad(labels[:, :-1], (1, 0), value=-torch.inf)
        if t == 0:
            blanks, labels = (torch.where(lane == 0, 0.0, v).expand(label.shape) for v in (blanks, labels))
        to_blank, from_target = _better(blanks, moved)
        to_label, from_blank = _better(labels, blanks)
        to_label, skipped = _better(to_label, torch.where(repeats, -torch.inf, moved))
        moves.append((from_target, torch.where(skipped, 2, from_blank.long())))
        inside = lane <= counts[:, None]
        blanks = torch.where(inside & (t >= at_blank), to_blank + x[:, t, blank : blank + 1].double(), -torch.inf)
        labels = torch.where((label >= 0) & (t >= at_target), to_label + scores[:, t], -torch.inf)
        last, before_last = blanks.gather(1, counts[:, None])[:, 0], _last_of(labels, counts)
        best, ends = _better(last, before_last)
        value = torch.where(frames == t + 1, best, value)
        on_blank = torch.where(frames == t + 1, ~ends, on_blank)
    found = torch.full((batch, n), -1, device=x.device)
    at = torch.where(on_blank, counts, counts - 1)[:, None].clamp(min=0)
    for t in range(n - 1, -1, -1):
        inside = (t < frames) & (value > -torch.inf)
        found[:, t] = torch.where(inside, torch.where(on_blank, blank, label.gather(1, at)[:, 0]), -1)
        from_target, move = (m.gather(1, at)[:, 0] for m in moves[t])
        back = inside & torch.where(on_blank, from_target, move == 2)
        on_blank = torch.where(inside, torch.where(on_blank, ~from_target, move == 1), on_blank)
        at = (at - back.long()[:, None]).clamp(min=0)
    return found, value


def _better(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the larger of two, NaN if one is NaN, and a mask that is True if it is the second."""
    moved = (second > first) | second.isnan()
    return torch.where(moved, second, first), moved


def _last_of(labels: Tensor, counts: Tensor) -> Tensor:
    found = labels.gather(1, (counts - 1).clamp(min=0)[:, None])[:, 0]
    return torch.where(counts > 0, found, -torch.inf)
