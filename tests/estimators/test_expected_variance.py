"""Draws in place of sums: no bias, and less variance with a baseline."""

import copy
import math

import pytest
import torch
from sets import BY_NAME
from tolerances import close, equal

import polymax as pm
from polymax.estimators.baselines import (
    Baseline,
    Learned,
    LeaveOneOut,
    MovingAverage,
    Normalized,
    RunningMean,
    SelfCritical,
)
from polymax.estimators.policies import Perturbing
from polymax.estimators.score_function import ScoreFunction
from polymax.noise import Gumbel, Normal, SumOfGamma
from polymax.smoothing.perturbed import Perturbed
from polymax.smoothing.top_k import TopKSparsemax
from polymax.structures.base import tensors

MANY = 4000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gradients(estimator, loss_fn, *scores, **options):
    """Gradients of independent copies of one instance, (MANY, ...) for each tensor of scores."""
    leaves = tuple(x.expand(MANY, *x.shape).clone().requires_grad_() for x in scores)
    value = estimator(loss_fn, *leaves, generator=generator(), **options)
    return torch.autograd.grad(value.sum(), leaves)


def unbiased(found, exact, law):
    """Means are within five standard errors of the truth; what does not vary is equal to it."""
    error = found.std(0) / math.sqrt(len(found))
    off = (found.mean(0) - exact).abs()
    assert bool((off <= 5 * error + 1e-9).all()), f"{law} is broken: off by {float((off / (error + 1e-12)).max()):.1f}"


def quadratic(weights):
    def loss_fn(y, at):
        return (sum((t * w).flatten(1).sum(-1) for t, w in zip(tensors(y), weights, strict=True)) - 1).square()

    return loss_fn


POLICIES = {
    "gibbs": lambda s: s,
    "gibbs-warm": lambda s: pm.Marginals(s, gamma=2.0),
    "sparse-map": lambda s: pm.SparseMap(s, gamma=2.0),
    "top-k": lambda s: TopKSparsemax(s, 4, gamma=4.0),
    "walk": lambda s: pm.LocalMax(s, pm.Gini(), gamma=2.0),
}
CASES = [
    *((name, "gibbs") for name in ("simplex", "chain-by-step", "span-tree", "spanning-tree", "subset", "alignment")),
    *((name, "sparse-map") for name in ("simplex", "chain-by-step", "assignment")),
    *(("chain-by-step", kind) for kind in ("gibbs-warm", "top-k", "walk")),
]
SHAPES = {"chain-by-step": (3, 2), "span-tree": (4, 4), "spanning-tree": (3, 3), "alignment": (3, 3)}


@pytest.mark.parametrize(("name", "kind"), CASES, ids=["-".join(case) for case in CASES])
def test_no_bias(name, kind):
    row = BY_NAME[name]
    shape = SHAPES.get(name, row.shape)
    scores = row.scores(shape)
    policy = POLICIES[kind](row.structure)
    y = row.structure.vertices(shape)
    weights = [torch.randn(t.shape[1:], dtype=torch.float64) for t in tensors(y)]
    leaves = tuple(x.clone().requires_grad_() for x in scores)
    losses = quadratic(weights)(y, None)
    if kind == "gibbs":
        _, values = row.enumerated(leaves, shape)
        exact = torch.autograd.grad(values.softmax(0) @ losses, leaves)
    else:
        doubles = tuple(t.double() for t in tensors(y))
        whole = doubles[0] if len(doubles) == 1 else type(y)(*doubles)
        exact = torch.autograd.grad(policy.distribution(*leaves).prob(whole) @ losses, leaves)
    found = gradients(ScoreFunction(policy, reduction="sum"), quadratic(weights), *scores)
    for a, b in zip(found, exact, strict=True):
        unbiased(a, b, "the mean of gradients is the gradient of the mean")


def test_no_bias_in_a_shorter_problem():
    unary, transition = torch.randn(4, 2, dtype=torch.float64), torch.randn(3, 2, 2, dtype=torch.float64)
    weights = torch.randn(4, 2, dtype=torch.float64)
    chain = pm.Chain(lengths=torch.full((MANY,), 2))
    estimator = ScoreFunction(chain, reduction="sum")
    found = gradients(estimator, lambda y, at: (y.unary * weights).sum((1, 2)).exp(), unary, transition)
    short = unary[:2].clone().requires_grad_(), transition[:1].clone().requires_grad_()
    y = pm.Chain().vertices((2, 2))
    values = pm.Chain().score(type(y)(*(t.double() for t in y)), *short)
    losses = (y.unary.double() * weights[:2]).sum((1, 2)).exp()
    exact = torch.autograd.grad(values.softmax(0) @ losses, short)
    unbiased(found[0][:, :2], exact[0], "unary")
    unbiased(found[1][:, :1], exact[1], "transition")
    assert bool((found[0][:, 2:] == 0).all())
    assert bool((found[1][:, 1:] == 0).all())


def test_perturbed_scores_are_a_policy():
    x, cost = torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    (exact,) = torch.autograd.grad((leaf / 0.7).softmax(-1) @ cost, leaf)
    policy = Perturbed(pm.Simplex(), Gumbel(), gamma=0.7)
    (found,) = gradients(ScoreFunction(policy, reduction="sum"), lambda y, at: y @ cost, x)
    unbiased(found, exact, "Gumbel noise on the simplex draws from softmax")


def test_assignments_are_drawn_by_noise():
    x = torch.tensor([[0.5, 0.3], [0.2, -0.4]], dtype=torch.float64)
    # the difference of the two assignments has four normal variables in it
    leaf = x.clone().requires_grad_()
    better = (leaf[0, 0] + leaf[1, 1] - leaf[0, 1] - leaf[1, 0]) / (2 * 0.8)
    (exact,) = torch.autograd.grad(torch.special.ndtr(better), leaf)
    policy = Perturbed(pm.Assignment(), Normal(), gamma=0.8)
    (found,) = gradients(ScoreFunction(policy, reduction="sum"), lambda y, at: y[:, 0, 0], x)
    unbiased(found, exact, "P(identity) = Phi(difference / 2 gamma)")
    value = ScoreFunction(pm.Assignment(), samples=MANY)(lambda y, at: y.sum((1, 2)), x)
    close(value, 2.0, "an assignment is drawn where nothing else is said")


@pytest.mark.parametrize("noise", [Gumbel(), Normal()], ids=lambda noise: type(noise).__name__)
def test_densities_have_the_slope_of_the_noise(noise):
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    policy = ScoreFunction(Perturbed(pm.Simplex(), noise, gamma=0.5)).policy
    action = policy.actions(x).sample((5,), generator())
    (found,) = torch.autograd.grad(policy.actions(x).log_prob(action).sum(), x)
    close(found, (noise.slope((action.scores[0] - x.detach()) / 0.5) / 0.5).sum(0), "the derivative of log p")


def test_the_scale_of_noise_learns():
    x, cost = torch.tensor([0.5, 0.0], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    gamma = torch.ones(MANY, dtype=torch.float64, requires_grad=True)
    policy = Perturbed(pm.Simplex(), Gumbel(), gamma=gamma)
    value = ScoreFunction(policy, reduction="sum")(lambda y, at: y @ cost, x.expand(MANY, 2), generator=generator())
    (found,) = torch.autograd.grad(value, gamma)
    one = torch.ones((), dtype=torch.float64, requires_grad=True)
    (exact,) = torch.autograd.grad((x / one).softmax(-1) @ cost, one)
    unbiased(found, exact, "the derivative in gamma")


def task():
    """Two kinds of instances whose losses have different levels: scores, features, a loss function."""
    kind = torch.arange(MANY, dtype=torch.float64) % 2
    level = 4 + 6 * kind
    scores, cost = torch.randn(2, 5, dtype=torch.float64, generator=generator(5))
    return scores, torch.stack([kind, 1 - kind], -1), lambda y, at: level[at] + y @ cost


class Level(torch.nn.Module):
    """A level for each kind."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, features):
        return features @ self.weight


BASELINES = {
    "moving-average": (MovingAverage, 1),
    "self-critical": (SelfCritical, 1),
    "leave-one-out": (LeaveOneOut, 2),
    "learned": (lambda: Learned(Level()), 1),
    "normalized": (lambda: Normalized(MovingAverage()), 1),
}


def trained(make, samples, steps=6):
    """An estimator whose baseline has seen the task."""
    scores, features, loss_fn = task()
    estimator = ScoreFunction(pm.Simplex(), make(), samples)
    # two kinds in equal numbers: the curvature of each squared error is 1, and a step of 1/2 is half of the way
    optimizer = torch.optim.SGD(estimator.parameters(), lr=0.5) if list(estimator.parameters()) else None
    for _ in range(steps):
        loss = estimator(loss_fn, scores.expand(MANY, 5), features=features)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    estimator.reduction = "sum"
    return estimator


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_lower_the_variance(name):
    make, samples = BASELINES[name]
    scores, features, loss_fn = task()
    leaf = scores.clone().requires_grad_()
    y = torch.eye(5, dtype=torch.float64)
    mean = leaf.softmax(-1) @ loss_fn(y, torch.zeros(5, dtype=torch.long))
    (exact,) = torch.autograd.grad(mean, leaf)
    (plain,) = gradients(ScoreFunction(pm.Simplex(), None, samples, "sum"), loss_fn, scores)
    estimator = trained(make, samples)
    (found,) = gradients(estimator.eval(), loss_fn, scores, features=features)
    scale = estimator.baseline.square.value.sqrt().double() if name == "normalized" else 1.0
    unbiased(found * scale, exact, f"{name} adds no bias")
    ratio = float((found * scale).var(0).sum() / plain.var(0).sum())
    # the levels of 4 and 10 are most of the variance; their mean leaves a deviation of 3, of a square of 58
    assert ratio < (0.3 if name in ("moving-average", "normalized") else 0.1), f"{name}: {ratio:.3f} of the variance"


def test_learned_baselines_fit_the_loss():
    scores, features, loss_fn = task()
    estimator = trained(lambda: Learned(Level()), 1, steps=12)
    losses = loss_fn(scores.softmax(-1).expand(2, 5), torch.tensor([1, 0]))
    assert float((estimator.baseline.module.weight.detach() - losses).abs().max()) < 0.2
    features.requires_grad_()
    leaf = scores.expand(MANY, 5).clone().requires_grad_()
    value = estimator(loss_fn, leaf, features=features)
    assert torch.autograd.grad(value, features, allow_unused=True) == (None,), "its input gets no gradient"


def test_values_are_losses():
    x = torch.zeros(3, 4, requires_grad=True)
    for make, samples in BASELINES.values():
        if make is BASELINES["learned"][0]:
            continue
        estimator = ScoreFunction(pm.Simplex(), make(), samples)
        for _ in range(2):
            close(estimator(lambda y, at: torch.full((len(at),), 2.5), x), 2.5, "a baseline does not change the value")


def test_normalized_advantages_have_size_one():
    estimator = ScoreFunction(pm.Simplex(), Normalized(MovingAverage()))
    scores, _, loss_fn = task()
    for factor in (1.0, 1000.0):
        for _ in range(60):
            draws = estimator.collect(lambda y, at, f=factor: f * loss_fn(y, at), scores.expand(500, 5))
        assert 0.8 < float(draws.advantages.square().mean()) < 1.2


def test_running_means():
    mean = RunningMean(0.5)
    assert mean.value == 0
    for values in ([1.0, 3.0], [math.nan, 5.0, math.inf], [], [math.nan]):
        mean.add(torch.tensor(values))
    close(mean.value, 4.0, "later values weigh more, and what is no number stays out")
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\); got 1"):
        MovingAverage(decay=1)


def test_state_is_saved_and_learned_in_training_only():
    x = torch.zeros(3, 4)
    estimator = ScoreFunction(pm.Simplex(), Normalized(MovingAverage()))
    for _ in range(3):
        estimator(lambda y, at: 5 + y[:, 0], x)
    other = ScoreFunction(pm.Simplex(), Normalized(MovingAverage()))
    other.load_state_dict(estimator.state_dict())
    equal(other.baseline.baseline.mean.value, estimator.baseline.baseline.mean.value, "state_dict keeps the mean")
    assert other.baseline.baseline.mean.value > 5
    before = copy.deepcopy(estimator.state_dict())
    estimator.eval()(lambda y, at: 50 + y[:, 0], x)
    assert all(torch.equal(before[name], value) for name, value in estimator.state_dict().items())
    chain = ScoreFunction(pm.Chain(), MovingAverage())
    ragged = chain.with_lengths(torch.tensor([1, 2]))
    ragged(lambda y, at: 7 + 0 * y.unary[:, 0, 0], torch.zeros(2, 2, 3), torch.zeros(3, 3))
    close(chain.baseline.mean.value, 7.0, "a copy for other lengths shares the baseline")
    with pytest.raises(TypeError, match="Simplex has no lengths"):
        estimator.with_lengths(torch.tensor([1]))


def test_a_baseline_of_ones_own():
    class Constant(Baseline):
        def forward(self, losses, situation):
            assert losses.shape == (2, 3)
            assert not losses.requires_grad
            return losses - 1.5

    x = torch.zeros(3, 4)
    draws = ScoreFunction(pm.Simplex(), Constant(), samples=2).collect(lambda y, at: y[:, 0], x)
    equal(draws.advantages, draws.losses - 1.5, "advantages are what it returns")


def test_log_probabilities_are_those_of_the_policy():
    unary, transition = torch.randn(2, 3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    for smooth in (pm.Marginals(pm.Chain(), 0.5), pm.SparseMap(pm.Chain()), pm.LocalMax(pm.Chain(), pm.Gini())):
        draws = ScoreFunction(smooth, samples=4).collect(lambda y, at: y.unary[:, 0, 0], unary, transition)
        found = smooth.distribution(unary, transition).log_prob(draws.actions)
        equal(draws.log_probs, found, "log p of what was drawn")
        assert bool(torch.isfinite(found).all())


def test_draws_can_be_repeated():
    for structure in (pm.Simplex(), pm.SparseMap(pm.Simplex()), Perturbed(pm.Simplex())):
        x = torch.randn(5, 6, requires_grad=True)
        estimator = ScoreFunction(structure, LeaveOneOut(), samples=3)
        runs = [estimator(lambda y, at: y @ torch.arange(6.0), x, generator=generator(seed)) for seed in (3, 3, 4)]
        slopes = [torch.autograd.grad(v, x)[0] for v in runs]
        equal(runs[0], runs[1], "a generator makes draws repeatable")
        equal(slopes[0], slopes[1], "and so are the gradients")
        assert not torch.equal(slopes[0], slopes[2])


def test_wrong_arguments_are_refused():
    x = torch.zeros(3, 4)
    with pytest.raises(ValueError, match="samples must be a positive integer; got 0"):
        ScoreFunction(pm.Simplex(), samples=0)
    with pytest.raises(TypeError, match="baseline must be a Baseline or None; got float"):
        ScoreFunction(pm.Simplex(), 0.5)
    with pytest.raises(ValueError, match="LeaveOneOut needs samples of at least 2; got 1"):
        ScoreFunction(pm.Simplex(), LeaveOneOut())(lambda y, at: y[:, 0], x)
    with pytest.raises(ValueError, match=r"module of Learned must return \(3,\); got \(3, 1\)"):
        ScoreFunction(pm.Simplex(), Learned(torch.nn.Linear(4, 1)))(lambda y, at: y[:, 0], x)
    with pytest.raises(TypeError, match="noise must have a density"):
        Perturbing(pm.Simplex(), SumOfGamma(3))
