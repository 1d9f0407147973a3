"""Dependency trees whose arcs have labels: each arc counts with the smoothed maximum over its labels.

    lam[h, m] = max_Omega over labels of scores[h, m, :]        mu[h, m, :] = mu_arcs(lam)[h, m] argmax_Omega

so that the algorithms are those of arcs without labels. The compact form is head and label of each token.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax import _check
from polymax._function import untransformed
from polymax.hypergraphs.graph import Builder, Graph
from polymax.regularizers import Regularizer, Tsallis, Zero
from polymax.structures import faults
from polymax.structures.base import checked_lengths
from polymax.structures.dynamic import HARD, Derivations, Problem
from polymax.structures.heads import allowed_heads, decode_heads, encode_heads


@dataclass(frozen=True)
class LabelledProblem:
    """Arcs with labels as a problem: x (*batch, n + 1, n + 1, labels), and the problem of arcs without."""

    x: Tensor
    arcs: Callable[[Tensor], Problem]

    def value(self, alpha: float) -> Tensor:
        """The smoothed maximum, (*batch,)."""
        return self.arcs(_entropy(alpha).max(self.x)).value(alpha)

    def expectation(self, alpha: float) -> Tensor:
        """Its gradient, (*batch, n + 1, n + 1, labels)."""
        mu = self.arcs(_entropy(alpha).max(self.x)).expectation(alpha).unsqueeze(-1)
        return torch.where(mu == 0, 0, mu * _entropy(alpha).argmax(self.x))


def _entropy(alpha: float) -> Regularizer:
    return Zero() if alpha == HARD else Tsallis(alpha)


def arcs_with_labels(lengths: Tensor | None, *scores: Tensor) -> Tensor:
    """Scores, checked, with 0 at what is no arc of an instance: NaN there is not to reach a maximum over labels."""
    (x,) = scores
    if x.dim() < 3 or x.shape[-2] != x.shape[-3] or x.shape[-2] == 0:
        raise ValueError(f"scores must be (*batch, n + 1, n + 1, labels); got {tuple(x.shape)}")
    place = torch.arange(x.shape[-2], device=x.device)
    arc = (place[:, None] != place) & (place > 0)
    if lengths is not None:
        batch = x.shape[:-3]
        tokens = checked_lengths(lengths, batch, x.shape[-2] - 1, x.device, "lengths").reshape(*batch, 1)
        within = place <= tokens
        arc = arc & within.unsqueeze(-1) & within.unsqueeze(-2)
    return torch.where(arc.unsqueeze(-1), x, 0)


def with_labels(tree: Derivations, x: Tensor) -> Derivations:
    """Derivations of arcs, given those without labels: a node for each arc chooses its label."""
    labels = x.shape[-1]
    graph, number = _labelled_graph(tree.graph, labels)
    roots = torch.where(tree.roots < 0, -1, number.to(tree.roots.device)[tree.roots.clamp(min=0)])
    rows = x.reshape(tree.scores.shape[0], x.shape[-3:].numel())
    return Derivations(
        rows, graph.to(x.device), roots, tree.batch, lambda mu: mu.reshape(*mu.shape[:-2], *tree.batch, *x.shape[-3:])
    )


@lru_cache(maxsize=64)
def _labelled_graph(graph: Graph, labels: int) -> tuple[Graph, Tensor]:
    """The graph with a node for each part, which chooses a label, and the number in it of each node of the other."""
    # torch.func would wrap the tables, which outlive its call
    with untransformed():
        first, tails, part = (t.cpu().numpy() for t in graph.arrays)
    heads = np.repeat(np.arange(graph.nodes), np.diff(first))
    # a hyperedge with two tails has no room for a third: a node of its own, before its head, joins two of them
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
    with untransformed():
        return builder.build(graph.parts + graph.nodes + int(extra.sum())), torch.from_numpy(number)


def every_labelling(arcs: Tensor, labels: int) -> Tensor:
    """Trees (count, n + 1, n + 1) with each of their labellings, (count labels^n, n + 1, n + 1, labels)."""
    heads = decode_heads(arcs)
    n = heads.shape[-1]
    names = torch.tensor(list(itertools.product(range(labels), repeat=n)), dtype=torch.long).reshape(labels**n, n)
    index = torch.stack([heads.repeat_interleave(len(names), 0), names.repeat(len(heads), 1)], -1)
    return spread(index, labels)


def spread(index: Tensor, labels: int) -> Tensor:
    """Heads and labels (*batch, n, 2) to indicators (*batch, n + 1, n + 1, labels)."""
    name = index[..., 1].unsqueeze(-1) == torch.arange(labels, device=index.device)
    # no label for the root symbol, which has no head
    name = torch.nn.functional.pad(name, (0, 0, 1, 0))
    return encode_heads(index[..., 0]).unsqueeze(-1) * name.unsqueeze(-3)


def heads_and_labels(y: Tensor) -> Tensor:
    """Indicators (*batch, n + 1, n + 1, labels) to heads and labels (*batch, n, 2), -1 at padding."""
    heads = decode_heads(y.sum(-1))
    columns = y[..., 1:, :].sum(-3)
    labels = columns.argmax(-1) if y.shape[-1] else torch.full_like(heads, -1)
    return torch.stack([heads, torch.where(heads < 0, -1, labels)], -1)


def places_with_labels(index: Tensor, labels: int) -> Tensor:
    """Heads and labels (*batch, n, 2) as places in flat scores, -1 at padding."""
    n = index.shape[-2]
    tokens = torch.arange(1, n + 1, device=index.device)
    heads, names = index.unbind(-1)
    return torch.where(heads < 0, -1, (heads * (n + 1) + tokens) * labels + names)


def check_form(index: Tensor, shape: torch.Size | None = None) -> None:
    """Heads and labels (*batch, n, 2), of scores of this shape where it is given."""
    faults.integers(index)
    if index.dim() < 2 or index.shape[-1] != 2:
        raise ValueError(f"index must be heads and labels of tokens, (*batch, n, 2); got {tuple(index.shape)}")
    if shape is not None:
        faults.shaped(index, (*shape[:-3], shape[-2] - 1, 2), "heads and labels of tokens 1..n, (*batch, n, 2)")


def check_labels(index: Tensor, labels: int, unknown: bool = False) -> None:
    """Each token with a head has a label, in range, and no other has; with `unknown`, -2 is one."""
    if not _check.readable(index):
        return
    heads, names = index.unbind(-1)
    known = (names >= 0) | ((names == -2) & unknown)
    bad = torch.where(heads == -1, names != -1, ~known | (names >= labels))

    def explain(instance: tuple[int, ...], place: int) -> str:
        came = int(names[(*instance, place)])
        return f"token {place + 1}{faults.of(instance)} has label {came}, not one in [0, {labels}); padding is -1"

    faults.refuse("labelled tree", bad, explain)


def allowed_arcs(index: Tensor, labels: int) -> Tensor:
    """Heads and labels (*batch, n, 2), -2 where not known, to what agrees with them, bool, shaped like the scores."""
    heads, names = index.unbind(-1)
    name = (names.unsqueeze(-1) == torch.arange(labels, device=index.device)) | (names == -2).unsqueeze(-1)
    return allowed_heads(heads).unsqueeze(-1) & torch.nn.functional.pad(name, (0, 0, 1, 0)).unsqueeze(-3)


def best_labellings(heads: Tensor, values: Tensor, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best trees with labels, given the k best without: heads and labels (B, k, n, 2), and scores (B, k).

    The k best have at most k trees, which are the k best by their best labels. Token by token, the k best labellings
    of each tree so far go on with each label.

    Shapes: heads (B, k, n), values (B, k), -inf where there are fewer; x (B, n + 1, n + 1, labels)
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
    """The k largest along the last dim and their places, of equal ones the first."""
    ordered, places = values.sort(dim=-1, descending=True, stable=True)
    return ordered[..., :k], places[..., :k]
