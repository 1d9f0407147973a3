"""SparseMAP on a GPU is SparseMAP on the CPU: structures, weights, derivatives, and the same bits at every call."""

from dataclasses import replace

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax.kernels.active_set.cuda_solution import ordered
from polymax.kernels.active_set.problem import UsedParts
from polymax.kernels.response import cuda, reference
from polymax.solvers.loops import cuda as gpu

pytestmark = pytest.mark.device
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

CASES = {
    "trees": (pm.SpanningTree(lengths=torch.tensor([3, 2])), [(2, 4, 4)]),
    "trees of any roots": (pm.SpanningTree(single_root=False), [(2, 3, 3)]),
    "assignments": (pm.Assignment(), [(1, 4, 4)]),
    "more rows": (pm.Assignment(lengths=(torch.tensor([4, 2]), torch.tensor([2, 3]))), [(2, 4, 3)]),
    "chains": (pm.Chain(lengths=torch.tensor([3, 0, 2])), [(3, 3, 3), (3, 3)]),
    "chains of many steps": (pm.Chain(), [(1, 2, 3, 2), (1, 2, 2, 2, 2)]),
    "chains of many states": (pm.Chain(), [(1, 3, 17), (17, 17)]),
    "chains with a budget": (pm.BudgetChain(2, lengths=torch.tensor([4, 0, 2])), [(3, 4, 2), (2, 2)]),
    "chains of few runs": (pm.SegmentChain(1, state=2), [(1, 4, 3), (1, 3, 3, 3)]),
    "spans": (pm.SpanTree(), [(2, 5, 5)]),
    "spans with labels": (pm.SpanTree(lengths=torch.tensor([3, 0])), [(2, 3, 3, 2)]),
    "no crossing arcs": (pm.ProjectiveTree(lengths=torch.tensor([4, 1])), [(2, 5, 5)]),
    "no crossing arcs, with labels": (pm.ProjectiveTree(single_root=False, labelled=True), [(1, 4, 4, 2)]),
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
    assert converged is None, "all have converged"
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
        both = [reference.mixture(s.found.places, s.probs, 1000, torch.float64) for s in (found, expected)]
        close(both[0].cpu(), both[1], "nor do the means of other tensors")


@pytest.mark.parametrize(("name", "scale"), [("chains", 100.0), ("chains", 0.01), ("assignments", 100.0)])
def test_temperatures(name, scale):
    found, expected = solved(CASES[name][0], scores_of(name, scale))
    close(mean(found), mean(expected), "mu does not depend on the device")


@pytest.mark.parametrize("name", ["finer than float32", "all tied", "forbidden steps", "no room for more"])
def test_chains_sought_in_float32_end_in_float64(name, monkeypatch):
    generator = torch.Generator().manual_seed(5)
    n, s = (6, 4) if name == "no room for more" else (5, 3)
    unary, transition = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in [(1, n, s), (s, s)])
    if name == "finer than float32":
        # sums are 3e-5 apart in float32
        unary, transition = 30 + 1e-6 * unary, 30 + 1e-6 * transition
    elif name == "all tied":
        unary, transition = unary.round(), transition.round()
    elif name == "forbidden steps":
        transition[0, :2] = -torch.inf
        unary[0, 2, 1:] = -torch.inf
    else:
        unary, transition = 0.3 * unary, 0.3 * transition
        monkeypatch.setattr(gpu, "_ROOM", 8)
        monkeypatch.setattr(gpu, "_LIKELY", 8)
    found, expected = solved(pm.Chain(), (unary, transition), whole=True)
    close(mean(found), mean(expected), "mu is as exact as in float64")
    assert bool((found.gap < 1e-9).all())
    if DEVICE == "cpu":
        # one program after the other: nothing could come in another order
        return
    again, _ = solved(pm.Chain(), (unary, transition), whole=True)
    equal(found.probs, again.probs, "the same call gives the same bits")


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3, 3)], ids=["shared", "of each instance"])
def test_chains_of_one_position_read_no_transitions(shape):
    """There are none, and they have no memory: a program that reads them ends the process."""
    scores = torch.randn(2, 1, 3, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    found, expected = solved(pm.Chain(), scores)
    close(mean(found), mean(expected), "a chain of one position is a simplex")


def test_ties():
    scores = (torch.zeros(1, 3, 3, dtype=torch.float64),)
    found, _ = solved(pm.Assignment(), scores)
    close(mean(found), torch.ones(1, 3, 3, dtype=torch.float64) / 3, "tied scores are solved exactly")
    again, _ = solved(pm.Assignment(), scores)
    equal(found.probs, again.probs, "the same call gives the same bits")


@pytest.mark.parametrize("name", ["trees of any roots", "no crossing arcs"])
def test_forbidden_parts(name):
    (scores,) = scores_of(name)
    scores[0, :, 2] = -torch.inf
    scores[1, 0, 1:] = 0
    scores[1, 2:, 1] = -torch.inf
    found, expected = solved(CASES[name][0], (scores,))
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


@pytest.mark.parametrize("name", ["more rows", "chains", "spans with labels", "no crossing arcs"])
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


@pytest.mark.parametrize("name", ["assignments", "alignments", "spans"])
def test_structures_of_weight_0_span_the_face(name):
    structure, scores = CASES[name][0], tuple(torch.zeros_like(x[:1]) for x in scores_of(name))
    found, expected = solved(structure, scores, whole=True)
    close(mean(found), mean(expected), "mu does not depend on the device")
    ranks = [torch.linalg.matrix_rank(s.overlaps[0].double() + 1) for s in (found, expected)]
    assert int(ranks[0]) == int(ranks[1]) == found.probs.shape[-1], "nor does the face"
    assert int((found.probs > 0).sum()) < found.probs.shape[-1]


def in_order(held, known, gaps, k, states):
    """What the programs leave, put in order in plain torch."""
    (places, gram, system), (status, iterations, _) = held, known
    weights, order = torch.sort(system[:, -2], dim=-1, descending=True, stable=True)
    weights, order = weights[:, :k], order[:, :k]
    on, p = weights >= 0, weights.clamp(min=0)
    p = p / p.sum(-1, keepdim=True).clamp(min=1e-30)
    both = on.unsqueeze(-1) & on.unsqueeze(-2)
    overlaps = torch.stack([g[o][:, o] for g, o in zip(gram.double(), order, strict=True)])
    overlaps = torch.where(both, overlaps, 0)
    value = (p * (system[:, -3].gather(1, order) - (overlaps * p.unsqueeze(-2)).sum(-1) / 2)).sum(-1)
    value = torch.where(status == gpu.cuda_loop.INFEASIBLE.value, -torch.inf, value)
    lists = torch.stack([rows[o] for rows, o in zip(places, order, strict=True)])
    lists = torch.where(on.unsqueeze(-1), lists, -1)
    if states:
        n = lists.shape[-1]
        steps = torch.where(lists[..., 1:] < 0, -1, (n + lists[..., :-1]) * states + lists[..., 1:] % states)
        lists = torch.cat([lists, steps], -1)
        lists = lists.gather(-1, torch.sort((lists < 0).byte(), dim=-1, stable=True).indices)
    nan = gaps.isnan()
    p = torch.where(on & nan.unsqueeze(-1), torch.nan, p)
    return lists, p, overlaps, torch.where(nan, torch.nan, value), iterations.clamp(min=0), gaps.clamp(min=0)


@pytest.mark.parametrize("states", [0, 3])
def test_solutions_are_put_in_order(states):
    generator = torch.Generator().manual_seed(1)
    count, room, n, k = 4, 8, 5, 6
    places = torch.arange(n) * 3 + torch.randint(3, (count, room, n), generator=generator)
    lengths = torch.tensor([5, 3, 0, 1]).reshape(count, 1, 1)
    places = torch.where(torch.arange(n) < lengths, places, -1).int()
    gram = (places.unsqueeze(2) == places.unsqueeze(1)).sum(-1).float()
    # room that no one has written to may hold anything
    gram[:, :, 6:], gram[:, 6:] = torch.nan, torch.nan
    system = torch.randn(count, room + 3, room, generator=generator, dtype=torch.float64)
    system[:, -2] = torch.tensor([0.25, -1, 0.5, 0.25, 0.0, 1e-3, -1, -1], dtype=torch.float64)
    system[3, -2, 1:] = -1
    known = torch.tensor([[5, 5, 6, 2], [3, 0, -1, 9], [5, 5, 5, 1]], dtype=torch.int32)
    gaps = torch.tensor([0.0, -1e-17, 0.0, torch.nan], dtype=torch.float64)
    expected = in_order((places, gram, system), known, gaps, k, states)
    held = tuple(t.to(DEVICE) for t in (places, gram, system))
    parts = 2 * n - 1 if states else n
    d = int(expected[0].max()) + 1
    *found, mu = ordered(held, known.to(DEVICE), gaps.to(DEVICE), torch.Size((2, 2)), k, parts, states, d)
    for a, b in zip(found, expected, strict=True):
        close(a.cpu().flatten(0, 1).double(), b.double(), "the kernel is its reference")
    close(mu.cpu(), reference.mixture(*expected[:2], d, torch.float64), "so is the mean of its structures")
    *alone, nothing = ordered(held, known.to(DEVICE), gaps.to(DEVICE), torch.Size((2, 2)), k, parts, states)
    assert nothing.shape == (count, 0), "no mean is added up unless it is asked for"
    for a, b in zip(alone, found, strict=True):
        equal(a, b, "the structures do not depend on that")


# the interpreter computes the lanes that a GPU would mask, with NumPy's warnings about them
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "large"), [("trees", [-2e3]), ("chains", [torch.inf, torch.nan])])
def test_programs_are_wary_of_large_scores(name, large):
    structure = moved(CASES[name][0])

    def answer(k=0, bad=None):
        scores = [t.to(DEVICE) for t in scores_of(name)]
        if bad is not None:
            scores[k].view(-1)[scores[k].numel() - 1] = bad
        return gpu.solve(pm.ActiveSet(), structure, scores, structure.search(*scores), None, False, True)

    assert answer() is not None
    for k in range(len(scores_of(name))):
        assert all(answer(k, bad) is None for bad in large), "a large score is seen"
        assert answer(k, -torch.inf) is not None, "-inf is none"


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
        expected = reference.response(*known, g.to(dtype), h, d)
        for a, b in zip(cuda.response(*there, g.to(DEVICE, dtype), h.to(DEVICE), d), expected, strict=True):
            close(a.cpu(), b, "the kernel is its reference")
        first = reference.response(*known, torch.nn.functional.pad(g[:, :5], (0, d - 5)).to(dtype), 0 * h, d)
        for a, b in zip(cuda.response(*there, g[:, :5].to(DEVICE, dtype), None, d), first, strict=True):
            close(a.cpu(), b, "scores that do not move need not be there")
    mu = cuda.mixture(there[0], there[2], d, torch.float32)
    close(mu.cpu(), reference.mixture(known[0], known[2], d, torch.float32), "the kernel is its reference")


def test_response_of_many_structures():
    """Blocks of columns follow each other; some structures depend on others, and some places are free."""
    generator = torch.Generator().manual_seed(2)
    n, s, k = 8, 4, 37
    tags = torch.randint(s, (2, k, n), generator=generator)
    tags[:, 20], tags[:, 30] = tags[:, 3], torch.cat([tags[:, 5, :4], tags[:, 6, 4:]], -1)
    tags[:, 31] = torch.cat([tags[:, 6, :4], tags[:, 5, 4:]], -1)
    places = (torch.arange(n) * s + tags).int()
    places[1, 18:] = -1
    overlaps = ((places.unsqueeze(2) == places.unsqueeze(1)) & (places >= 0).unsqueeze(2)).sum(-1)
    probs = torch.where(overlaps.diagonal(dim1=-2, dim2=-1) > 0, 1 / k, 0.0).double()
    g, h = torch.randn(2, n * s, dtype=torch.float64), torch.randn(2, k, dtype=torch.float64)
    found = cuda.response(*(t.to(DEVICE) for t in (places, overlaps, probs, g, h)), n * s)
    for a, b in zip(found, reference.response(places, overlaps, probs, g, h, n * s), strict=True):
        close(a.cpu(), b, "the kernel is its reference")


def test_dependent_structures_have_gradients():
    # one state more and one less, each with and without the other: the fourth sequence is a mix of three
    places = torch.tensor([[[0, 2], [1, 2], [0, 3], [1, 3]]], dtype=torch.int32)
    overlaps = (places.unsqueeze(2) == places.unsqueeze(1)).sum(-1)
    g, h = torch.randn(1, 4, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
    dmu, dp = cuda.response(*(t.to(DEVICE) for t in (places, overlaps, probs, g, h)), 4)
    for a, b in zip((dmu, dp), reference.response(places, overlaps, probs, g, h, 4), strict=True):
        close(a.cpu(), b, "the kernel is its reference")
    assert dp[0, 3] == 0, "a mix of heavier structures keeps its weight"
