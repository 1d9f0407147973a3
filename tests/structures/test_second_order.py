"""Trees that score pairs of arcs, with as many roots as they like, and as factors that must agree."""

import pytest
import torch

import polymax as pm

KINDS = [pm.SiblingTree, pm.GrandparentTree, pm.SiblingGrandparentTree]


def scores(kind, n, batch=3):
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, *[n + 1] * d) for d in kind().event_dims()]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("kind", KINDS)
def test_trees_of_many_roots_are_those_that_are_listed(kind):
    trees, x = kind(single_root=False), scores(kind, 4)
    y = trees.vertices((5, 5))
    totals = trees.score(trees.named(*(t.unsqueeze(1) for t in y)), *(t.unsqueeze(0) for t in x))
    torch.testing.assert_close(trees.best_score(*x), totals.amax(0))
    torch.testing.assert_close(trees.logsumexp(*x), totals.logsumexp(0))
    for found, every in zip(trees.marginals(*x), y, strict=True):
        torch.testing.assert_close(found, torch.einsum("kb,k...->b...", totals.softmax(0), every.double()))


def test_two_factors_that_agree_are_one_head_automaton():
    """Where the relaxation of siblings and grandparents is integral, it finds the tree that is best for both."""
    n = 3
    arcs, siblings, grandparents = scores(pm.SiblingGrandparentTree, n, 4)
    at = torch.arange((n + 1) ** 2).reshape(n + 1, n + 1)
    graph = pm.FactorGraph((n + 1) ** 2, [pm.Factor(pm.SiblingTree(), at), pm.Factor(pm.GrandparentTree(), at)])
    relaxed = pm.HardMax(graph).solve(arcs.flatten(1), siblings, grandparents)
    exact = pm.SiblingGrandparentTree().map(arcs, siblings, grandparents)
    assert bool(relaxed.integral.any())
    found = relaxed.factors[0].arcs[relaxed.integral]
    assert torch.equal(found, exact.arcs[relaxed.integral])


def test_bad_scores():
    with pytest.raises(TypeError, match="3 score tensors, of arcs, siblings and grandparents"):
        pm.SiblingGrandparentTree().map(torch.zeros(3, 3), torch.zeros(3, 3, 3))
    with pytest.raises(ValueError, match="grandparents must broadcast"):
        pm.SiblingGrandparentTree().map(torch.zeros(3, 3), torch.zeros(3, 3, 3), torch.zeros(3, 3))
