"""Divergences from a reference whose entries differ, and their losses: against brute force and dense formulas."""

import oracles
import pytest
import torch
from tolerances import close, equal
from torch.autograd import gradcheck, gradgradcheck

import polymax as pm
from polymax.kernels.relative_threshold import relative_threshold

ALPHAS = (0.5, 1.0, 1.1, 1.5, 2.0, 2.5)
by_alpha = pytest.mark.parametrize("alpha", ALPHAS)


def problem(rows=4, n=6, seed=0):
    """Scores and a reference of each row, float64."""
    draw = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(rows, n, dtype=torch.float64, generator=draw)
    return x, torch.rand(rows, n, dtype=torch.float64, generator=draw) ** 3 + 0.01


@by_alpha
def test_weights_are_those_of_bisection(alpha):
    x, q = problem()
    expected = torch.cat([oracles.divergence(x[i : i + 1], reference=q[i].numpy(), alpha=alpha) for i in range(len(x))])
    close(pm.AlphaDivergence(q, alpha).argmax(x), expected, "argmax == bisection")
    close(pm.AlphaDivergence(q.T, alpha).argmax(x.T, dim=0), expected.T, "any dim")
    close(pm.AlphaDivergence(q[0], alpha).argmax(x[:1]), expected[:1], "one reference for all rows")


@by_alpha
def test_weights_of_hostile_rows(alpha):
    """Entries with a score of -inf or a reference of 0 are left out; NaN fills its row, huge scores and tiny references
    stay finite.
    """
    x, q = problem(5)
    x[0, 1], q[0, 2] = -torch.inf, 0
    x[1, 3] = torch.nan
    x[2] *= 1e6
    q[3] = torch.tensor([1e-30, 1e-8, 1.0, 1e8, 1e-3, 1e-12])
    q[4] = 0
    p = pm.AlphaDivergence(q, alpha).argmax(x)
    kept = [0, 3, 4, 5]
    close(p[0, kept], pm.AlphaDivergence(q[0, kept], alpha).argmax(x[0, kept]), "left out")
    assert (p[0, 1:3] == 0).all()
    assert p[1].isnan().all()
    assert (p[4] == 0).all()
    close(p[2:4].sum(-1), torch.ones(2), "weights sum to 1")
    x[1, 3] = 0
    q[1, 3] = 0
    assert pm.AlphaDivergence(q, alpha).argmax(x).isfinite().all()


@by_alpha
def test_equal_scores_give_the_reference(alpha):
    _, q = problem()
    q = q / q.sum(-1, keepdim=True)
    omega = pm.AlphaDivergence(q, alpha)
    close(omega.argmax(torch.zeros_like(q)), q, "argmax(0) == reference")
    close(omega.omega(q), torch.zeros(4), "the divergence of the reference is 0")
    close(omega.max(torch.zeros_like(q)), torch.zeros(4), "max(0) == 0")


@by_alpha
def test_ones_are_no_reference(alpha):
    x, q = problem()
    ones = pm.AlphaDivergence(torch.ones_like(x), alpha)
    close(ones.argmax(x), pm.entmax(x, alpha), "argmax")
    close(ones.max(x), pm.Tsallis(alpha).max(x), "max")
    close(ones.omega(q), pm.Tsallis(alpha).omega(q) + (q.sum(-1) * 0), "omega")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@by_alpha
def test_derivatives(alpha):
    """First and second, in scores, reference, alpha and gamma, backward and forward."""
    x, q = problem(2, 5)
    x, q = x / 4, q + 0.2
    kept = pm.AlphaDivergence(q, alpha).argmax(x)
    # no weight close to a kink
    assert ((kept == 0) | (kept > 1e-4)).all()
    given = [t.requires_grad_() for t in (x, q, torch.tensor(alpha).double(), torch.tensor(0.9).double())]

    def weights(x, q, a, gamma):
        return pm.AlphaDivergence(q, a, gamma).argmax(x)

    def value(x, q, a, gamma):
        return pm.AlphaDivergence(q, a, gamma).max(x)

    assert gradcheck(weights, given)
    assert gradgradcheck(weights, given)
    assert gradcheck(value, given)
    assert gradgradcheck(value, given)
    assert gradcheck(lambda x, q: pm.AlphaDivergence(q, alpha).argmax(x), given[:2], check_forward_ad=True)


@by_alpha
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_fenchel_young_loss(alpha, smoothing):
    """The loss is 0 at its own prediction, and its gradient is the difference of predictions."""
    x, q = problem()
    omega = pm.AlphaDivergence(q, alpha)
    x.requires_grad_()
    own = omega.argmax(x).detach()
    close(pm.fenchel_young(omega, x, own), torch.tensor(0.0), "0 at its prediction")
    y = torch.tensor([0, 3, 2, 5])
    loss = pm.fenchel_young(omega, x, y, reduction="sum", label_smoothing=smoothing)
    target = (1 - smoothing) * torch.nn.functional.one_hot(y, 6).double() + smoothing / 6
    close(torch.autograd.grad(loss, x)[0], own - target, "gradient")
    assert loss > 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_the_operator_under_compile_and_vmap():
    x, q = problem()
    alphas = torch.tensor([0.5, 1.0, 1.5, 2.0])
    torch.library.opcheck(torch.ops.polymax.relative_threshold.default, (x, q, alphas))
    each = torch.stack([relative_threshold(*(t[i] for t in (x, q, alphas))) for i in range(4)])
    close(relative_threshold(x, q, alphas), each, "a batch is a loop")
    close(torch.func.vmap(lambda *t: relative_threshold(*t))(x, q, alphas), each, "vmap is a loop")

    def loss(x, q):
        return pm.fenchel_young(pm.AlphaDivergence(q, 1.5), x, torch.tensor([0, 1, 2, 3]))

    x.requires_grad_()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(x, q)
    close(compiled, loss(x, q), "compiled == eager")
    equal(torch.autograd.grad(compiled, x)[0], torch.autograd.grad(loss(x, q), x)[0], "gradients")


def test_half_precision_rounds_the_weights():
    x, q = problem()
    for dtype in (torch.bfloat16, torch.float16):
        small = x.to(dtype), q.to(dtype)
        found = pm.AlphaDivergence(small[1], 1.5).argmax(small[0])
        close(found, pm.AlphaDivergence(small[1].double(), 1.5).argmax(small[0].double()), "rounded")


@pytest.mark.parametrize(
    ("reference", "kind", "message"),
    [
        (-1.0, ValueError, "reference must be at least 0 and finite; got -1.0"),
        (torch.tensor([0.5, torch.inf]), ValueError, "reference must be at least 0 and finite"),
        (torch.tensor([1, 2]), TypeError, "reference must be float64, float32"),
        ("uniform", TypeError, "reference must be a number or a tensor; got str"),
    ],
)
def test_errors(reference, kind, message):
    with pytest.raises(kind, match=message):
        pm.AlphaDivergence(reference)


def test_a_reference_must_broadcast():
    with pytest.raises(ValueError, match=r"reference must broadcast|reference .*\(5,\)"):
        pm.AlphaDivergence(torch.ones(5)).argmax(torch.zeros(2, 4))
