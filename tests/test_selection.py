"""Soft top-k with positions that carry gradients, and Gumbel-softmax by torch's signature."""

import inspect

import numpy as np
import pytest
import torch
from scipy import stats
from tolerances import close, equal
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("mapping", [pm.sparsemax, pm.softmax, pm.entmax])
def test_weights_are_those_of_the_formula(mapping):
    x, gamma = torch.randn(3, 6, dtype=torch.float64), 0.7
    found = pm.soft_topk(x, 4, gamma, mapping=mapping)
    for row, weights in zip(x, found.weights, strict=True):
        for rank, value in enumerate(row.sort(descending=True).values[:4]):
            close(weights[rank], mapping(-(value - row).abs() / gamma), "a mapping of distances")
    close(found.values, (found.weights @ x.unsqueeze(-1)).squeeze(-1), "means of entries")
    close(found.indices, found.weights @ torch.arange(6.0).double(), "means of positions")


def test_a_small_gamma_gives_topk():
    x = torch.randn(5, 9)
    values, indices = x.topk(4)
    found = pm.soft_topk(x, 4, gamma=1e-6)
    equal(found.values, values, "values")
    equal(found.indices, indices.float(), "positions")
    assert ((found.weights == 0) | (found.weights == 1)).all()
    turned = pm.soft_topk(x.T, 4, gamma=1e-6, dim=0)
    equal(turned.values, values.T, "another dim")
    assert turned.weights.shape == (5, 4, 9)


def test_gradients_of_positions():
    x = torch.tensor([[0.1, 0.5, 0.9, -0.4], [1.0, 0.2, 0.35, 0.7]], dtype=torch.float64, requires_grad=True)
    gamma = torch.tensor([0.6, 0.9], dtype=torch.float64, requires_grad=True)
    for part in range(3):
        assert gradcheck(lambda x, g, part=part: pm.soft_topk(x, 2, g)[part], (x, gamma))
        assert gradgradcheck(lambda x, part=part: pm.soft_topk(x, 2, mapping=pm.softmax)[part], (x,))
    (slope,) = torch.autograd.grad(pm.soft_topk(x, 1).indices.sum(), x)
    assert (slope != 0).any()


def test_what_is_masked_has_no_weight():
    x = torch.tensor([[1.0, -torch.inf, 3.0, 2.0], [-torch.inf] * 4, [torch.nan, 1.0, 2.0, 3.0]], requires_grad=True)
    keep = torch.tensor([True, True, True, False])
    found = pm.soft_topk(x, 3, 0.1, mask=keep)
    equal(found.values[0].detach(), torch.tensor([3.0, 1.0, 0.0]), "ranks beyond the entries are 0")
    equal(found.weights[1].detach(), torch.zeros(3, 4), "nothing to choose")
    assert found.values[2].isnan().all()
    (slope,) = torch.autograd.grad(found.values[:2].sum() + found.indices[:2].sum(), x)
    assert torch.isfinite(slope[:2]).all()
    assert pm.soft_topk(torch.zeros(0, 3), 2).weights.shape == (0, 2, 3)
    assert pm.soft_topk(torch.zeros(2, 3), 0).values.shape == (2, 0)
    assert pm.soft_topk(x.detach().bfloat16(), 1).indices.dtype == torch.bfloat16


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="k must be an integer from 0 to 3, the number of entries; got 4"):
        pm.soft_topk(torch.zeros(3), 4)
    with pytest.raises(ValueError, match="gamma must be positive"):
        pm.soft_topk(torch.zeros(3), 1, gamma=0.0)
    with pytest.raises(TypeError, match="x must be"):
        pm.soft_topk(torch.zeros(3).int(), 1)
    with pytest.raises(TypeError, match="k must be an integer; got float"):
        pm.soft_topk(torch.zeros(3), 1.0)
    assert pm.soft_topk(torch.zeros(3), np.int64(2)).values.shape == (2,)
    with pytest.raises(ValueError, match=r"x must be \(\*batch, n\); got \(\)"):
        pm.soft_topk(torch.tensor(1.0), 1)
    with pytest.raises(ValueError, match=r"gamma must broadcast to the batch \(2,\); got \(3,\)"):
        pm.soft_topk(torch.zeros(2, 3), 1, gamma=torch.ones(3))
    with pytest.raises(TypeError, match="mapping must be a function; got 'softmax'"):
        pm.soft_topk(torch.zeros(3), 1, mapping="softmax")
    with pytest.warns(UserWarning, match="eps of gumbel_softmax has no effect"):
        pm.gumbel_softmax(torch.zeros(3), 1.0, False, 1e-3)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_soft_topk_compiles():
    x = torch.randn(3, 5, requires_grad=True)
    fn = torch.compile(lambda x: pm.soft_topk(x, 2, 0.5).indices, fullgraph=True, backend="eager")
    close(fn(x), pm.soft_topk(x, 2, 0.5).indices, "compiled is the same")


def test_the_signature_is_that_of_torch():
    ours = inspect.signature(pm.gumbel_softmax).parameters.values()
    theirs = inspect.signature(torch.nn.functional.gumbel_softmax).parameters.values()
    assert [(p.name, p.default) for p in ours][: len(theirs)] == [(p.name, p.default) for p in theirs]
    assert all(p.kind == p.KEYWORD_ONLY for p in list(ours)[len(theirs) :])


@pytest.mark.parametrize("tau", [0.4, 1.5])
@pytest.mark.parametrize("hard", [False, True])
def test_draws_and_gradients_have_the_distribution_of_torch(tau, hard):
    scores, values = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([3.0, 1.0, 0.0])

    def draws(fn):
        x = scores.expand(6000, 3).clone().requires_grad_()
        y = fn(x, tau, hard)
        (slope,) = torch.autograd.grad(y @ values, x, torch.ones(6000))
        return y.detach(), slope

    torch.manual_seed(0)
    ours, theirs = draws(pm.gumbel_softmax), draws(torch.nn.functional.gumbel_softmax)
    for mine, other in zip(ours, theirs, strict=True):
        for k in range(3):
            assert stats.ks_2samp(mine[:, k].numpy(), other[:, k].numpy()).pvalue > 1e-4
    assert ((ours[0] == 0) | (ours[0] == 1)).all() == hard


def test_gumbel_softmax_of_a_dim_a_mask_and_a_generator():
    x = torch.randn(4, 5, 2, dtype=torch.float64)
    seeded = torch.Generator
    y = pm.gumbel_softmax(x, 0.5, dim=1, generator=seeded().manual_seed(1))
    close(y.sum(1), torch.ones(4, 2).double(), "along dim")
    z = pm.Gumbel().sample(x.movedim(1, -1), (), seeded().manual_seed(1)).movedim(-1, 1)
    close(y, ((x + z) / 0.5).softmax(1), "the formula")
    hard = pm.gumbel_softmax(x, 0.5, True, dim=1, generator=seeded().manual_seed(1))
    equal(hard.argmax(1), y.argmax(1), "the largest entry")
    keep = torch.arange(5)[:, None] < 2
    assert (pm.gumbel_softmax(x, dim=1, mask=keep)[:, 2:] == 0).all()
    assert (pm.gumbel_softmax(x, dim=1, mask=keep & False, hard=True) == 0).all()
    slope = leaf(3, 4)
    pm.gumbel_softmax(slope, hard=True).square().sum().backward()
    assert (slope.grad != 0).any()
