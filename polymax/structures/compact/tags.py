"""Compact forms with a number below s for each of n positions: the tags of a chain."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import Parts, tensors
from polymax.structures.compact import faults
from polymax.structures.compact.base import Compact
from polymax.structures.compact.choices import one_hot, one_hot_or_unknown, used_index


@dataclass(frozen=True, eq=False)
class OneEach(Compact):
    """A number below s for each of n positions, (*batch, n), -1 at padding; `encode` takes the number s."""

    # words for error messages
    what: ClassVar[str]
    unit: ClassVar[str]
    part: ClassVar[str]
    count: ClassVar[str]

    def encode(self, index: Tensor, *shape: int) -> Parts:
        (count,) = faults.sizes(shape, f"the number of {self.count}")
        faults.check_integers(index)
        if _check.readable(index):
            out = (index < -1) | (index >= count)
            if bool(out.any()):
                came = int(index[out][0])
                raise ValueError(f"{self.part}s must be in [0, {count}), or -1 at padding; got {came}")
            within = faults.inside(faults.ends(index), index.shape[:-1], index.shape[-1], index.device)
            faults.check_padding(self.what, self.unit, self.part, index, within)
        return self.structure.complete(one_hot(index, count).float())

    def decode(self, y: Parts) -> Tensor:
        return used_index(tensors(y)[0])

    def first(self, index: Tensor, *scores: Tensor) -> Tensor:
        return one_hot(index, scores[0].shape[-1]).to(scores[0].dtype)

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        n, s = scores[0].shape[-2:]
        return torch.where(index < 0, -1, torch.arange(n, device=index.device) * s + index)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        x = self.structure.full(*scores)[0]
        faults.check_shape(index, x.shape[:-1], f"{self.part}s (*batch, n)")
        within, count = self.within(x), x.shape[-1]
        if _check.readable(index):
            faults.check_padding(self.what, self.unit, self.part, index, within)

            def explain(instance: tuple[int, ...], place: int) -> str:
                came = int(index[(*instance, place)])
                return f"{self.unit} {place}{faults.of(instance)} has {self.part} {came}, not one in [0, {count})"

            faults.refuse(self.what, within & (index >= count), explain)
        return index if self.structure.lengths is None else torch.where(within, index, -1)

    def check_parts(self, y: Parts, *scores: Tensor) -> None:
        count = (tensors(y)[0] != 0).sum(-1)

        def explain(instance: tuple[int, ...], place: int) -> str:
            came = int(count[(*instance, place)])
            return f"{self.unit} {place}{faults.of(instance)} has {came} {self.part}s, not one"

        faults.refuse(self.what, count > 1, explain)
        super().check_parts(y, *scores)

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        x = self.structure.full(*scores)[0]
        faults.check_shape(index, x.shape[:-1], f"{self.part}s (*batch, n)")
        OneEach.check(self, torch.where((index == -2) & self.within(x), 0, index), *scores)
        return one_hot_or_unknown(index, x.shape[-1])

    def within(self, x: Tensor) -> Tensor:
        """True for the positions of each instance, (*batch, n)."""
        lengths = self.structure.lengths
        lengths = lengths[0] if isinstance(lengths, tuple) else lengths
        return faults.inside(lengths, x.shape[:-2], x.shape[-2], x.device)


@dataclass(frozen=True, eq=False)
class Tags(OneEach):
    """Tags (*batch, n), -1 at padding; `encode` takes the number of states."""

    what, unit, part, count = "tag sequence", "position", "tag", "states"

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        """The scores (*batch, 2 n - 1) of the states, then of the steps between them."""
        unary, transition = self.structure.broadcast_scores(*scores)
        within = self.within(unary)
        tags = torch.where(within, index, 0)
        states = torch.where(within, unary.gather(-1, tags.unsqueeze(-1)).squeeze(-1), 0)
        steps = torch.where(within[..., 1:], steps_at(transition, tags[..., :-1], tags[..., 1:]), 0)
        return torch.cat([states, steps], -1)

    def shift_to_target(self, terms: Tensor, *scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Scores less the target's score at each position: every sequence has one state at each."""
        unary, transition = scores
        n = unary.shape[-2]
        known = torch.where(terms == -torch.inf, 0, terms)
        states, steps = known.detach().split([n, max(n - 1, 0)], -1)
        # first the states, whose difference is 0 on the sequence: then each step cancels exactly
        shifted = unary - states.unsqueeze(-1)
        shifted = shifted - torch.nn.functional.pad(steps, (min(n, 1), 0)).unsqueeze(-1)
        return (shifted, transition), (known - known.detach()).sum(-1)


def steps_at(transition: Tensor, before: Tensor, after: Tensor, step: Tensor | None = None) -> Tensor:
    """Scores (*batch, k) of the transitions from states `before` to states `after`, at steps 0 .. k - 1 or `step`.

    Shapes: transition (*batch, n - 1, s, s), in which leading dims may be 1; before, after and step (*batch, k)
    """
    lead = transition.shape[:-3]
    index: list[Any] = [
        torch.arange(size, device=before.device).reshape(-1, *[1] * (len(lead) - d)) for d, size in enumerate(lead)
    ]
    if transition.shape[-3] == 1:
        step = torch.zeros_like(before)
    elif step is None:
        step = torch.arange(before.shape[-1], device=before.device)
    return transition[(*index, step, before, after)]
