"""Estimators: a vertex forward, by enumeration; backward the formula that defines each; draws of the right law."""

import math

import pytest
import torch
from estimators_table import ESTIMATORS, best, every, leaves, seeded, slopes_like
from scipy import stats
from sets import BY_NAME, RAGGED, TABLE, shapes
from sets import every as every_set
from tolerances import close, equal

import polymax as pm
from polymax.estimators import ImplicitMLE, Interpolation, PerturbAndMap, Relaxed, Spigot, StraightThrough
from polymax.noise import Gumbel, SumOfGamma
from polymax.smoothing.perturbed import Perturbed
from polymax.structures.base import tensors

PLAIN = [case for case in ESTIMATORS if not case.draws]
DRAWING = [case for case in ESTIMATORS if case.draws]


def called(case, estimator, scores, seed=3):
    """The structure, as a list of tensors."""
    return list(tensors(estimator(*scores, generator=seeded(seed)) if case.draws else estimator(*scores)))


def points_of(case, estimator, full):
    """The scores at which MAP is taken."""
    if not case.draws:
        return [full]
    count = getattr(estimator, "samples", 1)
    z = estimator.noise.sample(full[0], (count,), seeded())
    return [(full[0] + estimator.gamma * draw, *full[1:]) for draw in z]


@every_set(TABLE)
@every(ESTIMATORS)
def test_vertex_and_vjp(row, case, device):
    if not case.fits(row):
        pytest.skip("a set without sums")
    full = leaves(row.structure.full(*row.scores(batch=(3,))))
    estimator = case.make(row.structure)
    inputs = tuple(x.detach().to(device).requires_grad_() for x in full)
    y = called(case, estimator, inputs)
    g = slopes_like(y)
    grads = [d.cpu() for d in torch.autograd.grad(y, inputs, g)]
    points = [tuple(x.detach() for x in point) for point in points_of(case, estimator, full)]
    for v, expected in zip(y, best(row, points[0]), strict=True):
        assert v.requires_grad
        equal(v.detach().cpu(), expected, "forward is the vertex of the best score")
    case.law(row, estimator, points, [v.detach().cpu() for v in y], [d.cpu() for d in g], grads)


@every(ESTIMATORS)
@pytest.mark.parametrize("name", ["chain", "segments"])
def test_shared_scores_get_the_sum(case, name):
    row = BY_NAME[name]
    estimator = case.make(row.structure)
    shared = leaves(row.scores(batch=(2, 2)))
    full = leaves(row.structure.full(*shared))
    y, z = (called(case, estimator, x) for x in (shared, full))
    g = slopes_like(y)
    summed, apart = torch.autograd.grad(y, shared, g), torch.autograd.grad(z, full, g)
    assert shared[1].dim() == 2
    close(summed[0], apart[0], "shared transitions do not change the first gradient")
    close(summed[1], apart[1].sum((0, 1, 2)), "the gradient to shared transitions is the sum")


@every_set(RAGGED)
@every(PLAIN)
def test_padding_is_a_shorter_problem(row, case):
    if not case.fits(row):
        pytest.skip("a set without sums")
    full = leaves(row.structure.full(*row.scores(batch=(3,))))
    lengths = row.lengths(row.size(), row.size() - 1, 1)
    padded = case.make(row.structure).with_lengths(row.with_lengths(lengths).lengths)
    y = called(case, padded, full)
    g = slopes_like(y)
    grads = torch.autograd.grad(y, full, g)
    for b, n in enumerate(lengths.tolist()):
        short = leaves(row.cut([x[b] for x in full], n))
        alone = called(case, case.make(row.structure), short)
        slopes = torch.autograd.grad(alone, short, row.cut([d[b] for d in g], n))
        for whole, part in [*zip(y, alone, strict=True), *zip(grads, slopes, strict=True)]:
            rest = whole[b].detach().clone()
            inside = rest[tuple(slice(size) for size in part.shape)]
            close(inside, part.detach(), "an instance is its own problem")
            inside.zero_()
            assert not bool(rest.any()), "padding is exactly 0"


@every_set(RAGGED)
@every(DRAWING)
def test_padding_has_no_gradient(row, case):
    if not case.fits(row):
        pytest.skip("a set without sums")
    full = leaves(row.structure.full(*row.scores(batch=(3,))))
    lengths = row.lengths(row.size(), row.size() - 1, 1)
    y = called(case, case.make(row.with_lengths(lengths)), full)
    grads = torch.autograd.grad(y, full, slopes_like(y))
    for b, n in enumerate(lengths.tolist()):
        short = row.cut([x[b] for x in full], n)
        for whole, part in [*zip(y, short, strict=True), *zip(grads, short, strict=True)]:
            rest = whole[b].detach().clone()
            rest[tuple(slice(size) for size in part.shape)] = 0
            assert not bool(rest.any()), "padding is exactly 0"


@every_set(TABLE)
@every(ESTIMATORS)
def test_forbidden_parts(row, case):
    if not case.fits(row):
        pytest.skip("a set without sums")
    scores = row.structure.full(*row.scores(batch=(4,)))
    # the best structure without noise stays allowed, and so the set is not empty
    keep = tensors(row.structure.map(*scores))[0] != 0
    chance = torch.rand(keep.shape, generator=seeded()) < 0.3
    inputs = leaves((scores[0].masked_fill(chance & ~keep, -math.inf), *scores[1:]))
    y = called(case, case.make(row.structure), inputs)
    grads = torch.autograd.grad(y, inputs, slopes_like(y))
    gone = inputs[0] == -math.inf
    assert not bool(y[0][gone].any()), "-inf has no part"
    assert not bool(grads[0][gone].any()), "and no gradient"
    assert all(bool(d.isfinite().all()) for d in grads)


@every(ESTIMATORS)
def test_dead_and_nan_instances(case):
    x, transition = BY_NAME["chain"].scores((4, 3), (3,))
    x[0, 2] = -math.inf
    x[1, 1, 1] = math.nan
    inputs = leaves(pm.Chain().full(x, transition))
    y = called(case, case.make(pm.Chain()), inputs)
    grads = torch.autograd.grad(y, inputs, slopes_like(y))
    for t in (*y, *grads):
        assert not bool(t[0].any()), "without any structure all is 0"
        assert bool(t[2].isfinite().all()), "NaN stays in its instance"


@every(ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes(case, dtype):
    row = BY_NAME["chain"]
    inputs = leaves(row.scores(batch=(3,), dtype=dtype))
    wide = leaves(x.float() for x in inputs)
    estimator = case.make(row.structure)
    y, z = called(case, estimator, inputs), called(case, estimator, wide)
    g = slopes_like(y)
    grads, slopes = torch.autograd.grad(y, inputs, g), torch.autograd.grad(z, wide, [d.float() for d in g])
    for a, b in [*zip(y, z, strict=True), *zip(grads, slopes, strict=True)]:
        equal(a, b.to(dtype), "half precision is computed in float32")


@every(ESTIMATORS)
def test_batch_and_inputs(case):
    row = BY_NAME["projective-tree"]
    (x,) = row.scores(batch=(2, 3))
    kept = x.clone()
    estimator = case.make(row.structure)
    y = called(case, estimator, [x])[0]
    equal(y, called(case, estimator, [x.reshape(6, *row.shape)])[0].reshape(x.shape), "leading dims are a batch")
    equal(x, kept, "scores are not changed")
    assert not y.requires_grad
    inputs = x.requires_grad_()
    once, again = (torch.autograd.grad(called(case, estimator, [inputs]), inputs, slopes_like([y])) for _ in range(2))
    equal(once[0], again[0], "the same call gives the same bits")


@shapes(TABLE)
@pytest.mark.parametrize("make", [StraightThrough, Spigot, ImplicitMLE, Perturbed])
def test_odd_shapes(row, shape, make):
    for batch in ((), (0,)):
        scores = leaves(row.scores(shape, batch))
        y = tensors(make(row.structure)(*scores))
        assert [v.shape for v in y] == [x.shape for x in row.structure.full(*scores)]
        grads = torch.autograd.grad(y, scores, slopes_like(y))
        assert all(bool(d.isfinite().all()) for d in grads)


@every(DRAWING)
def test_generators(case):
    row = BY_NAME["chain"]
    scores = row.scores(batch=(50,))
    estimator = case.make(row.structure)
    first, same, other = (called(case, estimator, scores, seed)[0] for seed in (1, 1, 2))
    equal(first, same, "the same seed gives the same structures")
    assert not torch.equal(first, other), "another seed gives others"
    torch.manual_seed(1)
    a, b = estimator(*scores).unary, estimator(*scores).unary
    torch.manual_seed(1)
    equal(a, estimator(*scores).unary, "without a generator torch's own is used")
    assert not torch.equal(a, b)


def test_spigot_inside_is_straight_through():
    x = torch.randn(5, 4, dtype=torch.float64)
    y = pm.Simplex().map(x)
    # towards a point of the simplex
    inside = 0.5 * (y - torch.randn(5, 4, dtype=torch.float64).softmax(-1))
    outside = torch.randn(5, 4, dtype=torch.float64)
    for g, law in ((inside, inside), (outside, y - pm.sparsemax(y - outside))):
        inputs = x.clone().requires_grad_()
        close(torch.autograd.grad(Spigot(pm.Simplex())(inputs), inputs, g)[0], law, "projected where it would leave")


def test_spigot_on_chains():
    # where the loss has no transitions the hull of states is a product of simplices
    unary, transition = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True), torch.randn(3, 3).double()
    y = Spigot(pm.Chain(), step=0.5)(unary, transition).unary
    g = torch.randn_like(y)
    expected = (y - pm.sparsemax(y - 0.5 * g)) / 0.5
    close(torch.autograd.grad(y, unary, g)[0], expected.detach(), "the projection of states is by position")


def test_through_sparsemap():
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    g = torch.randn(6, 5, dtype=torch.float64)
    estimator = StraightThrough(pm.Simplex(), through=pm.SparseMap(pm.Simplex()))
    s = (pm.sparsemax(x) > 0).double()
    expected = s * (g - (s * g).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))
    close(torch.autograd.grad(estimator(x), x, g)[0], expected, "the gradient of sparsemax")


def test_interpolation_is_a_gradient():
    row = BY_NAME["segments"]
    full = leaves(row.structure.full(*row.scores(batch=(3,))))
    y = tensors(Interpolation(row.structure, step=1.7)(*full))
    g = slopes_like(y)
    _, here = row.enumerated(full)
    _, there = row.enumerated([x - 1.7 * d for x, d in zip(full, g, strict=True)])
    value = (here.amax(0) - there.amax(0)) / 1.7
    for d, expected in zip(torch.autograd.grad(y, full, g), torch.autograd.grad(value.sum(), full), strict=True):
        close(d, expected, "the gradient of (max(scores) - max(scores - step g)) / step")


def test_second_derivatives_are_those_of_the_formula():
    structure = pm.Chain()
    unary, transition = leaves(BY_NAME["chain"].scores((3, 2)))
    c = torch.randn(3, 2, dtype=torch.float64)
    estimator = StraightThrough(structure, through=pm.Marginals(structure))

    def first(unary, mu, keep):
        return torch.autograd.grad((c * mu).sum(), unary, create_graph=keep)[0]

    slope = first(unary, estimator(unary, transition).unary, True)
    smooth = first(unary, pm.Marginals(structure)(unary, transition).unary, True)
    close(slope, smooth, "the gradient of marginals")
    second, expected = (torch.autograd.grad(s.square().sum(), unary)[0] for s in (slope, smooth))
    close(second, expected, "and its derivative")


def test_gamma_learns():
    x, gamma = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0.5, 1.0, 2.0]).double().requires_grad_()
    estimator = PerturbAndMap(pm.Simplex(), through=pm.Marginals(pm.Simplex()), gamma=gamma)
    g = torch.randn(3, 4, dtype=torch.float64)
    (slope,) = torch.autograd.grad(estimator(x, generator=seeded()), gamma, g)
    z = Gumbel().sample(x, (), seeded())
    (expected,) = torch.autograd.grad((x + gamma[:, None] * z).softmax(-1), gamma, g)
    close(slope, expected, "gamma scales the noise of its instance")


def test_simplex_draws_are_softmax():
    x = torch.tensor([0.3, -1.0, 1.2, 0.0], dtype=torch.float64)
    y = PerturbAndMap(pm.Simplex(), gamma=0.6)(x.expand(20000, 4), generator=seeded())
    counts = y.sum(0)
    assert stats.chisquare(counts.numpy(), (20000 * (x / 0.6).softmax(-1)).numpy()).pvalue > 1e-3


def test_chain_draws_without_transitions_are_independent():
    unary = torch.tensor([[0.5, -0.5], [1.0, 0.0]], dtype=torch.float64)
    y = PerturbAndMap(pm.Chain())(unary.expand(20000, 2, 2), torch.zeros(2, 2).double(), generator=seeded())
    counts = y.transition[:, 0].sum(0)
    p = unary.softmax(-1)
    assert stats.chisquare(counts.flatten().numpy(), 20000 * torch.outer(*p).flatten().numpy()).pvalue > 1e-3


def test_relaxed_is_gumbel_softmax():
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    soft = Relaxed(pm.Marginals(pm.Simplex(), gamma=0.5), gamma=0.9)
    mu = soft(x, generator=seeded())
    expected = ((x + 0.9 * Gumbel().sample(x, (), seeded())) / 0.5).softmax(-1)
    close(mu, expected, "softmax of perturbed scores")
    g = torch.randn_like(mu)
    close(torch.autograd.grad(mu, x, g)[0], torch.autograd.grad(expected, x, g)[0], "and its gradient")
    chain = Relaxed(pm.SparseMap(pm.Chain())).with_lengths(torch.tensor([2, 1]))
    half = chain(*(t.bfloat16() for t in BY_NAME["chain"].scores((3, 2), (2,))))
    assert half.unary.dtype == torch.bfloat16
    close(half.unary.sum((-1, -2)), torch.tensor([2.0, 1.0]), "lengths reach the smoothing")


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "makes"),
    [
        ("chain", [StraightThrough, Interpolation, PerturbAndMap, ImplicitMLE, Perturbed]),
        ("span-tree", [StraightThrough, Perturbed]),
    ],
)
def test_compile(name, makes, device):
    row = BY_NAME[name]
    structure = row.with_lengths(torch.tensor([row.size(), 2], device=device))
    every = [make(structure) for make in makes]
    scores = row.scores(batch=(2,), device=device)
    g = slopes_like([scores[0]])[0]
    # on CUDA several draws in one compiled graph are not those of the same code run eagerly
    for group in [every] if device == "cpu" else [[estimator] for estimator in every]:

        def loss(*scores, group=group):
            found = [tensors(estimator(*scores))[0] for estimator in group]
            maxima = [estimator.max(*scores).sum() for estimator in group if isinstance(estimator, Perturbed)]
            return (g * torch.stack(found)).sum() + sum(maxima[: device == "cpu"])

        torch._dynamo.reset()
        results = []
        for call in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)):
            torch.manual_seed(5)
            inputs = leaves(scores)
            value = call(*inputs)
            results.append((value.detach(), *torch.autograd.grad(value, inputs, allow_unused=True)))
        for a, b in zip(*results, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                close(b, a, "compiled estimators are the same")


def test_functional_gradient():
    x = torch.randn(3, 4, dtype=torch.float64)
    c = torch.randn(4, dtype=torch.float64)
    slopes = torch.func.vmap(torch.func.grad(lambda row: StraightThrough(pm.Simplex())(row) @ c))(x)
    close(slopes, c.expand(3, 4), "torch.func sees the chosen gradient")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StraightThrough(3), "structure must be a Structure; got int"),
        (lambda: StraightThrough(pm.Simplex(), pm.Gini()), "through must be a smoothing"),
        (lambda: Spigot(pm.Simplex(), step=0.0), "step must be positive"),
        (lambda: Interpolation(pm.Simplex(), step=-1.0), "step must be positive"),
        (lambda: PerturbAndMap(pm.Simplex(), noise="gumbel"), "noise must be a Noise, such as Gumbel"),
        (lambda: PerturbAndMap(pm.Simplex(), gamma=0.0), "gamma must be positive"),
        (lambda: PerturbAndMap(pm.Simplex(), through=pm.Simplex()), "through must be a smoothing"),
        (lambda: ImplicitMLE(pm.Simplex(), samples=0), "samples must be a positive integer; got 0"),
        (lambda: Relaxed(pm.Simplex()), "smooth must be a smoothing"),
        (lambda: SumOfGamma(0), "k must be a positive integer; got 0"),
        (lambda: SumOfGamma(2, terms=1.5), "terms must be a positive integer; got 1.5"),
        (lambda: Perturbed(pm.Simplex(), SumOfGamma(2)), "noise must have a slope"),
        (lambda: Perturbed(pm.Simplex(), samples=True), "samples must be a positive integer"),
        (lambda: Perturbed(pm.Simplex()).omega(torch.ones(1)), "no closed form"),
        (lambda: StraightThrough(pm.Chain())(torch.zeros(2, 2, dtype=torch.long), torch.zeros(2, 2)), "float"),
        (lambda: StraightThrough(pm.Simplex()).with_lengths(torch.tensor(2)), "Simplex has no lengths"),
    ],
)
def test_messages(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize("through", [pm.Gini(), pm.Shannon(0.7), pm.Marginals(pm.Simplex(), gamma=0.7)])
def test_straight_through_a_regularizer_or_a_smoothing(through):
    x, g = torch.randn(2, 4, 6, dtype=torch.float64)
    x.requires_grad_()
    y = pm.StraightThrough(through)(x)
    close(y, pm.hardmax(x), "the best entry")
    mapping = through.argmax(x)
    close(torch.autograd.grad(y, x, g)[0], torch.autograd.grad(mapping, x, g)[0], "the gradient of the mapping")
    with pytest.raises(TypeError, match="through must be None"):
        pm.StraightThrough(through, through=pm.Marginals(pm.Simplex()))
