"""The short ways to derivatives of chains on a GPU give the bits of the passes."""

import math

import pytest
import torch
from tolerances import equal

from polymax.kernels.chain import cuda, cuda_slopes

# the interpreter warns of NaN, of which NumPy takes a maximum
pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# instances, positions, states
SHAPES = [(3, 5, 4), (1, 4, 3), (2, 1, 3)]


def problem(batch, n, s, shared, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    unary = torch.randn(batch, n, s, generator=generator, dtype=dtype)
    if batch > 1:
        unary[1, 0, 0] = math.nan
    steps = (s, s) if shared else (batch, n - 1, s, s)
    lengths = torch.tensor([n, max(n - 2, 1), 0][:batch])
    return tuple(t.to(DEVICE) for t in (unary, torch.randn(steps, generator=generator, dtype=dtype), lengths))


def as_passes_take_it(transition):
    return transition if transition.dim() == 4 else transition[None, None]


def same(found, expected, law):
    for x, y in zip(found, expected, strict=True):
        equal(x, y.reshape(x.shape), law)


@pytest.mark.parametrize("alpha", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "of each step"])
@pytest.mark.parametrize("shape", SHAPES)
def test_same_as_the_passes(shape, shared, alpha):
    unary, transition, lengths = given = problem(*shape, shared)
    given_4d = unary, as_passes_take_it(transition), lengths
    v, chart = cuda.chain_inside(*given_4d, alpha)
    same(cuda.chain_inside(*given, alpha), (v, chart), "the value and its chart")
    g = torch.linspace(-1, 1, shape[0], device=DEVICE)
    found = cuda_slopes.slope(*given, v, chart, g, alpha)
    if not transition.numel():
        assert found is None, "the passes serve transitions that are empty"
        return
    assert found[1].shape == transition.shape
    same(found, cuda.chain_outside(*given_4d, chart, v.clamp(g, g), alpha), "slopes are NaN where values are")


@pytest.mark.parametrize("alpha", [1.0, 1.5, math.inf])
@pytest.mark.parametrize("full", [True, False], ids=["of each step", "shared"])
@pytest.mark.parametrize("shape", SHAPES)
def test_expectations_are_those_of_the_passes(shape, full, alpha):
    batch, n, s = shape
    unary, transition, lengths = given = problem(*shape, True, torch.float64)
    shared = transition[None, None]
    each = shared.expand(batch, n - 1, s, s) if full else shared
    _, chart = cuda.chain_inside(unary, shared, lengths, alpha)
    (kept, v), mu = cuda_slopes.mean(*given, full, alpha)
    same(mu, cuda.chain_outside(unary, each, lengths, chart, v.clamp(1, 1), alpha), "expectations")
    along = tuple(torch.linspace(-1, 2, m.numel(), dtype=m.dtype, device=DEVICE).reshape(m.shape) for m in mu)
    none = [torch.zeros_like(t) for t in along]
    for first in (True, False):
        for second in (True, False):
            moved = along[0] if first else None, along[1] if second else None
            tangents = along[0] if first else none[0], as_passes_take_it(along[1] if second else none[1])
            found = cuda_slopes.mean_slope(*given, kept, v, *moved, alpha)
            assert found[1].shape == transition.shape
            expected = cuda.chain_tangent(unary, shared, lengths, chart, v.clamp(1, 1), *tangents, alpha)
            same(found, expected[1:], "tangents that are not there are 0")


def test_chains_of_many_states():
    unary, transition, lengths = many = problem(1, 2, 65, True)
    assert cuda_slopes.mean(*many, True, 1.0) is None, "they are left to the passes"
    v, chart = cuda.chain_inside(*many, 1.0)
    shared = unary, transition[None, None], lengths
    same((v, chart), cuda.chain_inside(*shared, 1.0), "the value and its chart")
    same(cuda.chain_outside(*many, chart, v, 1.0), cuda.chain_outside(*shared, chart, v, 1.0), "expectations")
    tangents = torch.ones_like(unary), torch.ones_like(transition)
    found = cuda.chain_tangent(*many, chart, v, *tangents, 1.0)
    assert found[2].shape == transition.shape
    same(found, cuda.chain_tangent(*shared, chart, v, tangents[0], tangents[1][None, None], 1.0), "tangents")
