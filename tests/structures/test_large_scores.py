"""SparseMAP at any size of the scores: mu, the objective and the gap, against weights in fractions."""

from fractions import Fraction

import pytest
import torch
from exact import exact_weights, mean
from sets import BY_NAME
from tolerances import close

import polymax as pm
from polymax.structures.base import tensors

SHAPES = {
    "chain": (4, 3),
    "chain-by-step": (3, 2),
    "segments": (4, 3, 2),
    "alignment": (3, 4),
    "span-tree": (5, 5),
    "projective-tree": (4, 4),
    "spanning-tree": (4, 4),
    "assignment": (4, 4),
    "assignment-wide": (2, 4),
    "dag": (10,),
    "hypergraph": (9,),
    "explicit": (3,),
    "subset": (5,),
}
SIZES = [1e-8, 1e6, 1e8, 1e12]


def tied(x, size, generator):
    return torch.full_like(x, size)


def near(x, size, generator):
    return size * torch.randint(0, 2, x.shape, generator=generator) + x


def constant(x, size, generator):
    return size + x


KINDS = [tied, near, constant]


def solution_of(row, shape, scores):
    """The structures' first tensors and scores as fractions, and the exact weights of one instance."""
    vertices = row.vertices(shape)
    flat = [[[Fraction(x) for x in y.flatten().tolist()] for y in v] for v in vertices]
    full = [[Fraction(x) for x in t[0].flatten().tolist()] for t in row.structure.full(*scores)]
    totals = [
        sum((a * b for v, x in zip(flat, full, strict=True) for a, b in zip(v[k], x, strict=True) if a), Fraction(0))
        for k in range(len(vertices[0]))
    ]
    return flat[0], totals, exact_weights(flat[0], totals)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size:.0e}")
@pytest.mark.parametrize("name", SHAPES)
def test_exact_solution(name, size, kind):
    row, shape = BY_NAME[name], SHAPES[name]
    generator = torch.Generator().manual_seed(1)
    scores = tuple(kind(x, size, generator) for x in row.scores(shape, (1,), seed=3))
    structures, totals, p = solution_of(row, shape, scores)
    mu = mean(structures, p)
    op = pm.SparseMap(row.structure)
    found = op.distribution(*scores)
    close(tensors(found.mean)[0].flatten(), torch.tensor([float(x) for x in mu], dtype=torch.float64), "mu is exact")
    value = sum(w * totals[k] for k, w in p.items()) - sum(x * x for x in mu) / 2
    close(op.max(*scores), torch.tensor([float(value)], dtype=torch.float64), "the value is exact")
    # the objective of the weights found, without rounding
    place = {tuple(y): k for k, y in enumerate(structures)}
    weights = {}
    for y, w in zip(found.solution.vertices[0].flatten(1).tolist(), found.probs[0].tolist(), strict=False):
        if w:
            k = place[tuple(Fraction(x) for x in y)]
            weights[k] = weights.get(k, Fraction(0)) + Fraction(w)
    weights = {k: w / sum(weights.values()) for k, w in weights.items()}
    point = mean(structures, weights)
    reached = sum(w * totals[k] for k, w in weights.items()) - sum(x * x for x in point) / 2
    assert 0 <= value - reached < 1e-18, "the weights are optimal"
    assert float(found.solution.gap.max()) < 1e-9


@pytest.mark.parametrize("solver", [pm.ActiveSet(), pm.Pairwise()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("name", ["chain", "span-tree", "spanning-tree", "assignment", "hypergraph"])
def test_shifts_change_nothing(name, solver):
    """What is added to all structures, and cancels among them, leaves mu, gradients and warm starts as they are."""
    row = BY_NAME[name]
    scores = row.scores(batch=(2,))
    generator = torch.Generator().manual_seed(0)
    # powers of 2 beside scores of few digits: the sums are exact
    scores = tuple((x * 2**10).round() / 2**10 for x in row.structure.full(*scores))
    lift = 2.0**33 * torch.randint(1, 9, (scores[0].shape[-1],), generator=generator).double()
    if name == "chain":
        pot = torch.zeros_like(scores[0])
        pot[:, :-1] = lift
        moved = [scores[0] + pot, scores[1] - lift[:, None]]
    elif name == "hypergraph":
        moved = [scores[0].clone()]
        # every derivation of the root uses one hyperedge of node 5, and node 3 or 4 need not be used
        moved[0][:, 6:] += 2.0**33
    elif name == "span-tree":
        moved = [scores[0] + torch.diag(lift)]
    else:
        moved = [scores[0] + lift]
    op = pm.SparseMap(row.structure, solver, gamma=2.0)
    before = tuple(x.requires_grad_() for x in scores)
    after = tuple(x.detach().requires_grad_() for x in moved)
    weights = torch.linspace(-1, 1, before[0].numel(), dtype=torch.float64).reshape(before[0].shape)
    a, b = (tensors(op(*x))[0] for x in (before, after))
    assert float((a - b).abs().max().detach()) < 1e-6, "mu"
    if isinstance(solver, pm.ActiveSet):
        close(b.detach(), a.detach(), "mu")
        for s, t in zip(
            torch.autograd.grad((a * weights).sum(), before),
            torch.autograd.grad((b * weights).sum(), after),
            strict=True,
        ):
            close(t, s, "its gradient")
    start = op.solve(*after)
    again = op.solve(*after, start=start)
    assert int(again.iterations.max()) <= 1, "a solution is its own warm start"
