"""Tsallis slope in differentiable torch."""

import math

import torch
from torch import Tensor

from polymax.backend.widen import wide


def tsallis_slope(y: Tensor, g: Tensor, alphas: Tensor) -> Tensor:
    """Return the gradient of alphas `(*batch,)` for a gradient g `(*batch, n)` of the scores."""
    return -(wide(g) * sensitivity(wide(y), alphas.unsqueeze(-1))).sum(-1).to(alphas.dtype)


def sensitivity(y: Tensor, alpha: Tensor) -> Tensor:
    """Return d/dalpha of the gradient of Omega at y, up to a constant along the row; alpha has size 1 along the row."""
    # the gradient of Omega is y^a / a with a = alpha - 1; its derivative in a, plus 1 / a^2, is log(y)^2 f(a log y)
    log = torch.log(torch.where(y > 0, y, 1))
    return log.square() * _curve(log * (alpha.to(y.dtype) - 1))


def _curve(t: Tensor) -> Tensor:
    """Return (exp(t) (t - 1) + 1) / t^2, by its series near 0, where the formula cancels."""
    small = t.abs() < 0.5
    # for alpha < 1 powers of small weights are large; they are multiplied by even smaller numbers
    near, far = torch.where(small, t, 0), torch.where(small, 1, t.clamp(max=40))
    series = torch.zeros_like(t)
    for k in range(14, -1, -1):
        series = series * near + (k + 1) / math.factorial(k + 2)
    return torch.where(small, series, (torch.exp(far) * (far - 1) + 1) / far.square())
