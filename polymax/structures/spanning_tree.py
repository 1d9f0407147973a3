"""Dependency trees whose arcs may cross: maximum spanning arborescences and the matrix-tree theorem."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from polymax import _check
from polymax.distinct import from_heads
from polymax.hypergraphs.passes import Passes
from polymax.kernels.arborescence import UNDEFINED, arborescence
from polymax.kernels.spanning_tree import (
    spanning_tree_inside,
    spanning_tree_kbest,
    spanning_tree_outside,
    spanning_tree_sample,
    spanning_tree_tangent,
)
from polymax.noise import Gumbel
from polymax.regularizers import Shannon, Zero
from polymax.structures.arcs import Arcs
from polymax.structures.base import Counted, checked_lengths
from polymax.structures.dynamic import HARD, SHANNON, Problem, checked, narrow
from polymax.structures.heads import decode_heads, encode_heads, trees
from polymax.structures.labelled_arcs import (
    LabelledProblem,
    arcs_with_labels,
    best_labellings,
    every_labelling,
    spread,
)


@dataclass(frozen=True, eq=False)
class SpanningTree(Arcs, Counted):
    """Trees over tokens 1..n below the root symbol 0, arcs crossing or not; the parts are arcs [head, modifier].

    With `single_root` exactly one token hangs from the root symbol. Lengths count tokens. With `labelled` each arc
    carries one of the labels, and the compact form is head and label of each token.

    Shapes: scores (*batch, n + 1, n + 1), or (*batch, n + 1, n + 1, labels) with `labelled`; lengths (*batch,)

    Example:
        >>> scores = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        >>> SpanningTree().decode(SpanningTree().map(scores))
        tensor([0, 1])

    See: McDonald et al. 2005, Non-projective dependency parsing using spanning tree algorithms; Koo et al. 2007.
    """

    lengths: Tensor | None = None
    single_root: bool = True
    labelled: bool = False

    def map(self, *scores: Tensor) -> Tensor:
        if self.labelled:
            with torch.no_grad():
                return narrow(self.problem(*checked(scores)).expectation(HARD), scores[0].dtype)
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
        if self.labelled:
            arcs = replace(self, labelled=False)
            return LabelledProblem(arcs_with_labels(self.lengths, *scores), arcs.problem)  # type: ignore[return-value]
        x, lengths, batch = self._flat(*scores)
        passes = partial(_passes, self.single_root)
        return Problem(passes, (x, lengths), batch, lambda mu: mu[0].reshape(*batch, *x.shape[1:]))

    def sample(self, scores: tuple[Tensor, ...], shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent draws of p(y) = exp(<scores, y>) / Z, (*shape, *batch, n + 1, n + 1), with labels labelled."""
        if self.labelled:
            return self._sample_labelled(scores, shape, generator)
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
        if self.labelled:
            return self._kbest_labelled(scores, k)
        x, lengths, batch = self._flat(*checked(scores))
        values, heads = spanning_tree_kbest(x.detach(), lengths, k, self.single_root)
        y = _arcs(heads, x).reshape(*batch, k, *x.shape[1:])
        return narrow(y, scores[0].dtype), values.reshape(*batch, k).to(scores[0].dtype)

    def sample_distinct(
        self, scores: tuple[Tensor, ...], k: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """k trees that differ (*batch, k, ...), drawn without replacement, and which of them there are, (*batch, k)."""
        (x,) = checked(scores)
        if self.labelled:
            x = arcs_with_labels(self.lengths, x)
        arcs, flat = replace(self, labelled=False), x.detach().double()
        labels = flat if self.labelled else flat.unsqueeze(-1)
        total = Shannon().max(labels)
        rows, lengths, batch = arcs._flat(total)
        names = torch.where(total.unsqueeze(-1) == -torch.inf, -torch.inf, labels - total.unsqueeze(-1))
        names = names.reshape(len(rows), *names.shape[len(batch) :])
        index, there = from_heads(arcs, rows, lengths, names, k, generator)
        y = spread(index, labels.shape[-1])
        y = y if self.labelled else y.squeeze(-1)
        return narrow(y.reshape(*batch, k, *x.shape[len(batch) :]), scores[0].dtype), there.reshape(*batch, k)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        heads = trees(event_shape[0] - 1, self.single_root)
        arcs = encode_heads(torch.tensor(heads, dtype=torch.long).reshape(len(heads), event_shape[0] - 1))
        return every_labelling(arcs, event_shape[2]) if self.labelled else arcs

    def _sample_labelled(self, scores: tuple[Tensor, ...], shape: Any, generator: torch.Generator | None) -> Tensor:
        """Trees by the sums over labels, then a label for each arc."""
        x = arcs_with_labels(self.lengths, *checked(scores)).detach()
        arcs = replace(self, labelled=False).sample((Shannon().max(x),), shape, generator)
        names = Gumbel().sample(x, tuple(torch.Size(shape)), generator) + x
        return narrow(arcs.unsqueeze(-1) * Zero().argmax(names), scores[0].dtype)

    def _kbest_labelled(self, scores: tuple[Tensor, ...], k: int) -> tuple[Tensor, Tensor]:
        x = arcs_with_labels(self.lengths, *checked(scores)).detach()
        batch = x.shape[:-3]
        found, values = replace(self, labelled=False).kbest((Zero().max(x),), k)
        heads = decode_heads(found).reshape(batch.numel(), k, x.shape[-2] - 1)
        rows = x.reshape(batch.numel(), *x.shape[-3:])
        index, best = best_labellings(heads, values.reshape(batch.numel(), k), rows, k)
        y = spread(index, x.shape[-1]).reshape(*batch, k, *x.shape[-3:])
        return y.to(scores[0].dtype), best.reshape(*batch, k).to(scores[0].dtype)

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
        scores, lengths = tensors
        value, chart = spanning_tree_inside(scores, lengths, self.single_root)
        # without a tree the sum is -inf before a NaN is met
        undefined = (torch.isnan(scores) & _possible(scores, lengths)).flatten(1).any(-1)
        return torch.where((value == -torch.inf) & undefined, torch.nan, value), chart

    def outside(self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        mu = spanning_tree_outside(*tensors, chart, g, self.single_root)
        return (torch.where(torch.isnan(g)[:, None, None] & _possible(*tensors), torch.nan, mu),)

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


def _possible(x: Tensor, lengths: Tensor) -> Tensor:
    """True for the arcs that a tree of so many tokens can use, (B, n + 1, n + 1)."""
    place = torch.arange(x.shape[-1], device=x.device)
    within = place <= lengths.unsqueeze(-1)
    return within.unsqueeze(-1) & within.unsqueeze(-2) & (place.unsqueeze(-1) != place) & (place > 0)


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
