"""A masked entry is an absent entry: in values, in gradients, and where nothing is left."""

import pytest
import torch
from cases import CASES, PARAMETERS, every
from tolerances import close, equal

from polymax.testing import generic_scores

METHODS = pytest.mark.parametrize("method", ["argmax", "max"])


def masks(case, n):
    """Masks with holes at the ends and inside; enough entries stay."""
    rows = [
        [True] * n,
        [False] + [True] * (n - 1),
        [True] * (n - 1) + [False],
        [True, True, False] + [True] * (n - 3),
    ]
    rows += [[i % 2 == 0 or i < 2 for i in range(n)]]
    return torch.tensor([row for row in rows if sum(row) >= case.least])


def vjp(case, method, x, mask=None, **changes):
    """Result, and the gradient of the sum of its squares in the scores."""
    scores = x.clone().requires_grad_()
    out = getattr(case.regularizer(**changes), method)(scores, mask=mask)
    (slope,) = torch.autograd.grad(out.square().sum(), scores)
    return out.detach(), slope


@METHODS
@every(CASES)
def test_mask_is_crop(case, method, device):
    keep = masks(case, 7).to(device)
    x = torch.randn(keep.shape, dtype=torch.float64, device=device)
    out, slope = vjp(case, method, x, keep)
    assert (slope[~keep] == 0).all(), "the gradient of a masked score is exactly 0"
    for i in range(len(keep)):
        cropped, cropped_slope = vjp(case, method, x[i][keep[i]])
        close(out[i][keep[i]] if method == "argmax" else out[i], cropped, "mask == crop")
        close(slope[i][keep[i]], cropped_slope, "mask == crop in gradients")
    if method == "argmax":
        assert (out[~keep] == 0).all(), "the weight of a masked entry is exactly 0"


@METHODS
@every(CASES)
def test_infinite_scores_are_masked(case, method, device):
    keep = masks(case, 7).to(device)
    x = torch.randn(keep.shape, dtype=torch.float64, device=device)
    by_mask, by_score = vjp(case, method, x, keep), vjp(case, method, x.masked_fill(~keep, -torch.inf))
    equal(by_score[0], by_mask[0], "-inf == mask")
    equal(by_score[1], by_mask[1], "-inf == mask in gradients")


@every(CASES)
def test_masks_broadcast(case, device):
    x = torch.randn(2, 3, 6, dtype=torch.float64, device=device)
    omega = case.regularizer()
    keep = torch.tensor([True, True, False, True, True, True], device=device)
    full = omega.argmax(x, mask=keep.expand(2, 3, 6))
    close(omega.argmax(x, mask=keep), full, "a mask broadcasts")
    close(omega.argmax(x.transpose(1, 2), dim=1, mask=keep[:, None]).transpose(1, 2), full, "a mask follows dim")


@METHODS
@every(CASES)
def test_nothing_left(case, method, device):
    x = torch.randn(3, 6, dtype=torch.float64, device=device, requires_grad=True)
    keep = torch.tensor([[True], [False], [True]], device=device).expand(3, 6)
    out = getattr(case.regularizer(), method)(x, mask=keep)
    nothing = torch.zeros_like(x[1]) if method == "argmax" else torch.tensor(-torch.inf, dtype=x.dtype, device=device)
    equal(out[1].detach(), nothing.detach(), "a fully masked row has no weights, and -inf as its max")
    (slope,) = torch.autograd.grad(out[[0, 2]].sum() + out[1].sum(), x, create_graph=True)
    assert (slope[1] == 0).all(), "the gradient of a fully masked row is 0"
    assert torch.isfinite(slope).all(), "other rows do not notice"
    if slope.requires_grad:
        (second,) = torch.autograd.grad(slope.square().sum(), x, allow_unused=True, materialize_grads=True)
        assert torch.isfinite(second).all(), "second derivatives of a fully masked row are finite"


@METHODS
@pytest.mark.parametrize(("case", "name"), PARAMETERS)
def test_parameters_of_masked_rows(case, name, method, device):
    """Gradients of parameters see the crop; a row with nothing left adds 0."""
    value = 1.2 if name == "gamma" else case.parameters[name]
    x = generic_scores(case.regularizer(**{name: value}), 1, 6)[0].to(device)
    gap = torch.tensor([0, 1, 2, 3, 4, 4, 5, 5], device=device)
    keep = torch.tensor([1, 1, 1, 1, 1, 0, 1, 0], dtype=torch.bool, device=device)
    wide = x[gap]
    slopes = []
    for scores, mask in (
        (x[None], None),
        (torch.stack([wide, wide]), torch.stack([keep, torch.zeros_like(keep)])),
    ):
        tensor = torch.full((len(scores), 1), value, dtype=torch.float64, device=device, requires_grad=True)
        out = getattr(case.regularizer(**{name: tensor}), method)(scores, mask=mask)
        weight = torch.arange(6, dtype=torch.float64, device=device) if method == "argmax" else 1.0
        alive = out[0][keep] if mask is not None and method == "argmax" else out[0]
        (slope,) = torch.autograd.grad((alive * weight).sum() + out[1:].sum(), tensor)
        slopes.append(slope)
    close(slopes[1][0], slopes[0][0], f"mask == crop in the gradient of {name}")
    assert slopes[1][1] == 0, f"the gradient of {name} in a fully masked row is 0"


@METHODS
@pytest.mark.parametrize("count", [1, 5, 6])
@every(CASES)
def test_nan_stays_in_its_row(case, method, count, device):
    x = torch.randn(3, 6, dtype=torch.float64, device=device)
    sick = x.clone()
    sick[1, :count] = torch.nan
    out, slope = vjp(case, method, sick)
    clean, clean_slope = vjp(case, method, x)
    assert torch.isnan(out[1]).any(), "NaN in, NaN out"
    equal(out[[0, 2]], clean[[0, 2]], "NaN stays in its row")
    equal(slope[[0, 2]], clean_slope[[0, 2]], "NaN stays in its row in gradients")
