"""Distributions over whole structures: draw, weigh, rank and measure them.

They are random walks down a hypergraph, from the root: at node h choose hyperedge e with probability p_e, then
go on at all of its tails. With p from Shannon's maxima the walk is the Gibbs distribution; sparse maxima give walks
of finite support, smaller than the set.

    log p(y) = sum over the hyperedges of y of log p_e        H = - sum_e q_e log p_e,  q_e the expectation of e
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, register_kl

from polymax._parts import Parts, map_parts, narrow, tensors
from polymax.backend.function import functional
from polymax.distinct import from_walk
from polymax.graphs.levels import levels_of
from polymax.hypergraphs.derivations import Derivations
from polymax.hypergraphs.passes import HARD
from polymax.hypergraphs.smoothed import smoothed_expectation
from polymax.kernels.hypergraph import (
    hypergraph_count,
    hypergraph_inside,
    hypergraph_sample,
    hypergraph_visits,
    hypergraph_weights,
)
from polymax.kernels.hypergraph.reference import of_edges
from polymax.kernels.hypergraph.tape import usable_scores
from polymax.regularizers import Regularizer

# a support larger than this is not listed
_LARGEST_SUPPORT = 1 << 20


class Walk(Distribution):
    """The random walk whose choices are the weights of smoothed maxima."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    has_rsample = False

    def __init__(self, structure: Any, scores: tuple[Tensor, ...], omega: Regularizer, dtype: torch.dtype) -> None:
        self.structure = structure
        self._scores = scores
        self._omega = omega
        self._dtype = dtype
        first, dims = scores[0], structure.event_dims(*scores)[0]
        super().__init__(first.shape[: first.dim() - dims], validate_args=False)

    @property
    def mean(self) -> Parts:
        """The expected structure."""
        full = self.structure.full(*self._scores)
        return narrow(smoothed_expectation(self.structure, self._omega, full), self._dtype)

    @property
    def mode(self) -> Parts:
        """The most probable structure."""
        best, _ = self.topk(1)
        dim = len(self.batch_shape)
        return best.select(dim, 0) if isinstance(best, Tensor) else type(best)(*(t.select(dim, 0) for t in best))

    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Parts:
        """Independent draws, (*sample_shape, *batch, ...)."""
        shape = torch.Size(sample_shape)
        tree = self._tree
        seeds = torch.randint(
            -(2**63), 2**63 - 1, (shape.numel(), tree.roots.shape[0]), generator=generator,
            device=generator.device if generator is not None else "cpu",
        ).to(tree.scores.device)  # fmt: skip
        p = self._weights.detach().to(tree.scores.dtype)
        y = hypergraph_sample(p, *tree.graph.arrays, tree.roots, seeds.T, tree.graph.parts).movedim(1, 0)
        return narrow(map_parts(lambda t: t.unflatten(0, shape) if len(shape) else t[0], tree.shaped(y)), self._dtype)

    def log_prob(self, y: Parts) -> Tensor:
        """log p(y), (*lead, *batch) for y with further leading dims; -inf outside of the support."""
        q, derived = self._hyperedges(y)
        log = _log_of(self._weights)
        total = _sum(q, log.expand(q.shape), self._tree)
        undefined = torch.isnan(self._weights).any(-1).reshape(self.batch_shape)
        found = torch.where(derived, total, -torch.inf)
        return torch.where(undefined, torch.nan, found).to(self._dtype)

    def prob(self, y: Parts) -> Tensor:
        """The probability p(y), (*lead, *batch)."""
        return self.log_prob(y).exp()

    def entropy(self) -> Tensor:
        """The entropy -E[log p(y)], (*batch,)."""
        return -_sum(self._expected_uses, _log_of(self._weights), self._tree).to(self._dtype)

    def cross_entropy(self, other: "Walk") -> Tensor:
        """-E[log other(y)] for y drawn from this distribution; inf if the other lacks a structure of this support."""
        return -_sum(self._expected_uses, _log_of(other._weights), self._tree).to(self._dtype)

    def topk(self, k: int) -> tuple[Parts, Tensor]:
        """The k most probable structures (*batch, k, ...), best first, and their probabilities (*batch, k).

        If there are fewer, zeros of probability 0 follow.
        """
        tree = self._tree
        # float64 keeps the order of structures that are close
        best, values = tree.kbest(_log_of(self._weights.detach()).double(), k)
        if functional() or (torch.is_grad_enabled() and tree.scores.requires_grad):
            probs = torch.where(values > -torch.inf, self.prob(best).movedim(0, -1), 0)
        else:
            probs = values.exp()
        moved = map_parts(lambda t: t.movedim(0, len(tree.batch)), best)
        return narrow(moved, self._dtype), probs.to(self._dtype)

    def sample_distinct(self, k: int, generator: torch.Generator | None = None) -> tuple[Parts, Tensor]:
        """k structures that differ (*batch, k, ...), in the order of draws without replacement, and probabilities.

        Each is drawn by its probability among those that are left; probabilities (*batch, k) are those of the whole
        distribution. If there are fewer, zeros of probability 0 follow. (Derivations of a `Hypergraph` that use
        the same parts count as different, as in `topk`.)

        See: Kool, van Hoof and Welling 2019, Stochastic beams and where to find them.
        """
        tree = self._tree
        y, there = from_walk(self._weights, tree.graph, tree.roots, k, generator)
        found = tree.shaped(y.movedim(1, 0).to(tree.scores.dtype))
        return self._distinct(map_parts(lambda t: t.movedim(0, len(tree.batch)), found), there.reshape(*tree.batch, k))

    def _distinct(self, y: Parts, there: Tensor) -> tuple[Parts, Tensor]:
        """Structures (*batch, k, ...) and their probabilities, 0 for those that do not exist."""
        dim = len(self.batch_shape)
        probs = self.prob(map_parts(lambda t: t.movedim(dim, 0), y)).movedim(0, -1)
        return narrow(y, self._dtype), torch.where(there, probs, 0)

    def support(self) -> tuple[Parts, Tensor]:  # type: ignore[override]
        """All structures of positive probability, as `topk` gives them."""
        tree = self._tree
        counts = hypergraph_count(self._weights.detach(), *tree.graph.arrays[:2], tree.roots)
        return self.topk(refuse_large_support(counts))

    @cached_property
    def _tree(self) -> Derivations:
        return self.structure.derivations(*self._scores)

    @cached_property
    def _weights(self) -> Tensor:
        """The weights p (B, edges) of hyperedges, recorded by autograd if the scores require gradients."""
        tree = self._tree
        with torch.set_grad_enabled(torch.is_grad_enabled() and tree.scores.requires_grad):
            levels = levels_of(tree.graph)
            scores = usable_scores(levels, tree.scores.double(), tree.roots)
            _, a = levels.inside(of_edges(scores, tree.graph.part), self._omega)
            return levels.weights(a, self._omega).T

    @cached_property
    def _expected_uses(self) -> Tensor:
        """The expected numbers q (B, edges) of uses of hyperedges."""
        tree = self._tree
        q, _ = levels_of(tree.graph).outside(self._weights.T, tree.roots, self._weights.new_ones(tree.roots.shape))
        return q.T

    def _hyperedges(self, y: Parts) -> tuple[Tensor, Tensor]:
        """The uses of each hyperedge in a derivation of y, (*lead, B, edges), and a mask, False if there is none."""
        tree = self._tree
        dims = self.structure.event_dims(*tensors(y))
        if tree.flat is not None:
            flat = tree.flat(y)
        else:
            flat = torch.cat([t.flatten(-d) for t, d in zip(tensors(y), dims, strict=True)], -1)
        lead = flat.shape[: flat.dim() - 1 - len(tree.batch)]
        copies = lead.numel()
        # forbid parts outside of y, and use each part of y as often as y does: one derivation remains
        wanted = flat.reshape(-1, tree.graph.parts).double()
        allowed = torch.where(wanted > 0, 1.0, -torch.inf).double()
        arrays, roots = tree.graph.arrays, tree.roots.repeat(copies)
        value, chart = hypergraph_inside(allowed, *arrays, roots, HARD)
        p = hypergraph_weights(allowed, *arrays, roots, chart, HARD)
        visits = hypergraph_visits(p, *arrays[:2], roots)
        q = p * visits[:, levels_of(tree.graph).heads]
        derived = (value == wanted.sum(-1)).reshape((*lead, *tree.batch))
        return q.reshape(*lead, tree.roots.shape[0], tree.graph.edges), derived


@register_kl(Walk, Walk)
def _kl_of_walks(p: Walk, q: Walk) -> Tensor:
    return p.cross_entropy(q) - p.entropy()


def refuse_large_support(counts: Tensor) -> int:
    """The largest of the counts of structures, at least 1; a ValueError if they are too many to list."""
    largest = float(counts.max()) if counts.numel() else 0.0
    if largest > _LARGEST_SUPPORT:
        raise ValueError(f"the support has {largest:.3g} structures, too many to list; take topk(k)")
    return max(int(largest), 1)


def _log_of(p: Tensor) -> Tensor:
    return torch.where(p > 0, torch.log(torch.where(p > 0, p, 1)), -torch.inf)


def _sum(q: Tensor, log: Tensor, tree: Derivations) -> Tensor:
    terms = torch.where(q == 0, 0, q * torch.where(q == 0, 0, log))
    return terms.sum(-1).reshape((*q.shape[:-2], *tree.batch))
