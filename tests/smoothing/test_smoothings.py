"""Smoothed maxima over structures: against enumeration, plain loops, each other, and their derivatives."""

import math

import pytest
import torch
from sets import COUNTED, SETS, every, mean_of, shapes
from tolerances import close, equal

import polymax as pm
from polymax.structures.base import tensors

REGULARIZERS = [pm.Zero(), pm.Shannon(), pm.Gini(), pm.Tsallis(1.5), pm.Tsallis(3.0)]
GENERAL = [pm.SquaredPNorm(1.5), pm.Fused(0.05), pm.Bounded(pm.Gini(), upper=0.9)]


def names(regularizers):
    return [f"{type(r).__name__}{getattr(r, 'alpha', '')}" for r in regularizers]


def smoothed(regularizer):
    return pytest.mark.parametrize("omega", regularizer, ids=names(regularizer))


@shapes(COUNTED)
def test_marginals(row, shape, device):
    scores = row.scores(shape, (3,), device=device)
    vertices, values = row.enumerated(scores, shape)
    op = pm.Marginals(row.structure)
    close(op.max(*scores).cpu(), values.logsumexp(0), "max is the log of the sum over structures")
    for m, expected in zip(tensors(op(*scores)), mean_of(vertices, values.softmax(0)), strict=True):
        close(m.cpu(), expected, "argmax is the mean of the Gibbs distribution")


@shapes(SETS)
@smoothed(REGULARIZERS + GENERAL[:1])
def test_local_max_is_its_recursion(row, shape, omega, device):
    if row.size(shape) == 0:
        pytest.skip("an empty problem has no recursion")
    scores = tuple(x.requires_grad_() for x in row.scores(shape, (3,), device=device))
    if isinstance(omega, pm.Zero):
        # ties among structures that differ in value by rounding
        scores = tuple((8 * x).detach().round().div(8).requires_grad_() for x in scores)
    expected = row.recursion(lambda a: omega.max(a), *scores)
    op = pm.LocalMax(row.structure, omega)
    close(op.max(*scores), expected, "LocalMax is the recursion, every maximum smoothed")
    full = tuple(x.detach().clone().requires_grad_() for x in row.structure.full(*scores))
    slopes = torch.autograd.grad(row.recursion(lambda a: omega.max(a), *full).sum(), full, materialize_grads=True)
    for m, s in zip(tensors(op(*scores)), slopes, strict=True):
        close(m, s, "argmax is the gradient of the recursion")


@every(SETS)
@smoothed(REGULARIZERS + GENERAL)
def test_gradient_of_max_is_argmax(row, omega, device):
    if row.name == "ctc" and isinstance(omega, pm.Bounded):
        pytest.skip("a forbidden skip leaves one choice, which cannot have all the weight")
    scores = tuple(x.requires_grad_() for x in row.structure.full(*row.scores(batch=(2, 2), device=device)))
    op = pm.LocalMax(row.structure, omega, gamma=0.6)
    slopes = torch.autograd.grad(op.max(*scores).sum(), scores)
    for m, s in zip(tensors(op(*scores)), slopes, strict=True):
        close(s, m, "the gradient of max is argmax")


@every(SETS)
def test_shannon_is_marginals(row, device):
    scores = row.scores(batch=(4,), device=device)
    for gamma in (0.3, 1.0, 2.0):
        local, whole = pm.LocalMax(row.structure, pm.Shannon(gamma)), pm.Marginals(row.structure, gamma)
        close(local.max(*scores), whole.max(*scores), "LocalMax(dp, Shannon) is Marginals(dp)")
        for a, b in zip(tensors(local(*scores)), tensors(whole(*scores)), strict=True):
            close(a, b, "LocalMax(dp, Shannon) is Marginals(dp)")


@every(SETS)
@smoothed([pm.Shannon(), pm.Gini(), pm.Tsallis(1.5)])
def test_temperature_to_zero_is_map(row, omega, device):
    scores = row.scores(batch=(3,), device=device)
    op = pm.LocalMax(row.structure, omega, gamma=1e-4)
    close(op.max(*scores), pm.HardMax(row.structure).max(*scores), "gamma to 0 gives the hard maximum")
    for a, b in zip(tensors(op(*scores)), tensors(row.structure.map(*scores)), strict=True):
        close(a, b, "gamma to 0 gives map")


@every(SETS)
@smoothed([pm.Shannon(), pm.Gini(), pm.Tsallis(1.5)])
def test_bounds(row, omega, device):
    """Between hard and smoothed there is at most what Omega spans, for each maximum of a derivation."""
    scores = row.scores(batch=(5,), device=device)
    hard, soft = pm.HardMax(row.structure).max(*scores), pm.LocalMax(row.structure, omega).max(*scores)
    # no maximum is over more than ten, and no derivation has more than thirty
    widest = torch.full((10,), 0.1, dtype=torch.float64)
    span = -float(omega.omega(widest))
    assert bool((soft >= hard - 1e-12).all()), "-Omega is not negative, so smoothing does not lower the maximum"
    assert bool((soft - hard <= 30 * span).all())


@every(SETS)
@smoothed([pm.Shannon(), pm.Gini(), pm.Tsallis(1.5), pm.Zero()])
def test_convex(row, omega, device):
    a, b = row.scores(batch=(6,), seed=1, device=device), row.scores(batch=(6,), seed=2, device=device)
    op = pm.LocalMax(row.structure, omega)
    for t in (0.25, 0.5, 0.75):
        between = op.max(*((1 - t) * x + t * y for x, y in zip(a, b, strict=True)))
        chord = (1 - t) * op.max(*a) + t * op.max(*b)
        assert bool((between <= chord + 1e-12).all()), "the smoothed maximum is convex"


@every(SETS)
def test_gini_is_sparse(row, device):
    scores = row.scores(batch=(8,), device=device, scale=2.0)
    used = sum(float((m != 0).sum()) for m in tensors(pm.LocalMax(row.structure, pm.Gini())(*scores)))
    possible = sum(float((m != 0).sum()) for m in tensors(pm.Marginals(row.structure)(*scores)))
    assert used < possible, "Gini expectations contain exact zeros"


@every(SETS)
@pytest.mark.parametrize(
    ("omega", "ragged"),
    [
        pytest.param(pm.Shannon(), False, id="Shannon"),
        # lengths are the same to all smoothings: this one has an instance of full length, and a shorter one
        pytest.param(pm.Gini(), True, id="Gini"),
        pytest.param(pm.Tsallis(1.5), False, id="Tsallis"),
        pytest.param(pm.SquaredPNorm(1.5), False, id="SquaredPNorm"),
    ],
)
def test_gradients(row, omega, ragged, device):
    """Second and third derivatives, for a batch; the first is that of the recursion above."""
    shape = row.shapes[-2] if len(row.shapes) > 2 else row.shape
    size = row.size(shape)
    lengths = torch.tensor([size, size - 1], device=device)
    structure = row.with_lengths(lengths) if ragged and row.cut is not None else row.structure
    scores = tuple(x.requires_grad_() for x in row.scores(shape, (2,), device=device, seed=3))
    op = pm.LocalMax(structure, omega, gamma=0.8)
    check = {"fast_mode": True, "atol": 1e-4}
    assert torch.autograd.gradgradcheck(op.max, scores, **check)
    assert torch.autograd.gradcheck(lambda *x: tensors(op(*x)), scores, **check)
    assert torch.autograd.gradgradcheck(lambda *x: tensors(op(*x)), scores, **check)


@every(COUNTED)
@pytest.mark.parametrize("batched", [False, True])
def test_gradient_in_temperature(row, batched, device):
    scores = row.scores(batch=(3,), device=device)
    gamma = torch.tensor([0.5, 1.0, 2.0] if batched else 0.7, dtype=torch.float64, device=device).requires_grad_()
    makes = [lambda g: pm.Marginals(row.structure, g), lambda g: pm.LocalMax(row.structure, pm.Gini(), g)]
    for make in makes if row.able("local") else makes[:1]:
        assert torch.autograd.gradcheck(lambda g, make=make: make(g).max(*scores), gamma, fast_mode=True)
        assert torch.autograd.gradcheck(lambda g, make=make: tensors(make(g)(*scores)), gamma, fast_mode=True)
        plain = make(0.7).max(*scores)
        close(make(torch.tensor(0.7, dtype=torch.float64)).max(*scores), plain, "gamma may be a tensor")


@every(SETS)
def test_learned_alpha(row, device):
    scores = row.scores(row.shapes[min(2, len(row.shapes) - 1)], (2,), device=device)
    alpha = torch.tensor(1.4, dtype=torch.float64, device=device, requires_grad=True)
    op = pm.LocalMax(row.structure, pm.Tsallis(alpha))
    fixed = pm.LocalMax(row.structure, pm.Tsallis(1.4))
    close(op.max(*scores), fixed.max(*scores), "alpha may be a tensor")
    for a, b in zip(tensors(op(*scores)), tensors(fixed(*scores)), strict=True):
        close(a, b, "alpha may be a tensor")
    check = {"fast_mode": True, "atol": 1e-4}
    assert torch.autograd.gradcheck(lambda a: pm.LocalMax(row.structure, pm.Tsallis(a)).max(*scores), alpha, **check)
    assert torch.autograd.gradcheck(
        lambda a: tensors(pm.LocalMax(row.structure, pm.Tsallis(a))(*scores)), alpha, **check
    )


@every(SETS)
def test_omega(row, device):
    """max(scores) = <scores, mu> - Omega(mu) at its maximizer, where Omega is known."""
    scores = row.scores(batch=(3,), device=device)
    op = pm.Marginals(row.structure, 0.7)
    mu = op(*scores)
    y = row.structure.map(*scores)
    close(op.omega(y), torch.zeros(3), "Omega is 0 at a structure")
    close(pm.HardMax(row.structure).omega(mu), torch.zeros(3), "HardMax has no Omega")
    close(pm.LocalMax(row.structure, pm.Gini()).omega(y), torch.zeros(3), "Omega is 0 at a structure")
    if row.omega:
        for smooth in (op, pm.LocalMax(row.structure, pm.Gini(0.7), 0.6), pm.LocalMax(row.structure, pm.Norm(2.0))):
            mu = smooth(*scores)
            equality = row.structure.score(mu, *scores) - smooth.omega(mu)
            close(smooth.max(*scores), equality, "Fenchel-Young holds with equality")
    else:
        with pytest.raises(ValueError, match="Omega"):
            op.omega(mu)


def test_omega_where_a_part_is_used_twice():
    """Node 1 is derived twice, by either hyperedge: (2, 0, 1) is a vertex, (1, 1, 1) the mean of two."""
    pair = pm.Hypergraph([1, 1, 2], [(0,), (), (1, 1)])
    y = torch.tensor([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    close(pm.LocalMax(pair, pm.Gini()).omega(y), [0.0, 0.0, -0.5], "Omega is 0 at a vertex, and twice that of a choice")
    close(pm.Marginals(pair).omega(y) / math.log(2), [0.0, 0.0, -2.0], "no entropy at a vertex, two bits between")
    close(pm.TopKSparsemax(pair, 2).omega(y), [0.0, 0.0, 0.0], "Omega is 0 at a structure")


@every(SETS)
def test_repeated_call_is_bit_equal(row, device):
    scores = tuple(x.requires_grad_() for x in row.scores(batch=(9,), dtype=torch.float32, device=device))
    for op in (pm.Marginals(row.structure), pm.LocalMax(row.structure, pm.Gini())):
        runs = []
        for _ in range(2):
            value = op.max(*scores)
            slopes = torch.autograd.grad(value.sum(), scores, create_graph=True)
            second = torch.autograd.grad(sum(s.square().sum() for s in slopes), scores)
            runs.append([t.detach() for t in (value, *slopes, *second)])
        for a, b in zip(*runs, strict=True):
            equal(a, b, "the same call gives the same bits")


@pytest.mark.parametrize("smooth", [pm.HardMax, pm.Marginals])
def test_with_lengths(smooth):
    op = smooth(pm.Chain()).with_lengths(torch.tensor([2, 1]))
    assert op.structure.lengths.tolist() == [2, 1]
    assert smooth(pm.Chain()).structure.lengths is None


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="Regularizer"):
        pm.LocalMax(pm.Chain(), 2.0)
    with pytest.raises(ValueError, match="gamma"):
        pm.Marginals(pm.Chain(), gamma=0.0)
    with pytest.raises(ValueError, match="gamma"):
        pm.LocalMax(pm.Chain(), pm.Gini(), gamma=-1.0)


def long_chain(n, dtype, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    unary = scale * torch.randn(2, n, 5, generator=generator, dtype=torch.float64)
    return (unary + 3).to(dtype), torch.randn(5, 5, generator=generator, dtype=torch.float64).to(dtype)


@smoothed([pm.Shannon(), pm.Gini(), pm.Tsallis(1.5)])
def test_long_sequences_in_float32(omega, device):
    unary, transition = long_chain(20_000, torch.float32)
    unary, transition = (x.to(device).requires_grad_() for x in (unary, transition))
    exact = tuple(x.detach().double().requires_grad_() for x in (unary, transition))
    op = pm.LocalMax(pm.Chain(), omega)
    value, truth = op.max(unary, transition), op.max(*exact)
    assert float(((value - truth) / truth).abs().max().detach()) < 1e-6
    slopes = torch.autograd.grad(value.sum(), (unary, transition))
    exact_slopes = torch.autograd.grad(truth.sum(), exact)
    assert float((slopes[0] - exact_slopes[0]).abs().max()) < 1e-4
    # a sum over 40,000 steps
    assert float(((slopes[1] - exact_slopes[1]) / exact_slopes[1].clamp(min=1)).abs().max()) < 1e-5


def test_long_alignments_in_float32(device):
    generator = torch.Generator().manual_seed(0)
    x = (-torch.rand(1, 700, 800, generator=generator)).to(device).requires_grad_()
    exact = x.detach().double().requires_grad_()
    op = pm.Marginals(pm.Alignment())
    value, truth = op.max(x), op.max(exact)
    assert float(((value - truth) / truth).abs().max().detach()) < 1e-5
    (mu,), (expected,) = torch.autograd.grad(value.sum(), x), torch.autograd.grad(truth.sum(), exact)
    assert float((mu - expected).abs().max()) < 1e-4


def test_bounds_are_tight_on_a_chain():
    """With equal scores each of the n maxima adds log s: the upper bound is attained."""
    n, s = 6, 4
    value = pm.LocalMax(pm.Chain(), pm.Shannon()).max(torch.zeros(n, s), torch.zeros(s, s))
    close(value, n * math.log(s), "(N - 1) U is attained")


def test_local_max_below_alpha_1():
    """Kernels of recursions know alpha from 1 on; below, the regularizer itself smooths every maximum."""
    x = torch.randn(2, 3, dtype=torch.float64)
    omega = pm.Tsallis(0.5)
    chain = pm.LocalMax(pm.Chain(), omega)
    transition = torch.randn(3, 3, dtype=torch.float64)
    expected = omega.max(x[1] + omega.max(x[0].unsqueeze(-1) + transition, dim=0))
    torch.testing.assert_close(chain.max(x, transition), expected)
    torch.testing.assert_close(pm.LocalMax(pm.Simplex(), omega).max(x), omega.max(x))
