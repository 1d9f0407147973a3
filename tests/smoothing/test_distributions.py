"""Distributions over structures against enumeration: probabilities, order, entropies, draws."""

import collections
import itertools

import pytest
import torch
from scipy import stats
from sets import RAGGED, SAMPLED, every
from tolerances import close, equal
from torch.distributions import kl_divergence

import polymax as pm
from polymax.structures.base import tensors


def small(row):
    """A shape with few enough structures for counts of draws."""
    return row.few or row.shape


def kinds(rows):
    """Run a test on the distributions that each row has."""
    table = [pytest.param(row, False, id=f"{row.name}-gibbs") for row in rows]
    table += [pytest.param(row, True, id=f"{row.name}-walk") for row in rows if row.able("local")]
    return pytest.mark.parametrize(("row", "sparse"), table)


def smooth(row, sparse):
    return pm.LocalMax(row.structure, pm.Gini(), 1.5) if sparse else pm.Marginals(row.structure, 1.5)


def listed(y, lead):
    """Each structure as one row: (*lead, parts)."""
    return torch.cat([t.flatten(lead) for t in tensors(y)], -1)


def all_of(row, shape):
    """Every structure as a batch, and as rows."""
    y = row.structure.vertices(shape)
    return (y.double() if isinstance(y, torch.Tensor) else type(y)(*(t.double() for t in y))), listed(y, 1)


def stacked(y, batch):
    """Structures (count, ...) as (count, batch, ...)."""
    spread = [t.unsqueeze(1).expand(t.shape[0], batch, *t.shape[1:]) for t in tensors(y)]
    return spread[0] if isinstance(y, torch.Tensor) else type(y)(*spread)


@kinds(SAMPLED)
def test_probabilities(row, sparse):
    scores = row.scores(small(row), (2,))
    d = smooth(row, sparse).distribution(*scores)
    y, _ = all_of(row, small(row))
    p = d.prob(stacked(y, 2))
    close(p.sum(0), torch.ones(2), "probabilities sum to 1")
    for m, v, mean in zip(tensors(d.mean), tensors(y), tensors(smooth(row, sparse)(*scores)), strict=True):
        close(m, torch.einsum("kb,k...->b...", p, v), "the mean is the expectation")
        close(mean, m, "the mean is argmax")
    if not sparse:
        _, values = row.enumerated(scores, small(row))
        close(p, (values / 1.5).softmax(0), "p(y) = exp(<scores, y> / gamma) / Z")
    close(d.log_prob(stacked(y, 2)).exp(), p, "log_prob is the log of prob")


@kinds(SAMPLED)
def test_top_k_and_support(row, sparse):
    scores = row.scores(small(row), (2,))
    d = smooth(row, sparse).distribution(*scores)
    y, rows = all_of(row, small(row))
    p = d.prob(stacked(y, 2))
    best, probs = d.topk(4)
    expected = torch.nn.functional.pad(p.sort(0, descending=True).values[:4].T, (0, max(4 - p.shape[0], 0)))
    close(probs, expected, "topk gives the largest probabilities, in order")
    close(d.prob(_front(best)) * (probs.T > 0), probs.T, "topk gives their structures")
    everything, weights = d.support()
    close(weights.sum(-1), torch.ones(2), "the support has all of the probability")
    assert int((weights > 0).sum(-1).max()) == weights.shape[-1]
    equal((p > 0).sum(0), (weights > 0).sum(-1), "the support has all structures of positive probability")
    for found, weight in zip(listed(everything, 2)[0], weights[0], strict=True):
        assert float(weight) == 0 or found.tolist() in rows.tolist(), "the support is made of structures"
    for part, first in zip(tensors(d.mode), tensors(best), strict=True):
        equal(part, first[:, 0], "the mode is the most probable structure")


def _front(y):
    moved = [t.movedim(1, 0) for t in tensors(y)]
    return moved[0] if isinstance(y, torch.Tensor) else type(y)(*moved)


@kinds(SAMPLED)
def test_entropies(row, sparse):
    one, two = row.scores(small(row), (2,), seed=1), row.scores(small(row), (2,), seed=2, scale=0.1)
    p, q = (smooth(row, sparse).distribution(*x) for x in (one, two))
    y, _ = all_of(row, small(row))
    a, b = p.log_prob(stacked(y, 2)), q.log_prob(stacked(y, 2))
    weight = a.exp()

    def expected(x):
        return torch.where(weight > 0, weight * x, 0).sum(0)

    close(p.entropy(), -expected(a), "entropy")
    close(p.cross_entropy(q), -expected(b), "cross-entropy")
    finite = torch.isfinite(expected(b))
    close(kl_divergence(p, q)[finite], (expected(a) - expected(b))[finite], "KL")
    close(kl_divergence(p, p), torch.zeros(2), "KL of a distribution with itself is 0")
    assert bool((kl_divergence(p, q) >= 0).all())


@kinds(SAMPLED)
def test_draws(row, sparse):
    scores = row.scores(small(row), (2,))
    d = smooth(row, sparse).distribution(*scores)
    y, rows = all_of(row, small(row))
    draws = 4000
    sample = d.sample((draws,), generator=torch.Generator().manual_seed(3))
    drawn = listed(sample, 2)
    assert drawn.shape[:2] == (draws, 2)
    p = d.prob(stacked(y, 2))
    for b in range(2):
        counts = (drawn[:, b, None] == rows.to(drawn)[None]).all(-1).sum(0).double()
        assert counts.sum() == draws, "draws are structures"
        assert bool((counts[p[:, b] == 0] == 0).all()), "what has probability 0 is not drawn"
        often = p[:, b] * draws >= 5
        observed = torch.cat([counts[often], counts[~often].sum(0, keepdim=True)])
        wanted = torch.cat([p[often, b], p[~often, b].sum(0, keepdim=True)]) * draws
        kept = wanted > 0
        if int(kept.sum()) > 1:
            test = stats.chisquare(observed[kept].numpy(), (wanted / wanted.sum() * draws)[kept].numpy())
            assert test.pvalue > 1e-4, f"draws follow p: {observed.tolist()} against {wanted.tolist()}"


@every(SAMPLED)
def test_draws_can_be_repeated(row):
    d = pm.Marginals(row.structure).distribution(*row.scores(batch=(3, 2)))
    runs = [d.sample((4, 5), generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    for a, b in zip(*(tensors(y) for y in runs), strict=True):
        assert a.shape[:4] == (4, 5, 3, 2)
        equal(a, b, "a generator makes draws repeatable")
    for t in tensors(d.sample()):
        assert t.shape[:2] == (3, 2)


@kinds([row for row in RAGGED if row.able("sample")])
def test_ragged(row, sparse):
    size = row.size()
    lengths = row.lengths(size, 1, 0)
    scores = row.scores(batch=(3,))
    op = smooth(row, sparse).with_lengths(row.with_lengths(lengths).lengths)
    d = op.distribution(*scores)
    entropy = d.entropy()
    assert entropy[2] == 0 or row.least
    for b, length in enumerate(lengths.tolist()[:2]):
        own = tuple(x[b] if x.dim() > len(e) else x for x, e in zip(scores, row.events(row.shape), strict=True))
        alone = smooth(row, sparse).distribution(*row.cut(own, length))
        close(entropy[b], alone.entropy(), "padding does not change the entropy")
        _, probs = alone.topk(2)
        close(d.topk(2)[1][b], probs, "padding does not change the order")
    for t in tensors(d.sample((2,))):
        rest = t[:, 2] if not row.least else t[:, 2, row.least :]
        assert bool((rest == 0).all()), "padding is never drawn"


@kinds(SAMPLED)
def test_gradients(row, sparse):
    shape = small(row)
    scores = tuple(x.requires_grad_() for x in row.scores(shape, (2,)))
    y = row.structure.map(*scores)
    check = {"fast_mode": True, "atol": 1e-4}
    op = smooth(row, sparse)
    assert torch.autograd.gradcheck(lambda *x: op.distribution(*x).log_prob(y), scores, **check)
    assert torch.autograd.gradcheck(lambda *x: op.distribution(*x).entropy(), scores, **check)
    assert torch.autograd.gradcheck(lambda *x: op.distribution(*x).topk(2)[1], scores, **check)


def test_kinds_are_compared():
    scores = (torch.randn(3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64))
    gibbs = pm.Marginals(pm.Chain()).distribution(*scores)
    walk = pm.LocalMax(pm.Chain(), pm.Shannon()).distribution(*scores)
    close(kl_divergence(gibbs, walk), 0.0, "the walk of Shannon is the Gibbs distribution")


def test_wrong_arguments_are_refused():
    d = pm.Marginals(pm.Chain()).distribution(torch.zeros(40, 3), torch.zeros(3, 3))
    with pytest.raises(ValueError, match="positive integer"):
        d.topk(0)
    with pytest.raises(ValueError, match="too many to list"):
        d.support()


def test_what_is_no_structure_has_no_probability():
    walk = pm.LocalMax(pm.SpanTree(), pm.Gini()).distribution(torch.randn(4, 4))
    assert walk.prob(torch.eye(4)) == 0


def orders(p, k):
    """The probability of each ordered choice of k, drawn one after the other without replacement."""
    found = {}
    for choice in itertools.permutations(range(len(p)), k):
        left, total = 1.0, 1.0
        for y in choice:
            total *= float(p[y]) / left
            left -= float(p[y])
        if total > 0:
            found[choice] = total
    return found


def distributions():
    """Distributions over few structures, and all of these."""
    arcs = torch.tensor([[0.0, 1.0, 0.2], [0.0, 0.0, 0.7], [0.0, -0.3, 0.0]], dtype=torch.float64)
    unary, steps = torch.tensor([[0.5, 0.0], [0.0, 1.0]]).double(), torch.tensor([[0.4, 0.0], [0.0, 0.0]]).double()
    labelled = torch.stack([arcs, arcs.T], -1)
    return {
        "chain": (pm.Marginals(pm.Chain()), (unary, steps)),
        "walk": (pm.LocalMax(pm.Chain(), pm.Gini(), 2.0), (unary, steps)),
        "span-tree": (pm.Marginals(pm.SpanTree()), (torch.linspace(0, 1, 16).reshape(4, 4).double(),)),
        "spanning-tree": (pm.Marginals(pm.SpanningTree(single_root=False)), (arcs,)),
        "spanning-tree-labelled": (pm.Marginals(pm.SpanningTree(labelled=True)), (labelled[:2, :2],)),
        "sparse": (pm.SparseMap(pm.Subset(2)), (torch.tensor([0.5, 0.3, 0.2, 0.1]).double(),)),
        "listed": (pm.TopKSparsemax(pm.Simplex(), 3), (torch.tensor([0.5, 0.3, 0.2, 0.1]).double(),)),
    }


@pytest.mark.parametrize("name", distributions())
def test_distinct_draws(name):
    """They come as often, and in the order, as successive draws without replacement would."""
    op, scores = distributions()[name]
    batch = 1500
    one = op.distribution(*scores)
    everything, p = one.support()
    rows = listed(everything, 1)
    many = op.distribution(scores[0].expand(batch, *scores[0].shape), *scores[1:])
    y, probs = many.sample_distinct(2, generator=torch.Generator().manual_seed(0))
    drawn = listed(y, 2)
    assert drawn.shape[:2] == probs.shape == (batch, 2)
    same = (drawn[:, :, None] == rows).all(-1)
    assert bool(same.any(-1).all()), "draws are structures"
    places = same.long().argmax(-1)
    assert bool((places[:, 0] != places[:, 1]).all()), "draws differ"
    close(probs, p[places], "probabilities are those of the distribution")
    expected = orders(p.tolist(), 2)
    counts = collections.Counter(tuple(pair) for pair in places.tolist())
    assert set(counts) <= set(expected)
    often = [c for c, q in expected.items() if q * batch >= 5]
    observed = [*(counts[c] for c in often), batch - sum(counts[c] for c in often)]
    wanted = [*(expected[c] * batch for c in often), batch - sum(expected[c] * batch for c in often)]
    kept = [k for k, w in enumerate(wanted) if w > 1e-6]
    test = stats.chisquare([observed[k] for k in kept], [wanted[k] for k in kept], sum_check=False)
    assert test.pvalue > 1e-4, f"draws follow p: {observed} against {wanted}"


@every([row for row in SAMPLED if row.name != "hypergraph"])
def test_all_distinct_draws_are_the_support(row):
    d = pm.Marginals(row.structure).distribution(*row.scores(small(row), (2,)))
    count = row.count(small(row))
    y, probs = d.sample_distinct(count + 1, generator=torch.Generator().manual_seed(1))
    close(probs.sum(-1), torch.ones(2), "all of them have all of the probability")
    assert bool((probs[:, -1] == 0).all()), "there are no more"
    for b in range(2):
        assert len({tuple(v) for v in listed(y, 2)[b, :count].tolist()}) == count, "they differ"


@every([row for row in RAGGED if row.able("sample")])
def test_distinct_draws_of_shorter_problems(row):
    lengths = row.lengths(row.size(), 1, 0)
    op = pm.Marginals(row.with_lengths(lengths))
    scores = row.scores(batch=(3,))
    d = op.distribution(*scores)
    y, probs = d.sample_distinct(2, generator=torch.Generator().manual_seed(2))
    again, _ = d.sample_distinct(2, generator=torch.Generator().manual_seed(2))
    for a, b in zip(tensors(y), tensors(again), strict=True):
        equal(a, b, "a generator makes draws repeatable")
        assert bool(((a[2] if not row.least else a[2, :, row.least :]) == 0).all()), "padding is never drawn"
    close(probs[2], [1.0, 0.0], "the shortest problem is one structure")


def test_distinct_draws_have_gradients():
    scores = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    for op in (pm.Marginals(pm.SpanningTree()), pm.Marginals(pm.SpanTree()), pm.SparseMap(pm.SpanningTree())):

        def probs(x, op=op):
            return op.distribution(x).sample_distinct(2, torch.Generator().manual_seed(0))[1]

        assert torch.autograd.gradcheck(probs, scores, fast_mode=True)
        with pytest.raises(ValueError, match="k must be a positive integer; got 0"):
            op.distribution(scores).sample_distinct(0)
