"""Projective dependency trees that score pairs of arcs: neighbouring siblings, and grandparents."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymax.hypergraphs import Derivations
from polymax.hypergraphs.graph import Builder, Family, Graph
from polymax.structures.base import Structure, checked_lengths, zeros_of
from polymax.structures.compact.pairs_of_arcs import PairedHeads
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.projective_tree import ProjectiveTree


class SiblingParts(NamedTuple):
    """Arcs [head, modifier] (*batch, n + 1, n + 1), and [head, sibling, modifier] (*batch, n + 1, n + 1, n + 1)."""

    arcs: Tensor
    siblings: Tensor


class GrandparentParts(NamedTuple):
    """Arcs [head, modifier] (*batch, n + 1, n + 1), and [grandparent, head, modifier] (*batch, n + 1, n + 1, n + 1)."""

    arcs: Tensor
    grandparents: Tensor


class SecondOrderTree(DynamicProgram):
    """Projective trees with a second score tensor, of pairs of arcs; compact forms are those of `ProjectiveTree`."""

    single_root: bool
    may_be_empty = False
    parts_once = True

    @property
    def tree(self) -> ProjectiveTree:
        """The same trees by their arcs alone."""
        return ProjectiveTree(self.lengths, self.single_root)

    @abstractmethod
    def pairs(self, arcs: Tensor) -> Tensor:
        """The pairs (*batch, n + 1, n + 1, n + 1) of trees given by their arcs."""

    @abstractmethod
    def graph(self, scores: Tensor, positions: int) -> tuple[Graph, int]:
        """The hypergraph beside flat scores, and the node that comes L nodes before the root of length L."""

    def derivations(self, *scores: Tensor) -> Derivations:
        arcs, pairs = self.full(*scores)
        batch, size = arcs.shape[:-2], arcs.shape[-1]
        flat = torch.cat([arcs.reshape(batch.numel(), size**2), pairs.reshape(batch.numel(), size**3)], 1)
        graph, start = self.graph(flat, size)
        lengths = checked_lengths(self.lengths, batch, size - 1, arcs.device, "lengths")
        roots = torch.where(lengths > 0, start + lengths, -1)

        def shaped(mu: Tensor) -> Any:
            first, second = mu.split([size**2, size**3], -1)
            lead = (*mu.shape[:-2], *batch)
            return self.named(first.reshape(*lead, size, size), second.reshape(*lead, size, size, size))

        return Derivations(flat, graph, roots, batch, shaped)

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        if len(scores) != 2:
            raise TypeError(f"{type(self).__name__} has two score tensors, of arcs and of pairs; got {len(scores)}")
        arcs, pairs = scores
        if arcs.dim() < 2 or arcs.shape[-1] != arcs.shape[-2] or arcs.shape[-1] == 0:
            raise ValueError(f"arcs must be (*batch, n + 1, n + 1); got {tuple(arcs.shape)}")
        want = (*arcs.shape, arcs.shape[-1])
        if pairs.dim() < 3 or pairs.shape[-3:] != want[-3:]:
            raise ValueError(f"pairs of arcs must broadcast to {want}; got {tuple(pairs.shape)}")
        return arcs, pairs.expand(want)

    def score(self, y: Any, *scores: Tensor) -> Tensor:
        return super().score(y, *self.full(*scores))

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return 2, 3

    def vertices(self, event_shape: tuple[int, ...]) -> Any:
        return self.complete(self.tree.vertices(event_shape))

    def unscored(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        first = zeros_of(self, event_shape)
        return first, first.new_zeros(*event_shape, event_shape[-1])

    def complete(self, first: Tensor) -> Any:
        return self.named(first, self.pairs(first))

    def mean(self, vertices: Tensor, probs: Tensor) -> Any:
        return self.named(*(Structure.mean(self, t, probs) for t in self.complete(vertices)))

    def most_parts(self, *events: torch.Size) -> int:
        return 2 * events[0][0]

    @property
    def compact(self) -> PairedHeads:
        return PairedHeads(self)


@dataclass(frozen=True, eq=False)
class SiblingTree(SecondOrderTree):
    """Projective trees that score neighbouring siblings: a head takes its modifiers from the inside to the outside.

    siblings [h, s, m] counts where h is the head of s and of m, m being the next modifier after s on the same side; and
    [h, h, m] where m is the first on its side. Each token with a head has one such part: O(n^3) steps.

    Shapes: arcs (*batch, n + 1, n + 1), siblings (*batch, n + 1, n + 1, n + 1); lengths (*batch,) count tokens

    Example:
        >>> arcs, siblings = torch.zeros(4, 4), torch.zeros(4, 4, 4)
        >>> siblings[1, 2, 3] = 1.0  # 2 and 3 hang from 1
        >>> SiblingTree().decode(SiblingTree().map(arcs, siblings))
        tensor([0, 1, 1])

    See: Eisner 1996; McDonald and Pereira 2006, Online learning of approximate dependency parsing algorithms.
    """

    lengths: Tensor | None = None
    single_root: bool = True

    def named(self, *parts: Tensor) -> SiblingParts:
        return SiblingParts(*parts)

    def pairs(self, arcs: Tensor) -> Tensor:
        size = arcs.shape[-1]
        place = torch.arange(size, device=arcs.device)
        head, sibling, modifier = place.reshape(-1, 1, 1), place.reshape(-1, 1), place
        upto = arcs.cumsum(-1)
        before = torch.nn.functional.pad(upto[..., :-1], (1, 0))
        # how many modifiers of the head lie strictly between two places
        right = before.unsqueeze(-2) - upto.unsqueeze(-1)
        left = before.unsqueeze(-1) - upto.unsqueeze(-2)
        between = torch.where(modifier > sibling, right, left)
        side = torch.where(
            modifier > head, (sibling >= head) & (sibling < modifier), (sibling <= head) & (sibling > modifier)
        )
        first = sibling == head
        chosen = side & (between == 0) & (modifier != head)
        of_sibling = torch.where(first, 1.0, arcs.unsqueeze(-1))
        return torch.where(chosen, of_sibling * arcs.unsqueeze(-2), 0).to(arcs.dtype)

    def graph(self, scores: Tensor, positions: int) -> tuple[Graph, int]:
        before = _SIBLING_KINDS + int(self.single_root)
        return _siblings.beside(scores, positions, int(self.single_root)), before * positions * positions


@dataclass(frozen=True, eq=False)
class GrandparentTree(SecondOrderTree):
    """Projective trees that score each arc together with the arc to its head: half trees know their head's head.

    grandparents [g, h, m] counts where g is the head of h and h that of m; a token that hangs from the root symbol has
    no such part. O(n^4) steps.

    Shapes: arcs (*batch, n + 1, n + 1), grandparents (*batch, n + 1, n + 1, n + 1); lengths (*batch,) count tokens

    Example:
        >>> arcs, grandparents = torch.zeros(4, 4), torch.zeros(4, 4, 4)
        >>> grandparents[2, 1, 3] = 0.0
        >>> grandparents[0, 3, 2] = grandparents[3, 2, 1] = 1.0
        >>> GrandparentTree().decode(GrandparentTree().map(arcs, grandparents))
        tensor([2, 3, 0])

    See: Koo and Collins 2010, Efficient third-order dependency parsers, model 0.
    """

    lengths: Tensor | None = None
    single_root: bool = True

    def named(self, *parts: Tensor) -> GrandparentParts:
        return GrandparentParts(*parts)

    def pairs(self, arcs: Tensor) -> Tensor:
        return arcs.unsqueeze(-1) * arcs.unsqueeze(-3)

    def graph(self, scores: Tensor, positions: int) -> tuple[Graph, int]:
        return _grandparents.beside(scores, positions, int(self.single_root)), _GRANDPARENT_KINDS * positions**3


_SIBLING_KINDS, _GRANDPARENT_KINDS = 7, 6


@Family
def _siblings(positions: int, single_root: int) -> Graph:
    """Half trees over positions i < j.

    S joins two of them between siblings, JR and JL choose the sibling before the outermost modifier, IR and IL add its
    arc, R and L are complete. The root of length L comes after all others.
    """

    def node(kind: int, i: Any, j: Any) -> Any:
        # narrower spans first, and within a span in the order of the kinds
        return ((j - i) * positions + i) * _SIBLING_KINDS + kind

    between, join_right, arc_right, join_left, arc_left, right, left = range(_SIBLING_KINDS)
    square = positions * positions

    def sibling(h: Any, s: Any, m: Any) -> Any:
        return square + (h * positions + s) * positions + m

    builder = Builder(parts=square + positions**3)
    start = 1 if single_root else 0
    for width in range(1, positions):
        i, k = np.ogrid[start : positions - width, :width]
        j = i + width
        inner = np.arange(width - 1).reshape(1, -1) + 1
        builder.add(node(between, i, j), -1, node(right, i, i + k), node(left, i + k + 1, j))
        builder.add(node(join_right, i, j), sibling(i, i, j), node(left, i + 1, j))
        builder.add(
            node(join_right, i, j), sibling(i, i + inner, j), node(arc_right, i, i + inner), node(between, i + inner, j)
        )
        builder.add(node(arc_right, i, j), i * positions + j, node(join_right, i, j))
        builder.add(node(right, i, j), -1, node(arc_right, i, i + k + 1), node(right, i + k + 1, j))
        # nothing is the head of the root symbol
        i, j = i[max(1 - start, 0) :], j[max(1 - start, 0) :]
        builder.add(node(join_left, i, j), sibling(j, j, i), node(right, i, j - 1))
        builder.add(
            node(join_left, i, j), sibling(j, i + inner, i), node(between, i, i + inner), node(arc_left, i + inner, j)
        )
        builder.add(node(arc_left, i, j), j * positions + i, node(join_left, i, j))
        builder.add(node(left, i, j), -1, node(left, i, i + k), node(arc_left, i + k, j))
    nodes = _SIBLING_KINDS * square
    if single_root:
        length, r = _roots(positions)
        # the only modifier of the root symbol has a pair and an arc: a node for the pair, then the root
        only = nodes + (length - 1) * positions + r
        builder.add(only, sibling(0, 0, r), node(left, 1, r), node(right, r, length))
        builder.add(nodes + square + length, r, only)
        return builder.build(nodes + square + positions)
    length = np.arange(1, positions)
    builder.add(nodes + length, -1, node(right, 0, length))
    return builder.build(nodes + positions)


@Family
def _grandparents(positions: int, single_root: int) -> Graph:
    """Half trees over positions i < j, and g outside of them, the head of their head.

    JR and JL join two of them with an arc between their ends, IR and IL add the pair, R and L are complete. The root
    symbol is its own g.
    """

    def node(kind: int, g: Any, i: Any, j: Any) -> Any:
        return (((j - i) * positions + i) * positions + g) * _GRANDPARENT_KINDS + kind

    join_right, arc_right, join_left, arc_left, right, left = range(_GRANDPARENT_KINDS)
    square = positions * positions

    def pair(g: Any, h: Any, m: Any) -> Any:
        # the root symbol has no head
        return np.where(h == 0, -1, square + (g * positions + h) * positions + m)

    builder = Builder(parts=square + positions**3)
    start = 1 if single_root else 0
    for width in range(1, positions):
        for i in range(start, positions - width):
            j = i + width
            outside = np.array([g for g in range(positions) if not i <= g <= j] or [], np.int64)
            # of half trees whose head is i: the root symbol stands for its own head
            g = (np.zeros(1, np.int64) if i == 0 else outside).reshape(-1, 1)
            k = np.arange(width).reshape(1, -1)
            builder.add(
                node(join_right, g, i, j), i * positions + j, node(right, g, i, i + k), node(left, i, i + k + 1, j)
            )
            builder.add(node(arc_right, g, i, j), pair(g, i, j), node(join_right, g, i, j))
            builder.add(node(right, g, i, j), -1, node(arc_right, g, i, i + k + 1), node(right, i, i + k + 1, j))
            if i == 0:
                continue
            g = outside.reshape(-1, 1)
            builder.add(
                node(join_left, g, i, j), j * positions + i, node(right, j, i, i + k), node(left, g, i + k + 1, j)
            )
            builder.add(node(arc_left, g, i, j), pair(g, j, i), node(join_left, g, i, j))
            builder.add(node(left, g, i, j), -1, node(left, j, i, i + k), node(arc_left, g, i + k, j))
    nodes = _GRANDPARENT_KINDS * positions**3
    length, r = _roots(positions)
    if single_root:
        builder.add(nodes + length, r, node(left, 0, 1, r), node(right, 0, r, length))
    else:
        length = np.arange(1, positions)
        builder.add(nodes + length, -1, node(right, 0, 0, length))
    return builder.build(nodes + positions)


def _roots(positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths, and tokens that may hang from the root symbol."""
    length, r = np.ogrid[1:positions, 1:positions]
    length, r = np.broadcast_arrays(length, r)
    return length[r <= length], r[r <= length]
