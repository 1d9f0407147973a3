"""Starts of SparseMAP for long chains: windows solved in parallel, whose middles are coupled to whole sequences.

A search finds one sequence after the other, and the support grows with the length. But distant scores hardly move the
mean of a position: a window gives the mean of its middle, the core, up to an effect of its ends that falls off
exponentially. So each window is solved alone. Then its core is solved, with the values of Viterbi's recursion around
the window's mean added to the scores at its ends: the mean of the whole chain solves this problem, too, by as many
sequences as the core needs. Neighbouring cores share a position. They are coupled there, state by state, in the order
of their weights, so that k and l sequences that agree on one state become k + l - 1. The search goes on from these
sequences, and most often finds no other.

Shapes:
    problems (C, B, ...): C windows or cores of B instances, which a loop takes as C * B instances
    strands (rows, k): sequences of some neighbouring cores, with weights of 0 for empty places
    picks (rows, k, c): the index of a strand's sequence in each of its c cores
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from polymax.kernels.active_set.problem import Search, UsedParts
from polymax.kernels.response import mixture
from polymax.solvers.solution import Solution

# positions of a core, and positions of its window on either side of it
CORE, HALO = 24, 24
# the least number of positions of a chain, and the largest number of states, for which windows are faster
LONG, STATES = 192, 64
# weights are rounded to multiples of this number
_UNIT = 2.0**-52

# solves the problems of a search; if True, its solutions have structures that span their faces
Loop = Callable[[Search, bool], Solution]


def is_long(search: Search) -> bool:
    """True for chains that should start from windows."""
    return search.kind == "tags" and search.events[0][0] >= LONG and search.events[0][1] <= STATES


def start(search: Search, loop: Loop, whole: bool) -> Solution:
    """Sequences and their weights, in the form of an earlier solution.

    An instance has none if the scores forbid all sequences of one of its windows.
    """
    cut = _Cut.of(search)
    windows = _problem(cut, cut.first_of_windows, cut.size + 2 * HALO + 1, cut.ends + HALO)
    unary = windows.tensors[0].reshape(cut.count, cut.batch, -1, cut.states)
    found = loop(windows, False)
    states = _states(found, *windows.events[0])
    means = mixture(states, found.probs.nan_to_num(), unary[0, 0].numel(), torch.float64).reshape(unary.shape)
    before, after = _messages(cut, unary - means)
    cores = _problem(cut, cut.starts, cut.size + 1, cut.ends)
    scores = cores.tensors[0].reshape(cut.count, cut.batch, -1, cut.states)
    scores[:, :, 0] += before
    scores[:-1, :, -1] += after[:-1]
    return _coupled(cut, loop(cores, whole), search)


@dataclass(frozen=True, eq=False)
class _Cut:
    """Chains cut into cores of `size` steps, with the first and last position of each core, (C,).

    Neighbouring cores share a position.
    """

    unary: Tensor
    transition: Tensor
    lengths: Tensor
    size: int
    starts: Tensor
    ends: Tensor

    @classmethod
    def of(cls, search: Search) -> "_Cut":
        unary, transition, lengths = search.tensors
        if transition.dim() == 2:
            transition = transition[None, None]
        for dim in (0, 1):
            if transition.shape[dim] > 1 and transition.stride(dim) == 0:
                transition = transition.narrow(dim, 0, 1)
        steps = unary.shape[1] - 1
        count = -(-steps // CORE)
        size = -(-steps // count)
        starts = torch.arange(0, steps, size, device=unary.device)
        return cls(unary.double(), transition.double(), lengths, size, starts, (starts + size).clamp(max=steps))

    @property
    def count(self) -> int:
        return len(self.starts)

    @property
    def batch(self) -> int:
        return self.unary.shape[0]

    @property
    def states(self) -> int:
        return self.unary.shape[2]

    @property
    def first_of_windows(self) -> Tensor:
        return (self.starts - HALO).clamp(min=0)

    @cached_property
    def _matrices(self) -> Tensor:
        return torch.stack([self.transition[:, :1], self.transition[:, :1].mT]).transpose(1, 2).unsqueeze(3)

    def steps(self, up: Tensor, down: Tensor) -> Tensor:
        """Scores of the steps after positions (C,), up and down: (2, C or 1, groups of instances, 1, s, s)."""
        given, last = self.transition, self.transition.shape[1] - 1
        if last <= 0:
            return self._matrices
        chosen = torch.stack([given[:, up.clamp(0, last)], given[:, down.clamp(0, last)].mT])
        return chosen.transpose(1, 2).unsqueeze(3)


def _problem(cut: _Cut, first: Tensor, n: int, last: Tensor) -> Search:
    """The parts of all chains from positions `first` (C,) to `last`, at most n of them, as instances of a search."""
    at = (first.unsqueeze(-1) + torch.arange(n, device=first.device)).clamp(max=cut.unary.shape[1] - 1)
    unary = cut.unary[:, at].transpose(0, 1).reshape(-1, n, cut.states)
    transition = cut.transition
    if transition.shape[1] > 1:
        transition = transition[:, at[:, :-1].clamp(max=transition.shape[1] - 1)].transpose(0, 1).flatten(0, 1)
    elif len(transition) > 1:
        transition = transition.repeat(cut.count, 1, 1, 1)
    stop = torch.minimum(last.unsqueeze(-1) + 1, cut.lengths)
    # a part of one position is empty: the part before ends at the same position
    left = (stop - first.unsqueeze(-1)).clamp(min=0, max=n)
    alone = (left == 1) & (first > 0).unsqueeze(-1)
    lengths = torch.where(alone, 0, left).reshape(-1)
    events = torch.Size((n, cut.states)), torch.Size((n - 1, cut.states, cut.states))
    return Search("tags", (unary, transition, lengths), torch.Size((len(unary),)), events, 2 * n - 1)


def _states(found: Solution, n: int, s: int) -> Tensor:
    """The states of sequences, as places in the unary scores, (instances, k, n); -1 after the last."""
    assert isinstance(found.found, UsedParts), "loops list parts"
    places = found.found.places[..., :n]
    return torch.where(places < n * s, places, -1)


def _messages(cut: _Cut, around: Tensor) -> Tensor:
    """The best scores of the window before the first, and after the last state of its core, (2, C, B, s).

    They are values of Viterbi's recursion on `around`, the scores less the window's mean.
    """
    first, t = cut.first_of_windows.unsqueeze(-1), torch.arange(HALO, device=around.device)
    # positions whose values are added, (2, C, steps)
    at = torch.stack([first + t, cut.ends.unsqueeze(-1) + HALO - t])
    before = (at[0] < cut.starts.unsqueeze(-1)).unsqueeze(1).expand(*around.shape[:2], HALO)
    inside = torch.stack([before, at[1].unsqueeze(1) < cut.lengths.unsqueeze(-1)]).unsqueeze(-1)
    index = (at - first).clamp(max=around.shape[2] - 1).reshape(2, cut.count, 1, HALO, 1)
    values = around.expand(2, *around.shape).gather(3, index.expand(*inside.shape[:-1], cut.states))
    v = around.new_zeros(2, *around.shape[:2], cut.states)
    for good, value, from_, to in zip(
        inside.unbind(3), values.unbind(3), at[0].unbind(1), at[1].unbind(1), strict=True
    ):
        steps = cut.steps(from_, to - 1)
        moved = ((v + value).reshape(2, cut.count, steps.shape[2], -1, cut.states, 1) + steps).amax(-2)
        v = torch.where(good, moved.reshape(v.shape), v)
    # only differences count
    top = v.amax(-1, keepdim=True)
    return v - torch.where(top > -torch.inf, top, 0)


class _Strands(NamedTuple):
    """Sequences of some neighbouring cores: their first and last states, weights and picks."""

    first: Tensor
    last: Tensor
    weights: Tensor
    picks: Tensor

    def chosen(self, at: Tensor) -> "_Strands":
        """The strands at places `at` (rows, m)."""
        picks = self.picks.gather(1, at.unsqueeze(-1).expand(*at.shape, self.picks.shape[-1]))
        return _Strands(self.first.gather(1, at), self.last.gather(1, at), self.weights.gather(1, at), picks)

    def with_weight(self) -> "_Strands":
        """The strands with those of weight 0 last, cut to the largest number of strands with weight in a row."""
        used = self.weights > 0
        width = max(int(used.sum(-1).amax()), 1)
        return self.chosen((~used).byte().sort(dim=1, stable=True).indices[:, :width])


def _coupled(cut: _Cut, found: Solution, search: Search) -> Solution:
    """Couple the sequences of cores to sequences of whole chains: pairs of neighbours first, then pairs of pairs."""
    n, k = cut.size + 1, found.probs.shape[-1]
    states = _states(found, n, cut.states).reshape(cut.count, cut.batch, k, n)
    tags = torch.where(states >= 0, states % cut.states, -1).long()
    # sequences of weight 0, which span a face, get a weight, too
    probs = found.probs.nan_to_num().reshape(cut.count, cut.batch, k) + _UNIT
    weights = torch.where(tags[..., 0] >= 0, probs, 0)
    ends = torch.where(tags >= 0, torch.arange(n, device=tags.device), 0).amax(-1, keepdim=True)
    lasts = tags.gather(-1, ends).squeeze(-1)
    picks = torch.arange(k, device=tags.device).expand(weights.shape).unsqueeze(-1)
    # the number of cores is filled up to a power of 2 by empty cores
    more = (1 << (cut.count - 1).bit_length()) - cut.count
    given = (tags[..., 0], lasts, weights, picks)
    level = _Strands(*(torch.cat([x, x.new_zeros(more, *x.shape[1:])]).flatten(0, 1) for x in given))
    while len(level.weights) > cut.batch:
        pairs = [x.reshape(-1, 2, cut.batch, *x.shape[1:]) for x in level]
        left, right = (_Strands(*(x[:, side].flatten(0, 1) for x in pairs)) for side in (0, 1))
        level = _couple(left, right, cut.states).with_weight()
    parts = []
    for c in range(cut.count):
        of_core = tags[c].gather(1, level.picks[..., c : c + 1].expand(*level.weights.shape, n))
        parts.append(of_core[..., min(c, 1) :])
    return _solution(torch.cat(parts, -1)[..., : search.events[0][0]], level.weights, cut.lengths, search)


def _couple(left: _Strands, right: _Strands, states: int) -> _Strands:
    """Couple the strands of both sides that share a state, in the order of `_stretches`.

    The strands of a state divide the interval from the state's number to the next among them, by their shares of the
    state's weight. A coupled strand is the intersection of a stretch of the left with a stretch of the right.
    """
    count = left.weights.shape[1]
    shared, weights = torch.stack([left.last, right.first]), torch.stack([left.weights, right.weights])
    stretches, totals, first_to_last = _stretches(shared, weights, states)
    ends, order = torch.cat([*stretches], 1).sort(dim=1, stable=True)
    of_left = (order < count).long()
    passed = of_left.cumsum(1) - of_left
    one = left.chosen(first_to_last[0].gather(1, passed.clamp(max=count - 1)))
    passed = torch.arange(2 * count, device=order.device) - passed
    other = right.chosen(first_to_last[1].gather(1, passed.clamp(max=count - 1)))
    # drop stretches that meet no stretch of the other side
    good = (one.last == other.first) & (one.weights > 0) & (other.weights > 0) & ends.isfinite()
    begins = torch.maximum(torch.nn.functional.pad(ends[:, :-1], (1, 0)), one.last.double())
    lengths = (ends - begins).clamp(min=0) * totals[0].gather(1, one.last.clamp(min=0))
    picks = torch.cat([one.picks, other.picks], -1)
    coupled = _Strands(one.first, other.last, torch.where(good, lengths + _UNIT, 0), picks)
    # a chain that has ended keeps the strands of the left
    ended = (right.weights == 0).all(1)
    kept = (torch.nn.functional.pad(x, (0, count)) for x in left[:3])
    kept_picks = torch.nn.functional.pad(left.picks, (0, right.picks.shape[-1], 0, count))
    both = zip(coupled, (*kept, kept_picks), strict=True)
    return _Strands(*(torch.where(ended.reshape(-1, *[1] * (x.dim() - 1)), y, x) for x, y in both))


def _stretches(state: Tensor, weights: Tensor, states: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ends of the stretches (2, rows, k) of both sides, the weights of states (2, rows, s), and the order.

    Stretches are in the order of their states; strands without weight end at infinity.
    """
    order = torch.where(weights > 0, state, states).sort(dim=2, stable=True).indices
    state, weights = state.gather(2, order).clamp(min=0), weights.gather(2, order)
    # sums of integers do not depend on their order
    mass = torch.where(weights > 0, (weights / _UNIT).long().clamp(min=1), 0)
    of_state = state.unsqueeze(-1) == torch.arange(states, device=state.device)
    totals = torch.where(of_state, mass.unsqueeze(-1), 0).sum(2)
    before, total = (totals.cumsum(2) - totals).gather(2, state), totals.gather(2, state)
    within = mass.cumsum(2) - before
    # only the last stretch of a state ends at the next state's number
    share = (within.double() / total.clamp(min=1)).clamp(max=1 - 2.0**-40)
    ends = state + torch.where(within == total, torch.ones_like(share), share)
    return torch.where(weights > 0, ends, torch.inf), totals.double() * _UNIT, order


def _solution(tags: Tensor, probs: Tensor, lengths: Tensor, search: Search) -> Solution:
    """A solution of sequences of tags (B, k, n), -1 after the last, and their weights, without sequences with gaps."""
    (n, s), (_, k), batch = search.events[0], probs.shape, search.batch
    at, last = torch.arange(2 * n - 1, device=tags.device), lengths.reshape(-1, 1)
    good = ((tags >= 0) == (at[:n] < last).unsqueeze(1)).all(-1) & (probs > 0)
    states = at[:n] * s + tags
    places = torch.cat([states, (n + states[..., :-1]) * s + tags[..., 1:]], -1)
    # transitions come directly after the last state
    order = torch.where(at < last, at, (n + at - last).clamp(max=2 * n - 2)).unsqueeze(1)
    used = good.unsqueeze(-1) & (at < 2 * last - 1).unsqueeze(1)
    places = torch.where(used, places.gather(-1, order.expand(places.shape)), -1).int()
    probs = torch.where(good, probs, 0)
    none = probs.new_zeros(batch)
    return Solution(
        UsedParts(places.reshape(*batch, k, 2 * n - 1), search.events),
        (probs / probs.sum(-1, keepdim=True).clamp(min=_UNIT)).reshape(*batch, k),
        places.new_zeros((*batch, 1, 1)).expand(*batch, k, k),
        none,
        none.long(),
        none,
    )
