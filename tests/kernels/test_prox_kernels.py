"""The prox kernels: every device file against the reference, and the reference against the definitions."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # read by triton when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

from importlib import import_module
from importlib.util import find_spec

from polymax.kernels.isotonic import isotonic
from polymax.kernels.oscarmax.reference_prox import oscar_prox, prox_by
from polymax.kernels.segment_mean import segment_mean
from polymax.kernels.tv_prox import tv_prox

OPS = {"tv_prox": tv_prox, "isotonic": isotonic, "segment_mean": segment_mean}
# fusedmax, which needs the other one, is one operator on CUDA
ON_CUDA = ("isotonic", "segment_mean")
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
INF, NAN = torch.inf, torch.nan
# where Triton's files run: compiled, or in the interpreter
pytestmark = pytest.mark.device
GPU = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


each_file = pytest.mark.parametrize(
    ("name", "file"),
    [(name, "cpu") for name in OPS] + [pytest.param(name, "cuda", marks=needs_triton) for name in ON_CUDA],
)


each_prox = pytest.mark.parametrize(
    ("name", "file"),
    [
        ("tv_prox", "cpu"),
        ("oscar_prox", "reference"),
        ("isotonic", "cpu"),
        pytest.param("isotonic", "cuda", marks=needs_triton),
    ],
)


def implementation(name, file):
    if name == "oscar_prox":
        return oscar_prox
    return getattr(import_module(f"polymax.kernels.{name}.{file}"), name)


def close(actual, expected, slack=1):
    assert actual.dtype == expected.dtype
    tolerance = slack * TOLERANCES.get(actual.dtype, 0)
    torch.testing.assert_close(
        actual.cpu(), expected.cpu(), rtol=tolerance, atol=tolerance, equal_nan=True, check_layout=False
    )


def score_rows(n, dtype, trailing=False):
    """Rows of every kind, `(14, n)`; absent entries only at the end if `trailing`."""
    x = 2 * torch.randn(14, n, dtype=torch.float64)
    if n:
        x[1] = x[1].round()
        x[2, n // 2 :] = -INF
        x[3] = -INF
        x[4, :: 1 if trailing else 2] = -INF
        if not trailing:
            x[5, : n // 3] = -INF
            x[6, n // 3 : n // 2] = -INF
        x[7] = 0.1
        x[8] = x[8].sort().values
        x[9] = x[9].sort(descending=True).values
        x[10] = x[10].cumsum(-1)
        x[11, n // 2] = NAN
        x[12, 0] = INF
        x[13] = torch.where(torch.arange(n) % 3 == 0, -0.0, 0.0)
    return x.to(dtype)


def strengths(dtype, values=(0.1, 1.0, 0.0, 1e4)):
    return torch.tensor(values, dtype=dtype).repeat(4)[:14]


def arguments(name, n, dtype):
    """Arguments of an op: one set per meaning of it."""
    if name == "isotonic":
        return [(score_rows(n, dtype, trailing=True),)]
    if name == "tv_prox":
        return [(score_rows(n, dtype), strengths(dtype))]
    z = score_rows(n, dtype).masked_fill(torch.rand(14, n) < 0.5, 1.0)
    v = torch.randn(14, n).to(dtype)
    return [(z, v), (z, v, torch.rand(14, n).argsort(-1).int())]


def check(name, function, args, slack=1):
    outputs = function(*args)
    expected = implementation(name, "reference")(*(a.cpu() for a in args))
    if isinstance(expected, tuple):
        close(outputs[1], expected[1])
        outputs, expected = outputs[0], expected[0]
    close(outputs, expected, slack)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPS)
def test_cpu_is_the_reference(name, dtype):
    for n in (0, 1, 2, 3, 7, 63, 64, 65, 130):
        for args in arguments(name, n, dtype):
            check(name, implementation(name, "cpu"), args)


@pytest.mark.parametrize("name", OPS)
def test_cpu_on_long_rows_in_several_threads(name):
    for args in arguments(name, 500, torch.float32):
        several = tuple(torch.cat([a.flip(0)] * 20) for a in args)
        check(name, implementation(name, "cpu"), several)


@each_file
def test_shapes_and_strides(name, file):
    function = implementation(name, file)
    device = GPU if file == "cuda" else "cpu"
    for args in arguments(name, 6, torch.float32):
        args = tuple(a.to(device) for a in args)
        # a batch of two dimensions, strided; one row without a batch; no rows
        check(name, function, tuple(torch.stack([a, a], 1)[::2].transpose(0, 1) for a in args))
        check(name, function, tuple(a[0] for a in args))
        check(name, function, tuple(a[:0] for a in args))


@needs_triton
@pytest.mark.parametrize("name", ON_CUDA)
@pytest.mark.parametrize(
    ("n", "dtype"),
    [(0, torch.float32), (1, torch.float32), (2, torch.float16), (7, torch.bfloat16)]
    + [(33, torch.float64), (65 if GPU == "cuda" else 40, torch.float32)],
)
def test_cuda_is_the_reference(name, n, dtype):
    for args in arguments(name, n, dtype):
        check(name, implementation(name, "cuda"), tuple(a.to(GPU) for a in args))


@needs_triton
@pytest.mark.parametrize("name", ON_CUDA)
def test_cuda_with_several_warps_to_a_row(name, monkeypatch):
    module = import_module(f"polymax.kernels.{name}.cuda")
    monkeypatch.setattr(module, "tile", lambda count, n: (1, 64, 2, 2))
    for args in arguments(name, 100, torch.float32):
        check(name, getattr(module, name), tuple(a[::5].to(GPU) for a in args))


@needs_triton
def test_long_rows_of_oscar_keep_their_digits():
    x = 2 * torch.randn(2, 33, dtype=torch.float64).float() + torch.tensor([[0.0], [3.0]])
    strength = torch.tensor([1e3, 2.0])
    z, _ = prox_by(implementation("isotonic", "cuda"), x.to(GPU), strength.to(GPU), False)
    exact, _ = oscar_prox(x.double(), strength.double())
    # the ranks add up to a hundred times the scores
    assert (z.cpu() - exact).abs().max() < 1e-6


@pytest.mark.skipif(GPU == "cpu", reason="long rows are slow in the interpreter")
@pytest.mark.parametrize("n", [64, 500, 1000, 1024, 4096])
@pytest.mark.parametrize("name", ON_CUDA)
def test_cuda_on_long_rows(name, n):
    for args in arguments(name, n, torch.float32):
        # rounding grows with the length of the runs
        check(name, OPS[name], tuple(a.to(GPU) for a in args), slack=4)


@needs_triton
@pytest.mark.parametrize("name", ON_CUDA)
def test_cuda_names_its_limit(name):
    x = torch.zeros(1, 40000, device=GPU)
    args = (x,) if name == "isotonic" else (x, x)
    with pytest.raises(ValueError, match=r"at most 32768 entries on CUDA; got 40000"):
        implementation(name, "cuda")(*args)


@pytest.mark.parametrize("strength", [1e20, 1e308])
def test_a_large_strength_makes_one_cluster(strength):
    x = torch.randn(1, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z, _ = oscar_prox(x, torch.tensor([strength], dtype=torch.float64))
    close(z, x.mean(-1, keepdim=True).expand_as(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_shifted_prox_stays_finite(dtype):
    large = torch.finfo(dtype).max
    z, _ = oscar_prox(torch.tensor([[large, -large]], dtype=dtype), torch.zeros(1, dtype=dtype), True)
    assert z.tolist() == [[0, -large]]


def partial_sums(x, z):
    return (x - z).cumsum(-1)


@pytest.mark.parametrize("strength", [0.0, 0.05, 0.5, 5.0, 500.0])
def test_tv_prox_is_optimal(strength):
    """The partial sums of x - z stay within the strength and reach it, with the right sign, at every step of z."""
    x = torch.randn(20, 200, dtype=torch.float64)
    x[10:] = x[10:].cumsum(-1)
    z = tv_prox(x, torch.full((20,), strength, dtype=torch.float64))
    dual, step = partial_sums(x, z), z.diff()
    assert dual.abs().max() <= strength + 1e-9
    assert dual[:, -1].abs().max() < 1e-9
    torch.testing.assert_close(dual[:, :-1][step != 0], (-strength * step.sign())[step != 0], rtol=1e-9, atol=1e-9)
    # fused neighbours are bit-equal
    assert ((step == 0) | (step.abs() > 1e-12)).all()
    if strength == 500:
        assert (step[:10] == 0).all()


def test_isotonic_is_optimal():
    """The solution does not increase; the partial sums of x - z are not positive, and 0 at every step of z."""
    x = torch.randn(20, 200, dtype=torch.float64)
    x[10:] -= 0.02 * torch.arange(200)
    z = isotonic(x)
    dual, step = partial_sums(x, z), z.diff()
    assert (step <= 0).all()
    assert dual.max() < 1e-10
    assert dual[:, -1].abs().max() < 1e-10
    assert dual[:, :-1][step != 0].abs().max() < 1e-10
    assert ((step == 0) | (step.abs() > 1e-12)).all()


@pytest.mark.parametrize("name", ["tv_prox", "isotonic", "oscar_prox"])
def test_definition_by_a_general_solver(name):
    cvxpy = pytest.importorskip("cvxpy")
    x = torch.randn(3, 7, dtype=torch.float64)
    strength = torch.tensor([0.05, 0.2, 0.6], dtype=torch.float64)
    if name == "oscar_prox":
        actual = oscar_prox(x, strength)[0]
    else:
        actual = isotonic(x) if name == "isotonic" else tv_prox(x, strength)
    for i in range(3):
        z = cvxpy.Variable(7)
        pairs = [cvxpy.abs(z[a] - z[b]) / 2 for a in range(7) for b in range(a)]
        penalty = {"tv_prox": cvxpy.norm1(cvxpy.diff(z)), "oscar_prox": sum(pairs), "isotonic": 0}[name]
        below = [cvxpy.diff(z) <= 0] if name == "isotonic" else []
        objective = cvxpy.sum_squares(z - x[i].numpy()) / 2 + float(strength[i]) * penalty
        cvxpy.Problem(cvxpy.Minimize(objective), below).solve(solver="CLARABEL")
        torch.testing.assert_close(actual[i], torch.from_numpy(z.value), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "file"), [("tv_prox", "reference"), ("tv_prox", "cpu"), ("oscar_prox", "reference")])
def test_absent_is_deleted(name, file):
    x = torch.randn(4, 9, dtype=torch.float64)
    keep = torch.tensor([0, 1, 1, 0, 0, 1, 1, 1, 0], dtype=torch.bool)
    strength = torch.full((4,), 0.1, dtype=torch.float64)
    prox = implementation(name, file)
    with_gaps = prox(x.masked_fill(~keep, -INF), strength)
    without = prox(x[:, keep], strength)
    if name == "oscar_prox":
        order = with_gaps[1]
        close(order[:, :5].long(), torch.nonzero(keep).squeeze(-1)[without[1].long()])
        assert (order[:, 5:] == torch.tensor([0, 3, 4, 8])).all()
        with_gaps, without = with_gaps[0], without[0]
    close(with_gaps[:, keep], without)
    assert (with_gaps[:, ~keep] == -INF).all()


@each_prox
def test_shift(name, file):
    """Scores far from 0 lose no more digits than their own rounding."""
    # multiples of 1/16 stay themselves at 1e6 in float32
    x = (16 * torch.randn(6, 30)).round() / 16
    prox = implementation(name, file)
    device = GPU if file == "cuda" else "cpu"
    args = () if name == "isotonic" else (torch.tensor([0.0, 0.05, 0.1, 0.2, 0.5, 1.0], device=device),)

    def run(scores):
        z = prox(scores.to(device), *args)
        return (z[0] if name == "oscar_prox" else z).cpu()

    assert (run(x + 1e6).double() - 1e6 - run(x).double()).abs().max() < 0.04


@each_prox
def test_fused_is_bit_equal(name, file):
    """In float32, neighbours are equal or visibly apart: where they are fused, they are so to the last bit."""
    x = (8 * torch.randn(8, 30)).round() / 8
    device = GPU if file == "cuda" else "cpu"
    args = () if name == "isotonic" else (torch.full((8,), 0.375 if name == "tv_prox" else 0.0625, device=device),)
    z = implementation(name, file)(x.to(device), *args)
    z = z[0].gather(-1, z[1].long()) if name == "oscar_prox" else z
    step = z.cpu().diff().abs()
    assert ((step == 0) | (step > 1e-4)).all()
    assert (step == 0).any()


@pytest.mark.parametrize("name", OPS)
def test_rows_are_independent(name):
    """A NaN stays in its row, and every row alone gives the same bits."""
    for args in arguments(name, 20, torch.float32):
        outputs = OPS[name](*args)
        for i in range(14):
            alone = OPS[name](*(a[i] for a in args))
            for together, single in (
                zip(outputs, alone, strict=True) if isinstance(outputs, tuple) else [(outputs, alone)]
            ):
                assert torch.equal(together[i].nan_to_num(7.0), single.nan_to_num(7.0))
        z = outputs[0] if isinstance(outputs, tuple) else outputs
        bad = ~(args[0] < INF).all(-1) if name != "segment_mean" else args[0].isnan().any(-1)
        assert z[bad].isnan().all()
        assert not z[~bad].isnan().any()


@pytest.mark.parametrize("name", OPS)
def test_opcheck(name):
    for args in arguments(name, 5, torch.float32):
        # it takes NaN for a difference
        torch.library.opcheck(OPS[name].op, tuple(a[:11] for a in args))


@pytest.mark.parametrize("name", OPS)
def test_vmap(name):
    for args in arguments(name, 5, torch.float32):
        mapped = torch.vmap(OPS[name])(*args)
        plain = OPS[name](*args)
        for a, b in zip(mapped, plain, strict=True) if isinstance(plain, tuple) else [(mapped, plain)]:
            close(a, b)
