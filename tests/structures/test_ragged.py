"""Lists of tensors and packed sequences where batches are ragged, and queries that are found in longer series."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import polymax as pm

S = 3
SIZES = [2, 5, 1, 5]


def emissions(dtype=torch.float64):
    return [torch.randn(n, S, dtype=dtype) for n in SIZES]


def tags():
    return [torch.randint(0, S, (n,)) for n in SIZES]


def packed(sequences):
    return pack_sequence(sequences, enforce_sorted=False)


KINDS = pytest.mark.parametrize("kind", [list, packed], ids=["list", "packed"])
ORDER = pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "batch-second"])


@ORDER
@KINDS
def test_crf_of_ragged_batches_is_a_loop(kind, batch_first):
    crf = pm.nn.CRF(S, batch_first).double()
    alone = pm.nn.CRF(S).double()
    alone.load_state_dict(crf.state_dict())
    x, y = emissions(), tags()
    losses = crf(kind(x), kind(y), reduction="none")
    expected = [alone(a[None], b[None], reduction="none")[0] for a, b in zip(x, y)]
    torch.testing.assert_close(losses, torch.stack(expected))
    assert crf.decode(kind(x)) == [alone.decode(a[None])[0] for a in x]
    best, probabilities = crf.topk(kind(x), 2)
    assert best.shape == (len(x), 2, max(SIZES))
    torch.testing.assert_close(probabilities[1], alone.topk(x[1][None], 2)[1][0])
    found = crf.marginals(kind(x))
    means = [alone.marginals(a[None])[0] for a in x]
    if kind is list:
        for a, b in zip(found, means, strict=True):
            torch.testing.assert_close(a, b)
    else:
        # in the order of the emissions themselves, so that data can be put beside data
        assert isinstance(found, PackedSequence)
        given = packed(means)
        torch.testing.assert_close(found.data, given.data)
        assert torch.equal(found.batch_sizes, given.batch_sizes)
        assert torch.equal(found.sorted_indices, kind(x).sorted_indices)


@KINDS
def test_crf_takes_what_tags_allow_in_ragged_batches(kind):
    crf = pm.nn.CRF(S).double()
    x, y = emissions(), tags()
    allowed = [torch.nn.functional.one_hot(t, S).bool() for t in y]
    torch.testing.assert_close(crf(kind(x), kind(allowed)), crf(kind(x), kind(y)))


def test_crf_of_padded_tags_beside_ragged_emissions():
    crf = pm.nn.CRF(S).double()
    x, y = emissions(), tags()
    whole = torch.nn.utils.rnn.pad_sequence(y, batch_first=True, padding_value=-1)
    torch.testing.assert_close(crf(x, whole), crf(x, y))


def test_errors_of_ragged_emissions():
    crf = pm.nn.CRF(S).double()
    x, y = emissions(), tags()
    with pytest.raises(ValueError, match="mask must be None"):
        crf(x, y, torch.ones(4, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"tags must be as long as emissions, \[2, 5, 1, 5\]; got \[2, 5, 1, 4\]"):
        crf(x, [*y[:3], y[3][:4]])
    with pytest.raises(ValueError, match=r"emissions must be a list of tensors \(n, 3\); got \(4, 2\) at 1"):
        crf.decode([x[0], torch.zeros(4, 2).double()])
    with pytest.raises(TypeError, match="emissions must be a list of tensors; got list at 0"):
        crf.decode([[1.0]])
    with pytest.raises(TypeError, match="emissions must have one dtype"):
        crf.decode([x[0], x[1].float()])
    with pytest.raises(ValueError, match="not an empty one"):
        crf.decode([])
    with pytest.raises(TypeError, match="emissions must be a tensor; got NoneType"):
        crf.decode(None)


COSTS = [(2, 3), (4, 1), (3, 5), (1, 1)]


@pytest.mark.parametrize("subsequence", [False, True], ids=["whole", "subsequence"])
@pytest.mark.parametrize(
    "distance",
    [pm.dtw, pm.soft_dtw, lambda cost, **options: pm.smoothed_dtw(cost, pm.Gini(), **options)],
    ids=["dtw", "soft", "smoothed"],
)
def test_lists_of_costs_are_a_loop(distance, subsequence):
    costs = [torch.rand(n, m, dtype=torch.float64, requires_grad=True) for n, m in COSTS]
    together = distance(costs, subsequence=subsequence)
    alone = torch.stack([distance(c, subsequence=subsequence) for c in costs])
    torch.testing.assert_close(together, alone)
    for a, b in zip(torch.autograd.grad(together.sum(), costs), torch.autograd.grad(alone.sum(), costs), strict=True):
        torch.testing.assert_close(a, b)


def test_lists_of_costs_take_bands():
    costs = [torch.rand(n, m) for n, m in COSTS]
    torch.testing.assert_close(pm.dtw(costs, band=1), torch.stack([pm.dtw(c, band=1) for c in costs]))
    with pytest.raises(ValueError, match="lengths must be None if cost is a list"):
        pm.dtw(costs, lengths=(torch.ones(4), torch.ones(4)))
    with pytest.raises(ValueError, match=r"cost must be a list of matrices .* at 1"):
        pm.dtw([costs[0], torch.rand(2, 2, 2)])


@KINDS
def test_ragged_series(kind):
    x, y = ([torch.randn(n, 2, dtype=torch.float64) for n in sizes] for sizes in (SIZES, [3, 3, 4, 1]))
    expected = torch.stack([pm.soft_dtw_divergence(a, b) for a, b in zip(x, y)])
    torch.testing.assert_close(pm.soft_dtw_divergence(kind(x), kind(y)), expected)
    torch.testing.assert_close(
        pm.soft_dtw_divergence(kind(x), x[0]), torch.stack([pm.soft_dtw_divergence(a, x[0]) for a in x])
    )
    torch.testing.assert_close(pm.soft_dtw_barycenter(kind(x), size=3), pm.soft_dtw_barycenter(x, size=3))
    with pytest.raises(ValueError, match="lengths of x must be None"):
        pm.soft_dtw_divergence(kind(x), kind(y), lengths=(torch.tensor(SIZES), torch.tensor(SIZES)))
    with pytest.raises(ValueError, match="lengths of series must be None"):
        pm.soft_dtw_barycenter(kind(x), lengths=torch.tensor(SIZES))


def stretches(cost):
    """The cost of every stretch of columns, by plain alignments."""
    m = cost.shape[-1]
    return {(a, b): cost[..., a:b] for a in range(m) for b in range(a + 1, m + 1)}


@pytest.mark.parametrize("gamma", [0.2, 1.0])
def test_a_subsequence_is_the_best_of_all_stretches(gamma):
    cost = torch.rand(3, 6, dtype=torch.float64)
    parts = stretches(cost)
    each = {stretch: float(pm.dtw(part)) for stretch, part in parts.items()}
    assert float(pm.dtw(cost, subsequence=True)) == pytest.approx(min(each.values()))
    path = pm.HardMax(pm.Subsequence())(-cost)
    used = path.any(0).nonzero()[:, 0].tolist()
    assert each[used[0], used[-1] + 1] == pytest.approx(min(each.values()))
    soft = torch.stack([pm.soft_dtw(part, gamma) for part in parts.values()])
    expected = -gamma * torch.logsumexp(-soft / gamma, 0)
    torch.testing.assert_close(pm.soft_dtw(cost, gamma, subsequence=True), expected)


def test_a_query_is_found_where_it_is():
    query, noise = torch.tensor([[1.0], [3.0], [2.0]]), torch.full((4, 1), 9.0)
    series = torch.cat([noise, query[:1], query, noise])
    cost = pm.squared_euclidean(query, series).requires_grad_()
    value = pm.dtw(cost, subsequence=True)
    assert value == 0
    (path,) = torch.autograd.grad(value, cost)
    assert set(path.nonzero()[:, 1].tolist()) <= {4, 5, 6, 7}
    expected = torch.autograd.grad(pm.soft_dtw(cost, 0.1, subsequence=True), cost)[0]
    assert expected.sum(0)[[0, 1, 2, 3, 8, 9, 10, 11]].max() < 1e-6, "the soft version looks there, too"


def test_gradients_of_subsequences():
    cost = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    lengths = (torch.tensor([3, 2]), torch.tensor([4, 3]))
    for distance in (
        lambda c: pm.soft_dtw(c, 0.5, lengths, subsequence=True),
        lambda c: pm.smoothed_dtw(c, pm.Gini(), lengths, subsequence=True),
    ):
        assert gradcheck(distance, cost)
        assert gradgradcheck(distance, cost)


def test_bands_of_subsequences():
    cost = torch.rand(2, 4)
    allowed = torch.tensor([[False, False, True, True], [False, True, True, True]])
    expected = pm.dtw(cost.masked_fill(~allowed, math.inf), subsequence=True)
    torch.testing.assert_close(pm.dtw(cost, band=allowed, subsequence=True), expected)
    with pytest.raises(TypeError, match="band must be a bool tensor if subsequence is True"):
        pm.dtw(cost, band=1, subsequence=True)


def test_paths_of_subsequences_are_checked():
    scores = torch.zeros(2, 4)
    loss = pm.perceptron_loss(pm.Subsequence(), scores, torch.tensor([[0, 1], [1, 2]]))
    assert loss >= 0
    for cells, fault in (
        ([[1, 1]], "its first cell is \\(1, 1\\), not in row 0"),
        ([[0, 1]], "its last cell is \\(0, 1\\), not in the last row"),
        ([[0, 1], [1, 3]], "it jumps from cell \\(0, 1\\) to \\(1, 3\\)"),
        ([[-1, -1]], "there are 0 cells, whose lengths are \\(2, 4\\)"),
    ):
        with pytest.raises(ValueError, match=fault):
            pm.perceptron_loss(pm.Subsequence(), scores, torch.tensor(cells))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (5, 1), (4, 4), (3, 7), (9, 6)])
def test_itakura_is_a_symmetric_parallelogram_with_a_path(n, m):
    steep = pm.itakura(n, m, 1.0)
    assert torch.equal(steep, pm.sakoe_chiba(n, m, 0) | steep)
    previous = steep
    for slope in (1.0, 1.5, 2.0, 3.0, 1e6):
        band = pm.itakura(n, m, slope)
        assert torch.equal(band, pm.itakura(m, n, slope).T), "rows and columns are treated alike"
        assert torch.equal(band, band.flip(0, 1)), "both ends are treated alike"
        assert (band | previous).equal(band), "a steeper slope allows more"
        assert torch.isfinite(pm.dtw(torch.rand(n, m), band=band)), "a path is left"
        previous = band
    if n == m:
        i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
        a, b = n - 1 - i, n - 1 - j
        assert torch.equal(pm.itakura(n, n), (j <= 2 * i) & (i <= 2 * j) & (b <= 2 * a) & (a <= 2 * b))


def test_itakura_of_a_batch_is_that_of_its_instances():
    lengths = (torch.tensor([4, 2, 1]), torch.tensor([5, 5, 3]))
    band = pm.itakura(4, 5, 2.0, lengths)
    for b, (n, m) in enumerate(zip(*(t.tolist() for t in lengths))):
        assert torch.equal(band[b, :n, :m], pm.itakura(n, m))
        assert band[b].sum() == pm.itakura(n, m).sum()
    with pytest.raises(ValueError, match="slope must be at least 1"):
        pm.itakura(3, 3, 0.5)
