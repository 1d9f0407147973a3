"""Assignment: optimal against SciPy and enumeration, certified by its duals, by every kernel file."""

from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from tolerances import close, equal

import polymax as pm
from polymax.kernels.assignment import assignment
from polymax.structures.assignment import Assignment

INF, NAN = torch.inf, torch.nan
# where Triton's file runs: compiled, or in the interpreter
GPU = "cuda" if torch.cuda.is_available() else "cpu"
HAS_TRITON = find_spec("polymax.kernels.assignment.cuda") and find_spec("triton")
FILES = ["reference", "cpu", *(["cuda"] if HAS_TRITON else [])]
KINDS = ["normal", "integers", "few", "masked", "sparse"]


def solver(file, function="assignment"):
    function = getattr(import_module(f"polymax.kernels.assignment.{file}"), function)
    device = GPU if file == "cuda" else "cpu"
    return lambda *args: tuple(out.cpu() for out in function(*(a.to(device) for a in args)))


def problems(kind, batch, n, m, seed=0, dtype=torch.float64):
    """Scores, rows and columns of a ragged batch; NaN past the lengths."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, n, m, generator=g, dtype=torch.float64)
    if kind in ("integers", "few"):
        x = (x * (10 if kind == "integers" else 1)).round()
    if kind in ("masked", "sparse"):
        x[torch.rand(x.shape, generator=g) < (0.3 if kind == "masked" else 0.6)] = -INF
    rows, columns = torch.randint(n + 1, (batch,), generator=g), torch.randint(m + 1, (batch,), generator=g)
    rows[::3], columns[::3] = n, m
    outside = (torch.arange(n)[:, None] >= rows[:, None, None]) | (torch.arange(m) >= columns[:, None, None])
    return x.masked_fill(outside, NAN).to(dtype), rows, columns


def best_scores(scores, rows, columns):
    """The highest score of each instance, by SciPy; -inf where there is no assignment."""
    found = []
    for x, n, m in zip(scores.double().numpy(), rows.tolist(), columns.tolist(), strict=True):
        try:
            pairs = linear_sum_assignment(x[:n, :m], maximize=True)
            found.append(x[pairs].sum())
        except ValueError:
            found.append(-np.inf)
    return torch.tensor(found, dtype=torch.float64)


def certified(scores, rows, columns, match, u, v, tolerance):
    """Check that match is an assignment and that the duals prove it the best; its score, -inf where there is none."""
    n, m = scores.shape[1:]
    assert match.dtype == torch.long
    assert u.dtype == v.dtype == scores.dtype
    scores, u, v = scores.double(), u.double(), v.double()
    in_row, in_column = torch.arange(n) < rows[:, None], torch.arange(m) < columns[:, None]
    assert bool((match[~in_row] == -1).all()), "padding is -1"
    assert bool((u[~in_row] == 0).all() & (v[~in_column] == 0).all()), "duals of padding are 0"
    assert bool((match < columns[:, None]).all())
    none = (u == -INF).any(-1)
    assert bool((match[none] == -1).all())
    assert bool((v[none] == 0).all())
    hits = torch.nn.functional.one_hot(match + 1, m + 1)[..., 1:].sum(1)
    assert bool((hits <= 1).all()), "a column has at most one row"
    full = (match >= 0).sum(-1) == torch.minimum(rows, columns)
    assert bool((full | none).all()), "the shorter side is assigned whole"
    x = torch.where(in_row[:, :, None] & in_column[:, None, :], scores, -INF)
    slack = (u[:, :, None] + v[:, None, :] - x)[~none]
    assert bool((slack >= -tolerance).all()), "duals are feasible"
    pairs = torch.nn.functional.one_hot(match + 1, m + 1)[..., 1:].bool()[~none]
    assert bool((slack[pairs].abs() <= tolerance).all()), "assigned pairs are tight"
    wide = (rows <= columns)[:, None]
    free_column, free_row = in_column & (hits == 0), in_row & (match < 0)
    assert bool((v[free_column & ~none[:, None]] == 0).all()), "the dual of an unassigned column is 0"
    assert bool((u[free_row & ~none[:, None]] == 0).all()), "the dual of an unassigned row is 0"
    assert bool((v >= -tolerance)[in_column & wide].all()), "columns need no row: their duals are not negative"
    assert bool((u >= -tolerance)[in_row & ~wide & ~none[:, None]].all()), "rows need no column: likewise"
    score = torch.where(match >= 0, x.gather(2, match.clamp(min=0)[..., None]).squeeze(-1) if m else 0.0, 0.0).sum(-1)
    score = torch.where(none, -INF, score)
    gap = (u.sum(-1) + v.sum(-1) - score)[~none]
    assert bool((gap.abs() <= tolerance * (n + m)).all()), "no gap between an assignment and its duals"
    return score


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(6, 6), (5, 9), (9, 4), (2, 3)])
def test_optimal_and_certified(kind, shape):
    args = problems(kind, 500, *shape)
    score = certified(*args, *assignment(*args), 1e-9)
    close(score, best_scores(*args), "the best score is SciPy's")


@pytest.mark.parametrize("kind", [*KINDS, "products", "equal"])
def test_large_ones(kind):
    x, rows, columns = problems(kind, 6, 70, 75, seed=1)
    if kind == "products":
        # every pair of rows fights for the same columns
        x = x.new_ones(6, 70, 1).cumsum(1) * x.new_ones(6, 1, 75).cumsum(2)
    if kind == "equal":
        x = torch.zeros_like(x)
    x[:3] = torch.nan_to_num(x[:3], nan=0.5, neginf=-INF)
    x[:3, :, 70:] = NAN
    rows[:3], columns[:3] = 70, 70
    score = certified(x, rows, columns, *assignment(x, rows, columns), 1e-9)
    close(score, best_scores(x, rows, columns), "the best score is SciPy's")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("file", FILES)
def test_every_file(file, dtype):
    batch = 4 if file == "cuda" and GPU == "cpu" else 40
    for kind in KINDS:
        for n, m in [(1, 1), (1, 3), (3, 1), (4, 4), (3, 7), (7, 3)]:
            args = problems(kind, batch, n, m, dtype=dtype)
            tolerance = 1e-9 if dtype == torch.float64 else 1e-5
            score = certified(*args, *solver(file)(*args), tolerance)
            close(score, best_scores(*args), "the best score is SciPy's")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", FILES)
def test_odd_shapes(file):
    solve = solver(file)
    for batch, n, m in [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0)]:
        match, u, v = solve(torch.zeros(batch, n, m), torch.full((batch,), n), torch.full((batch,), m))
        assert match.shape == u.shape == (batch, n)
        assert v.shape == (batch, m)
        assert bool((match == -1).all() & (u == 0).all() & (v == 0).all())
    x, rows, columns = problems("normal", 3, 4, 5)
    for same in (x.transpose(1, 2).contiguous().transpose(1, 2), x.repeat_interleave(2, 2)[..., ::2]):
        for a, b in zip(solve(same, rows, columns), solve(x, rows, columns), strict=True):
            equal(a, b, "strides do not matter")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", FILES)
def test_bad_numbers_stay_in_their_instance(file):
    x = torch.randn(4, 3, 4)
    rows, columns = torch.full((4,), 3), torch.full((4,), 4)
    clean = solver(file)(x, rows, columns)
    x[0, 1, 2], x[2, 0, 0], x[3, 1] = NAN, INF, -INF
    match, u, v = solver(file)(x, rows, columns)
    for b in (0, 2):
        assert bool((match[b] == -1).all() & torch.isnan(u[b]).all() & torch.isnan(v[b]).all())
    assert bool((match[3] == -1).all() & (u[3] == -INF).all() & (v[3] == 0).all())
    for a, b in zip((match, u, v), clean, strict=True):
        equal(a[1], b[1], "bad numbers stay in their instance")


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("kind", "n", "m"), [("normal", 9, 14), ("few", 12, 12), ("masked", 14, 9), ("sparse", 4, 4)])
def test_many_programs_share_a_matrix(kind, n, m):
    args = problems(kind, 4, n, m)
    args[0][1, 0, 0] = NAN
    match, u, v = solver("cuda", "by_many")(*args)
    assert bool((match[1] == -1).all())
    rows, columns = args[1][1], args[2][1]
    if rows > 0 and columns > 0:
        assert bool(torch.isnan(u[1, :rows]).all() & torch.isnan(v[1, :columns]).all())
    kept = [0, 2, 3]
    args = [t[kept] for t in args]
    score = certified(*args, match[kept], u[kept], v[kept], 1e-9)
    close(score, best_scores(*args), "the best score is SciPy's")
    for a, b in zip((match[kept], u[kept], v[kept]), solver("cuda", "by_many")(*args), strict=True):
        equal(a, b, "the same matrices give the same bits")


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_program_ends_what_many_leave(monkeypatch):
    wide = import_module("polymax.kernels.assignment.cuda_wide")
    args = problems("products", 1, 7, 7)
    args[0][:] = torch.arange(1.0, 8)[:, None] * torch.arange(1.0, 8)
    left = []
    for most in (0, 10_000):
        monkeypatch.setattr(wide, "limit", lambda n, m, most=most: most)
        _, numbers, slot = wide.spread(*(t.to(GPU) for t in args))
        left.append(int(numbers[0, slot, wide.LEFT.value]))
        score = certified(*args, *solver("cuda", "by_many")(*args), 1e-9)
        close(score, best_scores(*args), "the best score is SciPy's")
    assert left[0] > 0 == left[1]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", FILES)
def test_ties_are_broken_the_same_way(file):
    x = torch.randint(0, 3, (1, 6, 6), generator=torch.Generator().manual_seed(0)).float().expand(4, 6, 6)
    sizes = torch.full((4,), 6), torch.full((4,), 6)
    first, again = solver(file)(x, *sizes), solver(file)(x, *sizes)
    for a, b in zip(first, again, strict=True):
        equal(a, b, "the same call gives the same bits")
        equal(a, a[:1].expand_as(a), "equal scores give equal assignments")


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_cuda_names_its_limit():
    with pytest.raises(ValueError, match="at most 4096 rows and columns on CUDA; got 2 and 5000"):
        solver("cuda")(torch.zeros(1, 2, 5000), torch.tensor([2]), torch.tensor([5000]))


@pytest.mark.device
@pytest.mark.skipif(GPU == "cpu", reason="large matrices are slow in the interpreter")
@pytest.mark.parametrize("kind", KINDS)
def test_large_ones_on_the_gpu(kind):
    for n, m in [(100, 130), (130, 100), (300, 300), (1000, 1000)]:
        args = problems(kind, 8, n, m, dtype=torch.float32)
        score = certified(*args, *solver("cuda")(*args), 1e-4)
        close(score / n, best_scores(*args) / n, "the best score is SciPy's")


@pytest.mark.device
@pytest.mark.skipif(GPU == "cpu", reason="large matrices are slow in the interpreter")
@pytest.mark.parametrize("kind", [*KINDS, "distances", "equal"])
@pytest.mark.parametrize("shape", [(1, 1000, 1000), (2, 700, 1500), (3, 900, 300), (1, 2500, 2500)])
def test_few_large_ones_on_the_gpu(kind, shape):
    x, rows, columns = problems(kind, *shape, dtype=torch.float64)
    if kind == "distances":
        x = -torch.cdist(torch.randn(shape[0], shape[1], 8), torch.randn(shape[0], shape[2], 8) + 1).square().double()
    if kind == "equal":
        x = torch.ones_like(x)
    first, again = solver("cuda")(x, rows, columns), solver("cuda")(x, rows, columns)
    for a, b in zip(first, again, strict=True):
        equal(a, b, "the same call gives the same bits")
    score = certified(x, rows, columns, *first, 1e-9)
    close(score, best_scores(x, rows, columns), "the best score is SciPy's")


def test_ties_of_float32_are_exact():
    # two assignments whose scores are equal, by sums that float32 rounds
    x = torch.tensor([[1e8, 3.0], [-3.0, -1e8]])[None]
    sizes = torch.tensor([2]), torch.tensor([2])
    match, *_ = assignment(x, *sizes)
    assert sum(x[0, i, j].double() for i, j in enumerate(match[0])) == 0
    x[0, 1, 1] += 8
    match, *_ = assignment(x, *sizes)
    assert match.tolist() == [[0, 1]]


def test_several_threads_and_batches():
    threads = torch.get_num_threads()
    args = problems("normal", 64, 30, 30, dtype=torch.float32)
    one = assignment(*args)
    try:
        torch.set_num_threads(3)
        many = assignment(*args)
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(one, many, strict=True):
        equal(a, b, "threads do not change results")


def test_warm_prices():
    from polymax.kernels.assignment.numba_match import MATCHED, best_match, workspace

    generator = np.random.default_rng(0)
    for shape in [(20, 20), (20, 25), (25, 20)]:
        x = generator.standard_normal(shape)
        match, u, v = np.empty(shape[0], np.int64), np.empty(shape[0]), np.empty(shape[1])
        for warm in (False, True, True):
            x += 0.1 * generator.standard_normal(shape)
            assert best_match(x, *shape, match, u, v, workspace(*shape), warm) == MATCHED
            sizes = torch.tensor([shape[0]]), torch.tensor([shape[1]])
            parts = (torch.from_numpy(a.copy())[None] for a in (match, u, v))
            score = certified(torch.from_numpy(x)[None], *sizes, *parts, 1e-9)
            close(score, best_scores(torch.from_numpy(x)[None], *sizes), "warm prices lead to the best score")


def test_lengths_and_batches():
    x, rows, columns = problems("normal", 6, 4, 5)
    structure = Assignment().with_lengths((rows.reshape(2, 3), columns.reshape(2, 3)))
    y = structure.map(x.reshape(2, 3, 4, 5))
    assert y.shape == (2, 3, 4, 5)
    for b in range(6):
        short = y.reshape(6, 4, 5)[b, : rows[b], : columns[b]]
        equal(short, Assignment().map(x[b, : rows[b], : columns[b]]), "padding is a shorter problem")
        assert y.reshape(6, 4, 5)[b].sum() == min(rows[b], columns[b]), "padding is exactly 0"


def test_infeasible_is_zeros():
    x = torch.zeros(2, 3, 3, 3)
    x[1, 2, :2, 1:] = -INF
    assert Assignment().feasible(x).tolist() == [[True, True, True], [True, True, False]]
    y, value = Assignment().map(x), pm.HardMax(Assignment()).max(x)
    assert bool((y[1, 2] == 0).all())
    assert value[1, 2] == -INF
    equal(y[0], Assignment().map(x[0]), "the other instances are what they are alone")
    assert bool((Assignment().duals(x).rows[1, 2] == -INF).all())


def test_nan_fills_its_instance():
    x = torch.randn(2, 3, 3)
    x[1, 0, 0] = NAN
    y = Assignment((torch.tensor([3, 2]), torch.tensor([3, 2]))).map(x)
    equal(y[0], Assignment().map(x[0]), "NaN stays in its instance")
    assert bool(torch.isnan(y[1, :2, :2]).all())
    assert bool((y[1, 2] == 0).all() & (y[1, :, 2] == 0).all())


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="pair"):
        Assignment(torch.tensor([1])).map(torch.zeros(1, 3, 3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"lengths\[1\] must be in \[0, 3\]"):
        Assignment((torch.tensor([1]), torch.tensor([4]))).map(torch.zeros(1, 3, 3))
    with pytest.raises(ValueError, match="columns must be"):
        Assignment().encode(torch.tensor([0, 5]), 2, 3)
    with pytest.raises(TypeError, match="permanent"):
        Assignment().logsumexp(torch.zeros(3, 3))
    with pytest.raises(TypeError, match="Assignment has no logsumexp"):
        pm.Marginals(Assignment())


def test_torch_around_the_operator():
    x, rows, columns = problems("normal", 3, 4, 4)
    torch.library.opcheck(assignment.op, (x, rows, columns))
    y = torch.func.vmap(Assignment().map)(torch.nan_to_num(x))
    equal(y, Assignment().map(torch.nan_to_num(x)), "vmap is a batch")
    compiled = torch.compile(Assignment().map, fullgraph=True, backend="aot_eager")
    equal(compiled(torch.nan_to_num(x)), y, "torch.compile changes nothing")
