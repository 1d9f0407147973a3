"""Distributions over structures against enumeration: probabilities, order, entropies, draws."""

import pytest
import torch
from scipy import stats
from sets import RAGGED, SETS, every
from tolerances import close, equal
from torch.distributions import kl_divergence

import polymax as pm
from polymax.structures.base import tensors

# sets with few enough structures for counts of draws
SMALL = {"chain": (3, 2), "chain-by-step": (2, 3), "segments": (2, 3, 3), "alignment": (3, 3), "span-tree": (5, 5),
         "span-tree-labelled": (2, 2, 3), "projective-tree": (4, 4), "projective-tree-many-roots": (4, 4),
         "projective-tree-labelled": (3, 3, 2)}  # fmt: skip


def small(row):
    return SMALL.get(row.name, row.shape)


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


@every(SETS)
@pytest.mark.parametrize("sparse", [False, True], ids=["gibbs", "walk"])
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


@every(SETS)
@pytest.mark.parametrize("sparse", [False, True], ids=["gibbs", "walk"])
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


@every(SETS)
@pytest.mark.parametrize("sparse", [False, True], ids=["gibbs", "walk"])
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


@every(SETS)
@pytest.mark.parametrize("sparse", [False, True], ids=["gibbs", "walk"])
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


@every(SETS)
def test_draws_can_be_repeated(row):
    d = pm.Marginals(row.structure).distribution(*row.scores(batch=(3, 2)))
    runs = [d.sample((4, 5), generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    for a, b in zip(*(tensors(y) for y in runs), strict=True):
        assert a.shape[:4] == (4, 5, 3, 2)
        equal(a, b, "a generator makes draws repeatable")
    for t in tensors(d.sample()):
        assert t.shape[:2] == (3, 2)


@every(RAGGED)
@pytest.mark.parametrize("sparse", [False, True], ids=["gibbs", "walk"])
def test_ragged(row, sparse):
    size = row.size()
    lengths = torch.tensor([size, 1, 0])
    scores = row.scores(batch=(3,))
    op = smooth(row, sparse).with_lengths(row.with_lengths(lengths).lengths)
    d = op.distribution(*scores)
    entropy = d.entropy()
    assert entropy[2] == 0
    for b, length in enumerate(lengths.tolist()[:2]):
        own = tuple(x[b] if x.dim() > len(e) else x for x, e in zip(scores, row.events(row.shape), strict=True))
        alone = smooth(row, sparse).distribution(*row.cut(own, length))
        close(entropy[b], alone.entropy(), "padding does not change the entropy")
        _, probs = alone.topk(2)
        close(d.topk(2)[1][b], probs, "padding does not change the order")
    for t in tensors(d.sample((2,))):
        assert bool((t[:, 2] == 0).all()), "padding is never drawn"


@every(SETS)
@pytest.mark.parametrize("sparse", [False, True], ids=["gibbs", "walk"])
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
