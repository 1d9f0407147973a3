"""SparseMAP on a GPU is SparseMAP on the CPU: structures, weights, derivatives, and the same bits at every call."""

from dataclasses import replace

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax.kernels.active_set import cuda as gpu
from polymax.kernels.response import cuda, reference
from polymax.solvers.solution import UsedParts

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

CASES = {
    "trees": (pm.SpanningTree(lengths=torch.tensor([3, 2])), [(2, 4, 4)]),
    "trees of any roots": (pm.SpanningTree(single_root=False), [(2, 3, 3)]),
    "assignments": (pm.Assignment(), [(1, 4, 4)]),
    "more rows": (pm.Assignment(lengths=(torch.tensor([4, 2]), torch.tensor([2, 3]))), [(2, 4, 3)]),
    "chains": (pm.Chain(lengths=torch.tensor([3, 0, 2])), [(3, 3, 3), (3, 3)]),
    "chains of many steps": (pm.Chain(), [(1, 2, 3, 2), (1, 2, 2, 2, 2)]),
    "chains with a budget": (pm.BudgetChain(2, lengths=torch.tensor([4, 0, 2])), [(3, 4, 2), (2, 2)]),
    "chains of few runs": (pm.SegmentChain(1, state=2), [(1, 4, 3), (1, 3, 3, 3)]),
    "alignments": (pm.Alignment(), [(2, 3, 3)]),
    "segments": (pm.SemiMarkov(2), [(2, 3, 2, 2), (2, 2)]),
}
EVERY = pytest.mark.parametrize("name", CASES)


def scores_of(name, scale=1.0):
    generator = torch.Generator().manual_seed(3)
    return tuple(scale * torch.randn(s, generator=generator, dtype=torch.float64) for s in CASES[name][1])


def moved(structure):
    lengths = getattr(structure, "lengths", None)
    if lengths is None:
        return structure
    pair = isinstance(lengths, tuple)
    return structure.with_lengths(tuple(t.to(DEVICE) for t in lengths) if pair else lengths.to(DEVICE))


def solved(structure, scores, start=None, whole=False):
    """By the device, and by the CPU."""
    there, given = moved(structure), tuple(x.to(DEVICE) for x in scores)
    found, converged = gpu.solve(pm.ActiveSet(), there, given, there.search(*given), start, whole)
    assert bool(converged.all())
    return found, pm.ActiveSet().solve(structure, scores, whole=whole)


def mean(solution):
    p = solution.probs.reshape(*solution.probs.shape, *[1] * (solution.vertices.dim() - solution.probs.dim()))
    return (solution.vertices * p).sum(solution.probs.dim() - 1).cpu()


@EVERY
def test_same_as_on_the_cpu(name):
    structure = CASES[name][0]
    found, expected = solved(structure, scores_of(name))
    close(mean(found), mean(expected), "mu does not depend on the device")
    close(found.value.cpu(), expected.value, "nor does the value")
    assert bool((found.gap < 1e-9).all())
    flat = found.vertices.flatten(found.probs.dim())
    equal(found.overlaps.double(), flat @ flat.mT, "overlaps are those of the structures")
    close(found.probs.sum(-1), torch.ones_like(found.value), "weights add up to 1")
    assert bool((found.probs.diff() <= 0).all()), "heaviest first"
    if isinstance(found.found, UsedParts):
        assert found.found.events == expected.found.events
        both = [reference.mixture(s.found.places, s.probs, 200, torch.float64) for s in (found, expected)]
        close(both[0].cpu(), both[1], "nor do the means of other tensors")


@pytest.mark.parametrize(("name", "scale"), [("chains", 100.0), ("chains", 0.01), ("assignments", 100.0)])
def test_temperatures(name, scale):
    found, expected = solved(CASES[name][0], scores_of(name, scale))
    close(mean(found), mean(expected), "mu does not depend on the device")


def test_ties():
    scores = (torch.zeros(1, 3, 3, dtype=torch.float64),)
    found, _ = solved(pm.Assignment(), scores)
    close(mean(found), torch.ones(1, 3, 3, dtype=torch.float64) / 3, "tied scores are solved exactly")
    again, _ = solved(pm.Assignment(), scores)
    equal(found.probs, again.probs, "the same call gives the same bits")


def test_forbidden_parts():
    (scores,) = scores_of("trees of any roots")
    scores[0, :, 2] = -torch.inf
    scores[1, 0, 1] = -torch.inf
    found, expected = solved(CASES["trees of any roots"][0], (scores,))
    close(mean(found), mean(expected), "what is forbidden is not used")
    assert float(found.value[0]) == -torch.inf
    assert float(found.probs[0].sum()) == 0, "no structure, no weight"


def test_nan_stays_in_its_row():
    unary, transition = scores_of("chains")
    unary[0, 1] = torch.nan
    structure = CASES["chains"][0]
    found, _ = solved(structure, (unary, transition))
    assert bool(found.value[0].isnan())
    assert bool(found.probs[0, 0].isnan())
    clean = pm.ActiveSet().solve(structure, (unary.nan_to_num(), transition))
    close(found.value[1:].cpu(), clean.value[1:], "NaN stays in its row")


def test_more_structures_than_places(monkeypatch):
    structure, scores = CASES["assignments"][0], scores_of("assignments", 0.3)
    wide, expected = solved(structure, scores)
    monkeypatch.setattr(gpu, "_ROOM", 4)
    found, _ = solved(structure, scores)
    assert found.probs.shape[-1] > 4
    close(mean(found), mean(expected), "more places are made")
    # sums in another order may break a tie in another way
    assert int((found.iterations - wide.iterations).abs().max()) <= 1, "and nothing is done twice"


@pytest.mark.parametrize("name", ["more rows", "chains"])
def test_warm_start(name):
    structure, scores = CASES[name][0], scores_of(name)
    cold, _ = solved(structure, scores)
    again, _ = solved(structure, scores, start=cold)
    close(mean(again), mean(cold), "a warm start ends where a cold one does")
    assert int(again.iterations.max()) <= 1, "a solution is its own warm start"
    dense = replace(cold, found=cold.vertices)
    near = tuple(x + 0.1 for x in scores)
    found, expected = solved(structure, near, start=dense)
    close(mean(found), mean(expected), "other scores have their own solution")


@pytest.mark.parametrize("name", ["assignments", "alignments"])
def test_structures_of_weight_0_span_the_face(name):
    structure, scores = CASES[name][0], tuple(torch.zeros_like(x[:1]) for x in scores_of(name))
    found, expected = solved(structure, scores, whole=True)
    close(mean(found), mean(expected), "mu does not depend on the device")
    ranks = [torch.linalg.matrix_rank(s.overlaps[0].double() + 1) for s in (found, expected)]
    assert int(ranks[0]) == int(ranks[1]) == found.probs.shape[-1], "nor does the face"
    assert int((found.probs > 0).sum()) < found.probs.shape[-1]


def test_turns_end():
    structure, scores = CASES["assignments"][0], tuple(x.to(DEVICE) for x in scores_of("assignments"))
    found, converged = gpu.solve(pm.ActiveSet(max_iter=1), structure, scores, structure.search(*scores), None, False)
    assert not bool(converged.all())
    assert int(found.iterations.max()) == 1


@pytest.mark.parametrize("name", ["trees", "more rows", "chains"])
def test_response_is_its_reference(name):
    found = pm.ActiveSet().solve(CASES[name][0], scores_of(name, 0.5), whole=True)
    count, k = found.probs.shape
    d = sum(event.numel() for event in found.found.events)
    g, h = torch.randn(count, d), torch.randn(count, k, dtype=torch.float64)
    known = found.found.places, found.overlaps, found.probs
    there = tuple(t.to(DEVICE) for t in known)
    for dtype in (torch.float64, torch.float32):
        expected = reference.response(*known, g.to(dtype), h)
        for a, b in zip(cuda.response(*there, g.to(DEVICE, dtype), h.to(DEVICE)), expected, strict=True):
            close(a.cpu(), b, "the kernel is its reference")
    mu = cuda.mixture(there[0], there[2], d, torch.float32)
    close(mu.cpu(), reference.mixture(known[0], known[2], d, torch.float32), "the kernel is its reference")


def test_dependent_structures_have_gradients():
    # one state more and one less, each with and without the other: the fourth sequence is a mix of three
    places = torch.tensor([[[0, 2], [1, 2], [0, 3], [1, 3]]], dtype=torch.int32)
    overlaps = (places.unsqueeze(2) == places.unsqueeze(1)).sum(-1)
    g, h = torch.randn(1, 4, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
    dmu, dp = cuda.response(*(t.to(DEVICE) for t in (places, overlaps, probs, g, h)))
    for a, b in zip((dmu, dp), reference.response(places, overlaps, probs, g, h), strict=True):
        close(a.cpu(), b, "the kernel is its reference")
    assert dp[0, 3] == 0, "a mix of heavier structures keeps its weight"
