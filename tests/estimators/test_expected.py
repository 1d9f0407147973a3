"""Expected losses: exact sums and draws against enumeration, and what both kinds of estimator have in common."""

import pytest
import torch
from sets import BY_NAME, COUNTED, RAGGED, TABLE, every
from tolerances import close, equal

import polymax as pm
from polymax.estimators.clipped import Clipped
from polymax.estimators.score_function import ScoreFunction
from polymax.estimators.sparse_expectation import SparseExpectation
from polymax.smoothing.perturbed import Perturbed
from polymax.smoothing.top_k import TopKSparsemax
from polymax.structures.base import tensors

BATCH = 3


def smoothings(row):
    """Every smoothing of the set whose distribution can be listed."""
    structure = row.structure
    found = [pm.SparseMap(structure, gamma=2.0)]
    if isinstance(structure, pm.Counted):
        found += [pm.Marginals(structure), TopKSparsemax(structure, k=3, gamma=4.0)]
    if isinstance(structure, pm.DynamicProgram):
        found += [pm.LocalMax(structure, pm.Gini(), gamma=2.0)]
    return found


def weights_of(row, seed=9):
    """Weights of parts, (BATCH, ...) for each tensor, of a loss that is not linear."""
    generator = torch.Generator().manual_seed(seed)
    y = row.structure.vertices(row.shape)
    return [torch.randn(BATCH, *t.shape[1:], generator=generator, dtype=torch.float64) for t in tensors(y)]


def loss_of(weights):
    """(<weights, y> - 1)^2."""

    def loss_fn(y, at):
        return (sum((t * w[at]).flatten(1).sum(-1) for t, w in zip(tensors(y), weights, strict=True)) - 1).square()

    return loss_fn


def enumerated(row, weights):
    """The losses (count, BATCH) of all structures, and these as (count, BATCH, ...)."""
    y = row.structure.vertices(row.shape)
    spread = [t.double().unsqueeze(1).expand(-1, BATCH, *t.shape[1:]) for t in tensors(y)]
    count = spread[0].shape[0]
    flat = [t.flatten(0, 1) for t in spread]
    at = torch.arange(BATCH).repeat(count)
    losses = loss_of(weights)(flat[0] if len(flat) == 1 else type(y)(*flat), at).reshape(count, BATCH)
    return losses, spread[0] if len(spread) == 1 else type(y)(*spread)


def leaves(row, **options):
    return tuple(x.requires_grad_() for x in row.scores(batch=(BATCH,), **options))


@every(TABLE)
def test_sums_are_expectations(row):
    weights = weights_of(row)
    for smooth in smoothings(row):
        scores = leaves(row)
        losses, y = enumerated(row, weights)
        p = smooth.distribution(*scores).prob(y)
        expected = (p * losses).sum(0)
        found = SparseExpectation(smooth, reduction="none")(loss_of(weights), *scores)
        close(found, expected, f"E[L] = sum p L of {type(smooth).__name__}")
        together = torch.randn(BATCH, dtype=torch.float64)
        slopes = [torch.autograd.grad(v @ together, scores, allow_unused=True) for v in (found, expected)]
        for a, b in zip(*slopes, strict=True):
            close(torch.zeros(1).double() if a is None else a, 0.0 if b is None else b, "dE = sum L dp")


@every(COUNTED)
def test_the_sum_over_all_is_the_gibbs_expectation(row):
    weights, scores = weights_of(row), leaves(row)
    _, values = row.enumerated(scores)
    losses, _ = enumerated(row, weights)
    expected = (values.softmax(0) * losses).sum(0).mean()
    found = SparseExpectation(pm.Marginals(row.structure))(loss_of(weights), *scores)
    close(found, expected, "E[L] under exp(score) / Z")
    for a, b in zip(torch.autograd.grad(found, scores), torch.autograd.grad(expected, scores), strict=True):
        close(a, b, "its gradient")


@every(TABLE)
def test_linear_losses_have_the_gradient_of_the_mean(row):
    weights, scores = weights_of(row), leaves(row)
    for smooth in smoothings(row):

        def linear(y, at):
            return sum((t * w[at]).flatten(1).sum(-1) for t, w in zip(tensors(y), weights, strict=True))

        mu = tensors(smooth(*scores))
        expected = sum((m * w).sum() for m, w in zip(mu, weights, strict=True))
        found = SparseExpectation(smooth, reduction="sum")(linear, *scores)
        close(found, expected, "E<w, y> = <w, mu>")
        slopes = [torch.autograd.grad(v, scores, allow_unused=True, retain_graph=True) for v in (found, expected)]
        for a, b in zip(*slopes, strict=True):
            close(torch.zeros(1).double() if a is None else a, 0.0 if b is None else b, "and so are the gradients")


@every(TABLE)
def test_only_the_support_is_evaluated(row):
    for smooth in smoothings(row):
        scores, seen = row.scores(batch=(2, 2)), []

        def loss_fn(y, at, seen=seen):
            seen.append((y, at))
            return torch.ones(len(at), dtype=torch.float64)

        value = SparseExpectation(smooth, reduction="none")(loss_fn, *scores)
        close(value, torch.ones(2, 2), "probabilities sum to 1")
        ((y, at),) = seen
        _, p = smooth.distribution(*scores).support()
        equal(torch.bincount(at, minlength=4), (p > 0).sum(-1).flatten(), "as many structures as have weight")
        rows = torch.cat([at.double().unsqueeze(-1), *(t.flatten(1) for t in tensors(y))], -1)
        assert len(rows.unique(dim=0)) == len(rows), "each of them once"


def test_regularizers_are_smoothings_of_the_simplex():
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    cost = torch.randn(4, 6, dtype=torch.float64)
    for omega, mapping in ((pm.Gini(), pm.sparsemax), (pm.Tsallis(1.5), pm.entmax), (pm.Shannon(), pm.softmax)):
        found = SparseExpectation(omega)(lambda y, at: (y * cost[at]).sum(-1), x)
        expected = (mapping(x) * cost).sum(-1).mean()
        close(found, expected, "the mapping gives the probabilities")
        close(torch.autograd.grad(found, x)[0], torch.autograd.grad(expected, x)[0], "and the gradient")
        drawn = ScoreFunction(omega, samples=4000, reduction="none")(lambda y, at: (y * cost[at]).sum(-1), x)
        assert float((drawn - (mapping(x) * cost).sum(-1)).detach().abs().max()) < 0.15


def test_top_k_is_sparsemax_of_the_best():
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    for k in (1, 2, 3, 7, 9):
        best = x.topk(min(k, 7), -1)
        expected = torch.zeros_like(x).scatter(-1, best.indices, pm.sparsemax(best.values, gamma=0.7))
        op = TopKSparsemax(pm.Simplex(), k=k, gamma=0.7)
        close(op(x), expected, "top-k sparsemax")
        (slope,) = torch.autograd.grad(op.max(x).sum(), x)
        close(slope, expected, "grad(max) == argmax")
        assert op.distribution(x).probs.shape == (5, k)
        assert torch.autograd.gradcheck(op, x)


@every([BY_NAME[name] for name in ("chain", "span-tree", "spanning-tree", "explicit")])
def test_top_k_of_structures(row):
    scores = row.scores(batch=(BATCH,))
    y, values = row.enumerated(scores)
    everything = pm.sparsemax(values.T / 3)
    k = int((everything > 0).sum(-1).max()) + 1
    found = TopKSparsemax(row.structure, k, gamma=3.0).distribution(*scores)
    close(found.probs, everything.sort(-1, descending=True).values[:, :k], "with enough it is sparsemax over all")
    _, listed = enumerated(row, weights_of(row))
    close(found.prob(listed).T, everything, "and weighs the same structures")
    for m, v in zip(tensors(found.mean), y, strict=True):
        close(m, torch.einsum("bk,k...->b...", everything, v), "the mean is the expectation")
    close(found.entropy(), torch.special.entr(everything).sum(-1), "entropy")
    equal(found.support_size, (everything > 0).sum(-1), "the support")
    drawn = found.sample((3000,), generator=torch.Generator().manual_seed(1))
    assert float((tensors(drawn)[0].mean(0) - tensors(found.mean)[0]).abs().max()) < 0.1, "draws follow p"
    for a, b in zip(tensors(found.mode), tensors(row.structure.map(*scores)), strict=True):
        equal(a, b, "the mode is the best structure")
    close(TopKSparsemax(row.structure, k).omega(found.mode), torch.zeros(BATCH), "Omega is 0 at structures")


ESTIMATORS = [
    pytest.param(lambda s: SparseExpectation(s, reduction="none"), id="sparse"),
    pytest.param(lambda s: SparseExpectation(pm.Marginals(s), reduction="none"), id="exact"),
    pytest.param(lambda s: ScoreFunction(s, samples=3, reduction="none"), id="score-function"),
    pytest.param(lambda s: ScoreFunction(pm.SparseMap(s), samples=3, reduction="none"), id="score-function-sparse"),
    pytest.param(lambda s: ScoreFunction(Perturbed(s), samples=3, reduction="none"), id="score-function-perturbed"),
    pytest.param(lambda s: Clipped(ScoreFunction(s, samples=3, reduction="none")), id="clipped"),
]
estimators = pytest.mark.parametrize("make", ESTIMATORS)


@estimators
@every([row for row in RAGGED if row.able("sample")])
def test_lengths(row, make):
    lengths = row.lengths(row.size(), 1, 0)
    least = int(lengths[1])
    op = make(row.structure).with_lengths(row.with_lengths(lengths).lengths)
    scores = tuple(x.requires_grad_() for x in row.scores(batch=(3,)))
    seen = []

    def loss_fn(y, at):
        seen.append((y, at))
        return tensors(y)[0].flatten(1).sum(-1)

    value = op(loss_fn, *scores)
    assert value.shape == (3,)
    assert value[2] == 0 or row.least, "the empty structure has no parts"
    (y, at), *_ = seen
    assert 2 in at.tolist(), "the empty structure has a loss too"
    short = row.cut(tuple(t[at == 1] for t in tensors(y)), least)
    for whole, part in zip(tensors(y), short, strict=True):
        equal(whole[at == 1].flatten(1).sum(-1), part.flatten(1).sum(-1), "padding is in no structure")
    (slope,) = torch.autograd.grad(value.sum(), scores[0])
    for k in (1, 2) if row.least else (1,):
        row.cut((slope[k], *scores[1:]), least)[0].zero_()
    assert bool((slope[1:] == 0).all()), "padding has no gradient"


@estimators
def test_forbidden_parts(make):
    unary, transition = torch.randn(3, 4, 2), torch.zeros(2, 2)
    unary[0, 1, 0] = -torch.inf
    unary[1] = -torch.inf
    unary.requires_grad_()
    value = make(pm.Chain())(lambda y, at: y.unary[:, 1, 0] + y.unary[:, 0, 1], unary, transition)
    (slope,) = torch.autograd.grad(value.sum(), unary)
    assert bool(torch.isfinite(value).all())
    assert value[1] == 0, "an instance without a structure counts 0"
    assert bool(torch.isfinite(slope).all())
    assert slope[0, 1, 0] == 0
    assert bool((slope[1] == 0).all())


@estimators
def test_nan_stays_in_its_instance(make):
    x = torch.randn(3, 4)
    x[1, 2] = torch.nan
    value = make(pm.Simplex())(lambda y, at: y[:, 0], x)
    assert bool(torch.isfinite(value[[0, 2]]).all())


@estimators
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_batches(make, dtype, device):
    x = torch.randn(2, 3, 4, 5, device=device).to(dtype).requires_grad_()
    cost = torch.randn(6, 4, 5, device=device)

    def loss_fn(y, at):
        assert y.dtype == dtype
        assert at.device == y.device
        return (y.float() * cost[at]).flatten(1).sum(-1)

    value = make(pm.Alignment())(loss_fn, x)
    assert value.shape == (2, 3)
    assert value.dtype == torch.float32
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert slope.dtype == dtype
    assert bool(torch.isfinite(slope).all())


@estimators
def test_what_is_downstream_gets_its_gradient(make):
    x = torch.randn(4, 5)
    scale, inputs = torch.tensor(2.0, requires_grad=True), torch.rand(4)

    def loss_fn(y, at):
        return scale * inputs[at] * (1 + y.sum(-1))

    value = make(pm.Simplex())(loss_fn, x).sum()
    close(value, float(4 * inputs.sum()), "the value is the loss")
    close(torch.autograd.grad(value, scale)[0], float(2 * inputs.sum()), "and its gradient that of the loss")


@estimators
def test_reductions(make):
    x = torch.randn(3, 2, 4)
    op = make(pm.Simplex())
    cost = torch.randn(6)
    values = op(lambda y, at: cost[at], x)
    assert values.shape == (3, 2)
    close(values.flatten(), cost, "the instance of a structure is told")
    for kind, expected in (("mean", cost.mean()), ("sum", cost.sum())):
        inner = op.estimator if isinstance(op, Clipped) else op
        other = type(inner)(pm.Simplex(), reduction=kind)
        close(other(lambda y, at: cost[at], x), expected, kind)


@estimators
def test_wrong_losses_are_refused(make):
    op, x = make(pm.Simplex()), torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"loss_fn must return \(\d+,\), a loss for each structure; got \(\d+, 3\)"):
        op(lambda y, at: y, x)
    with pytest.raises(TypeError, match="loss_fn must return a floating-point tensor; got int"):
        op(lambda y, at: 1, x)
    with pytest.raises(TypeError, match=r"got torch\.int64"):
        op(lambda y, at: at, x)


@pytest.mark.parametrize("kind", [SparseExpectation, ScoreFunction])
def test_wrong_arguments_are_refused(kind):
    with pytest.raises(TypeError, match="structure must be a Structure, a Smoothing or a Regularizer; got int"):
        kind(3)
    with pytest.raises(ValueError, match="reduction must be 'mean', 'sum' or 'none'; got 'max'"):
        kind(pm.Simplex(), reduction="max")
    with pytest.raises(TypeError, match="HardMax has no distribution"):
        kind(pm.HardMax(pm.Chain()))


def test_top_k_refuses():
    with pytest.raises(TypeError, match="Assignment cannot list its k best structures"):
        TopKSparsemax(pm.Assignment(), 2)
    with pytest.raises(ValueError, match="k must be a positive integer; got 0"):
        TopKSparsemax(pm.Chain(), 0)
    with pytest.raises(ValueError, match="no closed form"):
        TopKSparsemax(pm.Simplex(), 2).omega(torch.full((4,), 0.25))


def test_gradients_of_both_sides():
    x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)

    def value(x, w, smooth):
        return SparseExpectation(smooth)(lambda y, at: (y * w).flatten(1).sum(-1).exp(), x)

    for smooth in (pm.SparseMap(pm.Assignment()), pm.Marginals(pm.Alignment()), pm.LocalMax(pm.Alignment(), pm.Gini())):
        assert torch.autograd.gradcheck(lambda x, w, s=smooth: value(x, w, s), (x, w))
    for smooth in (pm.SparseMap(pm.Assignment()), pm.Marginals(pm.Alignment())):
        assert torch.autograd.gradgradcheck(lambda x, w, s=smooth: value(x, w, s), (x, w))
