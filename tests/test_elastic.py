"""Elastic distances of series: equal to plain loops over cells, and to another library where it has them."""

import itertools
import math

import pytest
import torch
from plain_peers import import_plain
from tolerances import close

import polymax as pm


def naive(pair, deletion, insertion, n, m, soft=None):
    """The recursion of all distances; costs are functions of positions from 1."""

    def least(ways):
        if soft is None or not ways:
            return min(ways, default=math.inf)
        best = min(ways)
        return best if best == math.inf else best - soft * math.log(sum(math.exp((best - w) / soft) for w in ways))

    d = {(0, 0): 0.0}
    for i, j in itertools.product(range(n + 1), range(m + 1)):
        ways = [d[i - 1, j - 1] + pair(i, j)] if i and j else []
        ways += [d[i - 1, j] + deletion(i, j)] if i else []
        ways += [d[i, j - 1] + insertion(i, j)] if j else []
        d[i, j] = least(ways) if i + j else 0.0
    return d[n, m]


def norm(v):
    return math.sqrt(sum(t * t for t in v))


def minus(a, b):
    return [s - t for s, t in zip(a, b, strict=True)]


def naive_erp(x, y, soft=None, g=0.3):
    def gap(t):
        return norm([s - g for s in t])

    def pair(i, j):
        return norm(minus(x[i - 1], y[j - 1]))

    return naive(pair, lambda i, j: gap(x[i - 1]), lambda i, j: gap(y[j - 1]), len(x), len(y), soft)


def differ(a, b, epsilon=0.5):
    return float(any(abs(t) > epsilon for t in minus(a, b)))


def naive_edr(x, y):
    return naive(lambda i, j: differ(x[i - 1], y[j - 1]), lambda i, j: 1.0, lambda i, j: 1.0, len(x), len(y))


def naive_lcss(x, y):
    pair = lambda i, j: differ(x[i - 1], y[j - 1]) - 1.0  # noqa: E731
    shorter, longer = sorted((len(x), len(y)))
    if not shorter:
        return float(longer > 0)
    return 1 + naive(pair, lambda i, j: 0.0, lambda i, j: 0.0, len(x), len(y)) / shorter


def naive_msm(x, y, soft=None, c=0.4):
    x, y = [t[0] for t in x], [t[0] for t in y]

    def repeat(value, before, other):
        if min(before, other) <= value <= max(before, other):
            return c
        return c + min(abs(value - before), abs(value - other))

    def deletion(i, j):
        return repeat(x[i - 1], x[i - 2], y[j - 1]) if i > 1 and j else math.inf

    def insertion(i, j):
        return repeat(y[j - 1], y[j - 2], x[i - 1]) if j > 1 and i else math.inf

    return naive(lambda i, j: abs(x[i - 1] - y[j - 1]), deletion, insertion, len(x), len(y), soft)


def naive_twe(x, y, soft=None, nu=0.1, lam=0.7):
    zero = [0.0] * (len((*x, *y)[0]) if len(x) + len(y) else 0)
    x, y = [zero, *x], [zero, *y]

    def pair(i, j):
        return norm(minus(x[i], y[j])) + norm(minus(x[i - 1], y[j - 1])) + 2 * nu * abs(i - j)

    def deletion(i, j):
        return norm(minus(x[i], x[i - 1])) + nu + lam if j else math.inf

    def insertion(i, j):
        return norm(minus(y[j], y[j - 1])) + nu + lam if i else math.inf

    return naive(pair, deletion, insertion, len(x) - 1, len(y) - 1, soft)


# ours, the loop, and the number of channels
DISTANCES = {
    "erp": (lambda x, y, **o: pm.erp_distance(x, y, 0.3, **o), naive_erp, 3),
    "edr": (lambda x, y, **o: pm.edr_distance(x, y, 0.5, **o), naive_edr, 2),
    "lcss": (lambda x, y, **o: pm.lcss_distance(x, y, 0.5, **o), naive_lcss, 2),
    "msm": (lambda x, y, **o: pm.msm_distance(x, y, 0.4, **o), naive_msm, 1),
    "twe": (lambda x, y, **o: pm.twe_distance(x, y, 0.1, 0.7, **o), naive_twe, 2),
}
SMOOTH = ("erp", "msm", "twe")


def series(name, n, m, batch=()):
    channels = DISTANCES[name][2]
    return [torch.randn(*batch, size, channels, dtype=torch.float64) for size in (n, m)]


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (2, 0), (1, 1), (1, 4), (6, 5), (4, 9)])
@pytest.mark.parametrize("name", DISTANCES)
def test_distances(name, n, m):
    function, loop, _ = DISTANCES[name]
    x, y = series(name, n, m)
    for options, soft in [({}, None), *([({"gamma": 0.5}, 0.5)] if name in SMOOTH else [])]:
        expected = loop(x.tolist(), y.tolist(), *([] if soft is None else [soft]))
        close(function(x, y, **options), torch.tensor(expected, dtype=torch.float64), "the distance is the loop's")
    same = function(x, x)
    assert same == 0, "a series is at distance 0 from itself"
    if n and m:
        assert function(y, x) == pytest.approx(float(function(x, y))), "distances are symmetric"


@pytest.mark.parametrize("name", DISTANCES)
def test_ragged_batches(name):
    """A batch is a loop over its series, whatever the padding holds."""
    function, _, _ = DISTANCES[name]
    x, y = series(name, 6, 5, batch=(3,))
    lengths = torch.tensor([6, 2, 0]), torch.tensor([5, 3, 4])
    dirty = [t.clone() for t in (x, y)]
    for t, sizes in zip(dirty, lengths, strict=True):
        for k, size in enumerate(sizes):
            t[k, size:] = torch.nan
    dirty = [t.requires_grad_() for t in dirty]
    found = function(*dirty, lengths=lengths)
    for k, (n, m) in enumerate(zip(*lengths, strict=True)):
        close(found[k], function(x[k, :n], y[k, :m]), "an instance is a shorter problem")
    if name in SMOOTH:
        found = function(*dirty, lengths=lengths, gamma=0.5)
        for g in torch.autograd.grad(found[:2].sum(), dirty):
            assert g.isfinite().all()


@pytest.mark.parametrize("name", DISTANCES)
def test_nan_shows_in_its_own_pair(name):
    function, _, _ = DISTANCES[name]
    x, y = series(name, 4, 5, batch=(3,))
    expected = function(x, y)
    x[1, 2] = torch.nan
    found = function(x, y)
    assert found[1].isnan()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("name", DISTANCES)
def test_all_pairs_of_series(name):
    """`pairwise` takes these distances: each pair is a call of its own."""
    function, _, _ = DISTANCES[name]
    x, y = series(name, 5, 4, batch=(3,))
    n, m = torch.tensor([5, 3, 1]), torch.tensor([2, 4, 4])
    found = pm.pairwise(x, y, function, lengths=(n, m))
    for i, j in itertools.product(range(3), range(3)):
        close(found[i, j], function(x[i, : n[i]], y[j, : m[j]]), "a pair is a call")


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_of_distances(name):
    function, _, _ = DISTANCES[name]
    x, y = (t.requires_grad_() for t in series(name, 4, 3, batch=(2,)))
    assert torch.autograd.gradcheck(lambda x, y: function(x, y), (x, y))
    smooth = lambda x, y: function(x, y, gamma=0.5)  # noqa: E731
    assert torch.autograd.gradcheck(smooth, (x, y))
    assert torch.autograd.gradgradcheck(smooth, (x, y))


def test_common_subsequences_are_tslearn_s():
    import_plain()
    peer = pytest.importorskip("tslearn.metrics")
    x, y = (torch.randn(n, 1, dtype=torch.float64) for n in (9, 7))
    found = 1 - pm.lcss_distance(x, y, 0.4)
    assert float(found) == pytest.approx(peer.lcss(x.numpy(), y.numpy(), eps=0.4))
    near = peer.lcss(x.numpy(), y.numpy(), eps=0.4, global_constraint="sakoe_chiba", sakoe_chiba_radius=2)
    i, j = torch.arange(9)[:, None], torch.arange(7)
    # tslearn's band follows the diagonal of the rectangle
    band = torch.from_numpy(peer.sakoe_chiba_mask(9, 7, 2))
    assert float(1 - pm.lcss_distance(x, y, 0.4, band=band)) == pytest.approx(near)
    inner = (i - j).abs() <= 1
    assert pm.lcss_distance(x, y, 0.4, band=1) == pm.lcss_distance(x, y, 0.4, band=inner)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x, y: pm.msm_distance(x, y), "one channel; got 2"),
        (lambda x, y: pm.erp_distance(x, y[..., :1]), "alike in batch and channels"),
        (lambda x, y: pm.twe_distance(x, y, gamma=-1.0), "gamma must be at least 0"),
        (lambda x, y: pm.edr_distance(x, y, -0.1), "epsilon must be at least 0"),
    ],
)
def test_wrong_series_are_refused(call, error):
    with pytest.raises(ValueError, match=error):
        call(torch.randn(4, 2), torch.randn(3, 2))
