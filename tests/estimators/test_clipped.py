"""Several steps on the same draws: the clipped surrogate, its gradient, and where it stops."""

import pytest
import torch
from tolerances import close, equal

import polymax as pm
from polymax.estimators.baselines import LeaveOneOut
from polymax.estimators.clipped import Clipped
from polymax.estimators.score_function import ScoreFunction
from polymax.smoothing.perturbed import Perturbed


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def clipped(clip=0.2, structure=None):
    policy = structure or pm.Chain()
    return Clipped(ScoreFunction(policy, LeaveOneOut(), samples=4, reduction="none"), clip)


CHAIN = (torch.randn(8, 3, 2, generator=generator(), dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("wrap", [lambda s: s, pm.SparseMap, Perturbed], ids=["gibbs", "sparse-map", "perturbed"])
def test_the_first_step_is_the_score_function(wrap):
    unary, transition = (x.clone().requires_grad_() for x in CHAIN)
    estimator = clipped(structure=wrap(pm.Chain()))
    cost = torch.randn(3, 2, dtype=torch.float64)

    def loss_fn(y, at):
        return (y.unary * cost).sum((1, 2)).square()

    value = estimator(loss_fn, unary, transition, generator=generator())
    batch = estimator.collect(loss_fn, unary, transition, generator=generator())
    surrogate = batch.surrogate(unary, transition)
    close(batch.ratios(unary, transition), torch.ones(4, 8), "nothing has changed yet")
    equal(batch.loss, value.detach(), "the loss is the mean of the draws")
    for a, b in zip(
        torch.autograd.grad(surrogate.sum(), (unary, transition)),
        torch.autograd.grad(value.sum(), (unary, transition)),
        strict=True,
    ):
        close(a, b, "the gradient of the first step")


def test_later_steps_are_clipped():
    batch = clipped().collect(lambda y, at: y.unary[:, 0, 0] + y.unary[:, 1, 1], *CHAIN, generator=generator())
    moved = (CHAIN[0] + 0.4 * torch.randn(8, 3, 2, generator=generator(1), dtype=torch.float64)).requires_grad_()
    value = batch.surrogate(moved, CHAIN[1])
    old, new = (pm.Marginals(pm.Chain()).distribution(x, CHAIN[1]) for x in (CHAIN[0], moved))
    y, a = batch.draws.actions, batch.draws.advantages
    r = (new.log_prob(y) - old.log_prob(y)).exp()
    expected = torch.maximum(r * a, r.clamp(0.8, 1.2) * a)
    close(value, expected.mean(0), "max(r a, clip(r) a)")
    done = ((a < 0) & (r > 1.2)) | ((a > 0) & (r < 0.8)) | (a == 0)
    assert bool(done.any())
    assert not bool(done.all())
    (slope,) = torch.autograd.grad(value.sum(), moved)
    (exact,) = torch.autograd.grad(torch.where(done, 0, r * a).mean(0).sum(), moved)
    close(slope, exact, "a draw that went far enough has no gradient")


def test_steps_lower_the_loss():
    cost = torch.randn(3, 2, dtype=torch.float64)
    estimator = Clipped(ScoreFunction(pm.Chain(), LeaveOneOut(), samples=8))
    theta = torch.zeros(16, 3, 2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=0.1)
    means, seeds = [], generator()
    for _ in range(10):
        batch = estimator.collect(lambda y, at: (y.unary * cost).sum((1, 2)), theta, CHAIN[1], generator=seeds)
        means.append(float(batch.loss.detach()))
        for _ in range(3):
            optimizer.zero_grad()
            batch.surrogate(theta, CHAIN[1]).backward()
            optimizer.step()
    best = float(cost.amin(-1).sum())
    assert means[-1] - best < 0.5 * (means[0] - best)


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="estimator must be a ScoreFunction; got Simplex"):
        Clipped(pm.Simplex())
    with pytest.raises(ValueError, match=r"clip must be between 0 and 1; got 1\.5"):
        clipped(clip=1.5)
