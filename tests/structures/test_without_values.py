"""Tensors without values, fake ones and those on the meta device: results have their shapes, and nothing is kept.

Programs that plan memory, or export a model, call it with such tensors before they call it with real ones. A table
that a call keeps for the next must not be one of theirs.
"""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from cases import ROWS, every
from sets import TABLE
from tolerances import equal
from torch._subclasses.fake_tensor import FakeTensorMode

import polymax as pm
from polymax.structures.base import tensors

# sets may hold tensors of their own, with values
MODES = {"fake": (partial(FakeTensorMode, allow_non_fake_inputs=True), None), "meta": (nullcontext, "meta")}


def without_values(kind, call, shapes, *, dtype=torch.float32):
    """The shapes and dtypes of what a call gives for tensors of a kind, with gradients."""
    mode, device = MODES[kind]
    with mode():
        x = [torch.empty(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes]
        out = tensors(call(*x))
        slopes = torch.autograd.grad(sum(y.sum() for y in out), x, allow_unused=True)
        return [(tuple(y.shape), y.dtype) for y in (*out, *slopes) if y is not None]


@pytest.mark.parametrize("kind", MODES)
@every(ROWS)
def test_mappings(case, kind):
    # five dims, of which no other test has kept anything
    shape = (2, 1, 1, 3, 6)
    for method in ("argmax", "max"):
        call = getattr(case.regularizer(), method)
        found = without_values(kind, call, [shape])
        y = call(torch.zeros(shape, requires_grad=True))
        assert found == [(tuple(y.shape), y.dtype), (shape, torch.float32)]
        assert type(y) is torch.Tensor
        assert torch.isfinite(y).all(), "what was kept has no values"


@pytest.mark.parametrize("kind", MODES)
@pytest.mark.parametrize("row", [row for row in TABLE if row.able("count")], ids=lambda row: row.name)
def test_sets(row, kind):
    first, *others = row.events(row.shape)
    shapes = [(13, *first), *others]
    for op in (pm.Marginals(row.structure), pm.Marginals(row.structure).max):
        found = without_values(kind, op, shapes)
        x = [torch.zeros(shape, requires_grad=True) for shape in shapes]
        out = tensors(op(*x))
        assert found[: len(out)] == [(tuple(y.shape), y.dtype) for y in out]
        equal(out[0][0], out[0][12], "equal scores have equal results")


@pytest.mark.parametrize("kind", MODES)
def test_attention_and_losses(kind):
    def attend(q, k, v):
        return pm.nn.scaled_dot_product_attention(q, k, v, is_causal=True, mapping=pm.entmax)

    shape = (1, 2, 19, 8)
    assert without_values(kind, attend, [shape] * 3)[0] == (shape, torch.float32)

    def loss(hidden, weight):
        return pm.linear_entmax_loss(hidden, weight, torch.zeros(5, dtype=torch.long, device=hidden.device))

    assert without_values(kind, loss, [(5, 8), (11, 8)])[0] == ((), torch.float32)
