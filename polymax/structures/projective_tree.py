"""Dependency trees without crossing arcs: Eisner's algorithm."""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from polymax.hypergraphs import Derivations, Graph
from polymax.hypergraphs.passes import Problem, kernel_passes
from polymax.kernels.active_set.problem import Search
from polymax.kernels.projective_tree import (
    projective_tree_inside,
    projective_tree_outside,
    projective_tree_tangent,
)
from polymax.kernels.projective_tree.reference import as_graph, recorded
from polymax.structures.base import checked_lengths
from polymax.structures.compact.heads import crosses, trees
from polymax.structures.compact.trees import Heads
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.labelled_arcs import (
    LabelledProblem,
    arcs_with_labels,
    checked_arcs,
    tree_indicators,
    with_labels,
)
from polymax.structures.usable import usable_arcs

_OPS = (projective_tree_inside, projective_tree_outside, projective_tree_tangent)
# the passes of the kernels, by single_root
_PASSES = {single: kernel_passes(*_OPS, recorded=recorded, options=(single,)) for single in (False, True)}


@dataclass(frozen=True, eq=False)
class ProjectiveTree(DynamicProgram):
    """Dependency trees over tokens 1..n below the root symbol 0, without crossings; parts are arcs [head, modifier].

    With `single_root` exactly one token hangs from the root symbol. Lengths count tokens. With `labelled` each arc
    has one of the labels, and the compact form is the head and the label of each token.

    Shapes: scores (*batch, n + 1, n + 1), or (*batch, n + 1, n + 1, labels) with `labelled`; lengths (*batch,)

    Example:
        >>> scores = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        >>> ProjectiveTree().decode(ProjectiveTree().map(scores))
        tensor([0, 1])

    See: Eisner 1996, Three new probabilistic models for dependency parsing.
    """

    lengths: Tensor | None = None
    single_root: bool = True
    labelled: bool = False
    may_be_empty = False
    form = partial(Heads, projective=True)
    parts_once = True

    def problem(self, *scores: Tensor) -> Problem:
        if self.labelled:
            arcs = replace(self, labelled=False)
            return LabelledProblem(arcs_with_labels(self.lengths, *scores), arcs.problem)  # type: ignore[return-value]
        tensors, batch = checked_arcs(self.lengths, *scores)
        return Problem(_PASSES[self.single_root], tensors, batch, lambda mu: mu[0].reshape(scores[0].shape))

    def derivations(self, *scores: Tensor) -> Derivations:
        if self.labelled:
            return self._with_labels(arcs_with_labels(self.lengths, *scores))
        tensors, batch = checked_arcs(self.lengths, *scores)
        flat, graph, roots = as_graph(*tensors, self.single_root)
        return Derivations(flat, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *scores[0].shape))

    def search(self, *scores: Tensor) -> Search:
        if self.labelled:
            x = arcs_with_labels(self.lengths, *scores)
            batch, n = x.shape[:-3], x.shape[-2] - 1
            lengths = checked_lengths(self.lengths, batch, n, x.device, "lengths")
            tensors = x.reshape(math.prod(batch), *x.shape[-3:]), lengths
            derived = partial(self._labelled_graph, x)
        else:
            tensors, batch = checked_arcs(self.lengths, *scores)
            derived = partial(as_graph, *tensors, self.single_root)
        events = (tensors[0].shape[1:],)
        return Search("projective", tensors, batch, events, self.most_parts(*events), (self.single_root, derived))

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (3,) if self.labelled else (2,)

    def most_parts(self, *events: torch.Size) -> int:
        return events[0][0]

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        heads = trees(event_shape[0] - 1, self.single_root)
        return tree_indicators([h for h in heads if not crosses(h)], event_shape)

    def usable(self, *parts: Tensor) -> tuple[Tensor, ...]:
        return (usable_arcs(self.lengths, parts[0], self.labelled),)

    def _with_labels(self, x: Tensor) -> Derivations:
        return with_labels(replace(self, labelled=False).derivations(x.sum(-1)), x)

    def _labelled_graph(self, x: Tensor) -> tuple[Tensor, Graph, Tensor]:
        tree = self._with_labels(x)
        return tree.scores, tree.graph, tree.roots
