"""Tensors of other layouts give what contiguous ones give, forward and backward: memory is read as torch reads it."""

import warnings

import pytest
import sets
import torch
from cases import CASES, every
from functions_table import FUNCTIONS
from sets import TABLE
from test_untouched import FUNCTIONS as LARGER
from test_untouched import smoothings
from tolerances import close

from polymax.structures.base import tensors


def strided(x):
    apart = torch.zeros(*x.shape, 3, dtype=x.dtype)
    apart[..., 1] = x
    return apart[..., 1]


def transposed(x):
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def negative(x):
    """The numbers in memory have other signs, as in the imaginary part of a conjugate, and the tensor says so."""
    return torch._neg_view(-x) if x.is_floating_point() else x


LAYOUTS = pytest.mark.parametrize("layout", [strided, transposed, negative])
# where rows take long
FEW = pytest.mark.parametrize("layout", [transposed, negative])


def same(function, layout, *given):
    found = []
    for change in (torch.clone, layout):
        leaves = [change(t).requires_grad_(t.is_floating_point()) for t in given]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = tensors(function(*leaves))
            derived = [t for t in outputs if t.requires_grad]
            slopes = [torch.linspace(1, 2, t.numel(), dtype=t.dtype).reshape(t.shape) for t in derived]
            wanted = [t for t in leaves if t.requires_grad]
            grads = torch.autograd.grad(derived, wanted, slopes, allow_unused=True) if derived else ()
        found.append([t for t in (*outputs, *grads) if t is not None])
    for a, b in zip(*found, strict=True):
        close(b.detach(), a.detach(), "a layout changes nothing")


@LAYOUTS
@every(CASES)
def test_regularizers(case, layout):
    same(lambda x: (case.regularizer().argmax(x), case.regularizer().max(x)), layout, case.scores())


@FEW
@sets.every(TABLE)
def test_sets(row, layout):
    scores = row.scores(batch=(2,))
    for smoothing in smoothings(row)[:-1]:
        same(smoothing, layout, *scores)


@LAYOUTS
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, layout):
    function, event = FUNCTIONS[name]
    x = torch.randn(2, *event, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    same(lambda x: (function(x),), layout, x)


@LAYOUTS
@pytest.mark.parametrize("name", LARGER)
def test_functions_of_several_tensors(name, layout):
    function, *shapes = LARGER[name]
    same(function, layout, *(s.clone() if isinstance(s, torch.Tensor) else torch.randn(s) for s in shapes))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_expanded_instances(name):
    function, event = FUNCTIONS[name]
    x = torch.randn(1, *event, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    same(lambda x: (function(x),), lambda x: x[:1].expand_as(x), x.expand(2, *event))
