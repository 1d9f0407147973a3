"""Soft ranks and sorts: optimal over all permutations, exact where gamma is small, with derivatives."""

import itertools

import pytest
import torch
from tolerances import close
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm

KINDS = pytest.mark.parametrize("kind", ["quadratic", "kl"])
BOTH = pytest.mark.parametrize("fn", [pm.soft_rank, pm.soft_sort], ids=lambda fn: fn.__name__)


def permutations(w):
    """All orders of each row, (*batch, n!, n)."""
    orders = torch.tensor(list(itertools.permutations(range(w.shape[-1]))))
    return w[..., orders]


@KINDS
@pytest.mark.parametrize("gamma", [0.05, 0.7, 3.0, 40.0])
def test_projections_are_optimal(gamma, kind):
    """At the projection mu of z, no vertex is better along the slope of the objective, z - mu or z - log mu."""
    x = torch.randn(6, 5, dtype=torch.float64)
    ranks = torch.arange(1.0, 6, dtype=torch.float64)
    mu = pm.soft_rank(x, gamma, regularization=kind)
    slope = x / gamma - (mu if kind == "quadratic" else mu.log())
    best = (permutations(ranks.expand(6, 5)) * slope.unsqueeze(-2)).sum(-1).amax(-1)
    close((mu * slope).sum(-1), best, "soft ranks are the projection")
    y = pm.soft_sort(x, gamma, regularization=kind)
    # by the divergence, falling orders of the negated scores are projected
    mu, w = (y, x) if kind == "quadratic" else ((-y).exp(), (-x).exp())
    slope = ranks / gamma - y if kind == "quadratic" else ranks.flip(0) / gamma + y
    best = (permutations(w) * slope.unsqueeze(-2)).sum(-1).amax(-1)
    close((mu * slope).sum(-1), best, "sorted scores are the projection")


def test_the_divergence_is_that_of_fast_soft_sort():
    """Its soft sort negates the scores, projects, and negates again."""
    x = torch.tensor([-2.136, 1.640], dtype=torch.float64)
    found = pm.soft_sort(x, regularization="kl")
    torch.testing.assert_close(found, torch.tensor([-1.846, -0.846], dtype=torch.float64), atol=1e-3, rtol=0)


@KINDS
def test_what_gamma_does(kind):
    x = torch.tensor([0.3, 2.0, -1.0, 5.0], dtype=torch.float64)
    ranks, ordered = torch.tensor([2.0, 3, 1, 4]), x.sort().values
    assert torch.equal(pm.soft_rank(x, 1.3, regularization=kind).round(decimals=12), ranks.double()), "gaps of gamma"
    assert not torch.equal(pm.soft_rank(x, 3.0, regularization=kind).round(decimals=12), ranks.double())
    close(pm.soft_sort(x, 1 / 3.0, regularization=kind), ordered, "neighbours at most 1 / gamma apart are themselves")
    close(pm.soft_rank(x, 1e11, regularization=kind), torch.full((4,), 2.5), "large gamma gives the mean rank")
    mean = x.mean() if kind == "quadratic" else -(-x).exp().mean().log()
    close(pm.soft_sort(x, 1e11, regularization=kind), mean.expand(4), "large gamma gives the mean")
    close(pm.soft_rank(x * 1e300, regularization=kind), ranks, "ranks of large scores")
    close(pm.soft_rank(x + 1e15, 0.1, regularization=kind), ranks, "ranks of shifted scores")


@KINDS
@BOTH
def test_derivatives(fn, kind):
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    gamma = torch.tensor([[0.6], [1.4], [2.2]], dtype=torch.float64, requires_grad=True)
    gradcheck(lambda x, g: fn(x, g, regularization=kind), (x, gamma))
    gradgradcheck(lambda x, g: fn(x, g, regularization=kind), (x, gamma))


@KINDS
@BOTH
def test_gradients_are_functions_of_the_scores(fn, kind):
    """A gradient under create_graph can be derived again and again, also where ranks are linear in the scores."""
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    found = fn(x, regularization=kind)
    for _ in range(3):
        (found,) = torch.autograd.grad(found, x, torch.randn(3, 5, dtype=torch.float64), create_graph=True)
        assert found.requires_grad
        assert bool(found.isfinite().all())


@KINDS
@BOTH
def test_shapes(fn, kind):
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    gamma = torch.rand(4, 1, 3, dtype=torch.float64) + 0.5
    rows = fn(x.movedim(1, -1), gamma.movedim(1, -1), regularization=kind)
    close(fn(x, gamma, 1, regularization=kind), rows.movedim(-1, 1), "any dim, with a gamma of each row")
    assert fn(x[:, :0], dim=1, regularization=kind).shape == (4, 0, 3)
    assert fn(torch.tensor(0.5), regularization=kind).shape == ()
    assert fn(x.half(), regularization=kind).dtype == torch.float16
    bad = x[0].clone()
    bad[0, 0] = torch.nan
    out = fn(bad, regularization=kind)
    assert out[0].isnan().all()
    close(out[1:], fn(x[0, 1:], regularization=kind), "a NaN stays in its row")


@BOTH
def test_refusals(fn):
    x = torch.randn(3)
    with pytest.raises(ValueError, match=r'regularization must be "quadratic" or "kl"; got \'l2\''):
        fn(x, regularization="l2")
    with pytest.raises(ValueError, match="gamma must be positive and finite; got 0"):
        fn(x, 0.0)
    with pytest.raises(ValueError, match=r"gamma must have size 1 along dim -1; got \(3,\)"):
        fn(x, torch.ones(3))
    with pytest.raises(TypeError, match=r"could mean dim=1 or gamma=1: give the argument by name"):
        fn(x, 1)
    with pytest.raises(TypeError, match="x must be float64"):
        fn(torch.arange(3))
