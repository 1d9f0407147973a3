"""Labellings of frames that read as given targets: connectionist temporal classification."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from polymax import _check
from polymax.hypergraphs import Builder, Derivations, Family, Graph
from polymax.kernels.ctc import ctc_search
from polymax.structures.base import checked_lengths
from polymax.structures.compact import faults
from polymax.structures.compact.choices import one_hot, used_index
from polymax.structures.compact.ordered import Ordered
from polymax.structures.dynamic import DynamicProgram


@dataclass(frozen=True, eq=False)
class CTC(DynamicProgram):
    """Labellings that give each frame a label or the blank, and read as the targets.

    Reading takes repeated labels of neighbouring frames as one, then leaves out blanks; so there is a blank between
    two equal targets. The parts are cells [frame, label]. Targets that do not fit into their frames are refused. The
    compact form is the label of each frame, -1 at padding.

    Shapes:
        scores (*batch, frames, labels); targets (*batch, s), or (s,) for all; target_lengths and lengths, the frames of
        each instance, (*batch,)

    Example:
        >>> log_probs = torch.tensor([[0.6, 0.4, 0.0], [0.1, 0.8, 0.1], [0.3, 0.1, 0.6]]).log()
        >>> ctc = CTC(torch.tensor([1, 2]))
        >>> ctc.decode(ctc.map(log_probs))
        tensor([0, 1, 2])
        >>> pm.Marginals(ctc)(log_probs)[0]
        tensor([0.5333, 0.4667, 0.0000])

    See: Graves et al. 2006, Connectionist temporal classification.
    """

    targets: Tensor
    target_lengths: Tensor | None = None
    lengths: Tensor | None = None
    blank: int = 0
    may_be_empty = False

    def __post_init__(self) -> None:
        t = self.targets
        if not isinstance(t, Tensor) or t.is_floating_point() or t.dtype == torch.bool:
            raise TypeError(
                f"targets must be a tensor of integers; got {t.dtype if isinstance(t, Tensor) else type(t).__name__}"
            )
        if t.dim() < 1:
            raise ValueError(f"targets must be (*batch, s) or (s,); got {tuple(t.shape)}")

    def derivations(self, *scores: Tensor) -> Derivations:
        (x,) = scores
        (rows, counts, frames), batch = self.broadcast_targets(x)
        n, classes = x.shape[-2:]
        self._check_room(rows, counts, frames, batch)
        labels = states_of(rows, self.blank)
        tree = lattice(x.reshape(math.prod(batch), n, classes), rows, counts, frames, self.blank)
        reached = _reached(rows, counts, frames, n)

        def shaped(mu: Tensor) -> Tensor:
            cells = mu[..., : n * labels.shape[1]].unflatten(-1, (n, labels.shape[1]))
            # NaN passes forbidden skips: cells that no labelling uses are set to 0
            cells = torch.where(reached, cells, 0)
            return _spread(cells, labels, classes).reshape(*mu.shape[:-2], *batch, n, classes)

        def flat(y: Tensor) -> Tensor:
            rows = y.reshape(*y.shape[: -2 - len(batch)], math.prod(batch), n, classes)
            return _used_states(rows, labels, self.blank)

        return Derivations(tree.scores, tree.graph, tree.roots, batch, shaped, flat)

    def labels(self, *scores: Tensor) -> Tensor:
        """The label (*batch, frames) of each frame of the best labelling: `decode(map(scores))`, without cells.

        It is -1 at padding, and in instances whose scores are undefined or forbid every labelling.

        Example:
            >>> log_probs = torch.tensor([[0.6, 0.4, 0.0], [0.1, 0.8, 0.1], [0.3, 0.1, 0.6]]).log()
            >>> CTC(torch.tensor([1, 2])).labels(log_probs)
            tensor([0, 1, 2])
        """
        return self._best(*scores)[0].reshape(scores[0].shape[:-1])

    def map(self, *scores: Tensor) -> Tensor:
        found, value = self._best(*scores)
        x = scores[0]
        y = one_hot(found, x.shape[-1]).to(x.dtype).reshape(x.shape)
        if not _check.readable(value) or bool(value.isnan().any()):
            bad = value.isnan().reshape(*x.shape[:-2], 1, 1)
            y = torch.where(bad & self.usable(y)[0], torch.nan, y)
        return y

    def _best(self, *scores: Tensor) -> tuple[Tensor, Tensor]:
        """The labels (B, frames) of the best labelling, and its value (B,)."""
        (x,) = scores
        _check.floating(x, "scores")
        (rows, counts, frames), batch = self.broadcast_targets(x)
        self._check_room(rows, counts, frames, batch)
        with torch.no_grad():
            flat = x.detach().reshape(math.prod(batch), *x.shape[-2:])
            return ctc_search(flat, rows, counts, frames, self.blank)

    def _check_room(self, rows: Tensor, counts: Tensor, frames: Tensor, batch: torch.Size) -> None:
        """Raise ValueError if targets do not fit into their frames, provided that values can be read."""
        if _check.readable(rows) and _check.readable(counts) and _check.readable(frames):
            none = missing_frames(rows, counts, frames) > 0
            if bool(none.any()):
                raise ValueError(_explained(rows, counts, frames, none, batch))

    def broadcast_targets(self, x: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], torch.Size]:
        """Targets (B, s), blanks after their ends, their lengths (B,) and the frames (B,) of scores, and the batch."""
        if x.dim() < 2:
            raise ValueError(f"scores must be (*batch, frames, labels); got {tuple(x.shape)}")
        batch, (n, classes) = x.shape[:-2], x.shape[-2:]
        if not isinstance(self.blank, int) or not 0 <= self.blank < classes:
            raise ValueError(f"blank must be one of {classes} labels; got {self.blank!r}")
        if not _check.broadcastable(self.targets.shape[:-1], batch):
            expected = (*batch, self.targets.shape[-1])
            raise ValueError(f"targets must be {expected}, or broadcast to it; got {tuple(self.targets.shape)}")
        size = self.targets.shape[-1]
        rows = self.targets.to(device=x.device, dtype=torch.long).expand(*batch, size).reshape(math.prod(batch), size)
        counts = self.target_lengths
        if isinstance(counts, Tensor) and _check.broadcastable(counts.shape, batch):
            counts = counts.expand(batch)
        counts = checked_lengths(counts, batch, size, x.device, "target_lengths")
        frames = checked_lengths(self.lengths, batch, n, x.device, "lengths")
        if _check.readable(rows):
            blanks = (rows == self.blank) & (torch.arange(size, device=rows.device) < counts[:, None])
            if bool(blanks.any()):
                instance = tuple(blanks.any(-1).reshape(batch).nonzero()[0].tolist())
                raise ValueError(f"targets must not be the blank, {self.blank}; got one{faults.of(instance)}")
        return (checked_targets(rows, counts, classes, self.blank), counts, frames), batch

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        (x,) = parts
        (rows, counts, frames), _ = self.broadcast_targets(x)
        n, classes = x.shape[-2:]
        labels = states_of(rows, self.blank)
        used = _spread(_reached(rows, counts, frames, n).float(), labels, classes) > 0
        return (used.reshape(x.shape),)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2,)

    def zero_scores(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        like = self.lengths if self.lengths is not None else self.target_lengths
        batch = self.targets.shape[:-1] if like is None else like.shape
        return (torch.zeros(*batch, *event_shape, dtype=torch.float64, device=self.targets.device),)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        n, classes = event_shape
        if self.targets.dim() > 1 or self.target_lengths is not None:
            raise ValueError("the labellings are listed for targets (s,), without target_lengths")
        wanted = self.targets.tolist()
        found = [y for y in itertools.product(range(classes), repeat=n) if _read(y, self.blank) == wanted]
        return one_hot(torch.tensor(found, dtype=torch.long).reshape(len(found), n), classes).float()

    @property
    def compact(self) -> "Labels":
        return Labels(self)


@dataclass(frozen=True, eq=False)
class Labels(Ordered):
    """The label (*batch, frames) of each frame, -1 at padding; `encode` takes the number of labels."""

    what, unit, part, count = "labelling that reads as its targets", "frame", "label", "labels"

    def check_order(self, index: Tensor, like: Tensor) -> None:
        """Refuse labels (*batch, frames) that do not read as their targets; an instance without labels is accepted."""
        blank = self.structure.blank
        (rows, counts, _), batch = self.structure.with_lengths(None).broadcast_targets(like)
        labels = states_of(rows, blank)
        states, right = _states(index.reshape(math.prod(batch), index.shape[-1]), labels, blank)
        last = states.amax(-1) if states.shape[-1] else counts.new_full(counts.shape, -1)
        empty = (last < 0) & ((counts > 0) | (index.shape[-1] > 0))
        wrong = ~empty & (~right.all(-1) | ((last + 1) // 2 != counts))

        def explain(instance: tuple[int, ...], _: int) -> str:
            came = _read([t for t in index[instance].tolist() if t >= 0], blank)
            at = int(torch.arange(math.prod(batch), device="cpu").reshape(batch)[instance])
            return f"the labels{faults.of(instance)} read as {came}, not as {rows[at, : int(counts[at])].tolist()}"

        faults.refuse(self.what, wrong.reshape(*batch, 1), explain)


def checked_targets(rows: Tensor, counts: Tensor, classes: int, blank: int) -> Tensor:
    """Targets (B, s) with blanks after their ends; a ValueError if one is not a label."""
    rows = torch.where(torch.arange(rows.shape[1], device=rows.device) < counts[:, None], rows, blank)
    if _check.readable(rows) and bool(((rows < 0) | (rows >= classes)).any()):
        raise ValueError(f"targets must be in [0, {classes}); got values in [{rows.min()}, {rows.max()}]")
    return rows


def states_of(rows: Tensor, blank: int) -> Tensor:
    """The labels (B, 2 s + 1) of states: targets (B, s) with blanks around each."""
    labels = rows.new_full((rows.shape[0], 2 * rows.shape[1] + 1), blank)
    labels[:, 1::2] = rows
    return labels


def missing_frames(rows: Tensor, counts: Tensor, frames: Tensor) -> Tensor:
    """The number of frames (B,) that targets need, less the number of frames; at most 0 if the targets fit."""
    return counts + _repeats(rows, counts)[:, -1] - frames


def lattice(x: Tensor, rows: Tensor, counts: Tensor, frames: Tensor, blank: int) -> Derivations:
    """Paths through frames and states; parts are [frame, state], then skips into states 2, 3, ...

    If targets do not fit into their frames, all paths are forbidden.

    Shapes: x (B, n, classes), rows (B, s) the targets, counts their lengths (B,), frames (B,)
    """
    batch, n, _ = x.shape
    labels = states_of(rows, blank)
    by_state = torch.where(_reached(rows, counts, frames, n), at_labels(x, labels), -torch.inf)
    none = missing_frames(rows, counts, frames) > 0
    # a path may skip the blank between labels that differ
    skips = torch.where(labels[:, 2:] == labels[:, :-2], -torch.inf, 0.0).to(x.dtype)
    roots = 2 * n * labels.shape[1] + (frames - 1).clamp(min=0) * (rows.shape[1] + 1) + torch.where(none, 0, counts)
    roots = torch.where((frames == 0) & (counts == 0), -1, roots)
    scores = torch.cat([by_state.flatten(1), skips], 1)
    graph = _graph.beside(scores, n, rows.shape[1])
    return Derivations(scores, graph, roots if n else torch.full_like(roots, -1), torch.Size([batch]), lambda mu: mu)


@Family
def _graph(n: int, size: int) -> Graph:
    """Node A(t, j) chooses the state before j, B(t, j) adds the score of j, R(t, l) ends at one of the last states.

    A path starts at the first blank or the first label, so that it cannot reach state j before frame j // 2.
    """
    states = 2 * size + 1
    skips = n * states + np.arange(max(states - 2, 0))
    builder = Builder(parts=n * states + len(skips))

    def add(t: np.ndarray, j: np.ndarray, part: Any, back: int) -> None:
        there = (t > 0) & (j >= back) & (j - back <= 2 * t - 1) & (j <= 2 * t + 1)
        before, after = 2 * states * t + j, 2 * states * (t - 1) + states + j - back
        builder.add(before[there], part if isinstance(part, int) else part[there], after[there])

    t, j = np.broadcast_arrays(*np.ogrid[:n, :states])
    reached = j <= 2 * t + 1
    builder.add((2 * states * t + states + j)[reached], (states * t + j)[reached], (2 * states * t + j)[reached])
    add(t, j, -1, 0)
    add(t, j, -1, 1)
    if size:
        add(t, j, skips[np.maximum(j - 2, 0)], 2)
    t, count = np.broadcast_arrays(*np.ogrid[:n, : size + 1])
    ends = 2 * n * states + (size + 1) * t + count
    for state, there in ((2 * count, count <= t), (2 * count - 1, (count > 0) & (count <= t + 1))):
        builder.add(ends[there], -1, (2 * states * t + states + state)[there])
    return builder.build(2 * n * states + n * (size + 1))


def _reached(rows: Tensor, counts: Tensor, frames: Tensor, n: int) -> Tensor:
    """A bool tensor (B, n, states), True for states through which a path can pass at a frame."""
    size = rows.shape[1]
    state, frame = torch.arange(2 * size + 1, device=rows.device), torch.arange(n, device=rows.device)[:, None]
    repeats = _repeats(rows, counts)
    # the least numbers of frames before and after a state: other targets, and blanks between equal targets
    before = state // 2 + repeats[:, (state + 1) // 2]
    after = counts[:, None] - (state + 1) // 2 + repeats[:, -1:] - repeats[:, (state // 2 + 1).clamp(max=size)]
    within = (frame >= before[:, None]) & (frame + after[:, None] < frames[:, None, None])
    return within & (state <= 2 * counts[:, None])[:, None]


def _repeats(rows: Tensor, counts: Tensor) -> Tensor:
    """The number (B, s + 1) of repeats among the first 0, 1, ..., s targets: of targets equal to the target before."""
    same = torch.nn.functional.pad(rows[:, 1:] == rows[:, :-1], (min(rows.shape[1], 1), 0))
    same = same & (torch.arange(rows.shape[1], device=rows.device) < counts[:, None])
    return torch.nn.functional.pad(same.long().cumsum(1), (1, 0))


def _states(index: Tensor, labels: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """The states (*lead, B, n) of labelled frames, -1 at padding, and a bool tensor, True if a state has its label."""
    before = torch.nn.functional.pad(index[..., :-1], (min(index.shape[-1], 1), 0), value=-1)
    spoken = (index >= 0) & (index != blank)
    begun = (spoken & (index != before)).long().cumsum(-1)
    states = torch.where(index >= 0, 2 * begun - spoken.long(), -1)
    known = states.clamp(0, labels.shape[1] - 1)
    of_states = labels.expand(*states.shape[:-1], labels.shape[1]).gather(-1, known)
    return states, (index < 0) | ((of_states == index) & (states == known))


def _used_states(y: Tensor, labels: Tensor, blank: int) -> Tensor:
    """The parts (*lead, B, parts) of the lattice that labellings y (*lead, B, n, classes) use."""
    index = used_index(y)
    states, right = _states(index, labels, blank)
    right = (right & (y.sum(-1) <= 1)).all(-1)
    cells = one_hot(states, labels.shape[1])
    step = states[..., 1:] - states[..., :-1]
    into = torch.where((step == 2) & (states[..., :-1] >= 0), states[..., 1:] - 2, -1)
    skips = one_hot(into, max(labels.shape[1] - 2, 0)).any(-2)
    parts = torch.cat([cells.flatten(-2), skips], -1)
    # a labelling that does not read as the targets gets all parts, more than a path has
    return torch.where(right.unsqueeze(-1), parts, True).to(y.dtype)


def _read(labels: Any, blank: int) -> list[int]:
    return [label for label, _ in itertools.groupby(labels) if label != blank]


def _explained(rows: Tensor, counts: Tensor, frames: Tensor, none: Tensor, batch: torch.Size) -> str:
    """The error message for the first instance whose targets do not fit."""
    at = int(none.nonzero()[0])
    instance = tuple(none.reshape(batch).nonzero()[0].tolist())
    needed = int((missing_frames(rows, counts, frames) + frames)[at])
    return (
        f"each target needs a frame, and equal neighbours a blank between them: {int(counts[at])} targets need {needed}"
        f" frames; got {int(frames[at])}{faults.of(instance)}"
    )


def _spread(cells: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Cells (*lead, B, n, states) added up by the labels (B, states) of their states: (*lead, B, n, classes)."""
    if cells.device.type == "cpu":
        index = labels[:, None].expand(cells.shape)
        return cells.new_zeros(*cells.shape[:-1], classes).scatter_add(-1, index, cells)
    # states share labels: a matrix product sums them in a fixed order, unlike atomic additions
    return cells @ torch.nn.functional.one_hot(labels, classes).to(cells.dtype)


def at_labels(x: Tensor, labels: Tensor) -> Tensor:
    """x (B, n, classes) at the labels (B, states) of each instance: (B, n, states)."""
    if x.device.type == "cpu":
        return x.gather(2, labels[:, None].expand(-1, x.shape[1], -1))
    return _Labelled.apply(x, labels)


class _Labelled(Function):
    """`at_labels`, with a derivative that adds up in a fixed order."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, labels: Tensor) -> Tensor:
        return x.gather(2, labels[:, None].expand(-1, x.shape[1], -1))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        x, labels = inputs
        ctx.classes = x.shape[-1]
        ctx.save_for_backward(labels)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (labels,) = ctx.saved_tensors
        return _spread(g, labels, ctx.classes), None
