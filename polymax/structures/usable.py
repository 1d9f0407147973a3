"""Which parts a structure can use at all: the others are ignored in scores, and have no gradient."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from polymax._dispatch import _LIBRARY
from polymax._function import untransformed
from polymax.hypergraphs.graph import Graph
from polymax.structures.alignment import Alignment
from polymax.structures.assignment import Assignment
from polymax.structures.base import Parts, Structure, tensors
from polymax.structures.chain import Chain
from polymax.structures.counter_chain import CounterChain
from polymax.structures.dynamic import DynamicProgram
from polymax.structures.hypergraph import Dag
from polymax.structures.projective_tree import ProjectiveTree
from polymax.structures.ranking import Ranking
from polymax.structures.second_order_tree import SecondOrderTree
from polymax.structures.semi_markov import SemiMarkov
from polymax.structures.simplex import Explicit, Simplex, Subset
from polymax.structures.span_tree import SpanTree
from polymax.structures.spanning_tree import SpanningTree
from polymax.structures.subsequence import Subsequence


def usable(structure: Structure, y: Parts) -> tuple[Tensor, ...]:
    """Whether some structure for scores of the shape of y uses a part, whatever the scores.

    y is the best structure for the scores at hand: an instance in which they forbid every structure uses no part, and
    then none is usable. For a set that is not of the library all parts are.

    Shapes: a bool tensor for each tensor of y, which broadcasts to it
    """
    first = tensors(y)[0]
    dims = structure.event_dims(*tensors(y))
    masks = _usable(structure, y, first.shape[first.dim() - dims[0] :], first.device)
    if masks is None:
        return tuple(torch.ones((), dtype=torch.bool, device=first.device) for _ in dims)
    if _may_be_empty(structure):
        return masks
    some = (first != 0).flatten(first.dim() - dims[0]).any(-1)
    return tuple(m & some.reshape(*some.shape, *[1] * d) for m, d in zip(masks, dims, strict=True))


def usable_parts(structure: Structure, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Whether some structure for scores of these shapes, given in full, uses a part, whatever the scores.

    Shapes: a bool tensor for each score tensor, which broadcasts to it
    """
    event = scores[0].shape[scores[0].dim() - structure.event_dims(*scores)[0] :]
    masks = _usable(structure, structure.named(*scores), event, scores[0].device)
    return masks or tuple(torch.ones((), dtype=torch.bool, device=x.device) for x in scores)


def _usable(structure: Structure, y: Parts, event: torch.Size, device: torch.device) -> tuple[Tensor, ...] | None:
    match structure:
        case Simplex() | Ranking():
            return (torch.ones((), dtype=torch.bool, device=device),)
        case Chain(lengths=lengths):
            (state,) = _places(device, event[0])
            return _before(lengths, event[0], state, 2), _before(lengths, event[0], state[1:], 3)
        case SemiMarkov(lengths=lengths):
            start, width = _places(device, *event[:2])
            return _before(lengths, event[0], start + width, 3), _before(lengths, event[0], start[1:, 0], 3)
        case Alignment(lengths=lengths) | Assignment(lengths=lengths) | Subsequence(lengths=lengths):
            row, column = _places(device, *event)
            rows, columns = lengths or (None, None)
            return (_before(rows, event[0], row, 2) & _before(columns, event[1], column, 2),)
        case SpanTree(lengths=lengths):
            left, right = _places(device, *event[:2])
            # beyond every length where there is no span
            return (_before(lengths, event[0], torch.where(left <= right, right, event[0]), len(event)),)
        case ProjectiveTree(lengths=lengths) | SpanningTree(lengths=lengths):
            head, modifier = _places(device, *event[:2])
            arc = (head != modifier) & (modifier > 0)
            # lengths count tokens, and the root symbol comes before them
            arc = _before(lengths, event[0], torch.maximum(head, modifier) - 1, 2) & arc
            return (arc.reshape(*arc.shape, *[1] * (len(event) - 2)),)
        case Explicit(listed=listed):
            return ((listed != 0).any(0).to(device),)
        case DynamicProgram():
            tree = structure.derivations(*(torch.zeros_like(t) for t in tensors(y)))
            if torch.compiler.is_compiling():
                used = derived_parts(*tree.graph.arrays, tree.roots, tree.graph.parts)
            else:
                used = _used(tree.graph, tree.roots)
            return tuple(m != 0 for m in tensors(tree.shaped(used.to(tree.scores.dtype))))
    return None


def _may_be_empty(structure: Structure) -> bool:
    """Whether a structure without any part is in the set."""
    match structure:
        case Subset(k=k, at_most=at_most):
            return at_most or k == 0
        case Dag(source=source, sink=sink):
            return source == sink
        case Explicit():
            return True
        case DynamicProgram():
            return not isinstance(structure, _NEVER_EMPTY)
    return False


# padding aside
_NEVER_EMPTY = (
    Simplex,
    Chain,
    CounterChain,
    SecondOrderTree,
    SemiMarkov,
    Alignment,
    Subsequence,
    SpanTree,
    ProjectiveTree,
)


def _places(device: torch.device, *shape: int) -> tuple[Tensor, ...]:
    """The index of each entry along each dimension."""
    return torch.meshgrid(*(torch.arange(n, device=device) for n in shape), indexing="ij")


def _before(lengths: Tensor | None, size: int, place: Tensor, dims: int) -> Tensor:
    """Whether places lie before the end of an instance, (*batch, ...) of `dims` dims."""
    if lengths is None:
        inside = place < size
    else:
        inside = place < lengths.to(place.device).reshape(*lengths.shape, *[1] * place.dim())
    return inside.reshape(*inside.shape, *[1] * (dims - place.dim()))


def _used(graph: Graph, roots: Tensor) -> Tensor:
    """The parts that derivations of the roots (B,) use, bool (B, parts)."""
    distinct, instance = roots.unique(return_inverse=True)
    each = [_derived(graph, int(root)) for root in distinct]
    return torch.from_numpy(np.array(each, bool).reshape(len(each), graph.parts)).to(roots.device)[instance]


def _used_of_arrays(first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, parts: int) -> Tensor:
    return _used(Graph(first, tails, part, parts), roots)


def _fake_used(first: Tensor, tails: Tensor, part: Tensor, roots: Tensor, parts: int) -> Tensor:
    return roots.new_zeros((roots.shape[0], parts), dtype=torch.bool)


# torch.compile cannot follow the walk
_LIBRARY.define(
    "derived_parts(Tensor first, Tensor tails, Tensor part, Tensor roots, SymInt parts) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
_LIBRARY.impl("derived_parts", _used_of_arrays, "CompositeExplicitAutograd")
torch.library.register_fake("polymax::derived_parts", _fake_used, lib=_LIBRARY)
derived_parts = torch.ops.polymax.derived_parts.default


@lru_cache(maxsize=64)
def _derived(graph: Graph, root: int) -> np.ndarray:
    """Whether a derivation of the root uses each part."""
    with untransformed():
        first, tails, part = (t.cpu().numpy() for t in graph.arrays)
    used, seen = np.zeros(graph.parts + 1, bool), np.zeros(graph.nodes + 1, bool)
    seen[root] = True
    # heads come after tails, and the last place is for tails and parts that are not there
    for node in range(root, -1, -1):
        if seen[node]:
            edges = slice(first[node], first[node + 1])
            seen[tails[edges]] = True
            used[part[edges]] = True
    return used[:-1]
