"""Tag sequences: the linear chain, by the forward-backward recursion and Viterbi's."""

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax import _check
from polymax.kernels.chain import chain_inside, chain_outside, chain_tangent
from polymax.structures.base import checked_lengths, scattered
from polymax.structures.dynamic import Derivations, DynamicProgram, Problem, kernel_passes
from polymax.structures.passes import expectation


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

    def mean(self, vertices: Tensor, probs: Tensor) -> ChainParts:
        return self.mean_used(_used(vertices), probs, vertices.shape[-2:])

    def rescore(self, vertices: Tensor, *scores: Tensor) -> Tensor:
        return self.rescore_used(_used(vertices), *scores)

    def mean_used(self, places: Tensor, probs: Tensor, event: torch.Size) -> ChainParts:
        n, s = event
        states, steps = _places(places, n, s)
        pairs = torch.Size((max(n - 1, 0), s, s))
        return ChainParts(scattered(states, probs, event), scattered(steps, probs, pairs))

    def rescore_used(self, places: Tensor, *scores: Tensor) -> Tensor:
        total: Tensor | float = 0.0
        unary, transition = self.full(*scores)
        for x, at, dims in zip((unary, transition), _places(places, *unary.shape[-2:]), (2, 3), strict=True):
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

    def encode(self, index: Tensor, *shape: int) -> ChainParts:
        """Tags (*batch, n), -1 at padding, to indicators of `shape` = (s,) states."""
        (states,) = shape
        if _check.readable(index) and index.numel() and bool(((index < -1) | (index >= states)).any()):
            came = int(index[(index < -1) | (index >= states)][0])
            raise ValueError(f"tags must be in [0, {states}), or -1 at padding; got {came}")
        unary = torch.nn.functional.one_hot(index + 1, states + 1)[..., 1:].float()
        return self.complete(unary)

    def decode(self, y: Any) -> Tensor:
        """Tags (*batch, n), -1 at padding."""
        return tags_of(y.unary)

    def _checked(self, *scores: Tensor) -> tuple[Tensor, Tensor]:
        if len(scores) != 2:
            raise TypeError(f"a chain has two score tensors, unary and transition; got {len(scores)}")
        unary, transition = scores
        if unary.dim() < 2:
            raise ValueError(f"unary must be (*batch, n, s); got {tuple(unary.shape)}")
        *batch, n, s = unary.shape
        padded = transition[(None,) * max(unary.dim() + 1 - transition.dim(), 0)]
        fits = transition.dim() >= 2 and all(
            have in (1, want) for have, want in zip(padded.shape, (*batch, max(n - 1, 0), s, s), strict=False)
        )
        if not fits or padded.dim() != unary.dim() + 1 or padded.shape[-2:] != (s, s):
            raise ValueError(
                f"transition must be ({s}, {s}) or broadcast to {(*batch, max(n - 1, 0), s, s)};"
                f" got {tuple(transition.shape)}"
            )
        return unary, padded

    def _flat(self, *scores: Tensor) -> tuple[Tensor, Tensor, Tensor, torch.Size]:
        unary, transition = self._checked(*scores)
        batch = unary.shape[:-2]
        n, s = unary.shape[-2:]
        if transition.shape[:-3].numel() != 1:
            transition = transition.expand(*batch, *transition.shape[-3:])
        transition = transition.reshape(transition.shape[:-3].numel(), *transition.shape[-3:])
        lengths = checked_lengths(self.lengths, batch, n, unary.device, "lengths")
        return unary.reshape(batch.numel(), n, s), transition, lengths, batch


def tags_of(unary: Tensor) -> Tensor:
    """Indicators of states (*batch, n, s) to tags (*batch, n), -1 where there is none."""
    return torch.where((unary == 0).all(-1), -1, unary.argmax(-1))


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
