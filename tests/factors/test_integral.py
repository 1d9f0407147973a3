"""Branch and bound, real costs and negated outputs against enumeration and linear programs."""

from itertools import product

import pytest
import torch
from graphs import GRAPHS, F, best_value

import polymax as pm


@pytest.mark.parametrize(
    "row", [pytest.param(r, id=r.name) for r in GRAPHS if r.name not in ("two-kinds", "tree-and-table")]
)
def test_integral_solutions_are_the_best_of_all_settings(row):
    scores = row.scores((2,), seed=1, scale=3.0)
    y = F.solve_integral(row.graph, *scores)
    value = row.graph.score(y, *scores)
    assert ((y.variables == 0) | (y.variables == 1)).all()
    for i in range(2):
        torch.testing.assert_close(float(value[i]), best_value(row, tuple(x[i] for x in scores)), atol=1e-6, rtol=1e-9)


TRIANGLE = pm.FactorGraph(3, [F.at_most_one(at) for at in ([0, 1], [1, 2], [0, 2])])


def test_where_the_relaxation_is_between():
    x = torch.tensor([[1.0, 1.1, 1.2], [0.5, 3.0, 1.0], [-torch.inf, 1.0, 1.1]])
    assert (pm.HardMax(TRIANGLE)(x[:1]).variables == 0.5).all()
    assert F.solve_integral(TRIANGLE, x).variables.tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 1]]
    with (
        pytest.warns(UserWarning, match="stopped after 1 relaxations of instance 0: none was found"),
        pytest.raises(ValueError, match=r"no setting of 0 and 1 .* in instance 0"),
    ):
        F.solve_integral(TRIANGLE, x[:1], max_nodes=1)
    with pytest.raises(ValueError, match="max_nodes must be a positive integer; got 0"):
        F.solve_integral(TRIANGLE, x, max_nodes=0)


def test_instances_with_factors_and_lengths_of_their_own():
    at = torch.tensor([[0, 1, -1], [0, 2, 1]])
    chain = pm.Factor(pm.Chain(torch.tensor([2, 1])), torch.tensor([[0, 1], [2, 3]]))
    graph = pm.FactorGraph(4, [F.at_most_one(at), chain])
    x, transition = torch.randn(2, 4).double(), torch.randn(2, 2).double()
    y = F.solve_integral(graph, x, transition)
    for b in range(2):
        one = [F.at_most_one([v for v in at[b].tolist() if v >= 0])]
        chain = pm.Factor(pm.Chain(torch.tensor([2, 1])[b]), torch.tensor([[0, 1], [2, 3]]))
        alone = F.solve_integral(pm.FactorGraph(4, [*one, chain]), x[b], transition)
        assert torch.equal(y.variables[b], alone.variables)


def test_no_setting_keeps_the_factors():
    odd = pm.FactorGraph(3, [F.xor(at) for at in ([0, 1], [1, 2], [0, 2])])
    with pytest.raises(ValueError, match="no setting of 0 and 1"):
        F.solve_integral(odd, torch.zeros(3))


@pytest.mark.parametrize("negated", [None, [True, False, False, False, True]])
def test_knapsack(negated):
    scipy = pytest.importorskip("scipy.optimize")
    costs, limit = [0.7, 1.3, 0.4, 2.1, 0.9], 2.3
    graph = pm.FactorGraph(5, [F.knapsack(range(5), costs, limit, negated)])
    flags = torch.tensor(negated or [False] * 5)
    x = torch.randn(6, 5, dtype=torch.float64) + 0.5
    relaxed = pm.HardMax(graph)(x).variables
    whole = F.solve_integral(graph, x).variables
    settings = torch.tensor(list(product((0.0, 1.0), repeat=5)), dtype=torch.float64)
    literals = torch.where(flags, 1 - settings, settings)
    kept = settings[literals @ torch.tensor(costs, dtype=torch.float64) <= limit]
    signs = torch.where(flags, -1.0, 1.0).double() * torch.tensor(costs, dtype=torch.float64)
    shift = limit - float(torch.tensor(costs, dtype=torch.float64)[flags].sum())
    for b in range(6):
        best = kept[(kept @ x[b]).argmax()]
        assert torch.equal(whole[b], best)
        program = scipy.linprog(-x[b].numpy(), A_ub=signs[None].numpy(), b_ub=[shift], bounds=(0, 1))
        torch.testing.assert_close(float(relaxed[b] @ x[b]), -program.fun, atol=1e-6, rtol=0)
    mu = pm.SparseMap(graph)(x).variables
    spent = torch.where(flags, 1 - mu, mu) @ torch.tensor(costs, dtype=torch.float64)
    assert (spent <= limit + 1e-7).all()


def test_errors_of_knapsacks():
    with pytest.raises(ValueError, match=r"costs must be \(2,\), one for each variable; got \(1,\)"):
        F.knapsack([0, 1], [1.0], 1.0)
    with pytest.raises(ValueError, match="costs must be finite and not negative"):
        F.knapsack([0, 1], [1.0, -1.0], 1.0)
    with pytest.raises(ValueError, match="budget must be a finite number of at least 0; got -1"):
        F.knapsack([0, 1], [1.0, 1.0], -1)


@pytest.mark.parametrize(("factor", "rule"), [(F.or_out, any), (F.and_out, all)])
@pytest.mark.parametrize("negated", [None, [True, False]])
def test_negated_outputs(factor, rule, negated):
    graph = pm.FactorGraph(3, [factor([0, 1], 2, negated, negated_out=True)])
    flags = negated or [False, False]
    allowed = [
        bits for bits in product((0, 1), repeat=3) if bits[2] == (not rule(b ^ n for b, n in zip(bits[:2], flags)))
    ]
    for bits in product((0.0, 1.0), repeat=3):
        x = 2 * torch.tensor(bits, dtype=torch.float64) - 1 + 0.1 * torch.randn(3, dtype=torch.float64)
        best = max(allowed, key=lambda y: float(x @ torch.tensor(y, dtype=torch.float64)))
        assert pm.HardMax(graph)(x).variables.tolist() == list(best)
    with pytest.raises(TypeError, match="negated_out must be True or False; got 1"):
        factor([0, 1], 2, negated_out=1)


def test_what_scores_forbid_is_not_integral():
    graph = pm.FactorGraph(2, [F.xor([0, 1])])
    x = torch.tensor([[-torch.inf, -torch.inf], [1.0, 0.0]])
    found = pm.HardMax(graph).solve(x)
    assert found.feasible.tolist() == [False, True]
    assert found.integral.tolist() == [False, True]
