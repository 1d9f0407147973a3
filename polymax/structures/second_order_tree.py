"""Projective dependency trees that score pairs of arcs: neighbouring siblings, and grandparents."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from polymax.hypergraphs import Derivations
from polymax.hypergraphs.passes import Problem, kernel_passes
from polymax.kernels.active_set.problem import Search
from polymax.kernels.head_automaton import (
    GRANDPARENTS,
    SIBLINGS,
    head_automaton_inside,
    head_automaton_outside,
    head_automaton_tangent,
)
from polymax.kernels.head_automaton.reference import as_graph, recorded
from polymax.structures.base import checked_lengths, zeros_of
from polymax.structures.compact.pairs_of_arcs import PairedHeads
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.projective_tree import ProjectiveTree

# positions up to which SparseMAP searches a list of derivations with grandparents
LONGEST = 40


class SiblingParts(NamedTuple):
    """Arcs [head, modifier] (*batch, n + 1, n + 1), and [head, sibling, modifier] (*batch, n + 1, n + 1, n + 1)."""

    arcs: Tensor
    siblings: Tensor


class GrandparentParts(NamedTuple):
    """Arcs [head, modifier] (*batch, n + 1, n + 1), and [grandparent, head, modifier] (*batch, n + 1, n + 1, n + 1)."""

    arcs: Tensor
    grandparents: Tensor


class BothParts(NamedTuple):
    """Arcs (*batch, n + 1, n + 1), and siblings and grandparents, both (*batch, n + 1, n + 1, n + 1)."""

    arcs: Tensor
    siblings: Tensor
    grandparents: Tensor


_OPS = (head_automaton_inside, head_automaton_outside, head_automaton_tangent)


def _passes(single_root: bool, order: int) -> Callable[[float], Any]:
    return kernel_passes(*_OPS, recorded=recorded, scores=2, options=(single_root, order))


class SecondOrderTree(DynamicProgram):
    """Projective trees with further score tensors, of pairs of arcs; the compact form is that of `ProjectiveTree`."""

    single_root: bool
    may_be_empty = False
    parts_once = True
    # the kinds of pairs that are scored, as bits: SIBLINGS, GRANDPARENTS, or both
    order: ClassVar[int]

    @property
    def tree(self) -> ProjectiveTree:
        """The set of the same trees, scored by their arcs alone."""
        return ProjectiveTree(self.lengths, self.single_root)

    @abstractmethod
    def pairs(self, arcs: Tensor) -> tuple[Tensor, ...]:
        """The pairs (*batch, n + 1, n + 1, n + 1) of trees given by their arcs, a tensor for each kind."""

    def problem(self, *scores: Tensor) -> Problem:
        tensors, batch = self._rows(*scores)

        def shaped(mu: tuple[Tensor, ...]) -> Any:
            arcs, pairs = mu
            lead = arcs.shape[:-3] + batch
            return self.named(*(t.reshape(lead + t.shape[arcs.dim() - 2 :]) for t in (arcs, *pairs.unbind(-4))))

        return Problem(_passes(self.single_root, self.order), tensors, batch, shaped)

    def derivations(self, *scores: Tensor) -> Derivations:
        tensors, batch = self._rows(*scores)
        flat, graph, roots = as_graph(*tensors, self.single_root, self.order)
        size, kinds = tensors[0].shape[-1], tensors[1].shape[1]

        def shaped(mu: Tensor) -> Any:
            first, *others = mu.split([size**2, *[size**3] * kinds], -1)
            lead = (*mu.shape[:-2], *batch)
            pairs = (t.reshape(*lead, size, size, size) for t in others)
            return self.named(first.reshape(*lead, size, size), *pairs)

        return Derivations(flat, graph, roots, batch, shaped)

    def _rows(self, *scores: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], torch.Size]:
        """Arcs (B, n + 1, n + 1), pairs (B, kinds, n + 1, n + 1, n + 1), and lengths (B,)."""
        arcs, *pairs = self.full(*scores)
        batch, size = arcs.shape[:-2], arcs.shape[-1]
        lengths = checked_lengths(self.lengths, batch, size - 1, arcs.device, "lengths")
        each = torch.stack(pairs, -4).reshape(math.prod(batch), len(pairs), size, size, size)
        return (arcs.reshape(math.prod(batch), size, size), each, lengths), batch

    def full(self, *scores: Tensor) -> tuple[Tensor, ...]:
        kinds = len(self.event_dims()) - 1
        if len(scores) != 1 + kinds:
            names = " and ".join(self._fields[1:])
            raise TypeError(f"{type(self).__name__} has {1 + kinds} score tensors, of arcs, {names}; got {len(scores)}")
        arcs, *pairs = scores
        if arcs.dim() < 2 or arcs.shape[-1] != arcs.shape[-2] or arcs.shape[-1] == 0:
            raise ValueError(f"arcs must be (*batch, n + 1, n + 1); got {tuple(arcs.shape)}")
        want = (*arcs.shape, arcs.shape[-1])
        for name, each in zip(self._fields[1:], pairs, strict=True):
            if each.dim() < 3 or each.shape[-3:] != want[-3:]:
                raise ValueError(f"{name} must broadcast to {want}; got {tuple(each.shape)}")
        return arcs, *(each.expand(want) for each in pairs)

    @property
    def _fields(self) -> tuple[str, ...]:
        names = {SIBLINGS: ("siblings",), GRANDPARENTS: ("grandparents",)}
        return "arcs", *(name for bit in names if self.order & bit for name in names[bit])

    def event_dims(self, *scores: Tensor) -> tuple[int, ...]:
        return (2, 3, 3) if self.order == SIBLINGS | GRANDPARENTS else (2, 3)

    def vertices(self, event_shape: tuple[int, ...]) -> Any:
        return self.complete(self.tree.vertices(event_shape))

    def zero_scores(self, event_shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        first = zeros_of(self, event_shape)
        pairs = first.new_zeros(*event_shape, event_shape[-1])
        return first, *[pairs] * (len(self.event_dims()) - 1)

    def complete(self, first: Tensor) -> Any:
        return self.named(first, *self.pairs(first))

    def search(self, *scores: Tensor) -> Search | None:
        # the search lists hyperedges, whose number grows with the fourth power of the length if grandparents count
        long = self.order & GRANDPARENTS and scores[0].shape[-1] > LONGEST
        return None if long else super().search(*scores)

    def most_parts(self, *events: torch.Size) -> int:
        return len(events) * events[0][0]

    @property
    def compact(self) -> PairedHeads:
        return PairedHeads(self)


@dataclass(frozen=True, eq=False)
class SiblingTree(SecondOrderTree):
    """Projective trees that score neighbouring siblings: a head takes its modifiers from the inside to the outside.

    siblings [h, s, m] counts if h is the head of s and m, and m is the next modifier after s on the same side;
    siblings [h, h, m] counts if m is the first modifier of h on its side. Each token with a head has one such part:
    O(n^3) steps.

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
    order = SIBLINGS

    def named(self, *parts: Tensor) -> SiblingParts:
        return SiblingParts(*parts)

    def pairs(self, arcs: Tensor) -> tuple[Tensor, ...]:
        size = arcs.shape[-1]
        place = torch.arange(size, device=arcs.device)
        head, sibling, modifier = place.reshape(-1, 1, 1), place.reshape(-1, 1), place
        upto = arcs.cumsum(-1)
        before = torch.nn.functional.pad(upto[..., :-1], (1, 0))
        # the number of modifiers of the head strictly between two places
        right = before.unsqueeze(-2) - upto.unsqueeze(-1)
        left = before.unsqueeze(-1) - upto.unsqueeze(-2)
        between = torch.where(modifier > sibling, right, left)
        side = torch.where(
            modifier > head, (sibling >= head) & (sibling < modifier), (sibling <= head) & (sibling > modifier)
        )
        first = sibling == head
        chosen = side & (between == 0) & (modifier != head)
        of_sibling = torch.where(first, 1.0, arcs.unsqueeze(-1))
        return (torch.where(chosen, of_sibling * arcs.unsqueeze(-2), 0).to(arcs.dtype),)


@dataclass(frozen=True, eq=False)
class GrandparentTree(SecondOrderTree):
    """Projective trees that score each arc together with the arc to its head.

    grandparents [g, h, m] counts if g is the head of h, and h is the head of m; a token that hangs from the root symbol
    has no such part. O(n^4) steps.

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
    order = GRANDPARENTS

    def named(self, *parts: Tensor) -> GrandparentParts:
        return GrandparentParts(*parts)

    def pairs(self, arcs: Tensor) -> tuple[Tensor, ...]:
        return (arcs.unsqueeze(-1) * arcs.unsqueeze(-3),)


@dataclass(frozen=True, eq=False)
class SiblingGrandparentTree(SecondOrderTree):
    """Projective trees that score neighbouring siblings and grandparents: exact, without a relaxation.

    Parts are those of `SiblingTree` and of `GrandparentTree`. O(n^4) steps.

    Shapes: arcs (*batch, n + 1, n + 1), siblings and grandparents (*batch, n + 1, n + 1, n + 1); lengths (*batch,)

    Example:
        >>> arcs, siblings, grandparents = torch.zeros(4, 4), torch.zeros(4, 4, 4), torch.zeros(4, 4, 4)
        >>> siblings[1, 2, 3] = 1.0  # 2 and 3 hang from 1
        >>> grandparents[0, 3, 1] = grandparents[3, 1, 2] = 0.8  # 2 hangs from 1, and 1 from 3, the root
        >>> tree = SiblingGrandparentTree()
        >>> tree.decode(tree.map(arcs, siblings, grandparents))
        tensor([3, 1, 0])

    See: Koo and Collins 2010, Efficient third-order dependency parsers, model 1, without scores of three arcs.
    """

    lengths: Tensor | None = None
    single_root: bool = True
    order = SIBLINGS | GRANDPARENTS

    def named(self, *parts: Tensor) -> BothParts:
        return BothParts(*parts)

    def pairs(self, arcs: Tensor) -> tuple[Tensor, ...]:
        of_one = SiblingTree(), GrandparentTree()
        return tuple(pairs for tree in of_one for pairs in tree.pairs(arcs))
