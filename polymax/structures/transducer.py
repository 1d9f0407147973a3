"""Paths of a transducer: at each frame it emits tokens, then a blank that leads to the next frame."""

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import checked_scores, narrow
from polymax.hypergraphs import Derivations
from polymax.hypergraphs.passes import SHANNON, Problem, kernel_passes
from polymax.kernels.transducer import transducer_inside, transducer_outside, transducer_tangent
from polymax.kernels.transducer.lattice import graph
from polymax.kernels.transducer.reference import recorded
from polymax.structures.base import checked_lengths, zeros_of
from polymax.structures.compact import faults
from polymax.structures.compact.emissions import Emissions
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.usable import before_end, places

_PASSES = kernel_passes(transducer_inside, transducer_outside, transducer_tangent, recorded=recorded, scores=2)


class TransducerParts(NamedTuple):
    """Blanks [frame, tokens so far] (*batch, frames, tokens + 1), and emissions [frame, token]."""

    blank: Tensor
    label: Tensor


@dataclass(frozen=True, eq=False)
class Transducer(DynamicProgram):
    """Paths of a transducer: each frame emits any number of tokens, in order, and then a blank.

    The parts are blanks, by frame and the number of tokens emitted before, and emissions, by frame and token. Instances
    with tokens and no frame are refused. The compact form is the number of tokens that have been emitted at the blank
    of each frame, (*batch, frames), -1 at padding.

    Shapes:
        blank (*batch, frames, tokens + 1); label (*batch, frames, tokens), or broadcasting to it; lengths a pair of
        (*batch,), frames and tokens of each instance

    Example:
        >>> blank, label = torch.zeros(2, 3), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> Transducer().map(blank, label).label
        tensor([[1., 0.],
                [0., 1.]])

    See: Graves 2012, Sequence transduction with recurrent neural networks.
    """

    lengths: tuple[Tensor, Tensor] | None = None
    may_be_empty = False
    parts_once = True

    def logsumexp(self, *scores: Tensor) -> Tensor:
        problem = self._sums(*checked_scores(scores))
        return super().logsumexp(*scores) if problem is None else problem.value(SHANNON).to(scores[0].dtype)

    def marginals(self, *scores: Tensor) -> TransducerParts:
        problem = self._sums(*checked_scores(scores))
        return super().marginals(*scores) if problem is None else narrow(problem.expectation(SHANNON), scores[0].dtype)

    def _sums(self, *scores: Tensor) -> Problem | None:
        """The problem for the set's own kernels of the sum, or None: they take float32 on CUDA."""
        if scores[0].device.type != "cuda" or scores[0].dtype != torch.float32:
            return None
        blank, label = self.full(*scores)
        # lengths on a GPU are not read, and tokens without a frame have no weight there
        frames, tokens = self._sizes(blank, label)
        batch = blank.shape[:-2]
        rows = (t.reshape(math.prod(batch), *t.shape[-2:]) for t in (blank, label))

        def shaped(mu: tuple[Tensor, ...]) -> TransducerParts:
            return TransducerParts(mu[0].reshape(blank.shape), mu[1].reshape(label.shape))

        return Problem(_PASSES, (*rows, frames, tokens), batch, shaped)

    def _refused(self, blank: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The frames and tokens of each instance (B,), and a mask of instances with tokens and no frame.

        Raise ValueError if the mask can be read and has such an instance.
        """
        frames, tokens = self._sizes(blank, label)
        none = (frames == 0) & (tokens > 0)
        if _check.readable(none) and bool(none.any()):
            instance = tuple(none.reshape(blank.shape[:-2]).nonzero()[0].tolist())
            raise ValueError(f"tokens need a frame; got {int(tokens[none][0])} tokens, no frame{faults.of(instance)}")
        return frames, tokens, none

    def derivations(self, *scores: Tensor) -> Derivations:
        blank, label = self.full(*scores)
        batch, (n, m) = blank.shape[:-2], label.shape[-2:]
        frames, tokens, none = self._refused(blank, label)
        roots = n * (m + 1) + (frames - 1) * (m + 1) + tokens
        roots = torch.where(frames > 0, roots, -1)
        flat = torch.cat([blank.reshape(math.prod(batch), n * (m + 1)), label.reshape(math.prod(batch), n * m)], 1)
        if n and not _check.readable(none):
            # lengths cannot be read: scores of -inf stand for an error in instances with tokens and no frame
            roots, flat = torch.where(none, n * (m + 1), roots), torch.where(none[:, None], -torch.inf, flat)

        def shaped(mu: Tensor) -> TransducerParts:
            blanks, labels = mu.split([n * (m + 1), n * m], -1)
            lead = (*mu.shape[:-2], *batch, n)
            return TransducerParts(blanks.reshape(*lead, m + 1), labels.reshape(*lead, m))

        return Derivations(flat, graph.beside(flat, n, m), roots, batch, shaped)

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        if len(scores) != 2:
            raise TypeError(f"a transducer has two score tensors, blank and label; got {len(scores)}")
        blank, label = scores
        if blank.dim() < 2 or not blank.shape[-1]:
            raise ValueError(f"blank must be (*batch, frames, tokens + 1); got {tuple(blank.shape)}")
        shape = torch.Size((*blank.shape[:-1], blank.shape[-1] - 1))
        if not _check.broadcastable(label.shape, shape):
            raise ValueError(f"label must be {tuple(shape)}, one token less than blank; got {tuple(label.shape)}")
        return blank, label.expand(shape)

    def _sizes(self, blank: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """The frames and the tokens of each instance, (B,)."""
        if self.lengths is not None and (not isinstance(self.lengths, tuple) or len(self.lengths) != 2):
            raise TypeError("lengths must be a pair of tensors, frames and tokens")
        rows, columns = self.lengths or (None, None)
        batch, (n, m) = blank.shape[:-2], label.shape[-2:]
        return (
            checked_lengths(rows, batch, n, blank.device, "lengths[0]"),
            checked_lengths(columns, batch, m, blank.device, "lengths[1]"),
        )

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        blank, label = parts
        frames, tokens = (t.reshape(*blank.shape[:-2], 1, 1) for t in self._sizes(blank, label))
        rows, columns = self.lengths or (None, None)
        t, u = places(blank.device, *blank.shape[-2:])
        ends = (t < frames - 1) & (u <= tokens) | (t == frames - 1) & (u == tokens)
        row, column = places(blank.device, *label.shape[-2:])
        return ends, before_end(rows, label.shape[-2], row, 2) & before_end(columns, label.shape[-1], column, 2)

    def most_parts(self, *events: torch.Size) -> int:
        return events[1][0] + events[1][1]

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return 2, 2

    def named(self, *parts: Tensor) -> TransducerParts:
        return TransducerParts(*parts)

    def zero_scores(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        first = zeros_of(self, event_shape)
        return first, first[..., :-1]

    def vertices(self, event_shape: tuple[int, ...]) -> TransducerParts:
        n, states = event_shape
        emitted = itertools.combinations_with_replacement(range(states), n - 1) if n else [()]
        rows = [[*counts, states - 1] if n else [] for counts in emitted]
        index = torch.tensor(rows, dtype=torch.long).reshape(len(rows), n)
        return self.complete(torch.nn.functional.one_hot(index, states).float())

    def complete(self, first: Tensor) -> TransducerParts:
        """Paths from their blanks: a token is emitted between the blank of the frame before and that of its frame."""
        before = torch.nn.functional.pad(first, (0, 0, 1, 0))[..., :-1, :]
        before[..., :1, 0] = first[..., :1, :].sum(-1)
        # a frame emits token u if its blank comes after more than u tokens, and the blank before after at most u
        later, so_far = first.flip(-1).cumsum(-1).flip(-1)[..., 1:], before.cumsum(-1)[..., :-1]
        return TransducerParts(first, later * so_far)

    @property
    def compact(self) -> Emissions:
        return Emissions(self)
