"""The table of all sets. A new one is a new row, and gets every law that it can keep."""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb, factorial, inf

import own_sets
import pytest
import recursions
import torch

import polymax as pm
from polymax.structures.base import tensors

# what a set can do besides MAP, and the class that says so
ABILITIES = {"count": pm.Counted, "sample": pm.Sampled, "local": pm.DynamicProgram}


@dataclass(frozen=True)
class Set:
    """A structure and what is known about it.

    `shapes` are those of the first score tensor, all small enough to enumerate. `events(shape)` are the shapes of all
    score tensors, `count(shape)` the number of structures, `recursion(maximum, *scores)` the value by a plain loop.
    `cut(parts, length)` restricts scores or structures to a shorter problem; sets without lengths have none, and those
    whose lengths are a pair are `paired`. No structure is shorter than `least`. `can` are its abilities, `sizes(shape)`
    what `encode` takes besides the compact form, `nothing` the value where all parts are forbidden, and `few` a shape
    with structures few enough to count draws. `indicators` is False for a set whose structures are not made of 0 and 1.
    `omega` is True if expected parts determine the Omega of its smoothings between structures.
    """

    name: str
    structure: pm.Structure
    shapes: list[tuple[int, ...]]
    events: Callable[[tuple[int, ...]], list[tuple[int, ...]]]
    count: Callable[[tuple[int, ...]], int]
    recursion: Callable[..., torch.Tensor] | None = None
    cut: Callable | None = None
    can: str = "count sample local"
    paired: bool = False
    least: int = 0
    # how much longer a score tensor is than the problem: a tree has a root symbol; or a pair, for each of both lengths
    extra: int | tuple[int, int] = 0
    sizes: Callable = lambda shape: shape
    nothing: float = -inf
    few: tuple[int, ...] | None = None
    indicators: bool = True
    omega: bool = False

    @property
    def shape(self):
        """A shape of middling size."""
        return self.shapes[-1]

    def able(self, *abilities):
        """True if the set can do all of these."""
        return all(ability in self.can.split() for ability in abilities)

    def smoothing(self):
        """A smoothed maximum that the set has: over all structures, or over those that SparseMAP finds."""
        return pm.Marginals(self.structure) if self.able("count") else pm.SparseMap(self.structure)

    def smoothings(self):
        """All that have no solver inside."""
        found = [pm.HardMax(self.structure)]
        found += [pm.Marginals(self.structure)] if self.able("count") else []
        return found + ([pm.LocalMax(self.structure, pm.Gini())] if self.able("local") else [])

    def scores(self, shape=None, batch=(), dtype=torch.float64, device="cpu", seed=0, scale=1.0):
        generator = torch.Generator().manual_seed(seed)
        shapes = self.events(shape or self.shape)
        return tuple(
            (scale * torch.randn(*(batch if not shared else ()), *s, generator=generator, dtype=torch.float64)).to(
                device=device, dtype=dtype
            )
            for s, shared in zip(shapes, self._shared(shapes), strict=True)
        )

    def _shared(self, shapes):
        # a matrix of transitions stands beside scores of positions: all instances share it
        return [k > 0 and len(s) == 2 for k, s in enumerate(shapes)]

    def with_lengths(self, lengths):
        return self.structure.with_lengths((lengths, lengths) if self.paired else lengths)

    def lengths(self, *wanted, device="cpu"):
        """These lengths, or the least one that has a structure in the place of those below it."""
        return torch.tensor([max(n, self.least) for n in wanted], device=device)

    def size(self, shape=None):
        """The largest length."""
        shape = shape or self.shape
        extra = self.extra if isinstance(self.extra, tuple) else (self.extra, self.extra)
        return min(a - b for a, b in zip(shape[: 1 + self.paired], extra, strict=False))

    def vertices(self, shape=None):
        """Every structure, each tensor stacked along a first dimension, in float64."""
        return tuple(t.double() for t in tensors(self.structure.vertices(shape or self.shape)))

    def enumerated(self, scores, shape=None):
        """Every structure, and their scores (count, *batch)."""
        vertices = self.vertices(shape)
        full = self.structure.full(*scores)
        total = 0
        for v, x in zip(vertices, full, strict=True):
            dims = v.dim() - 1
            terms = torch.where(v.reshape(v.shape[0], *[1] * (x.dim() - dims), *v.shape[1:]) == 0, 0, x.double().cpu())
            total = total + (terms * _beside(v, x)).sum(list(range(-dims, 0)))
        return vertices, total


def _beside(v, x):
    return v.reshape(v.shape[0], *[1] * (x.dim() - v.dim() + 1), *v.shape[1:])


def mean_of(vertices, p):
    """The expected structure under p (count, *batch)."""
    return [torch.einsum("k...,kx->...x", p, v.flatten(1)).reshape(*p.shape[1:], *v.shape[1:]) for v in vertices]


def catalan(n):
    return comb(2 * n, n) // (n + 1)


def hops(n):
    """Ways to hop to n."""
    return sum(comb(n - twos, twos) for twos in range(n // 2 + 1))


def delannoy(n, m):
    return sum(comb(n, k) * comb(m, k) * 2**k for k in range(min(n, m) + 1))


def segmentations(n, widths, labels):
    ways = [1]
    for t in range(1, n + 1):
        ways.append(labels * sum(ways[t - w] for w in range(1, min(widths, t) + 1)))
    return ways[n]


def cut_chain(parts, n):
    unary, transition = parts
    return unary[..., :n, :], transition if transition.dim() == 2 else transition[..., : max(n - 1, 0), :, :]


def cut_frames(parts, n):
    return (parts[0][..., :n, :],)


def cut_segments(parts, n):
    segments, transition = parts
    return segments[..., :n, :, :], transition if transition.dim() == 2 else transition[..., : max(n - 1, 0), :, :]


def cut_square(parts, n):
    return (parts[0][..., :n, :n],)


def cut_gaps(parts, n):
    pairs, *gaps = parts
    return pairs[..., :n, :n], *(t if t.shape[-2:] == (1, 1) else t[..., :n, :n] for t in gaps)


def cut_steps(parts, n):
    return (parts[0][..., : n + 1, : n + 1, :],)


def cut_transducer(parts, n):
    blank, label = parts
    return blank[..., :n, : n + 1], label[..., :n, :n]


def cut_labelled(parts, n):
    return (parts[0][..., :n, :n, :],)


def cut_labelled_arcs(parts, n):
    return (parts[0][..., : n + 1, : n + 1, :],)


def cut_arcs(parts, n):
    return (parts[0][..., : n + 1, : n + 1],)


def cut_pairs(parts, n):
    arcs, *pairs = parts
    return arcs[..., : n + 1, : n + 1], *(t[..., : n + 1, : n + 1, : n + 1] for t in pairs)


EDGES = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (0, 3), (3, 4), (2, 5), (3, 5), (1, 4)]
HEADS = [2, 2, 3, 3, 4, 4, 5, 5, 5]
TAILS = [(0,), (1,), (0, 1), (1,), (2,), (), (3, 4, 0, 1), (3,), (2, 3)]

LISTED = torch.tensor([[0.0, 1.0, 0.5], [1.0, 1.0, -2.0], [2.0, 0.0, 0.0], [0.0, 0.0, 1.0]])

TABLE = [
    Set(
        "chain",
        pm.Chain(),
        [(0, 3), (1, 3), (2, 3), (3, 2), (4, 3), (5, 1), (5, 3)],
        lambda s: [s, (s[1], s[1])],
        lambda s: s[1] ** s[0],
        recursions.chain,
        cut_chain,
        sizes=lambda s: s[1:],
        few=(3, 2),
        omega=True,
    ),
    Set(
        "chain-by-step",
        pm.Chain(),
        [(1, 2), (2, 3), (4, 3)],
        lambda s: [s, (max(s[0] - 1, 0), s[1], s[1])],
        lambda s: s[1] ** s[0],
        recursions.chain,
        cut_chain,
        sizes=lambda s: s[1:],
        few=(2, 3),
        omega=True,
    ),
    Set(
        "budget-chain",
        pm.BudgetChain(2),
        [(0, 3), (1, 2), (3, 3), (4, 2), (5, 3)],
        lambda s: [s, (s[1], s[1])],
        lambda s: sum(comb(s[0], c) * (s[1] - 1) ** (s[0] - c) for c in range(min(2, s[0]) + 1)),
        recursions.counted(2, 1, runs=False),
        cut_chain,
        sizes=lambda s: s[1:],
        few=(2, 3),
    ),
    Set(
        "segment-chain",
        pm.SegmentChain(1, state=0),
        [(1, 2), (2, 3), (4, 2), (4, 3)],
        lambda s: [s, (s[1], s[1])],
        lambda s: (s[1] - 1) ** s[0] + sum((s[0] + 1 - w) * (s[1] - 1) ** (s[0] - w) for w in range(1, s[0] + 1)),
        recursions.counted(1, 0, runs=True),
        cut_chain,
        sizes=lambda s: s[1:],
        few=(2, 3),
    ),
    Set(
        "segments",
        pm.SemiMarkov(3),
        [(0, 3, 2), (1, 3, 2), (2, 3, 3), (5, 3, 2)],
        lambda s: [s, (s[2], s[2])],
        lambda s: segmentations(*s),
        recursions.segments,
        cut_segments,
        sizes=lambda s: s[::2],
        few=(2, 3, 3),
        omega=True,
    ),
    Set(
        "alignment",
        pm.Alignment(),
        [(0, 0), (1, 1), (1, 4), (3, 1), (2, 5), (4, 4)],
        lambda s: [s],
        lambda s: delannoy(s[0] - 1, s[1] - 1) if s[0] else 1,
        recursions.alignment,
        cut_square,
        paired=True,
        few=(3, 3),
    ),
    Set(
        "subsequence",
        pm.Subsequence(),
        [(0, 0), (1, 1), (1, 4), (3, 1), (2, 4), (3, 4)],
        lambda s: [s],
        lambda s: sum((s[1] - w) * delannoy(s[0] - 1, w) for w in range(s[1])) if s[0] else 1,
        recursions.subsequence,
        cut_square,
        paired=True,
    ),
    Set(
        "monotonic",
        pm.Monotonic(),
        [(0, 0), (1, 1), (4, 1), (3, 3), (5, 3)],
        lambda s: [s],
        lambda s: comb(s[0] - 1, s[1] - 1) if s[0] else 1,
        recursions.monotonic,
        cut_square,
        paired=True,
        sizes=lambda s: s[1:],
    ),
    Set(
        "ctc",
        pm.CTC(torch.tensor([1, 2, 2])),
        [(4, 3), (5, 3)],
        lambda s: [s],
        # one frame less, for the blank between the equal targets
        lambda s: comb(s[0] - 1 + 3, 6),
        recursions.ctc([0, 1, 0, 2, 0, 2, 0]),
        cut_frames,
        # three targets, and the blank
        least=4,
        sizes=lambda s: s[1:],
    ),
    Set(
        "gapped",
        pm.GappedAlignment(),
        [(1, 1), (3, 1), (2, 4), (3, 3)],
        lambda s: [s, (1, 1), (1, 1)],
        lambda s: comb(s[0] + s[1], s[0]),
        recursions.gapped(local=False),
        cut_gaps,
        paired=True,
        indicators=False,
    ),
    Set(
        "gapped-local",
        pm.GappedAlignment("local", "linear"),
        [(0, 0), (1, 1), (3, 3), (2, 3)],
        lambda s: [s, s],
        lambda s: comb(s[0] + s[1], s[0]),
        recursions.gapped(local=True),
        cut_gaps,
        paired=True,
        nothing=0.0,
    ),
    Set(
        "edit-path",
        pm.EditPath(),
        [(1, 1, 3), (1, 4, 3), (3, 2, 3), (3, 4, 3)],
        lambda s: [s],
        lambda s: delannoy(s[0] - 1, s[1] - 1),
        recursions.edit_path(affine=False),
        cut_steps,
        paired=True,
        extra=1,
        omega=True,
    ),
    Set(
        "edit-path-affine",
        pm.EditPath("affine"),
        [(1, 1, 5), (3, 2, 5), (3, 3, 5)],
        lambda s: [s],
        lambda s: delannoy(s[0] - 1, s[1] - 1),
        recursions.edit_path(affine=True),
        cut_steps,
        paired=True,
        extra=1,
    ),
    Set(
        "transducer",
        pm.Transducer(),
        [(0, 1), (3, 1), (2, 3), (3, 4)],
        lambda s: [s, (s[0], s[1] - 1)],
        lambda s: comb(s[0] + s[1] - 2, s[1] - 1) if s[0] else 1,
        recursions.transducer,
        cut_transducer,
        paired=True,
        extra=(0, 1),
        sizes=lambda s: s[1:],
        omega=True,
    ),
    Set(
        "span-tree",
        pm.SpanTree(labelled=False),
        [(0, 0), (1, 1), (2, 2), (3, 3), (6, 6)],
        lambda s: [s],
        lambda s: catalan(s[0] - 1) if s[0] else 1,
        recursions.spans,
        cut_square,
        few=(5, 5),
    ),
    Set(
        "span-tree-labelled",
        pm.SpanTree(labelled=True),
        [(0, 0, 2), (1, 1, 3), (2, 2, 3), (4, 4, 2)],
        lambda s: [s],
        lambda s: catalan(s[0] - 1) * s[2] ** (2 * s[0] - 1) if s[0] else 1,
        recursions.spans,
        cut_labelled,
        few=(2, 2, 3),
    ),
    Set(
        "projective-tree",
        pm.ProjectiveTree(),
        [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)],
        lambda s: [s],
        lambda s: comb(3 * s[0] - 5, s[0] - 2) // (s[0] - 1) if s[0] > 1 else 1,
        recursions.arcs,
        cut_arcs,
        extra=1,
        few=(4, 4),
    ),
    Set(
        "projective-tree-many-roots",
        pm.ProjectiveTree(single_root=False),
        [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)],
        lambda s: [s],
        lambda s: comb(3 * s[0] - 3, s[0] - 1) // (2 * s[0] - 1),
        recursions.arcs_from_many_roots,
        cut_arcs,
        extra=1,
        few=(4, 4),
    ),
    Set(
        "projective-tree-labelled",
        pm.ProjectiveTree(labelled=True),
        [(1, 1, 2), (2, 2, 3), (3, 3, 2), (4, 4, 2)],
        lambda s: [s],
        lambda s: comb(3 * s[0] - 5, s[0] - 2) // (s[0] - 1) * s[2] ** (s[0] - 1) if s[0] > 1 else 1,
        lambda best, x: recursions.arcs(best, best(x)),
        cut_labelled_arcs,
        extra=1,
        few=(3, 3, 2),
    ),
    Set(
        "sibling-tree",
        pm.SiblingTree(),
        [(1, 1), (2, 2), (3, 3), (5, 5)],
        lambda s: [s, (*s, s[0])],
        lambda s: comb(3 * s[0] - 5, s[0] - 2) // (s[0] - 1) if s[0] > 1 else 1,
        recursions.siblings,
        cut_pairs,
        extra=1,
        few=(3, 3),
    ),
    Set(
        "grandparent-tree",
        pm.GrandparentTree(),
        [(1, 1), (2, 2), (3, 3), (5, 5)],
        lambda s: [s, (*s, s[0])],
        lambda s: comb(3 * s[0] - 5, s[0] - 2) // (s[0] - 1) if s[0] > 1 else 1,
        recursions.grandparents,
        cut_pairs,
        extra=1,
        few=(3, 3),
    ),
    Set(
        "sibling-grandparent-tree",
        pm.SiblingGrandparentTree(),
        [(1, 1), (3, 3), (5, 5)],
        lambda s: [s, (*s, s[0]), (*s, s[0])],
        lambda s: comb(3 * s[0] - 5, s[0] - 2) // (s[0] - 1) if s[0] > 1 else 1,
        recursions.siblings_and_grandparents,
        cut_pairs,
        extra=1,
        few=(3, 3),
    ),
    Set(
        "simplex", pm.Simplex(), [(1,), (2,), (5,)], lambda s: [s], lambda s: s[0], lambda best, x: best(x), omega=True
    ),
    Set(
        "subset", pm.Subset(2), [(2,), (3,), (5,)], lambda s: [s], lambda s: comb(s[0], 2), recursions.subsets(2, False)
    ),
    Set(
        "subset-at-most",
        pm.Subset(2, at_most=True),
        [(1,), (3,), (5,)],
        lambda s: [s],
        lambda s: 1 + s[0] + comb(s[0], 2),
        recursions.subsets(2, True),
        nothing=0.0,
    ),
    Set(
        "explicit",
        pm.Explicit(LISTED),
        [(3,)],
        lambda s: [s],
        lambda s: len(LISTED),
        lambda best, x: best(x @ LISTED.to(x).T),
        indicators=False,
    ),
    Set("dag", pm.Dag(EDGES), [(10,)], lambda s: [s], lambda s: 6, recursions.paths(EDGES), omega=True),
    Set(
        "hypergraph",
        pm.Hypergraph(HEADS, TAILS),
        [(9,)],
        lambda s: [s],
        lambda s: 12,
        recursions.trees(HEADS, TAILS),
        omega=True,
    ),
    Set(
        "cuts",
        own_sets.documented("Cuts")(3),
        [(3, 3), (4, 4), (6, 6)],
        lambda s: [s],
        lambda s: comb(s[0] - 1, 2),
        recursions.cuts(3),
        omega=True,
    ),
    Set(
        "hops",
        own_sets.Hops(),
        [(0, 2), (1, 2), (2, 2), (3, 2), (5, 2)],
        lambda s: [s],
        lambda s: hops(s[0]) + (hops(s[0] - 1) if s[0] > 1 else 0),
        recursions.hops,
        cut_frames,
        omega=True,
        few=(3, 2),
    ),
    Set(
        "spanning-tree",
        pm.SpanningTree(),
        [(1, 1), (2, 2), (3, 3), (4, 4)],
        lambda s: [s],
        lambda s: (s[0] - 1) ** (s[0] - 2) if s[0] > 1 else 1,
        cut=cut_arcs,
        can="count sample",
        extra=1,
    ),
    Set(
        "spanning-tree-many-roots",
        pm.SpanningTree(single_root=False),
        [(1, 1), (2, 2), (3, 3), (4, 4)],
        lambda s: [s],
        lambda s: s[0] ** max(s[0] - 2, 0),
        cut=cut_arcs,
        can="count sample",
        extra=1,
    ),
    Set(
        "spanning-tree-labelled",
        pm.SpanningTree(labelled=True),
        [(1, 1, 2), (2, 2, 2), (3, 3, 3), (4, 4, 2)],
        lambda s: [s],
        lambda s: (s[0] - 1) ** (s[0] - 2) * s[2] ** (s[0] - 1) if s[0] > 1 else 1,
        cut=cut_labelled_arcs,
        can="count sample",
        extra=1,
        few=(3, 3, 2),
    ),
    Set(
        "assignment",
        pm.Assignment(),
        [(0, 0), (1, 1), (2, 2), (3, 3)],
        lambda s: [s],
        lambda s: factorial(s[0]),
        cut=cut_square,
        can="",
        paired=True,
    ),
    Set(
        "assignment-wide",
        pm.Assignment(),
        [(0, 2), (1, 3), (3, 2), (4, 1), (2, 4)],
        lambda s: [s],
        lambda s: factorial(max(s)) // factorial(max(s) - min(s)),
        cut=cut_square,
        can="",
        paired=True,
    ),
    Set(
        "ranking", pm.Ranking(), [(1,), (2,), (4,)], lambda s: [s], lambda s: factorial(s[0]), can="", indicators=False
    ),
]
BY_NAME = {row.name: row for row in TABLE}
# dynamic programs
SETS = [row for row in TABLE if row.able("local")]
COUNTED = [row for row in TABLE if row.able("count")]
SAMPLED = [row for row in TABLE if row.able("sample")]
RAGGED = [row for row in TABLE if row.cut is not None]


def every(rows):
    """Run a test on each row."""
    return pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in rows])


def shapes(rows):
    """Run a test on each row and shape."""
    table = [pytest.param(row, s, id=f"{row.name}-{'x'.join(map(str, s))}") for row in rows for s in row.shapes]
    return pytest.mark.parametrize(("row", "shape"), table)
