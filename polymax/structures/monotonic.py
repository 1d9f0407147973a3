"""Monotonic alignments of frames to tokens: each frame has one token, tokens come in order and none is skipped."""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax._parts import checked_scores
from polymax.hypergraphs import Builder, Derivations, Family, Graph
from polymax.kernels.monotonic import monotonic_cells, monotonic_search
from polymax.structures.base import checked_pairs
from polymax.structures.compact import faults
from polymax.structures.compact.ordered import Ordered
from polymax.structures.dynamic import DynamicProgram


@dataclass(frozen=True, eq=False)
class Tokens(Ordered):
    """The token (*batch, frames) of each frame, -1 at padding; `encode` takes the number of tokens."""

    what, unit, part, count = "monotonic alignment", "frame", "token", "tokens"

    def check_order(self, index: Tensor, like: Tensor) -> None:
        """Refuse tokens that do not begin with 0, or do not stay or go on by one, up to the padding."""
        before = torch.nn.functional.pad(index[..., :-1], (min(index.shape[-1], 1), 0), value=-1)
        step = index - before
        right = (index < 0) | (step == 1) | ((step == 0) & (before >= 0))

        def explain(instance: tuple[int, ...], frame: int) -> str:
            came, expected = int(index[(*instance, frame)]), int(before[(*instance, frame)])
            wanted = f"{expected} or {expected + 1}" if expected >= 0 else "0"
            return f"frame {frame}{faults.of(instance)} has token {came}, not {wanted}"

        faults.refuse(self.what, ~right, explain)

    def check_end(self, index: Tensor, *scores: Tensor) -> None:
        (_, _, tokens), batch = checked_pairs(self.structure, *scores)
        tokens = tokens.reshape(*batch, 1)
        last = index.amax(-1, keepdim=True) if index.shape[-1] else tokens - 1

        def explain(instance: tuple[int, ...], _: int) -> str:
            return f"its last token{faults.of(instance)} is {int(last[instance])}, not {int(tokens[instance]) - 1}"

        faults.refuse(self.what, last != tokens - 1, explain)


@dataclass(frozen=True, eq=False)
class Monotonic(DynamicProgram):
    """Monotonic alignments: each frame keeps the token of the frame before it, or takes the next token.

    The parts are cells [frame, token]. Instances with more tokens than frames have no alignment, and are refused.
    The compact form is the token of each frame, -1 at padding.

    Shapes: scores (*batch, frames, tokens); lengths a pair of (*batch,), frames and tokens of each instance

    Example:
        >>> scores = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
        >>> Monotonic().decode(Monotonic().map(scores))
        tensor([0, 1, 1])

    See: Kim et al. 2020, Glow-TTS, section 3.2.
    """

    lengths: tuple[Tensor, Tensor] | None = None
    may_be_empty = False
    form = Tokens
    parts_once = True

    def derivations(self, *scores: Tensor) -> Derivations:
        (x, frames, tokens), batch = self._cells(*scores)
        _, n, m = x.shape
        roots = 2 * ((frames - 1) * m + tokens - 1) + 1
        roots = torch.where((frames > 0) & (tokens > 0), torch.where(tokens > frames, 1, roots), -1)
        parts = x.flatten(1)
        graph = _graph.beside(parts, n, m)
        return Derivations(parts, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *batch, n, m))

    def tokens(self, *scores: Tensor) -> Tensor:
        """The token (*batch, frames) of each frame of the best alignment: `decode(map(scores))`, without cells.

        It is -1 at padding, and in instances whose scores are undefined or forbid every alignment.

        Example:
            >>> Monotonic().tokens(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]]))
            tensor([0, 1, 1])
        """
        (x, frames, tokens), _ = self._cells(*checked_scores(scores))
        return monotonic_search(x.detach(), frames, tokens)[0].reshape(scores[0].shape[:-1])

    def map(self, *scores: Tensor) -> Tensor:
        (x, frames, tokens), _ = self._cells(*checked_scores(scores))
        with torch.no_grad():
            flat = x.detach()
            y = monotonic_cells(flat, *monotonic_search(flat, frames, tokens), frames, tokens)
        return y.to(scores[0].dtype).reshape(scores[0].shape)

    def most_parts(self, *events: torch.Size) -> int:
        return events[0][0]

    def _cells(self, *scores: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], torch.Size]:
        """Scores (B, n, m), the frames and the tokens of each instance (B,), and the batch."""
        (x, frames, tokens), batch = checked_pairs(self, *scores)
        none = (tokens > frames) | ((tokens == 0) & (frames > 0))
        if not _check.readable(none):
            # lengths cannot be read: scores of -inf stand for an error in instances without an alignment
            x = torch.where(none[:, None, None], -torch.inf, x)
        elif bool(none.any()):
            raise ValueError(_explained(frames, tokens, none, batch))
        return (x, frames, tokens), batch

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2,)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        n, m = event_shape
        if not n and not m:
            return torch.zeros(1, 0, 0)
        # the frames at which a new token begins
        starts = list(itertools.combinations(range(1, n), m - 1)) if m else []
        y = torch.zeros(len(starts), n, m)
        for k, cuts in enumerate(starts):
            for token, (first, end) in enumerate(itertools.pairwise((0, *cuts, n))):
                y[k, first:end, token] = 1
        return y

    def durations(self, y: Tensor) -> Tensor:
        """The number of frames of each token in an alignment, (*batch, tokens); the expected number, given marginals.

        Example:
            >>> monotonic = Monotonic()
            >>> monotonic.durations(monotonic.encode(torch.tensor([0, 1, 1, 1, 2]), 3))
            tensor([1., 3., 1.])
        """
        if y.dim() < 2:
            raise ValueError(f"y must be (*batch, frames, tokens); got {tuple(y.shape)}")
        return y.sum(-2)


@Family
def _graph(n: int, m: int) -> Graph:
    """Node D(t, j) chooses the cell before (t, j), V(t, j) adds its score; D(0, 0) is the one axiom."""
    t, j = np.tril_indices(n, 0, m)
    cell = t * m + j
    builder = Builder(parts=n * m)
    builder.add(2 * cell + 1, cell, 2 * cell)
    stay, move = j < t, j > 0
    builder.add(2 * cell[stay], -1, 2 * (cell[stay] - m) + 1)
    builder.add(2 * cell[move], -1, 2 * (cell[move] - m - 1) + 1)
    return builder.build(2 * n * m)


def _explained(frames: Tensor, tokens: Tensor, none: Tensor, batch: torch.Size) -> str:
    """The error message for the first instance without an alignment."""
    instance = tuple(none.reshape(batch).nonzero()[0].tolist())
    n, m = (int(t.reshape(batch)[instance]) for t in (frames, tokens))
    return f"each token needs a frame, and each frame a token; got {m} tokens for {n} frames{faults.of(instance)}"
