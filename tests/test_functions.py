"""Laws of all functions of instances: empty batches change nothing, and derivatives are derived again."""

import warnings

import pytest
import torch
from functions_table import FUNCTIONS
from test_untouched import untouched

# values that count: their derivative is 0
COUNTS = {"edr_distance", "lcss_distance"}


def drawn(name, count=2):
    function, event = FUNCTIONS[name]
    return function, torch.randn(count, *event, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", FUNCTIONS)
def test_empty_batches(name):
    function, x = drawn(name, 0)
    x.requires_grad_()
    found = function(x)
    assert len(found) == 0
    if found.requires_grad:
        (slope,) = torch.autograd.grad(found.sum(), x)
        assert slope.shape == x.shape


@pytest.mark.parametrize("name", FUNCTIONS)
def test_callers_keep_their_tensors(name):
    function, x = drawn(name)
    untouched(lambda x: (function(x),), x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_derivatives(name):
    """A derivative is that of the function, and a second one is that of the first, or an error: never less than all."""
    function, x = drawn(name, 1)
    x.requires_grad_()
    found = function(x)
    if name in COUNTS:
        assert not found.requires_grad
        return
    slopes = torch.linspace(1, 2, found.numel(), dtype=found.dtype).reshape(found.shape)
    (first,) = torch.autograd.grad(found, x, slopes, create_graph=True)
    along = torch.randn(x.shape, generator=torch.Generator().manual_seed(9), dtype=x.dtype)
    step = 1e-6 * along

    def value(x):
        return float((function(x) * slopes).sum().detach())

    def slope(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, slopes)[0]

    expected = (value(x + step) - value(x - step)) / 2e-6
    assert float((first * along).sum()) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    if not first.requires_grad:
        # a function of straight pieces
        assert (slope(x + step) - slope(x - step)).abs().max() < 1e-9
        return
    try:
        second = torch.autograd.grad((first * along).sum(), x, allow_unused=True)[0]
    except (RuntimeError, NotImplementedError):
        return
    numeric = (slope(x + step) - slope(x - step)) / 2e-6
    found = torch.zeros_like(x) if second is None else second
    assert (found - numeric).abs().max() < 1e-3 * (1 + numeric.abs().max())
