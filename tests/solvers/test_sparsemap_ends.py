"""SparseMAP ends where rounding does: a structure whose weight is dropped at once is not asked for again and again."""

import pytest
import torch

import polymax as pm
from polymax.solvers.loops import cuda as gpu
from polymax.solvers.loops import reference as lockstep

pytestmark = pytest.mark.device
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# no gap is small enough
ENDLESS = pm.ActiveSet(max_iter=50, tol=0.0)
# below what the solvers hold for rounding
WEIGHT = 9e-14
N = 3


def two_trees():
    """Each word hangs from the one before, or from the one after."""
    before = torch.diag(torch.ones(N, dtype=torch.float64), 1)
    after = torch.diag(torch.ones(N, dtype=torch.float64), -1)
    after[:, 0] = 0
    after[0, N] = 1
    return pm.SpanningTree(), before, after


def two_assignments():
    y = torch.eye(N, dtype=torch.float64)
    return pm.Assignment(), y, y.roll(1, 0)


def two_alignments():
    """Along one border, or along the other."""
    y = torch.zeros(N, N, dtype=torch.float64)
    y[0] = y[:, -1] = 1
    return pm.Alignment(), y, y.T


def on_device(structure, scores, whole):
    return gpu.solve(ENDLESS, structure, (scores,), structure.search(scores), None, whole)[0]


LOOPS = {
    "compiled": lambda structure, scores, whole: ENDLESS.solve(structure, (scores,), whole=whole),
    "lock-step": lambda structure, scores, whole: lockstep.solve(ENDLESS, structure, (scores,), None, None, whole)[0],
    "device": lambda structure, scores, whole: on_device(structure, scores.to(DEVICE), whole),
}
EVERY = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
PAIRS = pytest.mark.parametrize("pair", [two_trees, two_assignments, two_alignments])


def mean(solution):
    return torch.einsum("...k,...kij->...ij", solution.probs, solution.vertices).cpu()


def gap_of(structure, scores, mu):
    """How much better than mu any structure does, which bounds the squared distance to the solution."""
    return ((structure.map(scores - mu) - mu) * (scores - mu)).sum((-1, -2))


@EVERY
@PAIRS
@pytest.mark.parametrize("whole", [False, True])
def test_weights_that_are_rounding(loop, pair, whole):
    structure, y, z = pair()
    scores = ((1 - WEIGHT) * y + WEIGHT * z).unsqueeze(0)
    assert float(gap_of(structure, scores, y.unsqueeze(0))) > 1e-13, "the gap alone does not end it"
    found = loop(structure, scores, whole)
    assert int(found.iterations) <= 2
    assert float((mean(found)[0] - y).abs().max()) <= 2 * WEIGHT
    assert (int((found.probs > 0).sum()), found.probs.shape[-1] > 1) == (1, whole), "only the face has more"


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flat(n):
    return 1e-3 * normal(0, 4, n, n)


def near_the_hull(n):
    trees = [pm.SpanningTree().map(normal(seed, 4, n, n)) for seed in range(2, 12)]
    return torch.stack(trees).mean(0) + 1e-2 * normal(0, 4, n, n)


@pytest.mark.parametrize("scores", [flat(41), near_the_hull(51)], ids=["flat", "near the hull"])
def test_mixtures_of_hundreds_of_trees(scores):
    """Warnings are errors: none of them goes on to the last turn."""
    found = pm.ActiveSet(max_iter=2000).solve(pm.SpanningTree(), (scores,))
    held = (found.probs > 0).sum(-1)
    assert bool((held > 300).all())
    assert bool((found.iterations < 2 * held).all())
    gap = gap_of(pm.SpanningTree(), scores, mean(found))
    assert float(gap.max()) < 5e-12, "no tree does better than mu"
