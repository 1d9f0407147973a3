"""Fusedmax and oscarmax by one kernel: weights, how the row is divided, and the Jacobian that follows from that."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # read by triton when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

from importlib import import_module
from importlib.util import find_spec

import polymax as pm
from polymax.regularizers.fused_weights import DividedWeights
from tests.kernels.test_prox_kernels import GPU, INF, score_rows, strengths

NAMES = ("fusedmax", "oscarmax")
STRENGTHS = {"fusedmax": (0.1, 1.0, 0.0, 1e4), "oscarmax": (0.01, 0.3, 0.0, 0.1)}
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 8e-3}
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
# the interpreter computes the lanes that a GPU would mask, with NumPy's warnings about them
pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.fixture(autouse=True)
def both_kernels(monkeypatch):
    """Rows of any length from 9 on go to the first kernel first, as only longer ones do otherwise."""
    for name in NAMES if find_spec("triton") else ():
        module = import_module(f"polymax.kernels.{name}.cuda")
        monkeypatch.setattr(module, "SHORT", 8)
        monkeypatch.setattr(module, "_launches", module._launches.__wrapped__)


def check(name, x, strength, file="cuda"):
    """The file of a device and reference.py give the same weights and the same gradient for the same rows."""
    kernels, reference = (import_module(f"polymax.kernels.{name}.{f}") for f in (file, "reference"))
    device = GPU if file == "cuda" else "cpu"
    tolerance = TOLERANCES[x.dtype]
    v = torch.randn(x.shape, dtype=torch.float64).to(x.dtype)
    y, division = getattr(kernels, name)(x.to(device), strength.to(device))
    dx = getattr(kernels, f"{name}_backward")(division, v.to(device))
    exact, expected = getattr(reference, name)(x.double(), strength.double())
    slope = getattr(reference, f"{name}_backward")(expected, v.double())
    assert y.dtype == dx.dtype == x.dtype
    torch.testing.assert_close(y.cpu().double(), exact, rtol=tolerance, atol=tolerance, equal_nan=True)
    # an entry at the threshold has no derivative: either side is right
    tie = ((exact > 0) & (exact < tolerance)) | ((exact == 0) & (y.cpu() > 0))
    clear = ~tie.any(-1)
    torch.testing.assert_close(dx.cpu().double()[clear], slope[clear], rtol=tolerance, atol=tolerance, equal_nan=True)
    if name == "fusedmax":
        assert torch.equal(division.cpu()[clear], expected[clear])


@needs_triton
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("n", "dtype"),
    [(0, torch.float32), (1, torch.float32), (7, torch.bfloat16), (9, torch.float64), (20, torch.float32)]
    + [(17, torch.bfloat16), *((n, torch.float32) for n in (500, 1024) if GPU == "cuda")],
)
def test_kernels_are_the_reference(name, n, dtype):
    x = score_rows(n, dtype)
    if n > 100:
        # sums of many whole numbers are close to ties, which float32 may see on the other side
        x[1] += torch.randn(n)
    check(name, x, strengths(dtype, STRENGTHS[name]))


def scaled_rows(n, dtype, scale):
    """Rows of every kind, and some whose entries crowd together: close to the largest, or close to 0."""
    x = torch.cat([scale * score_rows(n, torch.float64), -scale * torch.rand(2, n, dtype=torch.float64) ** 20])
    if n:
        x[-1] = -(torch.rand(n, dtype=torch.float64) * -80).exp()
    if n > 100:
        # sums of many whole numbers are close to ties
        x[1] += scale * torch.randn(n)
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1, 0.1, 1e-3, 20])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 9, 13, 64, 100, 130, 500, 1500])
def test_oscarmax_on_the_cpu_is_the_reference(n, scale, dtype):
    """Few entries and many, by insertion, counts and digits; with buckets that are one run, and rows that are."""
    for values in ((0.01, 0.3, 0.0, 0.1), (1e-3, 1e-4, 1e-5, 1e-2), (1.0, 1e4, 3e-3, 3e-2)):
        x = scaled_rows(n, dtype, scale)
        check("oscarmax", x, torch.tensor(values, dtype=dtype).repeat(4)[: len(x)], "cpu")
    code = import_module("polymax.kernels.oscarmax.cpu").oscarmax(x, torch.full((1,), 0.01, dtype=dtype))[1]
    good = code[(code >= 0).all(-1)]
    # all entries are listed, and those with weight come first
    assert torch.equal((good >> 2).sort(-1).values, torch.arange(n, dtype=torch.int32).expand_as(good))
    assert ((good & 1).diff(dim=-1) <= 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [0, 1, 2, 13, 100, 1500])
def test_fusedmax_on_the_cpu_is_the_reference(n, dtype):
    for scale in (1, 20):
        x = scaled_rows(n, dtype, scale)
        check("fusedmax", x, torch.tensor((0.1, 1.0, 0.0, 1e4), dtype=dtype).repeat(4)[: len(x)], "cpu")


@pytest.mark.parametrize("name", NAMES)
def test_several_threads_of_the_cpu(name):
    x = scaled_rows(500, torch.float32, 1).repeat(20, 1)
    check(name, x, torch.full((1,), 0.01), "cpu")


@needs_triton
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_both_kernels(name):
    """Lone peaks, pairs and long runs; one cluster, few and many; masks at the ends and inside."""
    x = torch.randn(10, 40)
    x[1] = x[1].cumsum(-1) / 4
    x[2] /= 8
    x[3] *= 4
    x[4, 25:] = -INF
    x[5, :18] = -INF
    x[6, ::3] = -INF
    x[7, 12:14], x[7, 30:33] = 4.0, torch.tensor([4.2, 4.1, 4.25])
    x[8, 0], x[8, 39], x[8, 38] = 5.0, 5.1, 4.95
    x[9] = 1e20
    check(name, x, torch.full((1,), 0.1 if name == "fusedmax" else 0.02))


@needs_triton
@pytest.mark.parametrize("name", NAMES)
def test_several_warps_to_a_row(name, monkeypatch):
    """Rows of the second kernel whose entries are spread over two warps."""
    module = import_module(f"polymax.kernels.{name}.cuda")
    monkeypatch.setattr(module, "SHORT", 1000)
    monkeypatch.setattr(*(module, "tile") if name == "oscarmax" else (module.triton_rows, "chunks"), _two_warps)
    # whole numbers tie, which float32 may see on the other side
    x = score_rows(100, torch.float32)[[0, 2, 3, 4, 5, 6, 8, 11]]
    check(name, x, torch.full((1,), 0.1 if name == "fusedmax" else 0.02))


def _two_warps(count, n):
    return 1, 64, 2, 2


@needs_triton
@pytest.mark.parametrize("name", NAMES)
def test_shifts_and_equal_weights(name):
    """Scores far from 0 lose no more digits than their own rounding, and entries share a weight to the last bit."""
    # multiples of 1/16 stay themselves at 1e6 in float32
    x, strength = (4 * torch.randn(8, 30)).round() / 16, torch.tensor([0.0625 if name == "fusedmax" else 0.015625])
    function = getattr(import_module(f"polymax.kernels.{name}.cuda"), name)
    (y, _), (far, _) = (function((x + shift).to(GPU), strength.to(GPU)) for shift in (0.0, 1e6))
    assert (far - y).abs().max() < 1e-6
    step = y.cpu().sort(-1).values.diff() if name == "oscarmax" else y.cpu().diff()
    shared = (step == 0) & (y.cpu()[..., 1:] > 0)
    assert ((step == 0) | (step.abs() > 1e-4)).all()
    assert shared.any()


@needs_triton
@pytest.mark.parametrize("name", NAMES)
def test_the_largest_numbers(name):
    m = torch.finfo(torch.float32).max
    x = torch.zeros(4, 12)
    x[0, :4] = torch.tensor([m, -m, m, m])
    x[1] = torch.cat([torch.tensor([1e20, 1e20, 1e20 - 1e14]), torch.full((9,), 9.9e19)])
    x[2, 2:] = -INF
    x[2, :2] = -m
    x[3, 1:3] = torch.tensor([m, 0.5])
    for strength in ([0.1, 0.1, m / 4, 0.02], [m / 4, 1e13, 0.0, 0.1]):
        check(name, x, torch.tensor(strength))
        if name == "oscarmax":
            check(name, x, torch.tensor(strength), "cpu")
            wide = x.double() * (torch.finfo(torch.float64).max / m)
            check(name, wide, torch.tensor(strength).double(), "cpu")


@needs_triton
@pytest.mark.parametrize("name", NAMES)
def test_results_do_not_depend_on_the_batch(name):
    """A row alone, and the same row beside others that another kernel does, have the same bits."""
    function = getattr(import_module(f"polymax.kernels.{name}.cuda"), name)
    x = torch.randn(3, 20)
    x[2] = x[2].cumsum(-1) / 8
    strength = torch.full((1,), 0.02)
    together = function(x.to(GPU), strength.to(GPU))
    for row in range(3):
        for whole, part in zip(together, function(x[row].to(GPU), strength.to(GPU)), strict=True):
            assert torch.equal(whole[row], part)


def derived_rows():
    x = torch.randn(4, 9, dtype=torch.float64)
    x[1, 3:5] = -INF
    return x, torch.tensor([0.05, 0.1, 0.2, 0.0], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives(name):
    """First and second derivatives in the scores and the strength, against differences."""
    x, strength = derived_rows()
    x = x[[0, 2, 3]].requires_grad_()
    strength = strength[[0, 2, 3]].detach() + 0.01
    strength.requires_grad_()
    assert torch.autograd.gradcheck(lambda t, s: getattr(pm, name)(t, s[:, None]), (x, strength))
    assert torch.autograd.gradgradcheck(lambda t, s: getattr(pm, name)(t, s[:, None]), (x, strength))


@pytest.mark.parametrize("name", NAMES)
def test_transforms_see_the_function(name):
    x, strength = torch.randn(3, 4, 6), torch.full((1,), 0.1)

    def loss(t):
        return DividedWeights.apply(t, strength, name == "oscarmax")[0].square().sum()

    mapped = torch.func.vmap(torch.func.grad(loss))(x)
    torch.testing.assert_close(mapped, torch.stack([torch.func.grad(loss)(t) for t in x]))
