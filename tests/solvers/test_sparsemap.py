"""SparseMAP: optimal by enumeration, the same by four solvers, with an explicit distribution and exact derivatives."""

import warnings
from dataclasses import replace

import pytest
import torch
from scipy import stats
from sets import BY_NAME, RAGGED, TABLE, every
from tolerances import close, equal

import polymax as pm
from polymax.kernels.active_set.problem import UsedParts
from polymax.kernels.response import mixture, reference, response
from polymax.solvers.loops import reference as lockstep
from polymax.structures.base import tensors

SOLVERS = [pm.ActiveSet(), pm.Pairwise(), pm.AwayStep(), pm.FrankWolfe()]
TEMPERATURES = [0.01, 0.1, 1.0, 10.0, 100.0]


def gap_of(row, scores, mu, gamma):
    """How much better than mu any structure does, at gamma = 1: half of the squared distance to the solution."""
    vertices, values = row.enumerated(scores)
    flat = vertices[0].flatten(1)
    point = tensors(mu)[0].flatten(1)
    gains = values / gamma - flat @ point.T
    current = row.structure.score(mu, *scores) / gamma - point.square().sum(-1)
    return gains.amax(0) - current, values.abs().amax() / gamma


@every(TABLE)
@pytest.mark.parametrize("gamma", TEMPERATURES)
def test_optimal(row, gamma):
    scores = row.scores(batch=(4,))
    op = pm.SparseMap(row.structure, gamma=gamma)
    found = op.distribution(*scores)
    gap, size = gap_of(row, scores, found.mean, gamma)
    assert float(gap.max()) <= 1e-13 * float(1 + size), "no structure does better than mu"
    closed = op(*scores)
    for a, b in zip(tensors(closed), tensors(found.mean), strict=True):
        close(a, b, "argmax is the mean of the distribution")
    expected = row.structure.score(closed, *scores) - op.omega(closed)
    close(op.max(*scores), expected, "max is <scores, mu> - Omega(mu)")


@every(TABLE)
def test_gradients_are_functions_of_the_scores(row):
    """A gradient under create_graph can be derived again and again, though SparseMAP is linear around most scores."""
    scores = tuple(x.requires_grad_() for x in row.scores(batch=(2,)))
    directions = [torch.randn(x.shape, dtype=x.dtype) for x in scores]
    outputs = tensors(pm.SparseMap(row.structure)(*scores))
    found = torch.autograd.grad(outputs, scores, [torch.randn_like(y) for y in outputs], create_graph=True)
    for _ in range(2):
        assert all(x.requires_grad for x in found)
        found = torch.autograd.grad(found, scores, directions, create_graph=True)
    assert all(bool(x.isfinite().all()) for x in found)


@every(TABLE)
@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_solvers_agree(row, gamma):
    scores = row.scores(batch=(3,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {type(s).__name__: pm.SparseMap(row.structure, s, gamma).distribution(*scores) for s in SOLVERS}
    exact = tensors(found["ActiveSet"].mean)[0]
    for name, tolerance in (("Pairwise", 1e-3), ("AwayStep", 1e-3), ("FrankWolfe", 5e-2)):
        error = (tensors(found[name].mean)[0] - exact).abs().max()
        assert float(error) < tolerance, f"{name} agrees with ActiveSet"
        assert bool((found[name].solution.gap <= 1e-2).all())


@pytest.mark.parametrize("name", ["chain", "segments", "span-tree", "dag", "spanning-tree", "assignment"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_compiled_loop_is_the_lockstep_loop(name, solver):
    row = BY_NAME[name]
    scores = row.scores(batch=(3,))
    compiled = solver.solve(row.structure, scores)
    plain, _ = lockstep.solve(solver, row.structure, scores, None, None, whole=False)
    a, b = (row.structure.mean(s.vertices, s.probs) for s in (compiled, plain))
    for x, y in zip(tensors(a), tensors(b), strict=True):
        assert float((x - y).abs().max()) < max(1e-9, 30 * solver.tol**0.5)


@pytest.mark.parametrize("structure", [pm.BudgetChain(9), pm.SegmentChain(2), pm.SegmentChain(8, state=0)], ids=str)
@pytest.mark.parametrize("states", [2, 3])
def test_counts_of_several_blocks(structure, states):
    """Counts stand side by side in blocks, and those of the last may be beyond the limit."""
    scores = torch.randn(2, 20, states, dtype=torch.float64), torch.randn(19, states, states, dtype=torch.float64)
    structure = structure.with_lengths(torch.tensor([20, 17]))
    solver = pm.ActiveSet()
    plain, _ = lockstep.solve(solver, structure, scores, None, None, whole=False)
    expected = structure.mean(plain.vertices, plain.probs)
    for x, y in zip(pm.SparseMap(structure, solver)(*scores), tensors(expected), strict=True):
        assert float((x - y).abs().max()) < 1e-9


@every([row for row in TABLE if len(row.events(row.shape)) == 1])
def test_shapes_of_all_sizes(row):
    """At every shape of the table, the least ones too, the mean is that of a list of all structures."""
    for shape in row.shapes:
        scores = row.scores(shape, (2,))
        (listed,) = row.vertices(shape)
        if not 0 < len(listed) <= 150:
            continue
        flat = pm.SparseMap(pm.Explicit(listed.flatten(1)))(scores[0].flatten(1))
        close(pm.SparseMap(row.structure)(*scores).flatten(1), flat, "SparseMAP is that of the list")


def test_known_cases():
    x = torch.randn(7, 6, dtype=torch.float64)
    close(pm.SparseMap(pm.Simplex(), gamma=0.5)(x), pm.sparsemax(x / 0.5), "SparseMap(Simplex) is sparsemax")
    close(pm.SparseMap(pm.Subset(2))(x), pm.budgetmax(x, 2), "SparseMap(Subset) is budgetmax")
    unary, transition = torch.randn(4, 1, 5, dtype=torch.float64), torch.zeros(5, 5, dtype=torch.float64)
    close(pm.SparseMap(pm.Chain())(unary, transition).unary[:, 0], pm.sparsemax(unary[:, 0]), "a chain of length 1")


def test_support_of_scores_with_a_nan():
    """No structure of an instance with a NaN has weight; the other instances keep theirs."""
    scores = torch.randn(3, 5, dtype=torch.float64)
    sizes = pm.SparseMap(pm.Simplex()).distribution(scores).support_size
    scores[1, 2] = torch.nan
    found = pm.SparseMap(pm.Simplex()).distribution(scores)
    assert found.support_size.tolist() == [int(sizes[0]), 0, int(sizes[2])]


@every(TABLE)
def test_distribution(row):
    scores = row.scores(batch=(3,))
    op = pm.SparseMap(row.structure, gamma=2.0)
    d = op.distribution(*scores)
    close(d.probs.sum(-1), torch.ones(3), "probabilities sum to 1")
    equal((d.probs > 0).sum(-1), d.support_size, "support_size counts structures with weight")
    listed = torch.cat([v.flatten(1) for v in row.vertices()], 1).tolist()
    rows = torch.cat([t.flatten(2) for t in tensors(d.vertices)], -1)
    for b in range(3):
        for found, p in zip(rows[b].tolist(), d.probs[b].tolist(), strict=True):
            assert p == 0 or found in listed, "the support is made of structures"
    assert bool((d.probs[:, :-1] >= d.probs[:, 1:]).all()), "heaviest first"
    mean = d.expectation(lambda y: tensors(y)[0])
    close(mean, tensors(d.mean)[0], "expectation of the identity is the mean")
    close(d.entropy(), -torch.special.xlogy(d.probs, d.probs).sum(-1), "entropy")
    best, p = d.topk(2)
    equal(p[:, 0], d.probs[:, 0], "topk starts with the heaviest")
    assert tensors(best)[0].shape[1] == 2
    close(d.prob(d.mode), d.probs[:, 0], "the mode is the heaviest")
    draws = d.sample((500,), generator=torch.Generator().manual_seed(1))
    hit = d.prob(draws)
    assert bool((hit > 0).all()), "draws come from the support"
    counts = torch.stack([(hit[:, 0] - q).abs() < 1e-12 for q in d.probs[0].unique() if q > 0], -1).sum(0)
    weights = torch.stack([q * (d.probs[0] == q).sum() for q in d.probs[0].unique() if q > 0])
    if len(weights) > 1 and float(weights.min()) * 500 > 5:
        assert stats.chisquare(counts.numpy(), (weights / weights.sum() * 500).numpy()).pvalue > 1e-4


@every(TABLE)
def test_gradients(row):
    scores = tuple(x.requires_grad_() for x in row.scores(batch=(2,), seed=5))
    op = pm.SparseMap(row.structure, gamma=1.7)
    check = {"fast_mode": True, "atol": 1e-5}
    assert torch.autograd.gradcheck(op.max, scores, **check)
    assert torch.autograd.gradgradcheck(op.max, scores, **check)
    assert torch.autograd.gradcheck(lambda *x: tensors(op(*x)), scores, **check)
    assert torch.autograd.gradgradcheck(lambda *x: tensors(op(*x)), scores, **check)
    # the same structures nearby: where a face is degenerate there are other weights with the same mean
    near = op.solve(*scores)
    assert torch.autograd.gradcheck(lambda *x: op.distribution(*x, start=near).probs, scores, **check)
    full = tuple(x.detach().requires_grad_() for x in row.structure.full(*scores))
    for slope, mu in zip(torch.autograd.grad(op.max(*full).sum(), full), tensors(op(*full)), strict=True):
        close(slope, mu, "the gradient of max is argmax")
    gamma = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    plain = tuple(x.detach() for x in scores)
    assert torch.autograd.gradcheck(lambda g: pm.SparseMap(row.structure, gamma=g).max(*plain), gamma)


COMPILED = ["chain", "segments", "span-tree", "dag", "spanning-tree", "assignment-wide"]


@pytest.mark.parametrize("name", COMPILED)
def test_many_gradients_at_once(name):
    row = BY_NAME[name]
    scores = tuple(x.requires_grad_() for x in row.scores(batch=(2,)))
    mu = tensors(pm.SparseMap(row.structure)(*scores))[0]
    basis = torch.eye(mu.numel(), dtype=mu.dtype).reshape(mu.numel(), *mu.shape)
    together = torch.autograd.grad(mu, scores, basis, is_grads_batched=True, retain_graph=True)
    for k in range(0, mu.numel(), 7):
        for all_at_once, one in zip(
            together, torch.autograd.grad(mu, scores, basis[k], retain_graph=True), strict=True
        ):
            close(all_at_once[k], one, "batched gradients are those one by one")


@pytest.mark.parametrize("name", COMPILED)
def test_second_derivatives_of_weights(name):
    row = BY_NAME[name]
    scores = tuple(x.requires_grad_() for x in row.scores(batch=(2,), seed=5))
    op = pm.SparseMap(row.structure, gamma=1.7)
    near = op.solve(*scores)

    def squares(*x):
        d = op.distribution(*x, start=near)
        return d.probs.square().sum(-1) + tensors(d.mean)[0].square().flatten(1).sum(-1)

    assert torch.autograd.gradgradcheck(squares, scores, fast_mode=True, atol=1e-5)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("solver", [pm.ActiveSet(), pm.Pairwise()], ids=lambda s: type(s).__name__)
def test_response_is_its_reference(name, solver):
    row = BY_NAME[name]
    generator = torch.Generator().manual_seed(2)
    found = pm.SparseMap(row.structure, solver, gamma=3.0).solve(*row.scores(batch=(3,)))
    assert isinstance(found.found, UsedParts)
    d = sum(event.numel() for event in found.found.events)
    g, u = torch.randn(2, 3, d, generator=generator, dtype=torch.float64)
    h, w = torch.randn(2, 3, found.probs.shape[-1], generator=generator, dtype=torch.float64)
    known = (found.found.places, found.overlaps, found.probs)
    dmu, dp = response(*known, g, h, d)
    for a, b in zip((dmu, dp), reference.response(*known, g, h, d), strict=True):
        close(a, b, "the kernel is its reference")
    for a, b in zip((dmu, dp), response(*known, g.float(), h, d), strict=True):
        assert float((a - b).abs().max()) < 1e-5, "float32"
    close(dp.sum(-1), torch.zeros(3), "weights keep their sum")
    swapped, weights = response(*known, u, w, d)
    there, back = (dmu * u).sum() + (dp * w).sum(), (swapped * g).sum() + (weights * h).sum()
    close(there, back, "the response is symmetric")
    mean = mixture(found.found.places, found.probs, d, torch.float64)
    close(mean, reference.mixture(found.found.places, found.probs, d, torch.float64), "the kernel is its reference")
    expected = torch.cat([t.flatten(1) for t in tensors(row.structure.mean(found.vertices, found.probs))], 1)
    close(mean, expected, "lists of parts have the mean of dense structures")
    torch.library.opcheck(response.op, (*known, g, h, d))
    torch.library.opcheck(mixture.op, (found.found.places, found.probs, d, torch.float32))


def test_dependent_structures_have_gradients():
    # one state more and one less, each with and without the other: the fourth sequence is a mix of three
    places = torch.tensor([[[0, 2], [1, 2], [0, 3], [1, 3]]], dtype=torch.int32)
    overlaps = (places.unsqueeze(2) == places.unsqueeze(1)).sum(-1)
    g, h = torch.randn(1, 4, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
    probs = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
    dmu, dp = response(places, overlaps, probs, g, h, 4)
    expected = g - g.reshape(1, 2, 2).mean(-1, keepdim=True).expand(1, 2, 2).reshape(1, 4)
    close(dmu, expected, "the mean moves within the square that the structures span")
    assert dp[0, 3] == 0, "a mix of heavier structures keeps its weight"
    for a, b in zip((dmu, dp), reference.response(places, overlaps, probs, g, h, 4), strict=True):
        close(a, b, "the kernel is its reference")


@every(TABLE)
def test_warm_start(row):
    scores = row.scores(batch=(3,))
    op = pm.SparseMap(row.structure, gamma=3.0)
    cold = op.solve(*scores)
    moved = tuple(x + 0.01 * torch.randn_like(x) for x in scores)
    fresh, warm = op.solve(*moved), op.solve(*moved, start=cold)
    a, b = (row.structure.mean(s.vertices, s.probs) for s in (fresh, warm))
    for x, y in zip(tensors(a), tensors(b), strict=True):
        close(x, y, "a warm start ends where a cold one does")
    assert int(warm.iterations.sum()) <= int(fresh.iterations.sum())
    again = op.solve(*scores, start=cold)
    assert int(again.iterations.max()) <= 1, "a solution is its own warm start"
    dense = replace(cold, found=cold.vertices)
    assert int(op.solve(*scores, start=dense).iterations.max()) <= 1, "in either form"


@every(TABLE)
def test_ties(row):
    scores = tuple(torch.zeros_like(x) for x in row.scores(batch=(2,)))
    d = pm.SparseMap(row.structure, gamma=1.0).distribution(*scores)
    gap, _ = gap_of(row, scores, d.mean, 1.0)
    assert float(gap.max()) < 1e-12, "tied scores are solved exactly"
    first, again = (pm.SparseMap(row.structure).distribution(*scores).probs for _ in range(2))
    equal(first, again, "the same call gives the same distribution")


@every([row for row in TABLE if row.indicators])
def test_forbidden_parts(row):
    scores = row.scores(batch=(3,))
    only = [v[0] for v in row.vertices()]
    full = [x.clone() for x in row.structure.full(*scores)]
    for x, y in zip(full, only, strict=True):
        x[0][y == 0] = -torch.inf
        x[2] = -torch.inf
    inputs = tuple(x.requires_grad_() for x in full)
    op = pm.SparseMap(row.structure)
    value, mu = op.max(*inputs), tensors(op.distribution(*inputs).mean)
    slopes = torch.autograd.grad(value[:2].sum(), inputs)
    for m, y in zip(mu, only, strict=True):
        close(m[0].detach(), y, "one structure is left: it is the answer")
    for s in slopes:
        assert bool(torch.isfinite(s).all())
    if row.nothing == -torch.inf:
        assert value[2] == -torch.inf, "no structure is left"
        assert all(bool((m[2] == 0).all()) for m in mu)


@every(RAGGED)
def test_padding_is_a_shorter_problem(row):
    lengths = row.lengths(row.size(), max(row.size() - 1, 1), 0)
    scores = row.scores(batch=(3,))
    op = pm.SparseMap(row.with_lengths(lengths), gamma=2.0)
    value, mu = op.max(*scores), tensors(op(*scores))
    assert value[2] == 0 or row.least
    for b, length in enumerate(lengths.tolist()[:2]):
        own = tuple(x[b] if x.dim() > len(e) else x for x, e in zip(scores, row.events(row.shape), strict=True))
        alone = pm.SparseMap(row.structure, gamma=2.0)
        short = row.cut(own, length)
        close(value[b], alone.max(*short), "padding is a shorter problem: max")
        for m, cut, small in zip(mu, row.cut(tuple(m[b] for m in mu), length), tensors(alone(*short)), strict=True):
            close(cut, small, "padding is a shorter problem: argmax")
            assert m[b].count_nonzero() == cut.count_nonzero(), "padding is exactly 0"


@every(TABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(row, dtype):
    scores = row.scores(batch=(2,), dtype=dtype)
    op = pm.SparseMap(row.structure)
    for a, b in zip(tensors(op(*scores)), tensors(op(*(x.double() for x in scores))), strict=True):
        assert a.dtype == dtype
        close(a, b.to(dtype), "mu in every dtype")
    assert op.max(*scores).dtype == dtype


def test_nan_stays_in_its_instance():
    unary, transition = torch.randn(3, 4, 2), torch.randn(2, 2)
    unary[1] = torch.nan
    inputs = unary.requires_grad_(), transition
    op = pm.SparseMap(pm.Chain())
    value, mu = op.max(*inputs), op(*inputs).unary
    (slope,) = torch.autograd.grad(mu.square().sum(), unary)
    for t in (value, mu, slope):
        bad = torch.isnan(t).reshape(3, -1).any(-1)
        equal(bad, torch.tensor([False, True, False]), "NaN shows, in its own instance alone")


def test_large_problems_converge():
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(2, 50, 10, generator=generator, dtype=torch.float64)
    transition = torch.randn(10, 10, generator=generator, dtype=torch.float64)
    d = pm.SparseMap(pm.Chain(), gamma=0.1).distribution(unary, transition)
    value = pm.SparseMap(pm.Chain(), gamma=0.1).max(unary, transition)
    assert bool((d.solution.gap <= 1e-6 * (1 + value.abs() / 0.1)).all())
    assert bool((d.support_size >= 1).all())


def test_failure_to_converge_is_a_warning():
    scores = BY_NAME["chain"].scores(batch=(2,))
    with pytest.warns(UserWarning, match="duality gap of"):
        pm.SparseMap(pm.Chain(), pm.FrankWolfe(max_iter=3), gamma=50.0).distribution(*scores)
    with pytest.warns(UserWarning, match="after 2 iterations"):
        pm.SparseMap(pm.Chain(), pm.ActiveSet(max_iter=2), gamma=50.0).distribution(*scores)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="max_iter"):
        pm.ActiveSet(max_iter=0)
    with pytest.raises(ValueError, match="tol"):
        pm.ActiveSet(tol=-1.0)
    with pytest.raises(TypeError, match="Solver"):
        pm.SparseMap(pm.Chain(), solver=3)
    with pytest.raises(TypeError, match="Structure"):
        pm.SparseMap(torch.zeros(3))
    with pytest.raises(ValueError, match="gamma"):
        pm.SparseMap(pm.Chain(), gamma=0.0)
    with pytest.raises(ValueError, match="state 4 and at least one more; got 2 states"):
        pm.SparseMap(pm.BudgetChain(1, state=4))(torch.zeros(3, 2), torch.zeros(2, 2))


class Rook(pm.Structure):
    """Two cells of a square board that share neither row nor column."""

    def map(self, scores):
        vertices = self.vertices(scores.shape[-2:]).to(scores)
        best = torch.where(vertices == 0, 0, vertices * scores.unsqueeze(-3)).sum((-1, -2)).argmax(-1)
        return vertices[best]

    def vertices(self, event_shape):
        n, m = event_shape
        cells = [(i, j) for i in range(n) for j in range(m)]
        pairs = [(a, b) for a in cells for b in cells if a < b and a[0] != b[0] and a[1] != b[1]]
        y = torch.zeros(len(pairs), n, m)
        for row, pair in zip(y, pairs, strict=True):
            for i, j in pair:
                row[i, j] = 1
        return y

    def event_dims(self, *scores):
        return (2,)


def test_a_structure_of_the_users_own():
    scores = torch.randn(3, 3, 3, dtype=torch.float64, requires_grad=True)
    op = pm.SparseMap(Rook())
    d = op.distribution(scores)
    listed = Rook().vertices((3, 3)).double()
    gains = torch.einsum("kij,bij->bk", listed, scores.detach() - d.mean.detach())
    current = (d.mean * (scores - d.mean)).sum((-1, -2))
    assert float((gains.amax(-1) - current).max().detach()) < 1e-12
    check = {"fast_mode": True, "atol": 1e-5}
    assert torch.autograd.gradcheck(op, scores, **check)
    assert torch.autograd.gradgradcheck(op, scores, **check)
    close(pm.HardMax(Rook()).max(scores), torch.einsum("kij,bij->bk", listed, scores).amax(-1), "HardMax")


def test_the_users_own_is_checked():
    pm.testing.check_structure(Rook(), (3, 3))
    pm.testing.check_structure(pm.SpanningTree(), (4, 4))

    class Worst(Rook):
        def map(self, scores):
            return super().map(-scores)

    class Torn(Rook):
        def map(self, scores):
            return torch.zeros_like(scores)

    with pytest.raises(AssertionError, match="highest score"):
        pm.testing.check_structure(Worst(), (3, 3))
    with pytest.raises(AssertionError, match="no vertex"):
        pm.testing.check_structure(Torn(), (3, 3))


def test_rankings():
    x = torch.randn(5, 6, dtype=torch.float64)
    hard = x.argsort(-1).argsort(-1) + 1.0
    equal(pm.Ranking().map(x), hard.double(), "map ranks the scores")
    close(pm.soft_rank(x, 1e-3), hard, "small gamma gives ranks")
    close(pm.soft_rank(x, 1e11), torch.full_like(x, 3.5), "large gamma gives the mean rank")
    close(pm.soft_rank(x).sum(-1), torch.full((5,), 21.0), "ranks sum to n (n + 1) / 2")
    close(pm.soft_sort(x, 1e-3), x.sort(-1).values, "small gamma sorts")
    close(pm.soft_sort(x).sum(-1), x.sum(-1), "sorting keeps the sum")
    vertices = pm.Ranking().vertices((4,)).double()
    y = 0.7 * torch.randn(3, 4, dtype=torch.float64)
    mu = pm.SparseMap(pm.Ranking(), gamma=0.5)(y)
    gains = (y / 0.5 - mu) @ vertices.T
    assert float((gains.amax(-1) - ((y / 0.5 - mu) * mu).sum(-1)).max()) < 1e-10, "the projection is optimal"
    y.requires_grad_()
    for fn in (pm.soft_rank, pm.soft_sort):
        assert torch.autograd.gradcheck(fn, y)
        assert torch.autograd.gradgradcheck(fn, y)
    close(pm.soft_rank(y.T, dim=0).T, pm.soft_rank(y), "any dim")
    exact = pm.SparseMap(pm.Ranking(), gamma=0.5).distribution(y)
    close(exact.mean, mu, "the distribution has the mean of the closed form")
