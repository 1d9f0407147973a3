"""Group lasso on the simplex, by its optimality conditions: groups apart, and groups that overlap."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm

GROUPS = {
    "apart": [0, 0, 1, 1, 1, 2],
    "some-in-none": [[0, 1], [3, 4]],
    "overlapping": [[0, 1, 2], [2, 3], [3, 4, 5], [1, 4]],
    "nested": [[0, 1, 2, 3, 4, 5], [0, 1], [2]],
}
EVERY = pytest.mark.parametrize("groups", [pytest.param(g, id=name) for name, g in GROUPS.items()])


def scores(rows=4, n=6, seed=0, scale=0.5):
    return scale * torch.randn(rows, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def objective(regularizer, x, p):
    return (x * p).sum(-1) - regularizer.omega(p)


@EVERY
@pytest.mark.parametrize("strength", [0.0, 0.1, 0.4, 30.0, 1e3, 1e6, 1e12])
def test_no_point_nearby_is_better(groups, strength):
    omega = pm.Grouped(groups, strength)
    x = scores()
    p = omega.argmax(x)
    torch.testing.assert_close(p.sum(-1), torch.ones(4, dtype=torch.float64))
    assert bool((p >= 0).all())
    best = objective(omega, x, p)
    others = torch.distributions.Dirichlet(torch.full((6,), 0.5, dtype=torch.float64))
    torch.manual_seed(2)
    for step in (1.0, 1e-1, 1e-3):
        q = others.sample((300, 1))
        near = p + step * (q - p)
        assert bool((objective(omega, x, near) <= best + 1e-12 * (1 + strength)).all())


@EVERY
def test_derivatives(groups):
    x = scores(2, seed=3).requires_grad_()
    strength = torch.tensor(0.15, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, s: pm.groupedmax(x, groups, s), (x, strength), atol=1e-6)
    assert gradgradcheck(lambda x, s: pm.groupedmax(x, groups, s), (x, strength), atol=1e-5)
    omega = pm.Grouped(groups, 0.15, gamma=0.7)
    (g,) = torch.autograd.grad(omega.max(x).sum(), x)
    torch.testing.assert_close(g, omega.argmax(x))


def test_whole_groups_are_exactly_zero():
    x = torch.tensor([1.0, 0.9, 0.6, -1.0])
    p = pm.groupedmax(x, [0, 0, 1, 1], 0.5)
    assert p[2:].tolist() == [0.0, 0.0]
    assert bool((p[:2] > 0).all())
    torch.testing.assert_close(pm.groupedmax(x, [0, 0, 1, 1], 0.0), pm.sparsemax(x))
    torch.testing.assert_close(pm.groupedmax(x, [[0, 1], [2, 3], [0]], 0.0), pm.sparsemax(x))


def test_groups_apart_are_a_case_of_groups_that_overlap():
    x = scores(5, 7, seed=4)
    apart = pm.groupedmax(x, [0, 0, 1, 1, 1, 2, 2], 0.2)
    # the same, and a group that a strength of its own would not change
    joined = pm.Grouped([[0, 1], [2, 3, 4], [5, 6]], 0.2)
    torch.testing.assert_close(joined.argmax(x), apart)
    from polymax.regularizers import grouped

    members = joined._members(x)
    keep = torch.ones_like(x, dtype=torch.bool)
    z = x - x.amax(-1, keepdim=True)
    both = grouped._overlapping(z, keep, members, 0.2 * members.sum(0).sqrt().expand(5, 3))
    torch.testing.assert_close(both, apart, atol=1e-9, rtol=0)


@EVERY
def test_masks_dims_and_dtypes(groups):
    x = scores(3, seed=5)
    mask = torch.tensor([True, True, True, True, True, False])
    omega = pm.Grouped(groups, 0.1)
    lists = omega._groups_of(6)
    short = pm.Grouped([[i for i in g if i < 5] for g in lists], 0.1)
    torch.testing.assert_close(omega.argmax(x, mask=mask)[:, :5], short.argmax(x[:, :5]))
    torch.testing.assert_close(omega.argmax(x.T, dim=0).T, omega.argmax(x))
    assert omega.argmax(x.half()).dtype == torch.half
    assert bool((omega.argmax(torch.full((2, 6), -torch.inf)) == 0).all())
    x[1, 2] = torch.nan
    y = omega.argmax(x)
    assert bool(y[1].isnan().all())
    assert not bool(y[[0, 2]].isnan().any())


def test_bad_groups():
    for groups, error in (
        ([[0, 0]], ValueError),
        ([[-1]], ValueError),
        (["ab"], TypeError),
        ("ab", TypeError),
        ([0.5, 1.0], TypeError),
        ([True, False], TypeError),
        (torch.tensor(0), TypeError),
        (3, TypeError),
    ):
        with pytest.raises(error, match="groups"):
            pm.Grouped(groups)
    with pytest.raises(ValueError, match="below 2"):
        pm.groupedmax(torch.zeros(2), [[0, 2]])
    for labels in ([0, 0, 1], torch.tensor([0]), np.array([0, 1, 1])):
        with pytest.raises(ValueError, match=f"2 integers, one for each entry of x along dim; got {len(labels)}"):
            pm.groupedmax(torch.zeros(2), labels)
    for strength in (-1.0, torch.tensor(-1.0), torch.nan):
        with pytest.raises(ValueError, match="strength"):
            pm.groupedmax(torch.zeros(2), [0, 1], strength)


def test_groups_of_nothing():
    x = scores(2)
    for groups in ([], [[]], [[], []]):
        torch.testing.assert_close(pm.groupedmax(x, groups, 0.3), pm.sparsemax(x))
    assert pm.groupedmax(torch.zeros(3, 0), []).shape == (3, 0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_derivatives_in_forward_mode():
    x, strength = scores(2, seed=3), torch.tensor(0.15, dtype=torch.float64)

    def mapped(x, strength):
        return pm.groupedmax(x, GROUPS["apart"], strength)

    for argument in (0, 1):
        forward = torch.func.jacfwd(mapped, argument)(x, strength)
        torch.testing.assert_close(forward, torch.func.jacrev(mapped, argument)(x, strength))


def test_entries_are_listed_by_groups():
    """What kernels are given: entries by group, where groups begin, those in no group, and the largest group."""
    from polymax.regularizers.grouped import _order

    entries, first, alone, largest = _order(((4, 1, 2), (0,)), 6, torch.device("cpu"))
    assert entries.tolist() == [4, 1, 2, 0, 3, 5]
    assert first.tolist() == [0, 3, 4, 5, 6]
    assert (alone, largest) == (2, 3)
    entries, first, alone, largest = _order((), 0, torch.device("cpu"))
    assert (entries.tolist(), first.tolist(), alone, largest) == ([], [0], 0, 0)
