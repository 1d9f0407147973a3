"""Dependency trees without crossing arcs: Eisner's algorithm."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polymax.kernels.projective_tree import (
    projective_tree_inside,
    projective_tree_outside,
    projective_tree_tangent,
)
from polymax.structures.arcs import Arcs
from polymax.structures.base import checked_lengths
from polymax.structures.dynamic import Derivations, DynamicProgram, Problem, kernel_passes
from polymax.structures.heads import crosses, encode_heads, trees
from polymax.structures.labelled_arcs import LabelledProblem, arcs_with_labels, every_labelling, with_labels
from polymax.structures.tree_faults import check_projective


@dataclass(frozen=True, eq=False)
class ProjectiveTree(Arcs, DynamicProgram):
    """Trees over tokens 1..n below the root symbol 0, no two arcs crossing; the parts are arcs [head, modifier].

    With `single_root` exactly one token hangs from the root symbol. Lengths count tokens. With `labelled` each arc
    carries one of the labels, and the compact form is head and label of each token.

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

    parts_once = True

    def problem(self, *scores: Tensor) -> Problem:
        if self.labelled:
            arcs = replace(self, labelled=False)
            return LabelledProblem(arcs_with_labels(self.lengths, *scores), arcs.problem)  # type: ignore[return-value]
        tensors, batch = self._flat(*scores)
        ops = (projective_tree_inside, projective_tree_outside, projective_tree_tangent)
        passes = kernel_passes(*ops, recorded=_recorded, options=(self.single_root,))
        return Problem(passes, tensors, batch, lambda mu: mu[0].reshape(*batch, *mu[0].shape[1:]))

    def derivations(self, *scores: Tensor) -> Derivations:
        from polymax.kernels.projective_tree.reference import as_graph

        if self.labelled:
            x = arcs_with_labels(self.lengths, *scores)
            return with_labels(replace(self, labelled=False).derivations(x.sum(-1)), x)
        tensors, batch = self._flat(*scores)
        flat, graph, roots = as_graph(*tensors, self.single_root)
        size = tensors[0].shape[1:]
        return Derivations(flat, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *batch, *size))

    def most_parts(self, *events: torch.Size) -> int:
        return events[0][0]

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        heads = [h for h in trees(event_shape[0] - 1, self.single_root) if not crosses(h)]
        arcs = encode_heads(torch.tensor(heads, dtype=torch.long).reshape(len(heads), event_shape[0] - 1))
        return every_labelling(arcs, event_shape[2]) if self.labelled else arcs

    def check_heads(self, heads: Tensor) -> None:
        check_projective(heads)

    def _flat(self, *scores: Tensor) -> tuple[tuple[Tensor, Tensor], torch.Size]:
        (x,) = scores
        if x.dim() < 2 or x.shape[-1] != x.shape[-2] or x.shape[-1] == 0:
            raise ValueError(f"scores must be (*batch, n + 1, n + 1); got {tuple(x.shape)}")
        batch = x.shape[:-2]
        lengths = checked_lengths(self.lengths, batch, x.shape[-1] - 1, x.device, "lengths")
        return (x.reshape(batch.numel(), *x.shape[-2:]), lengths), batch


def _recorded(*args: Any) -> Tensor:
    from polymax.kernels.projective_tree.reference import recorded

    return recorded(*args)
