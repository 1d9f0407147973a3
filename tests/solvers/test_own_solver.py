"""Solvers of a user's own: a step rule, and a whole search."""

from dataclasses import dataclass, replace

import pytest
import torch

import polymax as pm


@dataclass(frozen=True)
class FromWorst(pm.Solver):
    """Weight moves from the worst structure to the new one, as in Pairwise."""

    max_iter: int = 10_000
    tol: float = 1e-9

    def direction(self, weights, gains, new):
        worst = torch.where(weights > 0, gains, torch.inf).argmin(-1)
        hot = [torch.nn.functional.one_hot(k, weights.shape[-1]) for k in (new, worst)]
        return (hot[0] - hot[1]).to(weights), weights.gather(-1, worst.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Listing(pm.Solver):
    """The exact solution, and beside it structures of weight 0 that have nothing to do with it."""

    def solve(self, structure, scores, start=None, whole=False):
        found = pm.ActiveSet().solve(structure, scores, start, False)
        more = structure.map(*(-x for x in scores)).double().unsqueeze(-1 - structure.event_dims(*scores)[0])
        y = torch.cat([found.vertices, more], -1 - structure.event_dims(*scores)[0])
        flat = y.flatten(y.dim() - structure.event_dims(*scores)[0])
        return replace(
            found,
            found=y,
            probs=torch.cat([found.probs, torch.zeros_like(found.probs[..., :1])], -1),
            overlaps=flat @ flat.mT,
            mean=None,
        )


@dataclass(frozen=True)
class Nothing(pm.Solver):
    pass


@dataclass(frozen=True)
class Short(pm.Solver):
    def direction(self, weights, gains, new):
        return weights[:, :1], gains[:, 0]


SCORES = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def value_and_gradient(solver):
    x = SCORES.clone().requires_grad_()
    mu = pm.SparseMap(pm.Assignment(), solver)(x)
    weights = torch.arange(mu.numel(), dtype=mu.dtype).reshape(mu.shape).sin()
    return mu.detach(), torch.autograd.grad((mu * weights).sum(), x)[0]


def test_a_step_rule_of_ones_own_reaches_the_solution():
    expected = pm.SparseMap(pm.Assignment())(SCORES)
    torch.testing.assert_close(pm.SparseMap(pm.Assignment(), FromWorst())(SCORES), expected, atol=1e-4, rtol=0)
    chain = torch.randn(2, 3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)
    found = pm.SparseMap(pm.Chain(), FromWorst())(*chain)
    torch.testing.assert_close(found.unary, pm.SparseMap(pm.Chain())(*chain).unary, atol=1e-4, rtol=0)
    assert "has the rule of FromWorst" in pm.SparseMap(pm.Chain(), FromWorst()).path(*chain)


def test_structures_of_weight_0_have_no_part_in_derivatives():
    for came, expected in zip(value_and_gradient(Listing()), value_and_gradient(pm.ActiveSet()), strict=True):
        torch.testing.assert_close(came, expected)


def test_solvers_without_a_rule_are_refused():
    with pytest.raises(TypeError, match="Nothing must have a method `direction` or a method `solve`"):
        pm.SparseMap(pm.Assignment(), Nothing())(SCORES)
    with pytest.raises(ValueError, match=r"Short.direction must return a change of weights"):
        pm.SparseMap(pm.Assignment(), Short())(SCORES)
