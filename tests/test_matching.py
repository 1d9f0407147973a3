"""linear_sum_assignment: equal to SciPy on problems of every shape, alone, in batches and ragged."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from tolerances import equal

import polymax as pm

INF, NAN = torch.inf, torch.nan
SHAPES = [(0, 0), (0, 3), (3, 0), (1, 1), (1, 7), (7, 1), (4, 4), (5, 9), (9, 5), (23, 23), (17, 40), (40, 17)]


def equal_to_scipy(cost, maximize=False, unique=True):
    """Check pairs of one matrix: those of SciPy if the best assignment is unique, else pairs of the same cost."""
    rows, columns = pm.linear_sum_assignment(cost, maximize)
    expected = linear_sum_assignment(cost.double().numpy(), maximize)
    assert rows.dtype == columns.dtype == torch.long
    if unique:
        assert rows.tolist() == expected[0].tolist()
        assert columns.tolist() == expected[1].tolist()
    assert rows.shape == columns.shape == (min(cost.shape),)
    assert bool((rows.diff() > 0).all()), "rows ascend"
    assert len(set(columns.tolist())) == min(cost.shape)
    x = cost.double()
    assert x[rows, columns].sum().item() == pytest.approx(x.numpy()[expected].sum(), rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("maximize", [False, True])
def test_equal_to_scipy(shape, maximize):
    g = torch.Generator().manual_seed(0)
    for scale in (1.0, 1e-30, 1e30, 1e300):
        for _ in range(3):
            equal_to_scipy(torch.randn(shape, generator=g, dtype=torch.float64) * scale, maximize)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        equal_to_scipy(torch.randn(shape, generator=g).to(dtype), maximize, unique=dtype == torch.float32)
    for dtype in (torch.int64, torch.int8, torch.uint8, torch.bool):
        high = 2**50 if dtype == torch.int64 else 2 if dtype == torch.bool else 100
        equal_to_scipy(torch.randint(high, shape, generator=g).to(dtype), maximize, unique=dtype == torch.int64)
    # ties, and forbidden pairs
    equal_to_scipy(torch.randint(3, shape, generator=g).double(), maximize, unique=False)
    cost = torch.randn(shape, generator=g, dtype=torch.float64)
    cost[torch.rand(shape, generator=g) < 0.1] = -INF if maximize else INF
    if cost.numel() > 20:
        equal_to_scipy(cost, maximize)


KINDS = {
    "normal": lambda g, *shape: g.standard_normal(shape),
    "uniform": lambda g, *shape: g.random(shape, dtype=np.float32),
    "integers": lambda g, *shape: g.integers(-(2**40), 2**40, shape),
    "tied": lambda g, *shape: g.integers(0, 3, shape).astype(float),
    "distances": lambda g, n, m: np.square(g.random((n, 1, 3)) - g.random((m, 3))).sum(-1),
    "products": lambda g, n, m: np.outer(np.arange(n) + 1.0, np.arange(m) + 1.0),
    "masked": lambda g, *shape: np.where(g.random(shape) < 0.2, np.inf, g.standard_normal(shape)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_costs_of_random_shapes_are_those_of_scipy(kind):
    g = np.random.default_rng(0)
    solved = 0
    for k in range(100):
        n, m = g.integers(0, 200 if k % 20 == 0 else 30, 2)
        cost = KINDS[kind](g, n, n if k % 3 == 0 else m)
        try:
            expected = linear_sum_assignment(cost)
        except ValueError:
            with pytest.raises(ValueError, match="infeasible"):
                pm.linear_sum_assignment(torch.from_numpy(cost))
            continue
        rows, columns = (t.numpy() for t in pm.linear_sum_assignment(torch.from_numpy(cost)))
        solved += 1
        assert len(set(rows)) == len(set(columns)) == len(expected[0])
        total = cost[rows, columns].sum()
        if kind in ("integers", "tied", "products"):
            assert total == cost[expected].sum()
        assert total == pytest.approx(cost[expected].sum(), rel=1e-13 if cost.dtype != np.float32 else 1e-6)
    assert solved > 60


@pytest.mark.parametrize(("n", "m"), [(6, 6), (4, 9), (9, 4), (5, 0), (0, 5)])
def test_ragged_batches(n, m):
    g = torch.Generator().manual_seed(1)
    cost = torch.randn(3, 8, n, m, generator=g, dtype=torch.float64)
    sizes = torch.randint(n + 1, (3, 8), generator=g), torch.randint(m + 1, (3, 8), generator=g)
    for lengths in (None, sizes):
        x = cost.clone()
        if lengths is not None:
            outside = torch.arange(n)[:, None] >= lengths[0][..., None, None]
            x[outside | (torch.arange(m) >= lengths[1][..., None, None])] = NAN
        rows, columns = pm.linear_sum_assignment(x, lengths=lengths)
        assert rows.shape == columns.shape == (3, 8, min(n, m))
        assert rows.is_contiguous()
        assert columns.is_contiguous()
        for at in np.ndindex(3, 8):
            height, width = (n, m) if lengths is None else (int(t[at]) for t in lengths)
            expected = linear_sum_assignment(x[at][:height, :width].numpy())
            for found, known in zip((rows[at], columns[at]), expected, strict=True):
                padding = [-1] * (min(n, m) - len(known))
                assert found.tolist() == [*known.tolist(), *padding]


@pytest.mark.parametrize("lengths", [None, (torch.tensor([3, 3, 2]), torch.tensor([4, 4, 2]))])
@pytest.mark.parametrize("flip", [False, True])
def test_problems_without_an_assignment(lengths, flip):
    cost = torch.randn(3, 3, 4)
    cost[1, :2, 1:] = INF
    if flip:
        cost, lengths = cost.mT, lengths and lengths[::-1]
    with pytest.raises(ValueError, match=r"infeasible in instance \(1,\).*\+inf"):
        pm.linear_sum_assignment(cost, lengths=lengths)
    with pytest.raises(ValueError, match=r"infeasible: .*-inf forbids"):
        pm.linear_sum_assignment(-cost[1], maximize=True)
    found = pm.linear_sum_assignment(cost, lengths=lengths, infeasible="skip")
    alone = pm.linear_sum_assignment(cost[::2], lengths=lengths and tuple(t[::2] for t in lengths))
    for t, other in zip(found, alone, strict=True):
        assert t[1].tolist() == [-1, -1, -1]
        equal(t[::2], other, "the other problems are what they are alone")


def test_undefined_costs_and_wrong_arguments():
    cost = torch.zeros(2, 3, 3)
    for bad, maximize in ((NAN, False), (NAN, True), (-INF, False), (INF, True)):
        x = cost.clone()
        x[1, 2, 0] = bad
        for infeasible in ("raise", "skip"):
            with pytest.raises(ValueError, match=r"got NaN or .inf in instance \(1,\)"):
                pm.linear_sum_assignment(x, maximize, infeasible=infeasible)
        inside = torch.tensor([2, 2])
        assert pm.linear_sum_assignment(x, maximize, (inside, inside))[0].tolist() == [[0, 1, -1]] * 2
    with pytest.raises(ValueError, match="'raise' or 'skip'; got 'ignore'"):
        pm.linear_sum_assignment(cost, infeasible="ignore")
    with pytest.raises(ValueError, match=r"cost must be \(\*batch, n, m\); got \(3,\)"):
        pm.linear_sum_assignment(cost[0, 0])
    with pytest.raises(TypeError, match=r"cost must be float64.*complex64"):
        pm.linear_sum_assignment(cost.to(torch.complex64))
    with pytest.raises(TypeError, match=r"use torch\.from_numpy"):
        pm.linear_sum_assignment(cost.numpy())
    with pytest.raises(TypeError, match="pair"):
        pm.linear_sum_assignment(cost, lengths=inside)


def test_torch_around_it():
    cost = torch.randn(4, 5, 3, requires_grad=True)
    found = pm.linear_sum_assignment(cost)
    assert not any(t.requires_grad for t in found)

    def skip(x):
        return pm.linear_sum_assignment(x, infeasible="skip")

    compiled = torch.compile(skip, fullgraph=True, backend="aot_eager")
    for function in (skip, torch.func.vmap(skip), compiled):
        for t, other in zip(function(cost.detach()), found, strict=True):
            equal(t, other, "the same pairs")
    assert skip(torch.empty(2, 5, 3, device="meta"))[0].shape == (2, 3)
