"""Maxima smoothed by noise: by enumeration with the same draws, and in the mean by closed forms; the noise itself."""

import math

import pytest
import torch
from estimators_table import best, leaves, seeded, slopes_like
from scipy import stats
from sets import BY_NAME, TABLE, every
from tolerances import close, equal

import polymax as pm
from polymax.noise import Gumbel, Noise, Normal, SumOfGamma
from polymax.smoothing.perturbed import Perturbed
from polymax.structures.base import tensors


def perturbed_by_hand(row, op, full):
    """Noise (samples, ...) for each tensor, and the best structure and score of each draw, by enumeration."""
    generator = seeded()
    noise = [op.noise.sample(x, (op.samples,), generator) for x in full]
    y, values = [], []
    for draw in zip(*noise, strict=True):
        noisy = [x + op.gamma * z for x, z in zip(full, draw, strict=True)]
        y.append(best(row, noisy))
        values.append(row.enumerated(noisy)[1].amax(0))
    return noise, [torch.stack(t) for t in zip(*y, strict=True)], torch.stack(values)


@every(TABLE)
@pytest.mark.parametrize("noise", [Gumbel(), Normal()], ids=["gumbel", "normal"])
def test_perturbed(row, noise, device):
    full = leaves(x.to(device) for x in row.structure.full(*row.scores(batch=(2,))))
    op = Perturbed(row.structure, noise, samples=4, gamma=0.7)
    host = [x.detach().cpu() for x in full]
    draws, y, values = perturbed_by_hand(row, op, host)
    value = op.max(*full, generator=seeded())
    close(value.cpu(), values.mean(0), "max is the mean of the maxima")
    mu = tensors(op(*full, generator=seeded()))
    for slope, m, v in zip(torch.autograd.grad(value.sum(), full), mu, y, strict=True):
        close(m.cpu(), v.mean(0), "argmax is the mean of the vertices")
        close(slope, m, "the gradient of max is argmax")
    g = slopes_like(mu)
    grads = torch.autograd.grad(mu, full, g)
    law = (torch.distributions.Normal if isinstance(noise, Normal) else torch.distributions.Gumbel)(
        *torch.tensor([0.0, 1.0]).double()
    )
    plain = best(row, host)
    change = [v - b for v, b in zip(y, plain, strict=True)]
    gain = sum((d.cpu() * c).flatten(2).sum(-1) for d, c in zip(g, change, strict=True)) / 0.7
    for d, z, v in zip(grads, draws, row.vertices(), strict=True):
        at = (z + law.mean).requires_grad_()
        (slope,) = torch.autograd.grad(-law.log_prob(at).sum(), at)
        expected = (gain.reshape(*gain.shape, *[1] * (z.dim() - 2)) * slope).mean(0)
        close(d.cpu(), torch.where((v != 0).any(0), expected, 0), "E[<g, y(z) - y> slope(z)] / gamma")


def scored(estimates, exact):
    """z-scores of means of independent estimates (count, ...)."""
    return (estimates.mean(0) - exact) / (estimates.std(0) / len(estimates) ** 0.5)


def test_perturbed_maxima_with_gumbel_noise_are_softmax():
    x = torch.tensor([0.4, -0.3, 1.0], dtype=torch.float64)
    op = Perturbed(pm.Simplex(), gamma=0.6)
    rows = x.expand(20000, 3)
    assert float(scored(op(rows, generator=seeded()), (x / 0.6).softmax(-1)).abs().max()) < 4
    smooth = 0.6 * (x / 0.6).logsumexp(-1)
    assert abs(float(scored(op.max(rows, generator=seeded()), smooth))) < 4


@pytest.mark.parametrize("control", [True, False], ids=["control-variate", "plain"])
def test_perturbed_gradients_are_unbiased(control):
    x, gamma = torch.tensor([0.4, -0.3, 1.0], dtype=torch.float64, requires_grad=True), torch.tensor(0.8).double()
    g = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    scale = gamma.requires_grad_()
    exact = torch.autograd.grad((x / scale).softmax(-1) @ g, (x, scale))
    rows, scales = x.detach().expand(20000, 3).clone().requires_grad_(), gamma.detach().expand(20000).clone()
    op = Perturbed(pm.Simplex(), gamma=scales.requires_grad_(), control_variate=control)
    mu = op(rows, generator=seeded())
    for estimates, truth in zip(torch.autograd.grad((mu @ g).sum(), (rows, scales)), exact, strict=True):
        assert float(scored(estimates, truth).abs().max()) < 4
    value = op.max(rows, generator=seeded())
    (slope,) = torch.autograd.grad(value.sum(), scales, retain_graph=True)
    (truth,) = torch.autograd.grad(scale * (x / scale).logsumexp(-1), scale)
    assert abs(float(scored(slope, truth))) < 4


def test_control_variate_lowers_the_variance():
    rows = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64).repeat(2000, 1).requires_grad_()
    g = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    spread = []
    for control in (True, False):
        mu = Perturbed(pm.Simplex(), control_variate=control)(rows, generator=seeded())
        spread.append(float(torch.autograd.grad((mu @ g).sum(), rows)[0].var(0).sum()))
    assert spread[0] < 0.6 * spread[1]


def test_perturbed_by_normal_noise():
    x = torch.tensor([0.7, 0.0], dtype=torch.float64)
    mu = Perturbed(pm.Simplex(), Normal(), gamma=0.5)(x.expand(20000, 2), generator=seeded())
    p = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(0.7 / (0.5 * 2**0.5)))
    assert abs(float(scored(mu[:, 0], p))) < 4


def test_second_derivative_of_perturbed_max():
    row = BY_NAME["chain"]
    scores = leaves(row.scores((3, 2), (2,)))
    op = Perturbed(row.structure, samples=5)
    slopes = torch.autograd.grad(op.max(*scores, generator=seeded()).sum(), scores, create_graph=True)
    c = torch.randn_like(slopes[0])
    (second,) = torch.autograd.grad((c * slopes[0]).sum(), scores[0])
    (expected,) = torch.autograd.grad((c * op(*scores, generator=seeded()).unary).sum(), scores[0])
    close(second, expected, "the second derivative of max is the derivative of argmax")


@pytest.mark.parametrize("name", ["chain", "alignment", "span-tree", "assignment", "spanning-tree"])
def test_perturbed_padding(name):
    row = BY_NAME[name]
    scores = leaves(row.structure.full(*row.scores(batch=(2,))))
    lengths = row.with_lengths(torch.tensor([row.size(), 1])).lengths
    mu = tensors(Perturbed(row.structure, samples=3).with_lengths(lengths)(*scores, generator=seeded()))
    grads = torch.autograd.grad(mu, scores, slopes_like(mu))
    short = row.cut([x[1] for x in scores], 1)
    for whole, part in [*zip(mu, short, strict=True), *zip(grads, short, strict=True)]:
        rest = whole[1].detach().clone()
        rest[tuple(slice(size) for size in part.shape)] = 0
        assert not bool(rest.any()), "padding is exactly 0"


def test_perturbed_forbidden_parts_and_generators():
    x = torch.randn(4, 5, dtype=torch.float64)
    x[:, 2] = -math.inf
    x[3] = -math.inf
    x.requires_grad_()
    op = Perturbed(pm.Simplex(), samples=50)
    mu = op(x, generator=seeded())
    (slope,) = torch.autograd.grad(mu, x, torch.randn_like(mu))
    for t in (mu, slope):
        assert not bool(t[:, 2].any()), "-inf has no part and no gradient"
        assert not bool(t[3].any()), "where all is forbidden neither"
    assert op.max(x)[3].item() == -math.inf
    equal(mu, op(x, generator=seeded()), "the same seed gives the same bits")
    assert not torch.equal(mu, op(x, generator=seeded(4)))
    assert op(x.detach().bfloat16()).dtype == torch.bfloat16
    # as many draws as leaves: no labels are read into them
    assert Perturbed(pm.SpanTree(), samples=4)(torch.randn(4, 4)).shape == (4, 4)


@pytest.mark.parametrize("noise", [Gumbel(), Normal(), SumOfGamma(3), SumOfGamma(1, terms=40)], ids=str)
def test_noise(noise: Noise):
    z = noise.sample(torch.zeros(3, dtype=torch.float64), (20000,), seeded())
    assert float(scored(z, 0).abs().max()) < 4, "the mean is 0"
    short = noise.sample(torch.zeros(3), (20000,), seeded())
    equal(short, z.float(), "float32 draws are those of float64, rounded")
    match noise:
        case Normal():
            p = stats.kstest(z[:, 0].numpy(), "norm").pvalue
        case Gumbel():
            p = stats.kstest((z[:, 0] + 0.5772156649).numpy(), "gumbel_r").pvalue
        case SumOfGamma(k=k, terms=terms):
            # k of them add up to the largest of `terms` exponential variables, which tends to Gumbel's
            total = noise.sample(torch.zeros(k).double(), (20000,), seeded()).sum(-1)
            mean = sum(1 / i for i in range(1, terms + 1))
            p = stats.kstest(
                total.numpy(), lambda t: (-torch.expm1(-(torch.tensor(t) + mean))).clamp(min=0).numpy() ** terms
            ).pvalue
    assert p > 1e-3


def test_fenchel_young():
    scores = leaves(BY_NAME["chain"].scores((4, 3), (2,)))
    tags = torch.tensor([[0, 1, 2, 1], [2, 2, 0, 0]])
    op = Perturbed(pm.Chain(), samples=6)
    torch.manual_seed(2)
    loss = pm.fenchel_young(op, scores, tags, reduction="sum")
    (slope,) = torch.autograd.grad(loss, scores[:1])
    y = pm.Chain().encode(tags, 3)
    torch.manual_seed(2)
    close(slope, op(*scores).unary.detach() - y.unary, "the gradient is argmax - y, with the draws of the loss")
    torch.manual_seed(2)
    expected = op.max(*scores) - pm.Chain().score(y, *scores)
    close(loss, expected.sum(), "max(scores) - <scores, y>")
