"""Rows whose logits are kept until their threshold is known: hostile rows, bits, and gradients that are scaled."""

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from tolerances import ABSOLUTE, close, equal

import polymax as pm
from polymax.kernels.linear_loss import linear_loss_scale, passes, reference

FILES = ["cpu", *(["cuda"] if find_spec("triton") else [])]
GPU = torch.cuda.is_available()
ROWS, WORDS, SIZE = 9, 70, 6


@pytest.fixture
def kept(monkeypatch):
    """Return a kernel file, with lists of two places, so that all rows are kept, and small blocks."""

    def of_file(file):
        module = import_module(f"polymax.kernels.linear_loss.{file}")
        size = {"entries": 4 * WORDS, "near": 2 * WORDS} if file == "cpu" else {"words": 16}
        monkeypatch.setattr(module, "STEPS", replace(module.STEPS, keeping=module.STEPS.keeping._replace(**size)))
        monkeypatch.setattr(passes, "capacity", lambda words: 2)
        return module

    return of_file


def problem(dtype, deviation=0.05, size=SIZE):
    generator = torch.Generator().manual_seed(2)

    def noise(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    hidden, weight, bias = noise(ROWS, size), deviation * noise(WORDS, size), deviation * noise(WORDS)
    named = torch.randint(WORDS, (ROWS, 1), generator=generator)
    return [t.to(dtype) for t in (hidden, weight, bias)], named


def slopes(module, given, named, alpha, softcap=0.0):
    device = "cuda" if GPU and module.__name__.endswith("cuda") else "cpu"
    hidden, weight, bias, named = (t.to(device) for t in (*given, named))
    n, real = len(hidden), torch.promote_types(hidden.dtype, torch.float32)
    grads = [torch.full(shape, g, dtype=real, device=device) for shape, g in (((n,), 1.0), ((n, 1), -1.0), ((n,), 0.0))]
    found = module.linear_loss_slopes(*grads, hidden, weight, bias, named, None, alpha, None, softcap, 1.0, True, True)
    return [t.cpu() for t in found]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.4, 1.5, 2.0])
def test_hostile_rows_stay_their_own(file, alpha, kept):
    """Huge scores, equal scores, words of -inf and a NaN: all other rows are those of the formula."""
    module = kept(file)
    for dtype in (torch.float32, torch.bfloat16) if file == "cuda" else (torch.float64, torch.float32):
        given, named = problem(dtype)
        hidden, _, bias = given
        bias[::5] = -torch.inf
        named[named % 5 == 0] += 1
        hidden[1], hidden[4] = torch.nan, 0
        hidden[3] *= 1e4
        found = slopes(module, given, named, alpha)
        truth = slopes(reference, [t.double() for t in given], named, alpha)
        fine = torch.arange(ROWS) != 1
        # what is kept is rounded to the dtype
        tolerance = 2 * ABSOLUTE[dtype]
        for actual, expected in zip((found[0], found[1], found[3]), (truth[0], truth[1], truth[3]), strict=True):
            actual, expected = actual[fine].double(), expected[fine]
            scale = expected.abs().amax(-1, keepdim=True).clamp(min=1)
            assert ((actual - expected).abs() <= tolerance * scale).all(), "rows are those of the formula"
        assert found[0][1].isnan()
        assert found[3][1].isnan().all(), "a NaN is not hidden"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", FILES)
def test_a_row_does_not_depend_on_its_neighbours(file, kept):
    module = kept(file)
    given, named = problem(torch.float32)
    first = slopes(module, given, named, 1.5)
    given[0][1:] = given[0][1:].flip(0) * 3
    second = slopes(module, given, named, 1.5)
    equal(first[0][:1], second[0][:1], "the value of a row is its own")
    equal(first[3][:1], second[3][:1], "and its gradient")
    again = slopes(module, given, named, 1.5)
    for a, b in zip(second, again, strict=True):
        equal(a, b, "the same call gives the same bits")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_references_far_below_the_largest_score(alpha, kept, monkeypatch):
    """The first named word and the sample may miss the largest score by far."""
    module = kept(FILES[-1])
    if FILES[-1] == "cuda":
        monkeypatch.setattr(module, "REFERRED", 32)
        monkeypatch.setattr(module, "SAMPLE", 32)
    given, named = problem(torch.float32)
    # no part of any sample of 32 words at even distances
    given[2][1] = 300.0
    given[2][3] = -500.0
    named[:] = 4
    found, truth = slopes(module, given, named, alpha), slopes(reference, [t.double() for t in given], named, alpha)
    for actual, expected in zip(found, truth, strict=True):
        scale = float(expected.abs().max().clamp(min=1))
        close(actual / scale, expected / scale, "far scores have their weights")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("factor", [1.0, -2.5])
def test_gradients_times_a_number(file, factor):
    device = "cuda" if GPU and file == "cuda" else "cpu"
    module = import_module(f"polymax.kernels.linear_loss.{file}")
    for dtype in (torch.float32, torch.float64) if device == "cpu" else (torch.float32, torch.bfloat16):
        x = torch.randn(3, 5000, device=device).to(dtype)
        expected = (x.double() * factor).to(dtype)
        module.linear_loss_scale(x, torch.tensor(factor, device=device))
        equal(x, expected, "in its place")
        module.linear_loss_scale(x[:, :0], torch.tensor(factor, device=device))
    torch.library.opcheck(
        linear_loss_scale.op, (torch.ones(3), torch.tensor(2.0)), test_utils=("test_schema", "test_faketensor")
    )


def test_a_loss_times_a_number_has_its_gradient():
    (hidden, weight, bias), named = problem(torch.float64, 2.0)
    inputs = [t.requires_grad_() for t in (hidden, weight, bias)]
    for alpha in (1.0, 1.5):
        loss = pm.linear_entmax_loss(*inputs[:2], named[:, 0], inputs[2], alpha=alpha)
        plain = torch.autograd.grad(loss, inputs, retain_graph=True)
        # gradients that were computed with the value are computed again
        for a, b in zip(torch.autograd.grad(3 * loss, inputs), plain, strict=True):
            close(a, 3 * b, "linear in the loss")
