"""Dependency trees without crossing arcs: Eisner's algorithm."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymax.kernels.projective_tree import (
    projective_tree_inside,
    projective_tree_outside,
    projective_tree_tangent,
)
from polymax.structures.base import checked_lengths
from polymax.structures.dynamic import Derivations, DynamicProgram, Problem, kernel_passes
from polymax.structures.heads import allowed_heads, crosses, decode_heads, encode_heads, places_of, trees
from polymax.structures.tree_faults import (
    check_arcs,
    check_encoded_heads,
    check_heads,
    check_known_heads,
    check_projective,
)


@dataclass(frozen=True, eq=False)
class ProjectiveTree(DynamicProgram):
    """Trees over tokens 1..n below the root symbol 0, no two arcs crossing; the parts are arcs [head, modifier].

    With `single_root` exactly one token hangs from the root symbol. Lengths count tokens.

    Shapes: scores (*batch, n + 1, n + 1); lengths (*batch,)

    Example:
        >>> scores = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        >>> ProjectiveTree().decode(ProjectiveTree().map(scores))
        tensor([0, 1])

    See: Eisner 1996, Three new probabilistic models for dependency parsing.
    """

    lengths: Tensor | None = None
    single_root: bool = True

    def problem(self, *scores: Tensor) -> Problem:
        tensors, batch = self._flat(*scores)
        ops = (projective_tree_inside, projective_tree_outside, projective_tree_tangent)
        passes = kernel_passes(*ops, recorded=_recorded, options=(self.single_root,))
        return Problem(passes, tensors, batch, lambda mu: mu[0].reshape(*batch, *mu[0].shape[1:]))

    def derivations(self, *scores: Tensor) -> Derivations:
        from polymax.kernels.projective_tree.reference import as_graph

        tensors, batch = self._flat(*scores)
        flat, graph, roots = as_graph(*tensors, self.single_root)
        size = tensors[0].shape[1:]
        return Derivations(flat, graph, roots, batch, lambda mu: mu.reshape(*mu.shape[:-2], *batch, *size))

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2,)

    def vertices(self, event_shape: tuple[int, ...]) -> Tensor:
        heads = [h for h in trees(event_shape[0] - 1, self.single_root) if not crosses(h)]
        return encode_heads(torch.tensor(heads, dtype=torch.long).reshape(len(heads), event_shape[0] - 1))

    def encode(self, index: Tensor, *shape: int) -> Tensor:
        """Heads (*batch, n) of tokens 1..n, -1 at padding, to arcs."""
        y = encode_heads(index)
        check_encoded_heads(index, self.single_root)
        check_projective(index)
        return y

    def decode(self, y: Any) -> Tensor:
        """Heads (*batch, n) of tokens 1..n, -1 at padding."""
        return decode_heads(y)

    def places(self, index: Tensor, *scores: Tensor) -> Tensor:
        return places_of(index)

    def check(self, index: Tensor, *scores: Tensor) -> Tensor:
        self._flat(*scores)
        heads = check_heads(index, scores[0], self.lengths, self.single_root)
        check_projective(heads)
        return heads

    def check_parts(self, y: Any, *scores: Tensor) -> None:
        check_arcs(y)
        super().check_parts(y, *scores)

    def allowed(self, index: Tensor, *scores: Tensor) -> Tensor:
        """Heads (*batch, n), -2 where not known."""
        check_known_heads(index, scores[0], self.lengths)
        return allowed_heads(index)

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
