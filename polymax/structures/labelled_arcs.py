"""Dependency trees whose arcs have labels: each arc counts with the smoothed maximum over its labels.

    lam[h, m] = max_Omega over labels of scores[h, m, :]        mu[h, m, :] = mu_arcs(lam)[h, m] argmax_Omega

so that the algorithms for arcs without labels apply. The compact form is the head and the label of each token.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax.backend.cpu_arrays import memory
from polymax.backend.function import outside_transforms
from polymax.hypergraphs import Builder, Derivations, Graph
from polymax.hypergraphs.passes import Problem
from polymax.hypergraphs.smoothed import regularizer_of
from polymax.structures.base import checked_lengths
from polymax.structures.compact.heads import encode_heads
from polymax.structures.compact.labels import encode_labels
from polymax.structures.usable import usable_arcs


@dataclass(frozen=True)
class LabelledProblem:
    """The problem of arcs with labels: scores x (*batch, n + 1, n + 1, labels), and the problem without labels."""

    x: Tensor
    arcs: Callable[[Tensor], Problem]

    def value(self, alpha: float) -> Tensor:
        """The smoothed maximum, (*batch,)."""
        return self.arcs(regularizer_of(alpha).max(self.x)).value(alpha)

    def expectation(self, alpha: float) -> Tensor:
        """Its gradient, (*batch, n + 1, n + 1, labels)."""
        mu = self.arcs(regularizer_of(alpha).max(self.x)).expectation(alpha).unsqueeze(-1)
        return torch.where(mu == 0, 0, mu * regularizer_of(alpha).argmax(self.x))


def arcs_with_labels(lengths: Tensor | None, *scores: Tensor) -> Tensor:
    """Checked scores, with 0 outside the arcs of an instance, so that NaN there does not reach maxima over labels."""
    (x,) = scores
    if x.dim() < 3 or x.shape[-2] != x.shape[-3] or x.shape[-2] == 0:
        raise ValueError(f"scores must be (*batch, n + 1, n + 1, labels); got {tuple(x.shape)}")
    if lengths is not None:
        checked_lengths(lengths, x.shape[:-3], x.shape[-2] - 1, x.device, "lengths")
    return torch.where(usable_arcs(lengths, x, labelled=True), x, 0)


def with_labels(tree: Derivations, x: Tensor) -> Derivations:
    """Derivations of trees with labels, made from derivations without: a node for each arc chooses its label."""
    labels = x.shape[-1]
    graph, number = _labelled_graph(tree.graph, labels)
    roots = torch.where(tree.roots < 0, -1, number.to(tree.roots.device)[tree.roots.clamp(min=0)])
    rows = x.reshape(tree.scores.shape[0], x.shape[-3:].numel())
    return Derivations(
        rows, graph.to(x.device), roots, tree.batch, lambda mu: mu.reshape(*mu.shape[:-2], *tree.batch, *x.shape[-3:])
    )


@lru_cache(maxsize=64)
def _labelled_graph(graph: Graph, labels: int) -> tuple[Graph, Tensor]:
    """The graph in which a node for each part chooses its label, and the new number of each node of the old graph."""
    # torch.func would wrap the tables, which outlive its call
    with outside_transforms():
        first, tails, part = (memory(t.cpu()) for t in graph.arrays)
    heads = np.repeat(np.arange(graph.nodes), np.diff(first))
    # hyperedges have at most two tails: an extra node before the head joins two of three tails
    wide = (part >= 0) & (tails[:, 1] >= 0)
    extra = np.bincount(heads, wide, minlength=graph.nodes).astype(np.int64)
    number = graph.parts + np.arange(graph.nodes) + np.cumsum(extra)
    moved = np.where(tails >= 0, number[tails], -1)
    joined = np.full(len(part), -1)
    before: np.ndarray = np.cumsum(wide) - wide
    joined[wide] = (number - extra)[heads[wide]] + before[wide] - (np.cumsum(extra) - extra)[heads[wide]]
    builder = Builder(parts=graph.parts * labels)
    arc, label = np.ogrid[: graph.parts, :labels]
    builder.add(arc, arc * labels + label)
    builder.add(joined[wide], -1, moved[wide, 1], part[wide])
    chosen = np.where(wide, joined, np.where(part >= 0, part, moved[:, 1]))
    builder.add(number[heads], -1, moved[:, 0], chosen)
    with outside_transforms():
        return builder.build(graph.parts + graph.nodes + int(extra.sum())), torch.from_numpy(number)


def checked_arcs(lengths: Tensor | None, *scores: Tensor) -> tuple[tuple[Tensor, Tensor], torch.Size]:
    """Scores (B, n + 1, n + 1) of arcs without labels and the tokens of each instance (B,), and the batch."""
    (x,) = scores
    if x.dim() < 2 or x.shape[-1] != x.shape[-2] or x.shape[-1] == 0:
        raise ValueError(f"scores must be (*batch, n + 1, n + 1); got {tuple(x.shape)}")
    batch = x.shape[:-2]
    tokens = checked_lengths(lengths, batch, x.shape[-1] - 1, x.device, "lengths")
    return (x if len(batch) == 1 else x.reshape(math.prod(batch), *x.shape[-2:]), tokens), batch


def tree_indicators(heads: list[tuple[int, ...]], event_shape: tuple[int, ...]) -> Tensor:
    """Indicators (count, n + 1, n + 1) of trees given by their heads; if the event has 3 dims, of all labellings."""
    n = event_shape[0] - 1
    rows = torch.tensor(heads, dtype=torch.long).reshape(len(heads), n)
    if len(event_shape) == 2:
        return encode_heads(rows)
    labels = event_shape[2]
    names = torch.tensor(list(itertools.product(range(labels), repeat=n)), dtype=torch.long).reshape(labels**n, n)
    return encode_labels(torch.stack([rows.repeat_interleave(len(names), 0), names.repeat(len(rows), 1)], -1), labels)


def best_labellings(heads: Tensor, values: Tensor, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best trees with labels, given the k best without: heads and labels (B, k, n, 2), and scores (B, k).

    The k best have at most k trees, which are the k best by their best labels. Token by token, the k best labellings
    of each tree so far go on with each label.

    Shapes: heads (B, k, n); values (B, k), -inf if there are fewer than k; x (B, n + 1, n + 1, labels)
    """
    batch, _, n = heads.shape
    if n and not x.shape[-1]:
        return heads.new_full((batch, k, n, 2), -1), values.new_full((batch, k), -torch.inf)
    trees = torch.where(values > -torch.inf, 0.0, values).double().unsqueeze(-1)
    totals = torch.nn.functional.pad(trees, (0, k - 1), value=-torch.inf)
    names = heads.new_full((batch, k, k, n), -1)
    for m in range(n):
        at = heads[:, :, m]
        row = x[:, :, m + 1].gather(1, at.clamp(min=0).unsqueeze(-1).expand(-1, -1, x.shape[-1])).double()
        # padding has one label, -1, of score 0
        none = torch.where(torch.arange(x.shape[-1], device=x.device) == 0, 0.0, -torch.inf).double()
        row = torch.where((at < 0).unsqueeze(-1), none, row)
        each = (totals.unsqueeze(-1) + row.unsqueeze(-2)).flatten(-2)
        totals, chosen = _first(each, k)
        before = (chosen // x.shape[-1]).unsqueeze(-1).expand(-1, -1, -1, n)
        names = names.gather(2, before).clone()
        names[..., m] = torch.where((at < 0).unsqueeze(-1), -1, chosen % x.shape[-1])
    best, chosen = _first(totals.flatten(1), k)
    picked = chosen.unsqueeze(-1).expand(-1, -1, n)
    names = names.flatten(1, 2).gather(1, picked)
    own = heads.gather(1, (chosen // k).unsqueeze(-1).expand(-1, -1, n))
    index = torch.stack([own, names], -1)
    return torch.where((best > -torch.inf)[..., None, None], index, -1), best


def _first(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries along the last dim and their places; equal entries keep their order."""
    ordered, places = values.sort(dim=-1, descending=True, stable=True)
    return ordered[..., :k], places[..., :k]
