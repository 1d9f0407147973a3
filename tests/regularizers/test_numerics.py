"""Precision: alpha where formulas divide by 0, half precision, and extremes of scores and parameters."""

import oracles
import pytest
import torch
from cases import CASES, ROWS, every
from tolerances import ABSOLUTE, close, equal

import polymax as pm
from polymax.regularizers.bounded import Budget

ALPHAS = [1 - 1e-2, 1 - 1e-6, 1.0, 1 + 1e-8, 1 + 1e-6, 1 + 1e-4, 1 + 1e-2]
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_alpha_of_each_row(dtype, device):
    alphas = [1.0, 1.0001, 1.1, 1.33, 1.5, 1.75, 2.0, 2.5, 3.0]
    x = torch.randn(len(alphas), 7, dtype=dtype, device=device)
    y = pm.entmax(x, torch.tensor(alphas, dtype=dtype, device=device).unsqueeze(-1))
    for i, alpha in enumerate(alphas):
        close(y[i], pm.entmax(x[i], alpha), f"a row with alpha {alpha} is entmax with that number")


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.3, 2.5, 5.0, 30.0])
@pytest.mark.parametrize("make", [pm.Tsallis, pm.Norm, pm.SquaredPNorm], ids=lambda make: make.__name__)
def test_a_tensor_exponent_is_as_precise_as_a_number(make, exponent, device):
    """In relative errors: above 2, a power in float32 near the edge of the support would have few digits."""
    if exponent <= 1 and make is not pm.Tsallis:
        pytest.skip("norms have exponents above 1")
    x = (3 * torch.randn(8, 40, device=device)).requires_grad_()
    direction = torch.randn(8, 40, device=device)

    def error(y, exponent):
        exact = make(exponent).argmax(x.detach().double())
        return float(((y.detach() - exact).abs() / exact.clamp(min=1e-6)).max())

    number = make(exponent).argmax(x)
    (slope,) = torch.autograd.grad(number, x, direction)
    for dtype in (torch.float64, torch.float32):
        given = torch.full((8, 1), exponent, dtype=dtype, device=device)
        y = make(given).argmax(x)
        assert error(y, float(given[0])) <= 2 * error(number, exponent) + 1e-6, "a tensor exponent costs no digits"
        for create_graph in (False, True) if exponent < 10 else ():
            (found,) = torch.autograd.grad(y, x, direction, retain_graph=True, create_graph=create_graph)
            torch.testing.assert_close(found, slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", list(ABSOLUTE), ids=str)
@every(ROWS)
def test_parameters_as_tensors(case, dtype, device):
    """In every precision of the scores, a tensor parameter is the number in it."""
    x = torch.randn(3, 6, device=device).to(dtype)
    for name in case.learnable:
        number = case.gamma if name == "gamma" else case.parameters[name]
        for kind in (torch.float64, dtype):
            tensor = torch.full((3, 1), number, dtype=kind, device=device)
            rounded = float(tensor[0, 0])
            if case.least > 3 and rounded != number:
                continue
            y = case.regularizer(**{name: tensor}).argmax(x)
            assert y.dtype == dtype
            close(y, case.regularizer(**{name: rounded}).argmax(x), f"a tensor {name} is the number in it")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("make", [pm.Tsallis, pm.Norm, pm.SquaredPNorm], ids=lambda make: make.__name__)
def test_exponents_as_tensors(make, dtype, device):
    exponents = [1.2, 1.5, 2.0, 3.0]
    x = torch.randn(len(exponents), 7, dtype=dtype, device=device)
    together = make(torch.tensor(exponents, dtype=dtype, device=device).unsqueeze(-1))
    for i, exponent in enumerate(exponents):
        close(together.argmax(x)[i], make(exponent).argmax(x[i]), "a tensor exponent is a number in each row")
        close(together.max(x)[i], make(exponent).max(x[i]), "a tensor exponent is a number in each row")


def test_special_cases(device):
    x = torch.randn(5, 9, dtype=torch.float64, device=device)
    close(pm.softmax(x), torch.softmax(x, -1), "softmax is torch's")
    close(pm.Shannon(0.5).max(x), 0.5 * torch.logsumexp(x / 0.5, -1), "the max of Shannon is logsumexp")
    close(pm.entmax(x, 1.0), pm.softmax(x), "entmax with alpha 1 is softmax")
    close(pm.entmax(x, 2.0), pm.sparsemax(x), "entmax with alpha 2 is sparsemax")
    close(pm.sq_pnorm_max(x, 2.0), pm.sparsemax(x), "sq_pnorm_max with p 2 is sparsemax")
    close(pm.fusedmax(x, 0.0), pm.sparsemax(x), "fusedmax without strength is sparsemax")
    close(pm.oscarmax(x, 0.0), pm.sparsemax(x), "oscarmax without strength is sparsemax")
    close(pm.csoftmax(x, 1.0), pm.softmax(x), "csoftmax without a bound is softmax")
    close(pm.csparsemax(x, 1.0), pm.sparsemax(x), "csparsemax without a bound is sparsemax")
    close(pm.budgetmax(x, 1), pm.sparsemax(x), "budgetmax with k 1 is sparsemax")
    close(pm.Zero().max(x), x.amax(-1), "the max without regularization is the maximum")


def test_budget_of_each_row(device):
    x = torch.randn(4, 6, dtype=torch.float64, device=device)
    for k in (
        torch.tensor([[0], [1], [3], [6]], device=device),
        torch.tensor([[0.0], [0.5], [2.5], [6.0]], device=device),
    ):
        y = pm.budgetmax(x, k)
        for i in range(4):
            close(y[i], pm.budgetmax(x[i], float(k[i])), "a budget of each row is that row's number")
        close(y.T, pm.budgetmax(x.T, k.T, dim=0), "along any dim")
        equal(y[0], torch.zeros_like(y[0]), "a budget of 0 buys nothing")
        equal(y[3], torch.ones_like(y[3]), "a budget for all buys all")
    close(Budget(0.0).max(x), torch.zeros(4), "the max at a budget of 0")
    masked = pm.budgetmax(x, 0, mask=torch.zeros(6, dtype=torch.bool, device=device))
    equal(masked, torch.zeros_like(x), "a masked row gets nothing")


def test_calls_as_of_softmax(device):
    """dim by position where softmax has it, and dtype: a cast before the mapping."""
    x = torch.randn(3, 4, device=device)
    for mapping in (pm.softmax, pm.sparsemax, pm.hardmax):
        equal(mapping(x, 0), mapping(x.T).T, "dim by position")
    close(pm.softmax(x, 0), torch.softmax(x, 0), "torch's weights")
    equal(pm.entmax(x, 2.0), pm.entmax(x, alpha=2), "alpha by position is no integer, by name it may be one")
    for mapping in (pm.softmax, pm.sparsemax, pm.entmax, pm.normmax, pm.sq_pnorm_max, pm.fusedmax, pm.oscarmax):
        equal(mapping(x, dim=0, dtype=torch.float64), mapping(x.double(), dim=0), "dtype casts the scores")
        assert mapping(torch.arange(3), dtype=torch.float32).dtype == torch.float32
    equal(pm.csparsemax(x, 0.5, dtype=torch.float64), pm.csparsemax(x.double(), 0.5), "dtype casts the scores")


@pytest.mark.parametrize("alpha", ALPHAS)
def test_alpha_near_1(alpha, device):
    x = torch.randn(3, 6, dtype=torch.float64)
    y = pm.entmax(x.to(device), alpha)
    close(y, oracles.tsallis(x, alpha=alpha).to(device), "entmax is smooth in alpha at 1")
    truth = oracles.tsallis(x, alpha=alpha)
    far = abs(alpha - 1) > 0.001
    entropy = ((truth ** (alpha - 1) - 1) / (alpha - 1) if far else truth.log()) * truth
    if alpha == 1 or far:
        value = (x * truth).sum(-1) - entropy.sum(-1) / alpha
        close(pm.Tsallis(alpha).max(x.to(device)), value, "the max is smooth in alpha at 1")


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_alpha_near_1_in_float32(alpha, as_tensor, device):
    x = torch.randn(4, 50, device=device)
    y = pm.entmax(x, torch.tensor(alpha, dtype=torch.float64, device=device) if as_tensor else alpha)
    close(y, oracles.tsallis(x, alpha=alpha).to(device), "entmax is smooth in alpha at 1")


@pytest.mark.parametrize("alpha", [0.1, 0.5, *ALPHAS, 1.3, 2.0, 2.5])
def test_slope_in_alpha(alpha, device):
    x = torch.randn(3, 6, dtype=torch.float64)
    direction = torch.randn(3, 6, dtype=torch.float64)
    tensor = torch.full((3, 1), alpha, dtype=torch.float64, device=device, requires_grad=True)
    y = pm.entmax(x.to(device), tensor)
    (slope,) = torch.autograd.grad((y * direction.to(device)).sum(), tensor, create_graph=True)
    # the oracle knows alpha below 1, too: central differences of fourth order
    h = 1e-3
    near = {k: (oracles.tsallis(x, alpha=alpha + k * h) * direction).sum(-1) for k in (-2, -1, 1, 2)}
    expected = (8 * (near[1] - near[-1]) - (near[2] - near[-2])) / (12 * h)
    if alpha < 1.1:
        torch.testing.assert_close(slope.detach().cpu()[:, 0], expected, rtol=1e-7, atol=1e-7)
    else:
        # a support that changes within h breaks the difference, not the derivative
        torch.testing.assert_close(slope.detach().cpu()[:, 0], expected, rtol=1e-3, atol=1e-3)
    (second,) = torch.autograd.grad(slope.sum(), tensor)
    assert torch.isfinite(second).all(), "the second derivative in alpha is finite"
    curve = (16 * (near[1] + near[-1]) - (near[2] + near[-2]) - 30 * (y.detach().cpu() * direction).sum(-1)) / (
        12 * h**2
    )
    if alpha < 1.1:
        torch.testing.assert_close(second.cpu()[:, 0], curve, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_max_in_alpha(alpha, device):
    """The slope of max in alpha is that of -Omega at the argmax, continuous at 1."""
    x = torch.randn(3, 6, dtype=torch.float64, device=device)
    tensor = torch.full((3, 1), alpha, dtype=torch.float64, device=device, requires_grad=True)
    (slope,) = torch.autograd.grad(pm.Tsallis(tensor).max(x).sum(), tensor)
    p = oracles.tsallis(x, alpha=alpha).to(device)
    # Omega = sum p (exp(a log p) - 1) / (alpha a) with a = alpha - 1, by its series in a
    log, a = p.log(), alpha - 1
    terms = range(1, 12)
    factorial = torch.cumprod(torch.arange(1.0, 13, dtype=torch.float64, device=device), 0)
    omega = sum(p * log**k * a ** (k - 1) / factorial[k - 1] for k in terms).sum(-1)
    change = sum((k - 1) * p * log**k * a ** max(k - 2, 0) / factorial[k - 1] for k in terms if k > 1).sum(-1)
    torch.testing.assert_close(slope[:, 0], omega / alpha**2 - change / alpha, rtol=1e-7, atol=1e-7)


@HALVES
@every(ROWS)
def test_half_precision(case, dtype, device):
    x = torch.randn(4, 7, device=device).to(dtype)
    omega = case.regularizer()
    for method in ("argmax", "max"):
        half, single, exact = (getattr(omega, method)(x.to(d)) for d in (dtype, torch.float32, torch.float64))
        assert half.dtype == dtype, "same dtype out"
        rounding = (single.to(dtype).double() - exact).abs().max()
        error = (half.double() - exact).abs().max()
        assert error <= 2 * rounding + 1e-7, f"{method} in {dtype} loses more than rounding does"


@HALVES
@every(ROWS)
def test_half_precision_gradients(case, dtype, device):
    x = case.scores(rows=3, n=6).to(device).to(dtype)
    direction = torch.randn(3, 6, device=device).to(dtype)
    slopes = []
    for kind in (dtype, torch.float32):
        scores = x.to(kind).requires_grad_()
        y = case.regularizer().argmax(scores)
        slopes.append(torch.autograd.grad(y, scores, direction.to(kind))[0])
    assert slopes[0].dtype == dtype
    assert torch.isfinite(slopes[0]).all()
    scale = 1 + slopes[1].abs().max()
    assert (slopes[0] - slopes[1]).abs().max() <= 8 * torch.finfo(dtype).eps * scale, f"gradients in {dtype}"


@pytest.mark.parametrize("spread", [0.0, 1e-30, 1e-8, 1e3, 1e30])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@every(ROWS)
def test_spread(case, dtype, spread, device):
    x = torch.randn(3, 6, dtype=dtype, device=device) * spread
    omega = case.regularizer()
    y = omega.argmax(x)
    assert torch.isfinite(y).all(), f"weights of scores of size {spread} are finite"
    assert torch.isfinite(omega.max(x)).all(), f"the max of scores of size {spread} is finite"
    total = torch.full((3,), case.total, dtype=dtype, device=device)
    close(y.sum(-1), total, f"weights of scores of size {spread} sum to the total")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@every(ROWS)
def test_lowest_scores(case, dtype, device):
    """The lowest finite score, which others use as a mask, is just a low score."""
    x = torch.randn(3, 7, device=device).to(dtype)
    x[:, 2] = torch.finfo(dtype).min
    omega = case.regularizer()
    y = omega.argmax(x)
    assert torch.isfinite(y).all()
    total = torch.full((3,), case.total, device=device, dtype=dtype)
    close(y.sum(-1), total, "weights sum to the total beside the lowest finite score")
    if not case.parameters.get("lower") and not case.parameters.get("strength"):
        keep = x[0] > torch.finfo(dtype).min
        close(y, omega.argmax(x, mask=keep), "the lowest finite score gets what a masked one gets")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@every([row for row in ROWS if row.gamma is not None])
def test_extreme_temperature(case, dtype, device):
    x = torch.randn(3, 6, dtype=dtype, device=device, requires_grad=True)
    for gamma in (1e-12, 1e-4, 1e4, 1e12):
        omega = case.regularizer(gamma=gamma)
        y = omega.argmax(x)
        (slope,) = torch.autograd.grad(y.square().sum(), x)
        assert torch.isfinite(y).all(), f"weights at gamma {gamma} are finite"
        assert torch.isfinite(slope).all(), f"gradients at gamma {gamma} are finite"


@pytest.mark.parametrize("exponent", [1.001, 1.02, 5.0, 30.0])
@pytest.mark.parametrize(
    ("make", "oracle"),
    [(pm.Tsallis, oracles.tsallis), (pm.Norm, oracles.norm), (pm.SquaredPNorm, oracles.squared_norm)],
    ids=["tsallis", "norm", "squared-norm"],
)
def test_extreme_exponents(make, oracle, exponent, device):
    x = torch.randn(3, 6, dtype=torch.float64, device=device)
    name = "p" if make is pm.SquaredPNorm else "alpha"
    expected = oracle(x, **{name: exponent}).to(device)
    torch.testing.assert_close(make(exponent).argmax(x), expected, rtol=1e-7, atol=1e-7)
    scores = x.float().requires_grad_()
    y = make(exponent).argmax(scores)
    torch.testing.assert_close(y.double(), oracle(x.float(), **{name: exponent}).to(device), rtol=1e-4, atol=1e-4)
    (slope,) = torch.autograd.grad(y.square().sum(), scores)
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("n", [1000, 20000])
def test_long_rows(n, device):
    x = torch.randn(2, n, dtype=torch.float64)
    for alpha in (1.0, 1.2, 1.5, 2.0):
        expected = oracles.tsallis(x.float(), alpha=alpha).to(device)
        y = pm.entmax(x.float().to(device), alpha)
        close(y, expected, f"entmax with alpha {alpha} of a long row")
        assert ((y > 0) == (expected > 0)).float().mean() > 1 - 2 / n, "the support of a long row"


@every(CASES)
def test_negative_zero(case, device):
    x = torch.tensor([[-0.0, 0.0, 1.0, -1.0, -0.0, 0.3]], dtype=torch.float64, device=device)
    equal(case.regularizer().argmax(x), case.regularizer().argmax(x + 0.0), "-0.0 is 0.0")
    assert not torch.signbit(case.regularizer().argmax(x)).any(), "no weight is -0.0"


def test_half_precision_has_a_tolerance():
    assert {torch.bfloat16, torch.float16} <= set(ABSOLUTE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "power"), [(1000, 15.0), (1000, 40.0), (3, 100.0), (10, 5000.0)])
def test_norms_whose_powers_are_below_the_dtype(dtype, n, power):
    """The norm of n equal weights is n^(1/power - 1), though 1/n to the power may be 0."""
    x = torch.zeros(n, dtype=dtype)
    norm = torch.tensor(n ** (1 / power - 1), dtype=torch.float64)
    for omega, expected in ((pm.Norm(power), norm - 1), (pm.SquaredPNorm(power), (norm**2 - 1) / 2)):
        p = omega.argmax(x)
        close(omega.omega(p), expected, "Omega of equal weights")
        close(omega.max(x), -expected, "max of equal scores")
    alpha = torch.tensor(60.0, dtype=dtype, requires_grad=True)
    x = torch.where(torch.arange(10) < 5, -0.05, 0.0).to(dtype)
    found = [torch.autograd.grad(pm.normmax(t, alpha=alpha)[0], alpha)[0] for t in (x, x.double())]
    close(found[0].double(), found[1].double(), "the slope of alpha is not 0")
    assert float(found[1]) > 0
