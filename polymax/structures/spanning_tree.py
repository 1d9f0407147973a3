"""Dependency trees whose arcs may cross: maximum spanning arborescences and the matrix-tree theorem."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from polymax import _check
from polymax._parts import checked_scores, narrow
from polymax.distributions.gibbs import TreeGibbs
from polymax.hypergraphs.passes import HARD, SHANNON, Passes, Problem, Slopes
from polymax.kernels.active_set.problem import Search
from polymax.kernels.arborescence import UNDEFINED, arborescence
from polymax.kernels.exact_sums import exact_sum, exact_total
from polymax.kernels.spanning_tree import (
    spanning_tree_inside,
    spanning_tree_kbest,
    spanning_tree_outside,
    spanning_tree_sample,
    spanning_tree_tangent,
)
from polymax.kernels.spanning_tree.reference import recorded
from polymax.noise import Gumbel
from polymax.regularizers import Shannon, Zero
from polymax.structures.base import Sampled
from polymax.structures.compact.heads import decode_heads, trees
from polymax.structures.compact.labels import encode_labels
from polymax.structures.compact.trees import Heads
from polymax.structures.labelled_arcs import (
    LabelledProblem,
    arcs_with_labels,
    best_labellings,
    checked_arcs,
    tree_indicators,
)
from polymax.structures.tree_draws import distinct_trees
from polymax.structures.usable import usable_arcs


@dataclass(frozen=True, eq=False)
class SpanningTree(Sampled):
    """Dependency trees over tokens 1..n below the root symbol 0, whose arcs may cross; parts are arcs [head, modifier].

    With `single_root` exactly one token hangs from the root symbol. Lengths count tokens. With `labelled` each arc
    has one of the labels, and the compact form is the head and the label of each token.

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
    may_be_empty = False
    form = partial(Heads, projective=False)

    def map(self, *scores: Tensor) -> Tensor:
        if self.labelled:
            with torch.no_grad():
                return narrow(self.problem(*checked_scores(scores)).expectation(HARD), scores[0].dtype)
        (x, lengths), _ = checked_arcs(self.lengths, *checked_scores(scores))
        heads = arborescence(x.detach(), lengths, self.single_root)
        return narrow(_best_arcs(heads, x).reshape(scores[0].shape), scores[0].dtype)

    def best_score(self, *scores: Tensor) -> Tensor:
        return self.problem(*checked_scores(scores)).value(HARD).to(scores[0].dtype)

    def logsumexp(self, *scores: Tensor) -> Tensor:
        return self.problem(*checked_scores(scores)).value(SHANNON).to(scores[0].dtype)

    def marginals(self, *scores: Tensor) -> Tensor:
        return narrow(self.problem(*checked_scores(scores)).expectation(SHANNON), scores[0].dtype)

    def problem(self, *scores: Tensor) -> Problem:
        """The problem for the kernels, of the hard maximum and of the maximum smoothed by Shannon's entropy."""
        if self.labelled:
            arcs = replace(self, labelled=False)
            return LabelledProblem(arcs_with_labels(self.lengths, *scores), arcs.problem)  # type: ignore[return-value]
        tensors, batch = checked_arcs(self.lengths, *scores)
        passes = partial(_passes, self.single_root)
        return Problem(passes, tensors, batch, lambda mu: mu[0].reshape(scores[0].shape))

    def gibbs(self, scores: tuple[Tensor, ...], dtype: torch.dtype) -> TreeGibbs:
        return TreeGibbs(self, scores, dtype)

    def search(self, *scores: Tensor) -> Search | None:
        if self.labelled:
            return None
        (x, lengths), batch = checked_arcs(self.lengths, *scores)
        return Search("arcs", (x, lengths), batch, (x.shape[1:],), x.shape[1], (self.single_root,))

    def potentials(self, *scores: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The scores of each token's arcs less the score of its arc in the best tree, and the best tree's score.

        Every tree has one head for each token, so that all trees are shifted alike.
        """
        (x,) = scores
        # arcs are [head, modifier], and labels, if there are any, come last
        others = (-3, -1) if self.labelled else (-2,)
        best = torch.where(self.map(x) > 0, x, 0).sum(others, keepdim=True)
        total = exact_total(best.flatten(x.dim() - self.event_dims(x)[0]))
        total = torch.where(self.best_score(x) == -torch.inf, -torch.inf, total)
        return (exact_sum(x, -best),), total

    def sample(self, scores: tuple[Tensor, ...], shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent draws of p(y) = exp(<scores, y>) / Z, (*shape, *batch, n + 1, n + 1) or with a dim of labels."""
        if self.labelled:
            return self._sample_labelled(scores, shape, generator)
        (x, lengths), batch = checked_arcs(self.lengths, *checked_scores(scores))
        lead = torch.Size(shape)
        device = generator.device if generator is not None else "cpu"
        seeds = torch.randint(-(2**63), 2**63 - 1, (len(lengths), lead.numel()), generator=generator, device=device)
        heads = spanning_tree_sample(x.detach(), lengths, seeds.to(x.device), self.single_root)
        return narrow(_arcs(heads.movedim(1, 0), x).reshape(*lead, *batch, *x.shape[1:]), scores[0].dtype)

    def kbest(self, scores: tuple[Tensor, ...], k: int) -> tuple[Tensor, Tensor]:
        _check.whole(k, "k")
        if self.labelled:
            return self._kbest_labelled(scores, k)
        (x, lengths), batch = checked_arcs(self.lengths, *checked_scores(scores))
        values, heads = spanning_tree_kbest(x.detach(), lengths, k, self.single_root)
        y = _arcs(heads, x).reshape(*batch, k, *x.shape[1:])
        return narrow(y, scores[0].dtype), values.reshape(*batch, k).to(scores[0].dtype)

    def sample_distinct(
        self, scores: tuple[Tensor, ...], k: int, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """k distinct trees (*batch, k, ...), drawn without replacement, and a mask (*batch, k), False for none."""
        (x,) = checked_scores(scores)
        if self.labelled:
            x = arcs_with_labels(self.lengths, x)
        arcs, flat = replace(self, labelled=False), x.detach().double()
        labels = flat if self.labelled else flat.unsqueeze(-1)
        total = Shannon().max(labels)
        (rows, lengths), batch = checked_arcs(self.lengths, total)
        names = torch.where(total.unsqueeze(-1) == -torch.inf, -torch.inf, labels - total.unsqueeze(-1))
        names = names.reshape(len(rows), *names.shape[len(batch) :])
        index, there = distinct_trees(arcs, rows, lengths, names, k, generator)
        y = encode_labels(index, labels.shape[-1])
        y = y if self.labelled else y.squeeze(-1)
        return narrow(y.reshape(*batch, k, *x.shape[len(batch) :]), scores[0].dtype), there.reshape(*batch, k)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        return tree_indicators(trees(event_shape[0] - 1, self.single_root), event_shape)

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (3,) if self.labelled else (2,)

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return (usable_arcs(self.lengths, parts[0], self.labelled),)

    def _sample_labelled(self, scores: tuple[Tensor, ...], shape: Any, generator: torch.Generator | None) -> Tensor:
        """Draw trees by the sums over labels, then a label for each of their arcs."""
        x = arcs_with_labels(self.lengths, *checked_scores(scores)).detach()
        arcs = replace(self, labelled=False).sample((Shannon().max(x),), shape, generator)
        names = Gumbel().sample(x, tuple(torch.Size(shape)), generator) + x
        return narrow(arcs.unsqueeze(-1) * Zero().argmax(names), scores[0].dtype)

    def _kbest_labelled(self, scores: tuple[Tensor, ...], k: int) -> tuple[Tensor, Tensor]:
        x = arcs_with_labels(self.lengths, *checked_scores(scores)).detach()
        batch = x.shape[:-3]
        found, values = replace(self, labelled=False).kbest((Zero().max(x),), k)
        heads = decode_heads(found).reshape(math.prod(batch), k, x.shape[-2] - 1)
        rows = x.reshape(math.prod(batch), *x.shape[-3:])
        index, best = best_labellings(heads, values.reshape(math.prod(batch), k), rows, k)
        y = encode_labels(index, x.shape[-1]).reshape(*batch, k, *x.shape[-3:])
        return y.to(scores[0].dtype), best.reshape(*batch, k).to(scores[0].dtype)


@dataclass(frozen=True)
class SumPasses(Slopes):
    """The passes of the sum over trees."""

    single_root: bool
    scores: ClassVar[int] = 1

    def inside(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        scores, lengths = tensors
        value, chart = spanning_tree_inside(scores, lengths, self.single_root)
        if _check.readable(value) and not bool((value == -torch.inf).any()):
            return value, chart
        # if the kernel finds no tree, it returns -inf, even if a score is NaN
        undefined = (torch.isnan(scores) & _usable(scores, lengths)).flatten(1).any(-1)
        return torch.where((value == -torch.inf) & undefined, torch.nan, value), chart

    def outside(self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        mu = spanning_tree_outside(*tensors, chart, g, self.single_root)
        if _check.readable(g) and not bool(torch.isnan(g).any()):
            return (mu,)
        return (torch.where(torch.isnan(g)[:, None, None] & _usable(*tensors), torch.nan, mu),)

    def tangent(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        return spanning_tree_tangent(*tensors, chart, g, *along, self.single_root)

    def tape(self, tensors: tuple[Tensor, ...]) -> Tensor:
        scores, lengths = tensors
        return recorded(scores, lengths, self.single_root)


@dataclass(frozen=True)
class BestPasses(Slopes):
    """The passes of the best tree, whose heads are the chart."""

    single_root: bool
    scores: ClassVar[int] = 1

    def inside(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        heads = arborescence(*tensors, self.single_root)
        total = _sum_at_heads(tensors[0], heads)
        none = (tensors[1] > 0) & (heads < 0).all(-1)
        total = torch.where(none, -torch.inf, total)
        return torch.where((heads == UNDEFINED).any(-1), torch.nan, total), heads

    def outside(self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        y = _best_arcs(chart, tensors[0])
        return (torch.where(y == 0, 0, y * g[:, None, None]),)

    def tangent(
        self, tensors: tuple[Tensor, ...], chart: Tensor, g: Tensor, along: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        slope = torch.where((chart == UNDEFINED).any(-1), torch.nan, _sum_at_heads(along[0], chart))
        return slope, torch.zeros_like(tensors[0])

    def tape(self, tensors: tuple[Tensor, ...]) -> Tensor:
        return self.inside(tensors)[0]


def _passes(single_root: bool, alpha: float) -> Passes:
    if alpha not in (SHANNON, HARD):
        raise TypeError("the entropy must be Shannon's: spanning trees are not a dynamic program")
    return SumPasses(single_root) if alpha == SHANNON else BestPasses(single_root)


def _usable(x: Tensor, lengths: Tensor) -> Tensor:
    """A bool tensor (B, n + 1, n + 1), True for the arcs that a tree of this length can use."""
    return usable_arcs(lengths, x, labelled=False)


def _sum_at_heads(x: Tensor, heads: Tensor) -> Tensor:
    """The sum of x (B, n + 1, n + 1) over the arcs of heads (B, n)."""
    terms = x[:, :, 1:].gather(1, heads.clamp(min=0).unsqueeze(1)).squeeze(1)
    return torch.where(heads < 0, 0, terms).sum(-1)


def _best_arcs(heads: Tensor, x: Tensor) -> Tensor:
    """Indicators (B, n + 1, n + 1) of the best heads (B, n); NaN in all arcs of instances with NaN scores."""
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
