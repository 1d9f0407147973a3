"""Tag sequences: the linear chain, by the forward-backward recursion and Viterbi's."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polymax._parts import checked_scores, narrow
from polymax.hypergraphs import Derivations
from polymax.hypergraphs.passes import HARD, SHANNON, KernelPasses, Problem
from polymax.kernels.active_set.problem import Search
from polymax.kernels.chain import (
    chain_inside,
    chain_mean,
    chain_mean_slope,
    chain_outside,
    chain_slope,
    chain_tangent,
)
from polymax.kernels.chain.reference import as_graph, recorded
from polymax.kernels.chain_loss import chain_loss_inside, chain_loss_outside, chain_loss_slope, chain_loss_tangent
from polymax.kernels.chain_loss.reference import recorded as recorded_loss
from polymax.kernels.exact_sums import exact_sum
from polymax.structures.base import checked_lengths, summed_at, zeros_of
from polymax.structures.compact.choices import used_index
from polymax.structures.compact.tags import Tags
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.full_lengths import full_lengths
from polymax.structures.usable import before_end


class _SequencePasses(KernelPasses):
    """The passes over tag sequences, also for transitions (s, s): a view of them made here has no node of autograd.

    The fourth operator is the derivative of the value. Calls that are neither compiled nor transformed use kernels
    directly.
    """

    def inside(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        run = self.ops[0].direct(*tensors)
        if run is not None:
            return run(*tensors, self.alpha)
        unary, transition, *index = tensors
        return self.ops[0](unary, _with_dims(transition), *index, self.alpha)

    def outside(self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        run = self.ops[1].direct(*tensors, chart, g)
        if run is not None:
            return run(*tensors, chart, g, self.alpha)
        unary, transition, *index = tensors
        mu, steps = self.ops[1](unary, _with_dims(transition), *index, chart, g, self.alpha)
        return mu, steps.view(transition.shape)

    def tangent(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        run = self.ops[2].direct(*tensors, chart, g, *along)
        if run is not None:
            return run(*tensors, chart, g, *along, self.alpha)
        unary, transition, *index = tensors
        given = unary, _with_dims(transition), *index, chart, g, along[0], _with_dims(along[1])
        value, h, steps = self.ops[2](*given, self.alpha)
        return value, h, steps.view(transition.shape)

    def slope(self, tensors: tuple[Tensor, ...], v: Tensor, chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        run = self.ops[3].direct(*tensors, v, chart, g)
        found = None if run is None else run(*tensors, v, chart, g, self.alpha)
        return self.outside(tensors, chart, g * self.unit(v)) if found is None else found

    def tape(self, tensors: tuple[Tensor, ...]) -> Tensor:
        unary, transition, *index = tensors
        return self.recorded(unary, _with_dims(transition), *index, self.alpha)


class _ChainPasses(_SequencePasses):
    """The passes of a chain, with shortcuts for expectations and their derivatives."""

    def mean(
        self, tensors: tuple[Tensor, ...], full: torch.Size | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
        run = chain_mean.direct(*tensors)
        found = None if run is None else run(*tensors, full, self.alpha)
        return super().mean(tensors, full) if found is None else found

    def mean_slope(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor | None, ...]
    ) -> Sequence[Tensor]:
        run = chain_mean_slope.direct(*tensors, chart, g, *along)
        found = None if run is None else run(*tensors, chart, g, *along, self.alpha)
        # g is a value, perhaps
        return super().mean_slope(tensors, chart, g.clamp(1, 1), along) if found is None else found


class _LossPasses(_SequencePasses):
    """The passes of a chain's loss, whose tensors are those of the chain and the tags."""

    def unit(self, v: Tensor) -> Tensor:
        """0 for the infinite loss of forbidden tags."""
        return super().unit(v).masked_fill(v == torch.inf, 0)


def _with_dims(transition: Tensor) -> Tensor:
    return transition if transition.dim() == 4 else transition.view(1, 1, *transition.shape)


_PASSES = partial(_ChainPasses, (chain_inside, chain_outside, chain_tangent, chain_slope), recorded, 2, ())
_LOSS = partial(
    _LossPasses,
    (chain_loss_inside, chain_loss_outside, chain_loss_tangent, chain_loss_slope),
    recorded_loss,
    2,
    (),
)


class ChainParts(NamedTuple):
    """States at positions (*batch, n, s), and [previous, next] between them (*batch, n - 1, s, s)."""

    unary: Tensor
    transition: Tensor


class TagSequences(DynamicProgram):
    """Sequences of n states, with the scores and the parts of `Chain`; a subclass says which sequences."""

    may_be_empty = False

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        """The scores with transitions expanded to every instance and step, in the shape of results."""
        shared = len(scores) == 2 and scores[0].dim() >= 2 and scores[1].dim() == 2
        if shared and scores[1].shape == scores[0].shape[-1:] * 2:
            unary, transition = scores
        else:
            unary, transition = self.broadcast_scores(*scores)
        *batch, n, s = unary.shape
        return unary, transition.expand(*batch, max(n - 1, 0), s, s)

    def broadcast_scores(self, *scores: Tensor) -> tuple[Tensor, Tensor]:
        """The scores with transitions of as many dims as their batch; shared dims have size 1."""
        if len(scores) != 2:
            raise TypeError(f"a chain has two score tensors, unary and transition; got {len(scores)}")
        unary, transition = scores
        if unary.dim() < 2:
            raise ValueError(f"unary must be (*batch, n, s); got {tuple(unary.shape)}")
        *batch, n, s = unary.shape
        return unary, fitted_transition(transition, (*batch, max(n - 1, 0), s, s))

    def complete(self, first: Tensor) -> ChainParts:
        return ChainParts(first, first[..., :-1, :, None] * first[..., 1:, None, :])

    def named(self, *parts: Tensor) -> ChainParts:
        return ChainParts(*parts)

    def mean(self, vertices: Tensor, probs: Tensor) -> ChainParts:
        n, s = vertices.shape[-2:]
        states, steps = _places(_used(vertices), n, s)
        pairs = torch.Size((max(n - 1, 0), s, s))
        return ChainParts(summed_at(states, probs, vertices.shape[-2:]), summed_at(steps, probs, pairs))

    def rescore(self, vertices: Tensor, *scores: Tensor) -> Tensor:
        total: Tensor | float = 0.0
        unary, transition = self.full(*scores)
        used = _used(vertices)
        for x, at, dims in zip((unary, transition), _places(used, *unary.shape[-2:]), (2, 3), strict=True):
            # places of padding point to the 0 after the last score
            flat = torch.nn.functional.pad(x.flatten(-dims), (0, 1)).unsqueeze(-2)
            total = total + flat.expand(*at.shape[:-1], flat.shape[-1]).gather(-1, at).sum(-1)
        return torch.as_tensor(total)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return 2, 3

    def zero_scores(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        first = zeros_of(self, event_shape)
        return first, first.new_zeros(event_shape[-1], event_shape[-1])


@dataclass(frozen=True, eq=False)
class Chain(TagSequences):
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
    form = Tags

    def search(self, *scores: Tensor) -> Search:
        problem = self.problem(*scores)
        n, s = scores[0].shape[-2:]
        events = torch.Size((n, s)), torch.Size((max(n - 1, 0), s, s))
        return Search("tags", problem.tensors, problem.batch, events, max(2 * n - 1, 0))

    def potentials(self, *scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Steps become  v before + transition + unary - v after,  with the values v of Viterbi's recursion."""
        unary, transition = scores
        n = unary.shape[-2]
        values = [unary[..., 0, :]]
        steps = []
        for t in range(1, n):
            before, step, state = values[-1].unsqueeze(-1), transition[..., t - 1, :, :], unary[..., t, :].unsqueeze(-2)
            values.append((before + step + state).amax(-2))
            steps.append(exact_sum(before, step, state, -values[-1].unsqueeze(-2)))
        v = torch.stack(values, -2)
        last = (
            torch.full(v.shape[:-2], n - 1, device="cpu") if self.lengths is None else (self.lengths - 1).clamp(min=0)
        )
        last = last.to(v.device).reshape(*last.shape, 1, 1)
        ends = torch.arange(n, device=v.device).reshape(n, 1) == last
        final = v.gather(-2, last.expand(*v.shape[:-2], 1, v.shape[-1]))
        total = final.amax(-1, keepdim=True)
        states = torch.where(ends, v - total, torch.where(unary == -torch.inf, unary, 0))
        moved = torch.stack(steps, -3) if steps else transition
        total = total.reshape(v.shape[:-2])
        if self.lengths is not None:
            total = torch.where(self.lengths.to(v.device) == 0, 0, total)
        return (states, moved), total

    def problem(self, *scores: Tensor, each: bool = False) -> Problem:
        """The problem for the kernels; with `each`, expectations of transitions are not summed over shared dims."""
        if len(scores) != 2:
            raise TypeError(f"a chain has two score tensors, unary and transition; got {len(scores)}")
        unary, transition = scores
        if unary.dim() < 2:
            raise ValueError(f"unary must be (*batch, n, s); got {tuple(unary.shape)}")
        *lead, n, s = unary.shape
        want = (*lead, max(n - 1, 0), s, s)
        batch = unary.shape[:-2]
        # shapes are compared only if their numbers of dims agree: else torch.compile adds a guard on the batch size
        whole = transition.dim() == len(want) and transition.shape == want
        # the passes take transitions (s, s) and a batch of one dim as they are
        if not whole and not (len(lead) == 1 and transition.dim() == 2 and transition.shape == (s, s)):
            transition = fitted_transition(transition, want)
        if self.lengths is None:
            lengths = full_lengths(math.prod(batch), n, unary.device)
        else:
            lengths = checked_lengths(self.lengths, batch, n, unary.device, "lengths")
        if len(batch) == 1:
            full = torch.Size(want) if each and not whole else None
            return Problem(_PASSES, (unary, transition, lengths), batch, ChainParts._make, full)
        if each:
            transition = transition.expand(want)
        if math.prod(transition.shape[:-3]) != 1:
            transition = transition.expand(*batch, *transition.shape[-3:])
        transition = transition.reshape(math.prod(transition.shape[:-3]), *transition.shape[-3:])

        def shaped(mu: tuple[Tensor, ...]) -> ChainParts:
            return ChainParts(*(m.reshape(*batch, *m.shape[1:]) for m in mu))

        return Problem(_PASSES, (unary.reshape(math.prod(batch), n, s), transition, lengths), batch, shaped)

    def less(self, index: Tensor, *scores: Tensor) -> Problem:
        problem = self.problem(*scores)
        tags = index.reshape(problem.tensors[0].shape[:2])
        return replace(problem, passes=_LOSS, tensors=(*problem.tensors, tags))

    def map(self, *scores: Tensor) -> ChainParts:
        with torch.no_grad():
            return narrow(self.problem(*checked_scores(scores), each=True).expectation(HARD), scores[0].dtype)

    def marginals(self, *scores: Tensor) -> ChainParts:
        mu = self.problem(*checked_scores(scores), each=True).expectation(SHANNON)
        return mu if scores[0].dtype.itemsize >= 4 else narrow(mu, scores[0].dtype)

    def states(self, alpha: float, *scores: Tensor) -> Tensor:
        """Expected states (*batch, n, s), without the expected transitions of every instance and step."""
        problem = self.problem(*scores)
        return replace(problem, shaped=lambda mu: mu[0].reshape(scores[0].shape)).expectation(alpha)

    def derivations(self, *scores: Tensor) -> Derivations:
        problem = self.problem(*scores)
        unary, transition, lengths = problem.tensors
        flat, graph, roots = as_graph(unary, _with_dims(transition), lengths)
        n, s = scores[0].shape[-2:]

        def shaped(mu: Tensor) -> ChainParts:
            states, steps = mu.split([n * s, max(n - 1, 0) * s * s], -1)
            lead = (*mu.shape[:-2], *problem.batch)
            return ChainParts(states.reshape(*lead, n, s), steps.reshape(*lead, max(n - 1, 0), s, s))

        return Derivations(flat, graph, roots, problem.batch, shaped)

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        n = parts[0].shape[-2]
        position = torch.arange(n, device=parts[0].device)
        return before_end(self.lengths, n, position, 2), before_end(self.lengths, n, position[1:], 3)

    def vertices(self, event_shape: tuple[int, ...]) -> ChainParts:
        n, s = event_shape
        sequences = list(itertools.product(range(s), repeat=n))
        return self.encode(torch.tensor(sequences, dtype=torch.long).reshape(len(sequences), n), s)


def fitted_transition(transition: Tensor, want: tuple[int, ...]) -> Tensor:
    """Transitions with as many dims as `want` (*batch, n - 1, s, s); leading dims may be 1 or missing."""
    # missing leading dims are shared
    have = (1,) * (len(want) - transition.dim()) + tuple(transition.shape)
    fits = len(have) == len(want) and have[-2:] == want[-2:]
    for a, b in zip(have, want, strict=False):
        fits = fits and a in (1, b)
    if transition.dim() < 2 or not fits:
        states = want[-1]
        raise ValueError(
            f"transition must be ({states}, {states}) or broadcast to {want}; got {tuple(transition.shape)}"
        )
    return transition.reshape(have) if have != transition.shape else transition


def _used(vertices: Tensor) -> Tensor:
    """The places of sequences (..., n, s) in flat unary scores, (..., n), -1 at padding."""
    n, s = vertices.shape[-2:]
    tags = used_index(vertices)
    return torch.where(tags < 0, -1, torch.arange(n, device=tags.device) * s + tags)


def _places(used: Tensor, n: int, s: int) -> tuple[Tensor, Tensor]:
    """Places in flat unary and transition scores, (..., n) and (..., n - 1); padding has the place after the last."""
    before, after = used[..., :-1], used[..., 1:]
    steps = torch.where(after < 0, max(n - 1, 0) * s * s, before * s + after % s)
    return torch.where(used < 0, n * s, used), steps
