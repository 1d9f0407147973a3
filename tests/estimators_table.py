"""The table of estimators. A new one is a class with one method and a row here, and gets every law."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from tolerances import close

import polymax as pm
from polymax.estimators import Estimator, ImplicitMLE, Interpolation, PerturbAndMap, Spigot, StraightThrough
from polymax.noise import Normal, SumOfGamma
from polymax.structures.base import tensors


@dataclass(frozen=True)
class Row:
    """An estimator and the formula of its gradient.

    `law(row, estimator, points, y, g, grads)` checks gradients by enumeration of the set `row`. `points` are the scores
    at which MAP is taken, one tuple for each draw of noise.
    """

    name: str
    make: Callable[[pm.Structure], Estimator]
    law: Callable[..., None]
    draws: bool = False
    # whether sums over the set are needed
    counts: bool = False

    def fits(self, row):
        return not self.counts or isinstance(row.structure, pm.Counted)


class Signs(Estimator):
    """An estimator of a user's own."""

    def vjp(self, y, g, *scores):
        return tuple(d.sign() for d in tensors(g))


def seeded(seed=3):
    """A generator."""
    return torch.Generator().manual_seed(seed)


def slopes_like(y, seed=7):
    """Random gradients in the tensors of a structure."""
    generator = seeded(seed)
    return [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t) for t in y]


def leaves(scores):
    """Scores that want gradients."""
    return tuple(x.detach().clone().requires_grad_() for x in scores)


def best(row, scores):
    """The structure with the highest score, by enumeration."""
    vertices, values = row.enumerated(scores)
    return [v[values.argmax(0)] for v in vertices]


def inner(row, vertices, g):
    """<g, v> for all structures v, (count, *batch)."""
    return sum(
        torch.einsum("kx,...x->k...", v.flatten(1), d.flatten(d.dim() - v.dim() + 1))
        for v, d in zip(vertices, g, strict=True)
    )


def straight(row, estimator, points, y, g, grads):
    for d, slope, v in zip(grads, g, row.vertices(), strict=True):
        close(d, torch.where((v != 0).any(0), slope, 0), "the gradient of the identity, on parts of structures")


def signs(row, estimator, points, y, g, grads):
    straight(row, estimator, points, y, [d.sign() for d in g], grads)


def covariance(row, estimator, points, y, g, grads):
    """The Jacobian of Gibbs marginals is the covariance of structures, over gamma."""
    vertices, values = row.enumerated(points[0])
    p = (values / estimator.through.gamma).softmax(0)
    c = inner(row, vertices, g)
    for d, v in zip(grads, vertices, strict=True):
        flat = v.flatten(1)
        both = torch.einsum("k...,kx->...x", p * c, flat)
        apart = (p * c).sum(0).unsqueeze(-1) * torch.einsum("k...,kx->...x", p, flat)
        close(d.flatten(-v.dim() + 1), (both - apart) / estimator.through.gamma, "the gradient of marginals")


def projected(row, estimator, points, y, g, grads):
    """y - step grad is the minimizer of step <g, p> + 1/2 |p - y|^2 over the hull, by its optimality conditions."""
    step = estimator.step
    p = [v - step * d for v, d in zip(y, grads, strict=True)]
    slope = [step * d for d in g]
    slope[0] = slope[0] + p[0] - y[0]
    vertices = row.vertices()
    gains = inner(row, vertices, slope)
    here = sum((s * q).flatten(1).sum(-1) for s, q in zip(slope, p, strict=True))
    assert float((here - gains.amin(0)).max()) < 1e-9, "no structure is a better direction"
    columns = torch.cat([v.flatten(1) for v in vertices], 1).T.numpy()
    for point in torch.cat([q.flatten(1) for q in p], 1).numpy():
        _, far = nnls(np.vstack([columns, np.ones(columns.shape[1])]), np.append(point, 1))
        assert far < 1e-9, "the target is in the hull"


def difference(row, estimator, points, y, g, grads):
    """The mean over draws of (map(x) - map(x - step g)) / step."""
    step = estimator.step
    before = [best(row, x) for x in points]
    after = [best(row, [x - step * d for x, d in zip(point, g, strict=True)]) for point in points]
    for k, d in enumerate(grads):
        each = [(b[k] - a[k]) / step for b, a in zip(before, after, strict=True)]
        close(d, torch.stack(each).mean(0), "the difference of two vertices")


ESTIMATORS = [
    Row("straight-through", StraightThrough, straight),
    Row("through-marginals", lambda s: StraightThrough(s, pm.Marginals(s, gamma=0.7)), covariance, counts=True),
    Row("spigot", lambda s: Spigot(s, step=0.8), projected),
    Row("interpolation", lambda s: Interpolation(s, step=2.0), difference),
    Row("perturb-and-map", PerturbAndMap, straight, draws=True),
    Row(
        "perturb-and-parse",
        lambda s: PerturbAndMap(s, through=pm.Marginals(s), gamma=0.5),
        covariance,
        draws=True,
        counts=True,
    ),
    Row("implicit-mle", lambda s: ImplicitMLE(s, SumOfGamma(2), step=1.5), difference, draws=True),
    Row("implicit-mle-draws", lambda s: ImplicitMLE(s, Normal(), samples=3, gamma=2.0), difference, draws=True),
    Row("user", Signs, signs),
]


def every(rows):
    """Run a test on each estimator."""
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in rows])
