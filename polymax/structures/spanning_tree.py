"""Dependency trees whose arcs may cross: maximum spanning arborescences and the matrix-tree theorem."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from polymax import _check
from polymax.kernels.arborescence import UNDEFINED, arborescence
from polymax.kernels.spanning_tree import (
    spanning_tree_inside,
    spanning_tree_kbest,
    spanning_tree_outside,
    spanning_tree_sample,
    spanning_tree_tangent,
)
from polymax.structures.base import Counted, checked_lengths
from polymax.structures.dynamic import HARD, SHANNON, Problem, checked, narrow
from polymax.structures.heads import allowed_heads, decode_heads, encode_heads, places_of, trees
from polymax.structures.passes import Passes
from polymax.structures.tree_faults import check_arcs, check_encoded_heads, check_heads, check_known_heads


@dataclass(frozen=True, eq=False)
class SpanningTree(Counted):
    """Trees over tokens 1..n below the root symbol 0, arcs crossing or not; the parts are arcs [head, modifier].

    With `single_root` exactly one token hangs from the root symbol. Lengths count tokens.

    Shapes: scores (*batch, n + 1, n + 1); lengths (*batch,)

    Example:
        >>> scores = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        >>> SpanningTree().decode(SpanningTree().map(scores))
        tensor([0, 1])

    See: McDonald et al. 2005, Non-projective dependency parsing using spanning tree algorithms; Koo et al. 2007.
    """

    lengths: Tensor | None = None
    single_root: bool = True

    def map(self, *scores: Tensor) -> Tensor:
        x, lengths, batch = self._flat(*checked(scores))
        heads = arborescence(x.detach(), lengths, self.single_root)
        return narrow(_best_arcs(heads, x).reshape(*batch, *x.shape[1:]), scores[0].dtype)

    def best_score(self, *scores: Tensor) -> Tensor:
        return self.problem(*checked(scores)).value(HARD).to(scores[0].dtype)

    def logsumexp(self, *scores: Tensor) -> Tensor:
        return self.problem(*checked(scores)).value(SHANNON).to(scores[0].dtype)

    def marginals(self, *scores: Tensor) -> Tensor:
        return narrow(self.problem(*checked(scores)).expectation(SHANNON), scores[0].dtype)

    def problem(self, *scores: Tensor) -> Problem:
        """The scores as the kernels take them; a maximum that is hard, or smoothed by Shannon's entropy."""
        x, lengths, batch = self._flat(*scores)
        passes = partial(_passes, self.single_root)
        return Problem(passes, (x, lengths), batch, lambda mu: mu[0].reshape(*batch, *x.shape[1:]))

    def sample(self, scores: tuple[Tensor, ...], shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent draws of p(y) = exp(<scores, y>) / Z, (*shape, *batch, n + 1, n + 1)."""
        x, lengths, batch = self._flat(*checked(scores))
        lead = torch.Size(shape)
        device = generator.device if generator is not None else "cpu"
        seeds = torch.randint(-(2**63), 2**63 - 1, (len(lengths), lead.numel()), generator=generator, device=device)
        heads = spanning_tree_sample(x.detach(), lengths, seeds.to(x.device), self.single_root)
        return narrow(_arcs(heads.movedim(1, 0), x).reshape(*lead, *batch, *x.shape[1:]), scores[0].dtype)

    def kbest(self, scores: tuple[Tensor, ...], k: int) -> tuple[Tensor, Tensor]:
        """The k best trees (*batch, k, n + 1, n + 1), best first, and their scores (*batch, k).

        Where there are fewer, zeros of score -inf follow.
        """
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be a positive integer; got {k!r}")
        x, lengths, batch = self._flat(*checked(scores))
        values, heads = spanning_tree_kbest(x.detach(), lengths, k, self.single_root)
        y = _arcs(heads, x).reshape(*batch, k, *x.shape[1:])
        return narrow(y, scores[0].dtype), values.reshape(*batch, k).to(scores[0].dtype)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2,)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        heads = trees(event_shape[0] - 1, self.single_root)
        return encode_heads(torch.tensor(heads, dtype=torch.long).reshape(len(heads), event_shape[0] - 1))

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        """Heads (*batch, n) of tokens 1..n, -1 at padding, to arcs."""
        y = encode_heads(index)
        check_encoded_heads(index, self.single_root)
        return y

    def decode(self, y: Any) -> Tensor:
        """Heads (*batch, n) of tokens 1..n, -1 at padding."""
        return decode_heads(y)

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        return places_of(index)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        self._flat(*scores)
        return check_heads(index, scores[0], self.lengths, self.single_root)

    def check_parts(self, y: Any, *scores: Tensor) -> None:
        check_arcs(y)
        super().check_parts(y, *scores)

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        """Heads (*batch, n), -2 where not known."""
        check_known_heads(index, scores[0], self.lengths)
        return allowed_heads(index)

    def _flat(self, *scores: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
        (x,) = scores
        if x.dim() < 2 or x.shape[-1] != x.shape[-2] or x.shape[-1] == 0:
            raise ValueError(f"scores must be (*batch, n + 1, n + 1); got {tuple(x.shape)}")
        batch = x.shape[:-2]
        lengths = checked_lengths(self.lengths, batch, x.shape[-1] - 1, x.device, "lengths")
        return x.reshape(batch.numel(), *x.shape[-2:]), lengths, batch


@dataclass(frozen=True)
class SumPasses:
    """The passes of the sum over trees."""

    single_root: bool
    scores: ClassVar[int] = 1

    def inside(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        return spanning_tree_inside(*tensors, self.single_root)

    def outside(self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return (spanning_tree_outside(*tensors, chart, g, self.single_root),)

    def tangent(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        return spanning_tree_tangent(*tensors, chart, g, *along, self.single_root)

    def tape(self, tensors: tuple[Tensor, ...]) -> Tensor:
        from polymax.kernels.spanning_tree.reference import recorded

        scores, lengths = tensors
        return recorded(scores, lengths, self.single_root)


@dataclass(frozen=True)
class BestPasses:
    """The passes of the best tree, whose heads are the chart."""

    single_root: bool
    scores: ClassVar[int] = 1

    def inside(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        heads = arborescence(*tensors, self.single_root)
        total = _picked(tensors[0], heads)
        none = (tensors[1] > 0) & (heads < 0).all(-1)
        total = torch.where(none, -torch.inf, total)
        return torch.where((heads == UNDEFINED).any(-1), torch.nan, total), heads

    def outside(self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        y = _best_arcs(chart, tensors[0])
        return (torch.where(y == 0, 0, y * g[:, None, None]),)

    def tangent(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        slope = torch.where((chart == UNDEFINED).any(-1), torch.nan, _picked(along[0], chart))
        return slope, torch.zeros_like(tensors[0])

    def tape(self, tensors: tuple[Tensor, ...]) -> Tensor:
        return self.inside(tensors)[0]


def _passes(single_root: bool, alpha: float) -> Passes:
    if alpha not in (SHANNON, HARD):
        raise TypeError("spanning trees under another entropy than Shannon's: they are no dynamic program")
    return SumPasses(single_root) if alpha == SHANNON else BestPasses(single_root)


def _picked(x: Tensor, heads: Tensor) -> Tensor:
    """The sum of x (B, n + 1, n + 1) over the arcs of heads (B, n)."""
    terms = x[:, :, 1:].gather(1, heads.clamp(min=0).unsqueeze(1)).squeeze(1)
    return torch.where(heads < 0, 0, terms).sum(-1)


def _best_arcs(heads: Tensor, x: Tensor) -> Tensor:
    """Indicators (B, n + 1, n + 1) of the best heads (B, n); NaN in all arcs where scores are NaN."""
    y, bad = _arcs(heads, x), heads == UNDEFINED
    if _check.readable(heads) and not bool(bad.any()):
        return y
    rows = torch.nn.functional.pad(bad, (1, 0), value=True)
    itself = torch.eye(rows.shape[-1], dtype=torch.bool, device=heads.device)
    arcs = rows.unsqueeze(-1) & torch.nn.functional.pad(bad, (1, 0)).unsqueeze(-2) & ~itself
    return y.masked_fill(arcs, torch.nan)


def _arcs(heads: Tensor, x: Tensor) -> Tensor:
    """Indicators (..., n + 1, n + 1) of heads (..., n), in the dtype of x."""
    positions = torch.arange(heads.shape[-1] + 1, device=heads.device)
    return torch.nn.functional.pad((heads.unsqueeze(-2) == positions[:, None]).to(x.dtype), (1, 0))
