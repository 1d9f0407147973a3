"""Factor graphs against enumeration, a linear program of another library, and finite differences."""

from types import SimpleNamespace

import pytest
import torch
from graphs import GRAPHS, F, best_value, projected_point, relaxed_value
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm

ROWS = pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in GRAPHS])
# what needs many rounds takes seconds
QUICK = pytest.mark.parametrize("row", [pytest.param(r, id=r.name) for r in GRAPHS if r.name != "two-kinds"])


def score(row, y, scores):
    return row.graph.score(y, *scores)


@ROWS
@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_nearest_point_is_optimal_over_the_relaxation(row, scale):
    """The gradient of the objective there is best at the point itself: no point on which factors agree is better."""
    pytest.importorskip("scipy")
    scores = row.scores((2,), scale=scale)
    found = pm.SparseMap(row.graph).solve(*scores)
    assert bool((found.residual < 1e-9).all()), found.residual
    mu = found.parts
    slope = (scores[0] - mu.variables, *scores[1:])
    reached = score(row, mu, slope)
    for i in range(2):
        best = relaxed_value(row, tuple(x[i].detach() for x in slope))
        assert abs(best - float(reached[i])) < 1e-8 * (1 + scale)


@pytest.mark.parametrize("smooth", [pm.HardMax, pm.SparseMap])
def test_torch_func(smooth):
    """Derivatives go through; what torch.vmap hides cannot be solved for, and the error says what to do."""
    op = smooth(GRAPHS[0].graph)
    (x,) = GRAPHS[0].scores((2,))
    expected = torch.stack([torch.autograd.functional.jacobian(lambda x: op(x).variables, row) for row in x])
    found = torch.stack([torch.func.jacrev(lambda x: op(x).variables)(row) for row in x])
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match="give them as a batch"):
        torch.vmap(lambda x: op(x).variables)(x)


@ROWS
def test_nearest_point_is_that_of_a_quadratic_program(row):
    pytest.importorskip("cvxpy")
    scores = row.scores((1,), seed=7)
    found = pm.SparseMap(row.graph)(*scores).variables[0]
    torch.testing.assert_close(found, projected_point(row, [x[0] for x in scores]), atol=1e-4, rtol=0)


@QUICK
def test_best_point_has_the_value_of_the_linear_program(row):
    pytest.importorskip("scipy")
    scores = row.scores((2,), seed=1, scale=10.0)
    found = pm.HardMax(row.graph).solve(*scores)
    value = score(row, found.parts, scores)
    for i in range(2):
        one = tuple(x[i] for x in scores)
        torch.testing.assert_close(float(value[i]), relaxed_value(row, one), atol=1e-6, rtol=1e-9)
        if bool(found.integral[i]):
            torch.testing.assert_close(float(value[i]), best_value(row, one), atol=1e-6, rtol=1e-9)


@QUICK
def test_derivatives(row):
    scores = row.scores((1,), seed=2, scale=0.7, requires_grad=True)
    op = pm.SparseMap(row.graph)
    assert gradcheck(lambda *x: tuple(op(*x)), scores, atol=1e-5, fast_mode=True)
    assert gradgradcheck(lambda *x: op(*x).variables, scores, atol=1e-5, fast_mode=True)
    value = op.max(*scores)
    for g, mu in zip(torch.autograd.grad(value.sum(), scores), op(*scores), strict=True):
        torch.testing.assert_close(g, mu)


@QUICK
def test_batch_is_a_loop(row):
    scores = row.scores((2, 1), seed=3)
    op = pm.SparseMap(row.graph)
    whole, alone = op(*scores), op(*(x[1, 0] for x in scores))
    for a, b in zip(whole, alone, strict=True):
        torch.testing.assert_close(a[1, 0], b, atol=1e-9, rtol=0)


@QUICK
def test_losses(row):
    """Zero at the operator's own output, gradient mu - y, and variables alone as targets."""
    scores = row.scores((1,), seed=4, requires_grad=True)
    op = pm.SparseMap(row.graph)
    mu = op(*scores)
    own = row.graph.named(*(t.detach() for t in mu))
    assert abs(float(pm.fenchel_young(op, scores, own).detach())) < 1e-8
    y = pm.HardMax(row.graph)(*(2 * x.detach() for x in scores))
    loss = pm.fenchel_young(op, scores, y, reduction="sum")
    assert float(loss.detach()) > -1e-9
    for g, a, b in zip(torch.autograd.grad(loss, scores), mu, y, strict=True):
        torch.testing.assert_close(g, a - b, atol=1e-8, rtol=0)


def test_trees_of_factors_are_exact():
    """On a tree the relaxation is integral."""
    graph = pm.FactorGraph(5, [F.pair(0, 1), F.xor([1, 2, 3]), F.implies(3, 4)])
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(20, 5, generator=generator), torch.randn(20, generator=generator)
    assert bool(pm.HardMax(graph).solve(*scores).integral.all())


@pytest.mark.parametrize("name", ["chain", "tree", "assignment", "alignment"])
def test_a_graph_of_one_structure_is_that_structure(name):
    structure, shape, more = {
        "chain": (pm.Chain(), (5, 3), [(3, 3)]),
        "tree": (pm.SpanningTree(), (5, 5), []),
        "assignment": (pm.Assignment(), (3, 4), []),
        "alignment": (pm.Alignment(), (3, 4), []),
    }[name]
    size = torch.Size(shape).numel()
    graph = pm.FactorGraph(size, [pm.Factor(structure, torch.arange(size).reshape(shape))])
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3, *shape, generator=generator, dtype=torch.float64, requires_grad=True)
    others = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in more]
    ours, theirs = pm.SparseMap(graph), pm.SparseMap(structure)
    torch.testing.assert_close(ours.max(first.flatten(1), *others), theirs.max(first, *others), atol=1e-9, rtol=0)
    a, b = ours(first.flatten(1), *others).factors[0], theirs(first, *others)
    a, b = (t if isinstance(t, tuple) else (t,) for t in (a, b))
    weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in b]
    sums = [sum((t * w).sum() for t, w in zip(y, weights, strict=True)) for y in (a, b)]
    for s, t in zip(a, b, strict=True):
        torch.testing.assert_close(s, t, atol=1e-9, rtol=0)
    for s, t in zip(*(torch.autograd.grad(s, (first, *others)) for s in sums), strict=True):
        torch.testing.assert_close(s, t, atol=1e-8, rtol=0)


def test_assignments_as_rows_of_xor():
    n = 6
    cells = torch.arange(n * n).reshape(n, n)
    graph = pm.FactorGraph(n * n, [F.xor(line) for line in (*cells, *cells.T)])
    x = torch.randn(4, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    mu, other = pm.SparseMap(graph)(x.flatten(1)).variables.reshape(x.shape), pm.SparseMap(pm.Assignment())(x)
    torch.testing.assert_close(mu, other, atol=1e-9, rtol=0)
    w = torch.randn_like(x)
    for a, b in zip(torch.autograd.grad((mu * w).sum(), x), torch.autograd.grad((other * w).sum(), x), strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=0)


def test_graphs_that_differ_in_a_batch():
    """`at` with a batch: another graph for each instance, with inputs and factors that some have not."""
    at = torch.tensor([[0, 1, 2], [3, 1, -1], [-1, -1, -1]])
    out = torch.tensor([3, 0, -1])
    graph = pm.FactorGraph(4, [F.xor(at), F.or_out(at[:, :2], out)])
    alone = [
        pm.FactorGraph(4, [F.xor([0, 1, 2]), F.or_out([0, 1], 3)]),
        pm.FactorGraph(4, [F.xor([3, 1]), F.or_out([3, 1], 0)]),
        pm.FactorGraph(4, []),
    ]
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mu = pm.SparseMap(graph)(x).variables
    for i, one in enumerate(alone):
        torch.testing.assert_close(mu[i], pm.SparseMap(one)(x[i]).variables)
    with pytest.raises(ValueError, match="batch"):
        pm.SparseMap(graph)(x[:2])


def test_ragged_structures():
    """Lengths of structures, and -2 for parts that are padding."""
    lengths = torch.tensor([3, 2])
    at = torch.arange(6).reshape(3, 2)
    each = torch.stack([at, torch.where(torch.arange(3).unsqueeze(-1) < 2, at, -2)])
    factors = [pm.Factor(pm.Chain(lengths), each), F.budget([0, 2], 1)]
    x = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    transition = torch.zeros(2, 2, dtype=torch.float64)
    mu = pm.SparseMap(pm.FactorGraph(6, factors))(x, transition)
    short = pm.FactorGraph(4, [pm.Factor(pm.Chain(), at[:2]), F.budget([0, 2], 1)])
    torch.testing.assert_close(mu.variables[1, :4], pm.SparseMap(short)(x[1, :4], transition).variables)
    assert bool((mu.factors[0].unary[1, 2] == 0).all())
    # variables of the padding are in no factor of that instance
    torch.testing.assert_close(mu.variables[1, 4:], x[1, 4:].clamp(0, 1))


def test_forbidden_and_undefined_instances():
    graph = pm.FactorGraph(4, [F.xor([0, 1]), F.at_most_one([1, 2])])
    x = torch.tensor([[0.3, 0.1, 0.2, 2.0]] * 4, dtype=torch.float64)
    x[1, 0] = x[1, 1] = -torch.inf
    x[2, 3] = torch.nan
    x[3, 0] = torch.inf
    x.requires_grad_()
    op = pm.SparseMap(graph)
    mu, value = op(x).variables, op.max(x)
    assert bool((mu[1] == 0).all())
    assert bool(value[1] == -torch.inf)
    assert bool(mu[2:].isnan().all())
    assert bool(value[2:].isnan().all())
    torch.testing.assert_close(mu[0], op(x[0]).variables)
    (g,) = torch.autograd.grad(mu[:2].sum(), x)
    assert bool((g[1] == 0).all())
    one = op(torch.tensor([-torch.inf, 0.0, 1.0, 1.0])).variables
    assert one.tolist() == [0.0, 1.0, 0.0, 1.0]


def test_an_infeasible_graph_names_a_factor():
    graph = pm.FactorGraph(3, [F.xor([0, 1]), F.at_least([0, 1], 2)])
    with pytest.raises(ValueError, match=r"factor \d \((xor|at_least 2)\) is missed"):
        pm.SparseMap(graph)(torch.zeros(3))
    both = pm.Factor(pm.Assignment(), torch.tensor([[0, 1], [2, 3]]))
    with pytest.raises(ValueError, match=r"factor \d"):
        pm.SparseMap(pm.FactorGraph(4, [both, F.at_least([0, 1, 2, 3], 3)]))(torch.ones(4))


def test_what_is_hard_is_not_called_infeasible():
    """A proof is asked for, not patience: one round does not make a graph infeasible."""
    (row,) = [r for r in GRAPHS if r.name == "chains-that-cross"]
    hurried = pm.FactorGraph(row.graph.variables, row.graph.factors, max_iter=1)
    with pytest.warns(UserWarning, match="apart after 1 rounds"):
        assert bool(pm.SparseMap(hurried).solve(*row.scores((2,), scale=6.0)).feasible.all())


def test_compiled_programs_leave_graphs_as_they_are():
    graph = pm.FactorGraph(3, [F.xor([0, 1, 2])])
    x = torch.randn(2, 3)
    twice = torch.compile(lambda x: 2 * pm.SparseMap(graph)(x).variables, backend="eager")
    torch.testing.assert_close(twice(x), 2 * pm.SparseMap(graph)(x).variables)
    whole = torch.compile(lambda x: pm.SparseMap(graph)(x).variables, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        whole(x)


@pytest.mark.parametrize("smoothing", [pm.SparseMap, pm.HardMax])
def test_graphs_say_that_they_cannot_be_exported(smoothing):
    op = smoothing(pm.FactorGraph(3, [F.xor([0, 1, 2])]))

    class Module(torch.nn.Module):
        def forward(self, x):
            return op(x).variables

    with pytest.raises(RuntimeError, match="the solver of a FactorGraph reads the scores, which"):
        torch.export.export(Module(), (torch.randn(2, 3),), strict=False)
    with pytest.raises(RuntimeError, match="tensors without values hide"):
        Module()(torch.empty(2, 3, device="meta"))


def test_ties_are_integral_where_a_structure_is_as_good():
    graph = pm.FactorGraph(3, [F.xor([0, 1, 2])])
    found = pm.HardMax(graph).solve(torch.zeros(3))
    assert bool(found.integral)
    assert float(found.variables.sum()) == 1
    again = pm.HardMax(graph).solve(torch.zeros(3))
    assert torch.equal(found.variables, again.variables)


@pytest.mark.parametrize("gap", [1e-2, 1e-6])
@pytest.mark.parametrize("name", ["logic", "structure"])
def test_a_small_difference_decides_beside_any_other_instance(gap, name):
    """The best of two, whatever the scores of a third variable, or of another instance, are."""
    one = F.xor([0, 1]) if name == "logic" else pm.Factor(pm.Simplex(), torch.tensor([0, 1]))
    op = pm.HardMax(pm.FactorGraph(3, [one]))
    x = torch.tensor([[1.0, 1.0 - gap, 1.0], [0.5, 1e5, -1.0], [1.0, 1.0 + gap, 30.0]], dtype=torch.float64)
    found = op.solve(x)
    assert found.variables.tolist() == [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    assert bool(found.integral.all())
    assert bool(found.converged.all())


@pytest.mark.parametrize("scale", [1e4, 1e7, 1e30])
@pytest.mark.parametrize("name", ["chain-and-logic", "chains-that-cross", "ising-cycle"])
def test_large_scores(name, scale):
    """Scores that are so large leave the quadratic term no say: the nearest point is the best one."""
    (row,) = [r for r in GRAPHS if r.name == name]
    scores = row.scores((2,), seed=8)
    found = pm.SparseMap(row.graph).solve(*(scale * x for x in scores))
    assert bool((found.residual < 1e-6).all())
    best = pm.HardMax(row.graph).solve(*scores)
    torch.testing.assert_close(score(row, found.parts, scores), score(row, best.parts, scores), atol=1e-7, rtol=0)


def test_a_large_score_beside_small_ones():
    """A score of 1e30 decides first, and leaves the others their say."""
    graph = pm.FactorGraph(6, [pm.Factor(pm.Chain(), torch.arange(6).reshape(3, 2)), F.at_least([1, 3, 5], 1)])
    x = torch.tensor([0.3, -1.0, 0.2, 0.4, 0.1, 0.0], dtype=torch.float64)
    transition = torch.tensor([[0.1, -0.2], [0.3, 0.0]], dtype=torch.float64)
    for op in (pm.SparseMap(graph), pm.HardMax(graph)):
        large, forbidden = x.clone(), x.clone()
        large[1], forbidden[1] = -1e30, -torch.inf
        torch.testing.assert_close(op(large, transition).variables, op(forbidden, transition).variables)


def test_variables_that_no_structure_has_are_exactly_zero():
    graph = pm.FactorGraph(6, [pm.Factor(pm.Chain(), torch.arange(6).reshape(3, 2)), F.budget([0, 2, 4], 1)])
    x = torch.randn(64, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = pm.SparseMap(graph).solve(x, torch.zeros(2, 2, dtype=torch.float64))
    mu = found.variables
    assert bool(((mu == 0) | (mu > 1e-9)).all())
    assert bool(((mu == 1) | (mu < 1 - 1e-9)).all())
    assert bool(found.integral.any())


def test_undefined_scores_without_a_batch():
    op = pm.SparseMap(pm.FactorGraph(3, [F.pair(0, 1), F.xor([1, 2])]))
    for variables, both in (([torch.nan, 0.0, 0.0], 1.0), ([1.0, 0.0, 0.0], torch.nan)):
        assert bool(op(torch.tensor(variables), torch.tensor(both)).variables.isnan().all())


def test_estimators_take_graphs():
    graph = pm.FactorGraph(6, [pm.Factor(pm.Chain(), torch.arange(6).reshape(3, 2)), F.budget([0, 2, 4], 1)])
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    transition = torch.zeros(2, 2, requires_grad=True)
    for estimator in (pm.StraightThrough(graph), pm.StraightThrough(graph, pm.SparseMap(graph)), pm.Spigot(graph)):
        y = estimator(x, transition)
        torch.testing.assert_close(y.variables, pm.HardMax(graph)(x, transition).variables)
        (g,) = torch.autograd.grad((y.variables * torch.arange(6.0)).sum(), x)
        assert bool(g.isfinite().all())
        assert bool((g != 0).any())


@ROWS
def test_gradients_are_functions_of_the_scores(row):
    scores = row.scores((2,), requires_grad=True)
    outputs = pm.SparseMap(row.graph)(*scores).variables
    found = torch.autograd.grad(outputs, scores, torch.randn_like(outputs), create_graph=True)
    assert all(x.requires_grad for x in found)
    again = torch.autograd.grad(found, scores, [torch.randn_like(x) for x in found])
    assert all(bool(x.isfinite().all()) for x in again)


@pytest.mark.parametrize("name", ["chain-and-logic", "private-parts", "tree-and-table", "chains-that-cross"])
def test_distributions_of_factors(name):
    """Each factor's structures have its parts as their mean, and their weights follow the scores."""
    (row,) = [r for r in GRAPHS if r.name == name]
    scores = row.scores((2,), seed=6, requires_grad=True)
    op = pm.SparseMap(row.graph)
    found = op.distribution(*scores)
    for distribution, parts, factor in zip(found.factors, found.mean.factors, row.graph.factors, strict=True):
        if distribution is None:
            continue
        torch.testing.assert_close(distribution.probs.sum(-1), torch.ones(2, dtype=torch.float64))
        first = parts if isinstance(parts, torch.Tensor) else parts[0]
        mean = distribution.mean if isinstance(distribution.mean, torch.Tensor) else distribution.mean[0]
        shared = factor.at >= 0
        torch.testing.assert_close(mean * shared, first * shared, atol=1e-9, rtol=0)
    weights = torch.arange(1.0, 40.0, dtype=torch.float64)

    def weighed(*x):
        """A weight of each structure, of each factor: scores of all factors' own parts move it."""
        probs = [d.probs for d in op.distribution(*x).factors if d is not None]
        return sum((k * p * weights[: p.shape[-1]]).sum(-1) for k, p in enumerate(probs, 1))

    assert gradcheck(weighed, scores, atol=1e-5, fast_mode=True)


def test_expected_losses_where_a_factor_covers_the_whole():
    graph = pm.FactorGraph(6, [pm.Factor(pm.Chain(), torch.arange(6).reshape(3, 2)), F.budget([0, 2, 4], 1)])
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    transition = torch.zeros(2, 2, dtype=torch.float64)
    cost = torch.arange(6.0, dtype=torch.float64).reshape(3, 2)
    loss = pm.SparseExpectation(graph, reduction="sum")(lambda y, at: (y.unary * cost).sum((-2, -1)), x, transition)
    mean = (pm.SparseMap(graph)(x, transition).variables * cost.flatten()).sum()
    torch.testing.assert_close(loss, mean)
    torch.testing.assert_close(*(torch.autograd.grad(t, x)[0] for t in (loss, mean)))
    with pytest.raises(TypeError, match="no factor names all"):
        pm.SparseExpectation(pm.FactorGraph(2, [F.xor([0, 1])]))(lambda y, at: y[:, 0], torch.zeros(1, 2))


def test_bad_arguments():
    with pytest.raises(ValueError, match="below 2"):
        pm.FactorGraph(2, [F.xor([0, 2])])
    with pytest.raises(ValueError, match="once"):
        F.xor([0, 0])
    with pytest.raises(ValueError, match="at most the number"):
        F.at_least([0, 1], 3)
    with pytest.raises(ValueError, match="negated"):
        F.xor([0, 1], negated=[True])
    with pytest.raises(TypeError, match="integers"):
        F.xor(torch.tensor([0.5]))
    with pytest.raises(TypeError, match="factors must be"):
        pm.FactorGraph(2, [pm.Chain()])
    with pytest.raises(TypeError, match="score tensors"):
        pm.SparseMap(pm.FactorGraph(2, [F.pair(0, 1)]))(torch.zeros(2))
    with pytest.raises(ValueError, match=r"\(\*batch, 2\)"):
        pm.SparseMap(pm.FactorGraph(2, []))(torch.zeros(3))
    with pytest.raises(TypeError, match="has none"):
        pm.HardMax(pm.Chain()).solve(torch.zeros(2, 2), torch.zeros(2, 2))


@pytest.fixture
def by_triton(monkeypatch):
    """Tensors of the CPU take the programs of a GPU, which Triton's interpreter runs; which ones they took."""
    pytest.importorskip("triton")
    from polymax.kernels import constrained, response
    from polymax.kernels.constrained import cuda as rows
    from polymax.kernels.response import cuda as moves
    from polymax.solvers import loops
    from polymax.solvers.loops import cuda as loop

    taken = set()

    def noted(function):
        def call(*args):
            taken.add(function.__name__)
            return function(*args)

        return call

    for package, file in ((constrained, rows), (response, moves)):
        for name in ("constrained", "constrained_response", "response", "mixture"):
            if hasattr(file, name):
                monkeypatch.setattr(getattr(package, name), "cpu", noted(getattr(file, name)))
    programs, other = SimpleNamespace(solve=noted(loop.solve)), loops._file
    monkeypatch.setattr(loops, "_file", lambda name: programs if name == "cpu" else other(name))
    return taken


# the interpreter computes the lanes that a GPU would mask, with NumPy's warnings about them
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton does not interpret where there is a GPU")
@pytest.mark.parametrize("name", ["logic-cycle", "two-kinds"])
def test_programs_of_a_gpu(name, by_triton, monkeypatch):
    row = next(row for row in GRAPHS if row.name == name)
    scores = tuple(x.detach().requires_grad_() for x in row.scores((1,)))

    def solved():
        mu = pm.SparseMap(row.graph)(*scores).variables
        return mu, *torch.autograd.grad(mu.square().sum(), scores)

    found = solved()
    # the loop gives the mean with its solution
    structures = {"solve", "response"}
    assert by_triton == {"constrained", *({"constrained_response"} if name == "logic-cycle" else structures)}
    monkeypatch.undo()
    for a, b in zip(found, solved(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=0)
