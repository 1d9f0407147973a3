"""Tag sequences in which one state has at most k positions, or at most k runs: a chain with a counter."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax.graphs.graph import Builder, Family, Graph
from polymax.hypergraphs import Derivations
from polymax.kernels.active_set.problem import Search
from polymax.structures.base import checked_lengths
from polymax.structures.chain import Chain, ChainParts, TagSequences
from polymax.structures.compact.counted_tags import CountedTags


class CounterChain(TagSequences):
    """A chain whose sequences may raise a counter at most k times; subclasses define what raises it.

    The recursion is that of the chain with the count so far as a further index: n s^2 (k + 1) steps. Scores, parts and
    compact forms are those of `Chain`.
    """

    k: int
    state: int
    parts_once = True

    def __post_init__(self) -> None:
        _check.whole(self.k, "k", least=0)
        _check.whole(self.state, "state", least=0)

    @property
    @abstractmethod
    def runs(self) -> bool:
        """True if the beginnings of runs are counted, False if positions are."""

    @property
    def chain(self) -> Chain:
        """The chain of the same sequences without a limit."""
        return Chain(self.lengths)

    def derivations(self, *scores: Tensor) -> Derivations:
        unary, transition = self.full(*scores)
        batch, (n, s) = unary.shape[:-2], unary.shape[-2:]
        self._check_states(s)
        sizes = [n * s, max(n - 1, 0) * s * s]
        flat = torch.cat([x.reshape(math.prod(batch), size) for x, size in zip((unary, transition), sizes)], 1)
        most = min(self.k, n)
        graph = _counters.beside(flat, n, s, most, self.state, int(self.runs))
        lengths = checked_lengths(self.lengths, batch, n, unary.device, "lengths")
        roots = torch.where(lengths > 0, 2 * n * s * (most + 1) + lengths - 1, -1)

        def shaped(mu: Tensor) -> ChainParts:
            states, steps = mu.split(sizes, -1)
            lead = (*mu.shape[:-2], *batch)
            return ChainParts(states.reshape(*lead, n, s), steps.reshape(*lead, max(n - 1, 0), s, s))

        return Derivations(flat, graph, roots, batch, shaped)

    def search(self, *scores: Tensor) -> Search:
        found = self.chain.search(*scores)
        self._check_states(scores[0].shape[-1])
        most = min(self.k, scores[0].shape[-2])
        unary, transition, lengths = found.tensors
        tensors = unary, transition if transition.dim() == 4 else transition[None, None], lengths
        return found._replace(kind="counted_tags", tensors=tensors, options=(most, self.state, self.runs))

    def _check_states(self, states: int) -> None:
        if states < 2 or self.state >= states:
            raise ValueError(f"unary must have state {self.state} and at least one more; got {states} states")

    @property
    def compact(self) -> CountedTags:
        return CountedTags(self)

    def vertices(self, event_shape: tuple[int, ...]) -> ChainParts:
        every = self.chain.vertices(event_shape)
        kept = self.compact.count_of(self.chain.decode(every)) <= self.k
        return ChainParts(*(t[kept] for t in every))


@dataclass(frozen=True, eq=False)
class BudgetChain(CounterChain):
    """Sequences of states in which at most k positions have `state`: rationales of at most k words.

    Shapes: as `Chain` has them: unary (*batch, n, s), transition (s, s) or (*batch, n - 1, s, s); lengths (*batch,)

    Example:
        >>> unary = torch.tensor([[0.0, 2.0], [0.0, 1.0], [0.0, 3.0]])
        >>> BudgetChain(2).decode(BudgetChain(2).map(unary, torch.zeros(2, 2)))
        tensor([1, 0, 1])
    """

    k: int
    state: int = 1
    lengths: Tensor | None = None

    @property
    def runs(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class SegmentChain(CounterChain):
    """Sequences of states in which positions of `state` form at most k runs; one run is a contiguous rationale.

    Shapes: as `Chain` has them: unary (*batch, n, s), transition (s, s) or (*batch, n - 1, s, s); lengths (*batch,)

    Example:
        >>> unary = torch.tensor([[0.0, 2.0], [0.5, 0.0], [0.0, 3.0]])
        >>> SegmentChain(1).decode(SegmentChain(1).map(unary, torch.zeros(2, 2)))
        tensor([1, 1, 1])
    """

    k: int
    state: int = 1
    lengths: Tensor | None = None

    @property
    def runs(self) -> bool:
        return True


def _node(states: int, k: int, kind: int, t: int, j: Any, c: Any) -> Any:
    return ((2 * t + kind) * states + j) * (k + 1) + c


@Family
def _counters(n: int, states: int, k: int, state: int, runs: int) -> Graph:
    """Node A(t, j, c) chooses the state before j, and node B(t, j, c) adds the unary score; c is the count so far."""
    builder = Builder(parts=n * states + max(n - 1, 0) * states * states)
    rise = np.zeros((states + 1, states), np.int64)
    # the first position is a step from no state
    rise[:, state] = 1
    if runs:
        rise[state, state] = 0
    before, after = (partial(_node, states, k, kind) for kind in range(2))
    reached = np.zeros((states, k + 1), bool)
    for t in range(n):
        now = np.zeros_like(reached)
        for j in range(states):
            if t == 0:
                if rise[states, j] <= k:
                    now[j, rise[states, j]] = True
                continue
            for i in range(states):
                (c,) = np.nonzero(reached[i, : k + 1 - rise[i, j]])
                part = n * states + ((t - 1) * states + i) * states + j
                builder.add(before(t, j, c + rise[i, j]), part, after(t - 1, i, c))
                now[j, c + rise[i, j]] = True
        reached = now
        tags, counts = np.nonzero(reached)
        builder.add(after(t, tags, counts), t * states + tags, before(t, tags, counts))
        builder.add(2 * n * states * (k + 1) + t, -1, after(t, tags, counts))
    return builder.build(2 * n * states * (k + 1) + n)
