"""Distances of all pairs of series are those of a loop over pairs, however they are cut into chunks."""

import pytest
import torch

import polymax as pm

SIZES, OTHERS = [4, 1, 6, 3, 6], [2, 7, 3]


def series(sizes, d=2, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(n, d, dtype=torch.float64) for n in sizes]


def looped(x, y, compared):
    return torch.stack([torch.stack([compared(a, b) for b in y]) for a in x])


DISTANCES = {
    "dtw": (pm.dtw, {}, lambda a, b: pm.dtw(pm.squared_euclidean(a, b))),
    "band": (pm.dtw, {"band": 1}, lambda a, b: pm.dtw(pm.squared_euclidean(a, b), band=1)),
    "soft": (pm.soft_dtw, {"gamma": 0.3}, lambda a, b: pm.soft_dtw(pm.squared_euclidean(a, b), 0.3)),
    "smoothed": (
        pm.smoothed_dtw,
        {"regularizer": pm.Gini()},
        lambda a, b: pm.smoothed_dtw(pm.squared_euclidean(a, b), pm.Gini()),
    ),
    "cost": (pm.dtw, {"cost": torch.cdist}, lambda a, b: pm.dtw(torch.cdist(a, b))),
    "divergence": (pm.soft_dtw_divergence, {"gamma": 0.5}, lambda a, b: pm.soft_dtw_divergence(a, b, 0.5)),
}


@pytest.mark.parametrize("max_cells", [1, 40, 2**20])
@pytest.mark.parametrize("name", DISTANCES)
def test_pairs_are_a_loop(name, max_cells):
    distance, options, compared = DISTANCES[name]
    x, y = series(SIZES), series(OTHERS, seed=1)
    found = pm.pairwise(x, y, distance, max_cells=max_cells, **options)
    torch.testing.assert_close(found, looped(x, y, compared))


def test_chunks_have_no_more_cells_than_allowed():
    seen = []

    def distance(cost, lengths):
        seen.append(cost.numel())
        return pm.dtw(cost, lengths)

    x, y = series([5] * 9), series([4] * 7)
    whole = pm.pairwise(x, y, distance, max_cells=100)
    assert len(seen) > 1
    assert max(seen) <= 100
    assert torch.equal(whole, pm.pairwise(x, y))


def test_collections_are_lists_padded_tensors_and_packed_sequences():
    x, y = series(SIZES), series(OTHERS, seed=1)
    expected = pm.pairwise(x, y)
    padded = torch.nn.utils.rnn.pad_sequence(x, batch_first=True, padding_value=torch.nan)
    assert torch.equal(pm.pairwise(padded, y, lengths=(torch.tensor(SIZES), None)), expected)
    packed = torch.nn.utils.rnn.pack_sequence(y, enforce_sorted=False)
    assert torch.equal(pm.pairwise(x, packed), expected)
    assert pm.pairwise([t.float() for t in x], y).dtype == torch.float64
    assert pm.pairwise(padded[:0], y).shape == (0, 3)
    assert pm.pairwise(y, padded[:0]).shape == (3, 0)


def test_gradients_go_through_chunks():
    x, y = series([3, 2], 1), series([2, 4], 1, seed=1)
    padded = torch.nn.utils.rnn.pad_sequence(x, batch_first=True).requires_grad_()
    lengths = (torch.tensor([3, 2]), None)

    def value(padded):
        return pm.pairwise(padded, y, pm.soft_dtw, lengths=lengths, max_cells=12)

    assert torch.autograd.gradcheck(value, padded)
    (g,) = torch.autograd.grad(value(padded).sum(), padded)
    assert g[1, 2] == 0


def test_errors():
    x = series(SIZES)
    with pytest.raises(ValueError, match=r"points of one size; got \(5, 6, 2\) and \(2, 3, 1\)"):
        pm.pairwise(x, torch.zeros(2, 3, 1).double())
    with pytest.raises(ValueError, match=r"x must be \(K, n, d\), or a list of \(n, d\); got \(4, 2\)"):
        pm.pairwise(x[0], x)
    with pytest.raises(ValueError, match="y must be a list of series"):
        pm.pairwise(x, [])
    with pytest.raises(ValueError, match="lengths of x must be None"):
        pm.pairwise(x, x, lengths=(torch.tensor(SIZES), None))
    with pytest.raises(ValueError, match="max_cells must be a positive integer; got 0"):
        pm.pairwise(x, x, max_cells=0)
    with pytest.raises(ValueError, match=r"distance must return \(5, 5\), a number for each pair; got \(\)"):
        pm.pairwise(x, x, lambda a, b, lengths: a.sum())
