"""Tag sequences: the linear chain, by the forward-backward recursion and Viterbi's."""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax import _check
from polymax.hypergraphs.passes import expectation
from polymax.kernels.chain import chain_inside, chain_outside, chain_tangent
from polymax.structures import faults
from polymax.structures.base import checked_lengths, scattered, zeros_of
from polymax.structures.dynamic import Derivations, DynamicProgram, Problem, kernel_passes

_WHAT = "tag sequence"


class ChainParts(NamedTuple):
    """States at positions (*batch, n, s), and [previous, next] between them (*batch, n - 1, s, s)."""

    unary: Tensor
    transition: Tensor


@dataclass(frozen=True, eq=False)
class Chain(DynamicProgram):
    """Sequences of n states, scored at each position and between neighbours.

        <scores, y> = sum_t unary[t, y_t] + sum_t transition[t - 1, y_(t-1), y_t]

    Shapes:
        unary (*batch, n, s); transition (s, s), or (*batch, n - 1, s, s) in which leading dims may be 1 or missing

    Example:
        >>> unary = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> Chain().decode(Chain().map(unary, torch.zeros(2, 2)))
        tensor([0, 1])
    """

    lengths: Tensor | None = None

    def problem(self, *scores: Tensor) -> Problem:
        unary, transition, lengths, batch = self._flat(*scores)
        passes = kernel_passes(chain_inside, chain_outside, chain_tangent, recorded=_recorded, scores=2)

        def shaped(mu: tuple[Tensor, ...]) -> ChainParts:
            return ChainParts(*(m.reshape(*batch, *m.shape[1:]) for m in mu))

        return Problem(passes, (unary, transition, lengths), batch, shaped)

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        """Transitions for every instance and step: results do not share them."""
        unary, transition = self._checked(*scores)
        n, s = unary.shape[-2:]
        return unary, transition.expand(*unary.shape[:-2], max(n - 1, 0), s, s)

    def states(self, alpha: float, *scores: Tensor) -> Tensor:
        """Expected states (*batch, n, s) alone, which spares those of transitions for every instance and step."""
        problem = self.problem(*scores)
        unary, _ = expectation(problem.passes(alpha), problem.tensors)
        return unary.reshape(*problem.batch, *unary.shape[1:])

    def derivations(self, *scores: Tensor) -> Derivations:
        from polymax.kernels.chain.reference import as_graph

        unary, transition, lengths, batch = self._flat(*scores)
        flat, graph, roots = as_graph(unary, transition, lengths)
        n, s = unary.shape[1:]

        def shaped(mu: Tensor) -> ChainParts:
            states, steps = mu.split([n * s, max(n - 1, 0) * s * s], -1)
            lead = (*mu.shape[:-2], *batch)
            return ChainParts(states.reshape(*lead, n, s), steps.reshape(*lead, max(n - 1, 0), s, s))

        return Derivations(flat, graph, roots, batch, shaped)

    def complete(self, first: Tensor) -> ChainParts:
        return ChainParts(first, first[..., :-1, :, None] * first[..., 1:, None, :])

    def named(self, *parts: Tensor) -> ChainParts:
        return ChainParts(*parts)

    def mean(self, vertices: Tensor, probs: Tensor) -> ChainParts:
        n, s = vertices.shape[-2:]
        states, steps = _places(_used(vertices), n, s)
        pairs = torch.Size((max(n - 1, 0), s, s))
        return ChainParts(scattered(states, probs, vertices.shape[-2:]), scattered(steps, probs, pairs))

    def rescore(self, vertices: Tensor, *scores: Tensor) -> Tensor:
        total: Tensor | float = 0.0
        unary, transition = self.full(*scores)
        used = _used(vertices)
        for x, at, dims in zip((unary, transition), _places(used, *unary.shape[-2:]), (2, 3), strict=True):
            # the place after the last is for padding
            flat = torch.nn.functional.pad(x.flatten(-dims), (0, 1)).unsqueeze(-2)
            total = total + flat.expand(*at.shape[:-1], flat.shape[-1]).gather(-1, at).sum(-1)
        return torch.as_tensor(total)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return 2, 3

    def score(self, y: Any, *scores: Tensor) -> Tensor:
        return super().score(y, *self.full(*scores))

    def vertices(self, event_shape: tuple[int, ...]) -> ChainParts:
        n, s = event_shape
        sequences = list(itertools.product(range(s), repeat=n))
        return self.encode(torch.tensor(sequences, dtype=torch.long).reshape(len(sequences), n), s)

    def unscored(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        first = zeros_of(self, event_shape)
        return first, first.new_zeros(event_shape[-1], event_shape[-1])

    def encode(self, index: Tensor, *shape: int) -> ChainParts:
        """Tags (*batch, n), -1 at padding, to indicators of `shape` = (s,) states."""
        (states,) = faults.sizes(shape, "the number of states")
        faults.integers(index)
        if _check.readable(index) and index.numel() and bool(((index < -1) | (index >= states)).any()):
            came = int(index[(index < -1) | (index >= states)][0])
            raise ValueError(f"tags must be in [0, {states}), or -1 at padding; got {came}")
        if _check.readable(index):
            within = faults.inside(faults.ends(index), index.shape[:-1], index.shape[-1], index.device)
            faults.padded(_WHAT, "position", "tag", index, within)
        unary = torch.nn.functional.one_hot(index + 1, states + 1)[..., 1:].float()
        return self.complete(unary)

    def decode(self, y: Any) -> Tensor:
        """Tags (*batch, n), -1 at padding."""
        return tags_of(y.unary)

    def first(self, index: Tensor, *scores: Tensor) -> Tensor:
        states = torch.arange(scores[0].shape[-1], device=index.device)
        return (index.unsqueeze(-1) == states).to(scores[0].dtype)

    def terms(self, index: Tensor, *scores: Tensor) -> Tensor:
        """(*batch, 2 n - 1): the states, then the steps between them."""
        unary, transition = self._checked(*scores)
        within = self._within(unary)
        tags = torch.where(within, index, 0)
        states = torch.where(within, unary.gather(-1, tags.unsqueeze(-1)).squeeze(-1), 0)
        steps = torch.where(within[..., 1:], steps_at(transition, tags[..., :-1], tags[..., 1:]), 0)
        return torch.cat([states, steps], -1)

    def anchored(self, terms: Tensor, *scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Each position shifted by what the given sequence scores there: every sequence has one state at each."""
        unary, transition = scores
        n = unary.shape[-2]
        known = torch.where(terms == -torch.inf, 0, terms)
        states, steps = known.detach().split([n, max(n - 1, 0)], -1)
        # first the states, whose difference is 0 on the sequence: then each step cancels exactly
        shifted = unary - states.unsqueeze(-1)
        shifted = shifted - torch.nn.functional.pad(steps, (min(n, 1), 0)).unsqueeze(-1)
        return (shifted, transition), (known - known.detach()).sum(-1)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        unary, _ = self._checked(*scores)
        faults.shaped(index, unary.shape[:-1], "tags (*batch, n)")
        within, states = self._within(unary), unary.shape[-1]
        if _check.readable(index):
            faults.padded(_WHAT, "position", "tag", index, within)

            def explain(instance: tuple[int, ...], place: int) -> str:
                came = int(index[(*instance, place)])
                return f"position {place}{faults.of(instance)} has tag {came}, not one in [0, {states})"

            faults.refuse(_WHAT, within & (index >= states), explain)
        return torch.where(within, index, -1)

    def check_parts(self, y: Any, *scores: Tensor) -> None:
        count = (y.unary != 0).sum(-1)
        faults.refuse(
            _WHAT, count > 1, lambda i, t: f"position {t}{faults.of(i)} has {int(count[(*i, t)])} tags, not one"
        )
        super().check_parts(y, *scores)

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        """Tags (*batch, n), -2 where not known."""
        unary, _ = self._checked(*scores)
        faults.shaped(index, unary.shape[:-1], "tags (*batch, n)")
        self.check(torch.where((index == -2) & self._within(unary), 0, index), *scores)
        states = torch.arange(unary.shape[-1], device=index.device)
        return (index.unsqueeze(-1) == states) | (index == -2).unsqueeze(-1)

    def _within(self, unary: Tensor) -> Tensor:
        return faults.inside(self.lengths, unary.shape[:-2], unary.shape[-2], unary.device)

    def _checked(self, *scores: Tensor) -> tuple[Tensor, Tensor]:
        if len(scores) != 2:
            raise TypeError(f"a chain has two score tensors, unary and transition; got {len(scores)}")
        unary, transition = scores
        if unary.dim() < 2:
            raise ValueError(f"unary must be (*batch, n, s); got {tuple(unary.shape)}")
        *batch, n, s = unary.shape
        return unary, fitted_transition(transition, (*batch, max(n - 1, 0), s, s))

    def _flat(self, *scores: Tensor) -> tuple[Tensor, Tensor, Tensor, torch.Size]:
        unary, transition = self._checked(*scores)
        batch = unary.shape[:-2]
        n, s = unary.shape[-2:]
        lengths = checked_lengths(self.lengths, batch, n, unary.device, "lengths")
        # a batch of one dim is as the kernels want it
        if len(batch) == 1:
            return unary, transition, lengths, batch
        if transition.shape[:-3].numel() != 1:
            transition = transition.expand(*batch, *transition.shape[-3:])
        transition = transition.reshape(transition.shape[:-3].numel(), *transition.shape[-3:])
        return unary.reshape(batch.numel(), n, s), transition, lengths, batch


def fitted_transition(transition: Tensor, want: tuple[int, ...]) -> Tensor:
    """Transitions with as many dims as `want` (*batch, n - 1, s, s), which all but the last two broadcast to."""
    # what is missing on the left is shared
    have = (1,) * (len(want) - transition.dim()) + tuple(transition.shape)
    fits = have == want or all(a in (1, b) for a, b in zip(have, want, strict=False))
    if transition.dim() < 2 or len(have) != len(want) or not fits or have[-2:] != want[-2:]:
        states = want[-1]
        raise ValueError(
            f"transition must be ({states}, {states}) or broadcast to {want}; got {tuple(transition.shape)}"
        )
    return transition.reshape(have) if have != transition.shape else transition


def tags_of(unary: Tensor) -> Tensor:
    """Indicators of states (*batch, n, s) to tags (*batch, n), -1 where there is none."""
    return torch.where((unary == 0).all(-1), -1, unary.argmax(-1))


def steps_at(transition: Tensor, before: Tensor, after: Tensor, step: Tensor | None = None) -> Tensor:
    """Scores (*batch, k) of steps between states, the k-th of all unless `step` says which.

    Shapes: transition (*batch, n - 1, s, s), in which all but the last two dims may be 1; the others (*batch, k)
    """
    lead = transition.shape[:-3]
    index = [
        torch.arange(size, device=before.device).reshape(-1, *[1] * (len(lead) - d)) for d, size in enumerate(lead)
    ]
    if transition.shape[-3] == 1:
        step = torch.zeros_like(before)
    elif step is None:
        step = torch.arange(before.shape[-1], device=before.device)
    return transition[(*index, step, before, after)]


def _used(vertices: Tensor) -> Tensor:
    """The places of sequences (..., n, s) in flat unary scores, (..., n), -1 at padding."""
    n, s = vertices.shape[-2:]
    tags = tags_of(vertices)
    return torch.where(tags < 0, -1, torch.arange(n, device=tags.device) * s + tags)


def _places(used: Tensor, n: int, s: int) -> tuple[Tensor, Tensor]:
    """Places in flat unary and transition scores, (..., n) and (..., n - 1); after the last one at padding."""
    before, after = used[..., :-1], used[..., 1:]
    steps = torch.where(after < 0, max(n - 1, 0) * s * s, before * s + after % s)
    return torch.where(used < 0, n * s, used), steps


def _recorded(*args: Any) -> Tensor:
    from polymax.kernels.chain.reference import recorded

    return recorded(*args)
