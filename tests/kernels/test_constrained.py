"""The kernel of constraint rows: devices against the reference, optimality, the operator's own laws."""

import pytest
import torch

from polymax.kernels.constrained import constrained, constrained_response, reference

SIZES = [(2, 3, 0, 1, 1), (4, 6, 3, 3, 1), (4, 10, 5, 4, 4), (6, 30, 20, 6, 2), (3, 1, 2, 1, 1)]


def problem(b, n, r, k, g, scale, device, seed=0):
    """Random rows of all kinds that some 0/1 point keeps, or pays for; and rows of fewer variables."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    columns = torch.full((g, r, k), -1)
    for i in range(g):
        for j in range(r):
            size = int(torch.randint(1, min(k, n) + 1, (), generator=generator))
            columns[i, j, :size] = torch.randperm(n, generator=generator)[:size]
    kind = torch.randint(0, 4, (g, r), generator=generator)
    ends = torch.tensor([[-torch.inf, 0, -torch.inf, 0], [torch.inf, torch.inf, 0, 0.7]], dtype=torch.float64)
    signs = torch.where(rand(g, r, k) < 0.3, -1.0, 1.0).double()
    y = (rand(g, n) < 0.4).double()
    offset = (reference.dense(columns, signs, n, g) @ y.unsqueeze(-1)).squeeze(-1)
    least, most = (e[kind].repeat_interleave(b // g, 0) for e in ends)
    x = scale * torch.randn(b, n, generator=generator, dtype=torch.float64)
    weight = rand(b, n) + 0.5
    found = (
        x,
        weight,
        torch.zeros_like(x),
        torch.ones_like(x),
        columns,
        signs,
        offset,
        least,
        most,
        torch.zeros_like(least),
    )
    return tuple(t.to(device) for t in found)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_devices_agree(size, scale, device):
    args = problem(*size, scale, device)
    mu, tau, missed, _rounds = constrained(*args, 400)
    other = reference.constrained(*args, 400)
    torch.testing.assert_close(mu, other[0], atol=1e-9 * scale, rtol=0)
    assert missed.numel() == 0 or float(missed.max()) < 1e-9 * scale
    x, weight, lower, upper, columns, signs, _offset, least, most, _ = args
    # stationarity: mu is what the prices say
    a = reference.dense(columns, signs, x.shape[1], len(x))
    torch.testing.assert_close(mu, ((x - (a.mT @ tau.unsqueeze(-1)).squeeze(-1)) / weight).clamp(lower, upper))
    free, tight = (mu > 0) & (mu < 1), (tau > least) & (tau < most)
    g = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    moved = constrained_response(free, tight, weight, columns, signs, g)
    torch.testing.assert_close(moved, reference.constrained_response(free, tight, weight, columns, signs, g))
    # a linear map that keeps what is tight
    held = torch.where(tight, (a @ moved.unsqueeze(-1)).squeeze(-1), 0)
    assert held.numel() == 0 or float(held.abs().max()) < 1e-9


# the interpreter computes the lanes that a GPU would mask, with NumPy's warnings about them
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("size", "scale", "matrix"),
    [((2, 3, 0, 1, 1), 1.0, True), ((2, 6, 3, 3, 1), 5.0, False), ((2, 10, 5, 4, 2), 1.0, True)],
)
@pytest.mark.device
def test_triton(size, scale, matrix, monkeypatch):
    cuda = pytest.importorskip("polymax.kernels.constrained.cuda")
    if not matrix:
        monkeypatch.setattr("polymax.kernels.constrained.cuda_lists._MATRIX", 0)
    args = problem(*size, scale, "cuda" if torch.cuda.is_available() else "cpu")
    mu, tau, missed, _rounds = cuda.constrained(*args, 400)
    torch.testing.assert_close(mu, reference.constrained(*args, 400)[0], atol=1e-9 * scale, rtol=0)
    assert float(missed.max()) < 1e-9 * scale
    x, weight, _, _, columns, signs, _offset, least, most, _ = args
    free, tight = (mu > 0) & (mu < 1), (tau > least) & (tau < most)
    moved = cuda.constrained_response(free, tight, weight, columns, signs, x)
    torch.testing.assert_close(moved, reference.constrained_response(free, tight, weight, columns, signs, x))


def test_warm_start_and_limit(device):
    args = problem(4, 10, 5, 4, 4, 3.0, device)
    mu, tau, _, rounds = constrained(*args, 400)
    again, _, _, few = constrained(*args[:-1], tau, 400)
    torch.testing.assert_close(mu, again, atol=1e-10, rtol=0)
    assert bool((few <= rounds).all())


def test_operator(device):
    args = problem(2, 6, 3, 3, 1, 1.0, device)
    torch.library.opcheck(constrained.op, (*args, 50))
    free = torch.ones(2, 6, dtype=torch.bool, device=device)
    tight = torch.ones(2, 3, dtype=torch.bool, device=device)
    torch.library.opcheck(constrained_response.op, (free, tight, args[1], args[4], args[5], args[0]))
    each = torch.vmap(lambda g: constrained_response(free, tight, args[1], args[4], args[5], g))
    g = torch.randn(3, 2, 6, dtype=torch.float64, device=device)
    for i in range(3):
        torch.testing.assert_close(each(g)[i], constrained_response(free, tight, args[1], args[4], args[5], g[i]))
