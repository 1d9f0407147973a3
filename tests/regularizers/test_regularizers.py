"""Laws of every regularizer: the right weights, the right value, and what leaves them unchanged."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from cases import CASES, ROWS, every
from tolerances import ABSOLUTE, close, equal

import polymax as pm
from polymax.testing import check_regularizer

DTYPES = [torch.float64, torch.float32]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def sums(y, case, law):
    """Rows sum to the total within 5 units in the last place, and one more for each 128 terms.

    The order of a sum in float32 is the compiler's: LLVM 15 adds 33 equal weights one by one, and errs by 4.4 units.
    """
    exact = y.detach().double().cpu().numpy().astype(np.longdouble).sum(-1)
    off = float(np.abs(exact - case.total).max()) / (torch.finfo(y.dtype).eps * case.total)
    assert off <= 5 + y.shape[-1] // 128, f"{law} is broken by {off:.1f} ulp"


@both_dtypes
@every(CASES)
def test_weights(case, dtype, device):
    x = torch.randn(4, 7, dtype=dtype, device=device)
    y = case.regularizer().argmax(x)
    close(y, case.oracle(x), "argmax == oracle")
    assert (y >= 0).all(), "weights are nonnegative"
    sums(y, case, "weights sum to the total")


@pytest.mark.parametrize("n", [33, 1500])
@both_dtypes
@every(ROWS)
def test_sum(case, dtype, n, device):
    lower = case.parameters.get("lower", 0)
    if lower * n > case.total:
        pytest.skip("the lower bounds sum to more than 1")
    sums(
        case.regularizer().argmax(torch.randn(3, n, dtype=dtype, device=device)),
        case,
        "weights sum to the total",
    )


@both_dtypes
@every(ROWS)
def test_zeros(case, dtype, device):
    # the oracles of some list all ways to cut a row
    x = torch.randn(1, 5, dtype=dtype, device=device)
    y = case.regularizer().argmax(x)
    step = 1e-4 * torch.eye(5, device=device)
    # a weight is certain where moving its own score a little does not change whether it is 0
    raised = case.oracle(x.unsqueeze(1) + step).diagonal(dim1=-2, dim2=-1)
    lowered = case.oracle(x.unsqueeze(1) - step).diagonal(dim1=-2, dim2=-1)
    assert (y[raised == 0] == 0).all(), "a weight outside the support is exactly 0"
    assert (y[lowered > 1e-12] > 0).all(), "a weight inside the support is positive"


@both_dtypes
@every([case for case in CASES if case.fuses])
def test_fused(case, dtype, device):
    x = torch.randn(6, 7, dtype=dtype, device=device)
    y, truth = case.regularizer().argmax(x), case.oracle(x)
    gap = (truth.unsqueeze(-1) - truth.unsqueeze(-2)).abs()
    same = y.unsqueeze(-1) == y.unsqueeze(-2)
    # the chain fuses neighbours: groups apart may be equal by chance only
    assert same[gap < 1e-12].all(), "fused weights are bit-equal"
    assert not same[gap > 1e-4].any(), "weights of different groups differ"


@every(CASES)
def test_omega(case, device):
    p = torch.rand(4, 6, dtype=torch.float64, device=device)
    p[0, 1:3] = 0
    p = p / p.sum(-1, keepdim=True)
    close(case.regularizer().omega(p), case.omega(p), "omega == its formula")
    close(case.regularizer().omega(p.T, dim=0), case.omega(p), "omega takes any dim")


@both_dtypes
@every(CASES)
def test_fenchel_young(case, dtype, device):
    x = torch.randn(4, 6, dtype=dtype, device=device)
    omega = case.regularizer()
    y = omega.argmax(x)
    close(omega.max(x) + omega.omega(y), (x * y).sum(-1), "max(x) + omega(y) == <x, y> at y = argmax(x)")
    truth = case.oracle(x)
    close(omega.max(x), (x.double() * truth).sum(-1) - case.omega(truth), "max == its value at the oracle")


@every(CASES)
def test_gradient_of_max(case, device):
    x = torch.randn(4, 6, dtype=torch.float64, device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(case.regularizer().max(x).sum(), x)
    close(gradient, case.regularizer().argmax(x).detach(), "grad(max) == argmax")


@pytest.mark.parametrize("shift", [-1e6, 1.0, 1e6])
@both_dtypes
@every(CASES)
def test_shift(case, dtype, shift, device):
    # multiples of 1/16 stay exact next to 1e6 in float32
    x = (torch.randn(4, 6, device=device) * 16).round().to(dtype) / 16
    omega = case.regularizer()
    if case.gamma in (None, 1.0):
        close(omega.argmax(x + shift), omega.argmax(x), "argmax(x + c) == argmax(x)")
    elif dtype == torch.float64:
        # x / gamma is not exact any more
        torch.testing.assert_close(omega.argmax(x + shift), omega.argmax(x), rtol=0, atol=1e-8)
    close(omega.max(x + shift), omega.max(x) + shift * case.total, "max(x + c) == max(x) + c")


@every([case for case in CASES if case.permutes])
def test_permutation(case, device):
    x = torch.randn(4, 7, dtype=torch.float64, device=device)
    order = torch.randperm(7, device=device)
    omega = case.regularizer()
    close(omega.argmax(x[:, order]), omega.argmax(x)[:, order], "argmax is permutation equivariant")
    close(omega.max(x[:, order]), omega.max(x), "max is permutation invariant")


@every([row for row in ROWS if row.gamma is not None])
def test_temperature(case, device):
    x = torch.tensor([[0.3, 1.2, -0.5, 0.9], [2.0, -1.0, 0.0, 1.7]], dtype=torch.float64, device=device)
    if case.least > 3 or case.parameters.get("lower") or case.parameters.get("upper", 1) < 1 or case.total != 1:
        pytest.skip("the vertices of this set are not one-hot")
    # below alpha = 1 tails are powers of gamma, not 0
    cold = case.regularizer(gamma=1e-7 if case.parameters.get("alpha", 1) >= 1 else 1e-14)
    close(cold.argmax(x), pm.hardmax(x), "argmax tends to hardmax as gamma tends to 0")
    torch.testing.assert_close(cold.max(x), x.amax(-1), rtol=0, atol=1e-3)


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@every(CASES)
def test_dim(case, dim, device):
    x = torch.randn(4, 5, 6, dtype=torch.float64, device=device)
    omega = case.regularizer()
    rows = x.movedim(dim, -1).contiguous()
    close(omega.argmax(x, dim=dim), omega.argmax(rows).movedim(-1, dim), "any dim can be the row")
    close(omega.max(x, dim=dim), omega.max(rows), "any dim can be the row")


@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 4), (0,)], ids=str)
@every(CASES)
def test_batch(case, batch, device):
    x = torch.randn(*batch, 5, dtype=torch.float64, device=device)
    omega = case.regularizer()
    y, value = omega.argmax(x), omega.max(x)
    assert y.shape == x.shape
    assert value.shape == torch.Size(batch)
    for i in range(x.shape[:-1].numel()):
        row = x.reshape(-1, 5)[i]
        close(y.reshape(-1, 5)[i], omega.argmax(row), "a row does not depend on its batch")
        close(value.reshape(-1)[i], omega.max(row), "a row does not depend on its batch")


@every(CASES)
def test_few_entries(case, device):
    omega = case.regularizer()
    empty = torch.zeros(3, 0, dtype=torch.float64, device=device)
    equal(omega.argmax(empty), empty, "an empty row has no weights")
    equal(omega.max(empty), torch.full((3,), -torch.inf, dtype=torch.float64, device=device), "its max is -inf")
    if case.least > 1:
        return
    one = torch.tensor([[-3.0], [0.5]], dtype=torch.float64, device=device)
    close(omega.argmax(one), torch.ones_like(one), "one entry gets weight 1")
    close(omega.max(one), one[:, 0] - case.omega(torch.ones_like(one)), "its max is its score, less omega")
    scalar = torch.tensor(0.7, dtype=torch.float64, device=device)
    close(omega.argmax(scalar), torch.ones_like(scalar), "a 0-d tensor is a row of one entry")
    assert omega.max(scalar).shape == ()


@every(CASES)
def test_memory_layout(case, device):
    x = torch.randn(6, 10, dtype=torch.float64, device=device)
    omega = case.regularizer()
    for view in (x[::2, ::2], x.T[:, :5], x[:, :1].expand(6, 5), x.flip(-1)):
        close(omega.argmax(view), omega.argmax(view.contiguous()), "memory layout does not matter")


@both_dtypes
@every(CASES)
def test_large_scores(case, dtype, device):
    x = torch.randn(4, 6, dtype=dtype, device=device) * 1e4
    y = case.regularizer().argmax(x)
    expected = case.oracle(x)
    if case.gamma in (None, 1.0):
        close(y, expected, "argmax == oracle for scores of 1e4")
    assert torch.isfinite(y).all()
    assert torch.isfinite(case.regularizer().max(x)).all()
    sums(y, case, "weights sum to the total for scores of 1e4")


@both_dtypes
@every(CASES)
def test_ties(case, dtype, device):
    rows = [[0.5] * 5, [1.0, 1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 2.0, 2.0, -3.0], [-0.0, 0.0, 0.0, -0.0, 0.0]]
    x = torch.tensor(rows, dtype=dtype, device=device)
    close(case.regularizer().argmax(x), case.oracle(x), "argmax == oracle with ties")


@every(CASES)
def test_public_check(case):
    # a solver in torch takes its time
    check_regularizer(case.regularizer(), n=6 if case.compiles else 3, total=case.total)


def alive(x, y):
    """y, and zeros where a row of x is -inf."""
    return torch.where((x != -torch.inf).any(-1, keepdim=True), y, 0)


@dataclass(frozen=True)
class Mine(pm.Regularizer):
    """A user's regularizer, right unless a part is replaced: softmax and negative entropy."""

    mapping: Callable = lambda x: alive(x, torch.softmax(x, -1))
    penalty: Callable = lambda p, keep: -torch.special.entr(p).sum(-1)

    def argmax_rows(self, x):
        return self.mapping(x)

    def omega_rows(self, p, keep=None):
        return self.penalty(p, keep)


class WrongSlope(torch.autograd.Function):
    """Softmax with half its gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.softmax(x, -1))
        return torch.softmax(x, -1)

    @staticmethod
    def backward(ctx, v):
        (y,) = ctx.saved_tensors
        return y * (v - (y * v).sum(-1, keepdim=True)) / 2


class WrongCurve(WrongSlope):
    """Softmax whose gradient forgets that it depends on the scores."""

    @staticmethod
    def backward(ctx, v):
        return 2 * WrongSlope.backward(ctx, v)


BROKEN = {
    "nonnegative, sum to the total": {"mapping": lambda x: x.clamp(0, 1)},
    "at most max": {"penalty": lambda p, keep: -2 * torch.special.entr(p).sum(-1)},
    "masked entry is an absent entry": {
        "mapping": lambda x: torch.softmax(x.nan_to_num(neginf=0.0), -1),
    },
    "a row of -inf gets zeros": {"mapping": lambda x: torch.softmax(x, -1).nan_to_num(1.0)},
    "first derivatives": {"mapping": lambda x: alive(x, WrongSlope.apply(x))},
    "second derivatives": {"mapping": lambda x: alive(x, WrongCurve.apply(x))},
}


def test_public_check_accepts_a_new_regularizer():
    check_regularizer(Mine())


@pytest.mark.parametrize("law", BROKEN)
def test_public_check_names_the_broken_law(law):
    with pytest.raises(AssertionError, match=f"(?i){law}"):
        check_regularizer(Mine(**BROKEN[law]))


def test_tolerances_cover_the_dtypes():
    assert set(ABSOLUTE) >= set(DTYPES)
