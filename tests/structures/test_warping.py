"""Dynamic time warping: against enumeration and plain recursions, its bands, divergences and means."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm

LENGTHS = (torch.tensor([4, 2, 1]), torch.tensor([5, 5, 3]))


def costs(*shape, dtype=torch.float64):
    return torch.rand(*shape, dtype=dtype) * 3


def recursion(cost, smallest):
    """The textbook: r[i, j] = cost[i, j] + smallest of r before."""
    n, m = cost.shape
    r = {(-1, -1): 0.0}
    for i in range(n):
        for j in range(m):
            before = [r.get(cell, math.inf) for cell in ((i - 1, j), (i, j - 1), (i - 1, j - 1))]
            r[i, j] = float(cost[i, j]) + smallest(before)
    return r[n - 1, m - 1]


def softest(gamma):
    def smallest(values):
        low = min(values)
        return low - gamma * math.log(sum(math.exp((low - v) / gamma) for v in values)) if low < math.inf else low

    return smallest


def sliced(cost, b):
    return cost[b, : LENGTHS[0][b], : LENGTHS[1][b]]


def test_dtw_is_the_cheapest_alignment():
    cost = costs(3, 4, 5).requires_grad_()
    value = pm.dtw(cost, LENGTHS)
    (path,) = torch.autograd.grad(value.sum(), cost)
    for b in range(3):
        part = sliced(cost.detach(), b)
        vertices = pm.Alignment().vertices(part.shape).double()
        totals = (vertices * part).sum((1, 2))
        torch.testing.assert_close(value[b].detach(), totals.min())
        assert torch.equal(sliced(path, b), vertices[totals.argmin()])
        assert path[b].sum() == vertices[totals.argmin()].sum()


@pytest.mark.parametrize("gamma", [0.1, 1.0, 5.0])
def test_soft_dtw_is_the_textbook_recursion(gamma):
    cost = costs(3, 4, 5)
    value = pm.soft_dtw(cost, gamma, LENGTHS)
    for b in range(3):
        assert value[b].item() == pytest.approx(recursion(sliced(cost, b), softest(gamma)), abs=1e-10)
        vertices = pm.Alignment().vertices(sliced(cost, b).shape).double()
        total = (vertices * sliced(cost, b)).sum((1, 2))
        torch.testing.assert_close(value[b], -gamma * torch.logsumexp(-total / gamma, 0))


def test_temperatures_are_tensors_too():
    cost, gamma = costs(3, 4, 5), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    each = torch.stack([pm.soft_dtw(cost[b], float(gamma[b])) for b in range(3)])
    torch.testing.assert_close(pm.soft_dtw(cost, gamma), each)
    torch.testing.assert_close(pm.soft_dtw(cost, 1e-3), pm.dtw(cost), atol=1e-2, rtol=0)


def test_smoothed_dtw():
    cost = costs(3, 4, 5).requires_grad_()
    torch.testing.assert_close(pm.smoothed_dtw(cost, pm.Shannon(0.5), LENGTHS), pm.soft_dtw(cost, 0.5, LENGTHS))
    torch.testing.assert_close(pm.smoothed_dtw(cost, pm.Zero()), pm.dtw(cost))

    def sparsest(values):
        kept = torch.tensor([v for v in values if v < math.inf], dtype=torch.float64)
        return -float(pm.Gini(0.5).max(-kept)) if len(kept) else math.inf

    value = pm.smoothed_dtw(cost, pm.Gini(0.5))
    expected = [recursion(c, sparsest) for c in cost.detach()]
    torch.testing.assert_close(value.detach(), torch.tensor(expected, dtype=torch.float64))
    (mu,) = torch.autograd.grad(value.sum(), cost)
    assert ((mu == 0).any(-1) & (mu > 0).any(-1)).any()


def test_gradients():
    cost = costs(2, 3, 4).requires_grad_()
    gamma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    lengths = (torch.tensor([3, 2]), torch.tensor([4, 3]))
    assert gradcheck(pm.soft_dtw, (cost, gamma, lengths))
    assert gradgradcheck(pm.soft_dtw, (cost, gamma, lengths))
    assert gradcheck(lambda c: pm.smoothed_dtw(c, pm.Gini(), lengths), (cost,))
    x, y = (torch.randn(2, n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 4))
    assert gradcheck(pm.soft_dtw_divergence, (x, y, 0.5, lengths))
    assert gradgradcheck(pm.soft_dtw_divergence, (x, y, 0.5, lengths))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 6), (4, 4), (5, 7), (3, 11), (7, 2)])
def test_bands_hold_a_path_at_every_radius(n, m):
    free = costs(n, m)
    for radius in range(max(n, m)):
        band = pm.sakoe_chiba(n, m, radius)
        assert torch.equal(band, pm.sakoe_chiba(m, n, radius).T)
        assert torch.equal(band, band.flip(0, 1))
        value = pm.dtw(free, band=band)
        assert pm.dtw(free) <= value < torch.inf
        assert value == pm.dtw(free, band=radius)
        if n == m:
            i = torch.arange(n)
            assert torch.equal(band, (i[:, None] - i).abs() <= radius)
    assert band.all()


def test_bands_of_a_batch_are_those_of_its_instances():
    band = pm.sakoe_chiba(4, 5, 1, LENGTHS)
    for b in range(3):
        n, m = int(LENGTHS[0][b]), int(LENGTHS[1][b])
        assert torch.equal(band[b, :n, :m], pm.sakoe_chiba(n, m, 1))
        assert band[b].sum() == pm.sakoe_chiba(n, m, 1).sum()
    cost = costs(3, 4, 5)
    each = torch.stack([pm.soft_dtw(sliced(cost, b), band=1) for b in range(3)])
    torch.testing.assert_close(pm.soft_dtw(cost, lengths=LENGTHS, band=1), each)


def test_no_path_costs_infinity_and_moves_nothing():
    cost = costs(2, 3, 3).requires_grad_()
    band = torch.ones(2, 3, 3, dtype=torch.bool)
    band[0, 1] = False
    for value in (pm.dtw(cost, band=band), pm.soft_dtw(cost, band=band), pm.smoothed_dtw(cost, pm.Gini(), band=band)):
        assert value[0] == torch.inf
        assert value[1].isfinite()
        (g,) = torch.autograd.grad(value.sum(), cost)
        assert (g[0] == 0).all()
        assert g.isfinite().all()


def test_squared_euclidean():
    x = torch.randn(2, 1, 4, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 5, 3, dtype=torch.float64, requires_grad=True)
    expected = (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)
    torch.testing.assert_close(pm.squared_euclidean(x, y), expected)
    assert gradcheck(pm.squared_euclidean, (x, y))
    assert gradgradcheck(pm.squared_euclidean, (x, y))
    # points of one number have a formula of their own
    assert gradcheck(pm.squared_euclidean, (x[..., :1], y[..., :1]))
    assert gradgradcheck(pm.squared_euclidean, (x[..., :1], y[..., :1]))
    assert pm.squared_euclidean(x[..., :0, :], y).shape == (2, 3, 0, 5)
    assert pm.squared_euclidean(x.half(), y.half()).dtype == torch.float16


def test_squared_euclidean_is_exact_far_from_the_origin():
    x = (1000 + torch.randn(4, 3)).requires_grad_()
    cost = pm.squared_euclidean(x, x.detach())
    assert (cost.diagonal() == 0).all()
    assert (cost >= 0).all()
    exact = pm.squared_euclidean(x.detach().double(), x.detach().double())
    torch.testing.assert_close(cost.detach().double(), exact, rtol=1e-6, atol=0)
    (g,) = torch.autograd.grad(cost.sum(), x)
    d = x.detach().double()
    torch.testing.assert_close(g.double(), 2 * (4 * d - d.sum(0)), rtol=1e-5, atol=1e-4)


def test_costs_of_every_size_share_a_batch():
    cost = torch.rand(5, 21, 19)
    cost[1] *= 1e25
    cost[2, 3, 4] = torch.nan
    cost[3] *= 1e5
    cost[4, :, 7] = torch.inf
    value, y = pm.soft_dtw(cost), pm.Marginals(pm.Alignment())(-cost)
    assert value[2].isnan()
    assert value[4] == torch.inf
    assert (y[4] == 0).all()
    kept = [0, 1, 3]
    torch.testing.assert_close(value[kept].double(), pm.soft_dtw(cost[kept].double()), rtol=1e-5, atol=0)
    torch.testing.assert_close(y[kept].double(), pm.Marginals(pm.Alignment())(-cost[kept].double()), rtol=0, atol=1e-5)
    for k in kept:
        assert torch.equal(pm.soft_dtw(cost[k]), value[k])


def test_divergence():
    x, y = torch.randn(6, 5, 2, dtype=torch.float64), torch.randn(6, 7, 2, dtype=torch.float64)
    value = pm.soft_dtw_divergence(x, y, 0.5)
    by_hand = [pm.soft_dtw(pm.squared_euclidean(a, b), 0.5) for a, b in ((x, y), (x, x), (y, y))]
    torch.testing.assert_close(value, by_hand[0] - by_hand[1] / 2 - by_hand[2] / 2)
    torch.testing.assert_close(value, pm.soft_dtw_divergence(y, x, 0.5))
    assert (value > 0).all()
    half = pm.soft_dtw_divergence(x.half(), y.half(), 0.5)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.double(), value, rtol=1e-2, atol=0)
    same = x.clone().requires_grad_()
    assert (pm.soft_dtw_divergence(same, x) == 0).all()
    (g,) = torch.autograd.grad(pm.soft_dtw_divergence(same, x).sum(), same)
    torch.testing.assert_close(g, torch.zeros_like(g), atol=1e-12, rtol=0)


def test_divergence_of_ragged_series_and_of_all_pairs():
    x, y = torch.randn(3, 5, 2, dtype=torch.float64), torch.randn(4, 6, 2, dtype=torch.float64)
    n, m = torch.tensor([5, 3, 1]), torch.tensor([2, 6, 4, 1])
    each = torch.stack(
        [torch.stack([pm.soft_dtw_divergence(a[:i], b[:j], band=2) for b, j in zip(y, m)]) for a, i in zip(x, n)]
    )
    # padding may hold anything
    dirty = x.masked_fill((torch.arange(5) >= n[:, None])[..., None], torch.nan).requires_grad_()
    value = pm.soft_dtw_divergence(dirty[:, None], y, lengths=(n[:, None], m), band=2)
    torch.testing.assert_close(value, each)
    (g,) = torch.autograd.grad(value.sum(), dirty)
    assert g.isfinite().all()
    assert (g[1, 3:] == 0).all()


def ragged():
    return [torch.randn(n, 2, dtype=torch.float64).cumsum(0) for n in (4, 6, 5)]


def objective(x, series, weights, gamma):
    return sum(w * pm.soft_dtw(pm.squared_euclidean(x, s), gamma) for s, w in zip(series, weights))


def test_barycenter_is_a_minimum():
    series, weights = ragged(), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    x = pm.soft_dtw_barycenter(series, weights * 7, gamma=0.5, size=5, tol=1e-6).requires_grad_()
    assert x.shape == (5, 2)
    value = objective(x, series, weights, 0.5)
    (g,) = torch.autograd.grad(value, x)
    assert g.abs().max() <= 1e-6
    assert value < min(objective(x + 0.1 * torch.randn_like(x), series, weights, 0.5) for _ in range(5))


def test_barycenter_of_padded_series():
    series = ragged()
    padded = torch.nn.utils.rnn.pad_sequence(series, batch_first=True, padding_value=torch.nan)
    a = pm.soft_dtw_barycenter(padded, lengths=torch.tensor([4, 6, 5]))
    assert torch.equal(a, pm.soft_dtw_barycenter(series))
    assert a.shape == (6, 2)
    single = pm.soft_dtw_barycenter([s.float() for s in series])
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), a, atol=1e-3, rtol=0)


def test_debiased_barycenter_of_one_series_is_the_series():
    (series, *_) = ragged()
    start = series + 0.3 * torch.randn_like(series)
    kept = start.clone()
    x = pm.soft_dtw_barycenter([series], init=start, debiased=True, tol=1e-7)
    torch.testing.assert_close(x, series, atol=1e-5, rtol=0)
    assert torch.equal(start, kept)
    biased = pm.soft_dtw_barycenter([series], init=start)
    assert (biased - series).abs().max() > 0.1


def test_barycenter_says_when_it_stops_early():
    with pytest.warns(UserWarning, match=r"did not converge: a gradient of .* is left"):
        pm.soft_dtw_barycenter(ragged(), max_iter=1)


def test_errors():
    cost, x = costs(2, 3, 4), torch.zeros(2, 3, 1)
    with pytest.raises(ValueError, match=r"cost must be \(\*batch, n, m\); got \(4,\)"):
        pm.dtw(cost[0, 0])
    with pytest.raises(TypeError, match=r"cost must be float64.*got torch.int64"):
        pm.dtw(cost.long())
    with pytest.raises(TypeError, match=r"band must be a bool tensor .* got torch.float64"):
        pm.soft_dtw(cost, band=cost)
    with pytest.raises(ValueError, match=r"band must broadcast"):
        pm.soft_dtw(cost, band=torch.ones(4, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"gamma must be positive"):
        pm.soft_dtw(cost, 0.0)
    with pytest.raises(ValueError, match=r"radius must not be negative; got -1"):
        pm.sakoe_chiba(3, 3, -1)
    with pytest.raises(TypeError, match=r"radius must be an integer; got float"):
        pm.dtw(cost, band=1.5)
    with pytest.raises(TypeError, match=r"band must be a radius"):
        pm.soft_dtw_divergence(x, x, band=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"points of one size; got \(2, 3, 1\) and \(2, 3, 2\)"):
        pm.squared_euclidean(x, x.expand(2, 3, 2))
    with pytest.raises(ValueError, match=r"lengths of y must be \(2,\)"):
        pm.soft_dtw_divergence(x, x, lengths=(torch.tensor([1, 2]), torch.tensor([1])))
    with pytest.raises(ValueError, match=r"weights must be \(2,\)"):
        pm.soft_dtw_barycenter(x, weights=torch.ones(3))
    with pytest.raises(ValueError, match=r"init must be \(size, 1\); got \(3, 2\)"):
        pm.soft_dtw_barycenter(x, init=torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"series must be"):
        pm.soft_dtw_barycenter([])
