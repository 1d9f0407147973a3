"""Tokens brought to the front: every device against the reference, the transpose, and derivatives of nn.CRF."""

from importlib import import_module

import pytest
import torch
from tolerances import close, equal
from torch.func import grad, jvp, vmap

import polymax as pm
from polymax.kernels import tokens
from polymax.kernels.tokens import reference

GPU = torch.cuda.is_available()
SHAPES = [(3, 5, 4), (2, 1, 3), (1, 7, 1), (2, 0, 3), (0, 4, 3), (2, 3, 0)]


def problem(shape, device="cpu"):
    generator = torch.Generator().manual_seed(5)
    batch, n, s = shape
    kept = torch.rand(batch, n, generator=generator) < 0.6
    kept[1:2] = False
    # not contiguous, and a row that all instances share
    x = torch.randn(batch, n, 2 * s, generator=generator)[..., ::2]
    start, end = torch.randn(1, s, generator=generator).expand(batch, s), torch.randn(batch, s, generator=generator)
    return [t.to(device) for t in (x, start, end, kept)]


@pytest.mark.parametrize("file", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", SHAPES)
def test_parity(shape, file):
    if file == "cuda":
        pytest.importorskip("triton")
    module = import_module(f"polymax.kernels.tokens.{file}")
    x, start, end, kept = problem(shape, "cuda" if file == "cuda" and GPU else "cpu")
    order, lengths = module.token_order(kept)
    for found, expected in zip((order, lengths), reference.token_order(kept), strict=True):
        equal(found, expected, "tokens in order")
    for places in (order, None):
        found = module.tokens_first(x, start, end, places, lengths)
        equal(found, reference.tokens_first(x, start, end, places, lengths), "tokens first")
        assert found.is_contiguous()
        slopes = module.tokens_back(x, places, lengths)
        for slope, expected in zip(slopes, reference.tokens_back(x, places, lengths), strict=True):
            equal(slope, expected, "tokens back")
        moved = sum((a * b).sum() for a, b in zip(slopes, (x, start, end), strict=True))
        close(moved, (found * x).sum(), "one is the transpose of the other")


def test_opcheck(device):
    x, start, end, kept = problem((3, 5, 4), device)
    order, lengths = tokens.token_order(kept)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(tokens.token_order.op, (kept,), test_utils=checks)
    for places in (order, None):
        torch.library.opcheck(tokens.tokens_first.op, (x, start, end, places, lengths), test_utils=checks)
        torch.library.opcheck(tokens.tokens_back.op, (x, places, lengths), test_utils=checks)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_derivatives_of_the_module(device):
    crf = pm.nn.CRF(3).double().to(device)
    x, _, _, kept = problem((3, 5, 3), device)
    x = x.double().contiguous()
    tags = torch.zeros(3, 5, dtype=torch.long, device=device)
    names = dict(crf.named_parameters())

    def loss(x, parameters, kept):
        return torch.func.functional_call(crf, parameters, (x, tags[: len(x)], kept), {"reduction": "sum"})

    slope = grad(loss)(x, names, kept)
    along = torch.ones_like(x)
    close(jvp(lambda x: loss(x, names, kept), (x,), (along,))[1], (slope * along).sum(), "forward mode in emissions")
    moved = {name: torch.ones_like(p) for name, p in names.items()}
    of_names = grad(loss, argnums=1)(x, names, kept)
    expected = sum((of_names[name] * moved[name]).sum() for name in names)
    close(jvp(lambda p: loss(x, p, kept), (names,), (moved,))[1], expected, "forward mode in parameters")
    each = vmap(grad(lambda x, kept: loss(x[None], names, kept[None])))(x, kept)
    close(each, slope, "instances do not meet")
    y = x.clone().requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda y, *p: loss(y, dict(zip(names, p, strict=True)), kept), (y, *crf.parameters())
    )
