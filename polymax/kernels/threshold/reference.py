"""Threshold by bisection, and its Jacobian in closed form. Differentiable torch: also the double backward."""

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.kernels.threshold import NORM, TSALLIS


def threshold(x: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    """Return the argmax for each row of x, `(*batch, n)`.

    With d = 1 + scale (x - max - t) and S_k = sum d_+^k, the root t >= 0 solves S_r = 1 (TSALLIS with r = 1/(alpha-1),
    scale = alpha-1; NORM with r = alpha/(alpha-1), scale = 1) or S_{r-1} S_r^{2/r-1} = 1 (SQUARED_NORM, as NORM).
    Below alpha = 1, d is at least 1 and r is negative: every entry has weight.
    """
    if x.shape[-1] == 0:
        return x.clone()
    z = _precise(x, alpha, alphas)
    top = z.amax(-1, keepdim=True)
    z = z - torch.where(top == -torch.inf, 0, top)
    a = _column(alpha, alphas, z)
    entropic = a == 1
    # alpha = 1 gets the softmax; any other alpha keeps the formulas below finite
    a = torch.where(entropic, 2.0, a)
    scale = a - 1 if family == TSALLIS else torch.ones_like(a)
    r = 1 / (a - 1) if family == TSALLIS else a / (a - 1)

    def power(t: Tensor, k: Tensor) -> Tensor:
        s = scale * (z - t)
        return torch.where(s > -1, torch.exp(torch.log1p(s.clamp(min=-1)) * k), 0)

    def excess(t: Tensor) -> Tensor:
        total = power(t, r).sum(-1, keepdim=True)
        if family in (TSALLIS, NORM):
            return total - 1
        return power(t, r - 1).sum(-1, keepdim=True) * total ** (2 / r - 1) - 1

    # below alpha = 1, n equal entries have t = (n^(1-alpha) - 1) / (1 - alpha) < n, other rows a smaller t
    low, high = torch.zeros_like(top), torch.where(scale > 0, 1 / scale, float(x.shape[-1]))
    for _ in range(60 if z.dtype == torch.float64 else 30):
        t = (low + high) / 2
        above = excess(t) >= 0
        low, high = torch.where(above, t, low), torch.where(above, high, t)
    y = power(low, r if family == TSALLIS else r - 1)
    y = torch.where(entropic, torch.exp(z), y)
    # a row of -inf divides 0 by 1
    total = y.sum(-1, keepdim=True)
    y = y / torch.where(top == -torch.inf, 1, total)
    return torch.where(torch.isnan(z).any(-1, keepdim=True), torch.nan, y).to(x.dtype)


def threshold_backward(y: Tensor, v: Tensor, alpha: float, family: int, alphas: Tensor | None = None) -> Tensor:
    """Return J v for each row, J the symmetric Jacobian at the solution y.

    J is the inverse of the Hessian of Omega on the face of y, written with w = y^(2 - alpha) on the support.
    """
    dtype, y, v = y.dtype, _precise(y, alpha, alphas), _precise(v, alpha, alphas)
    a = _column(alpha, alphas, y)
    support = y > 0
    inside = torch.where(support, y, 1)
    w = torch.where(support, inside ** (2 - a), 0)
    # 0 for a row of -inf
    total = w.sum(-1, keepdim=True)
    safe = torch.where(total == 0, 1, total)
    wv = (w * v).sum(-1, keepdim=True)
    if family == TSALLIS:
        return (w * (v - wv / safe)).to(dtype)
    yv = (y * v).sum(-1, keepdim=True)
    norm = torch.where(support, inside**a, 0).sum(-1, keepdim=True)
    norm = torch.where(total == 0, 1, norm) ** (1 / a)
    if family == NORM:
        scaled = norm ** (a - 1) / (a - 1)
        return (scaled * (w * (v - yv) - y * (wv - total * yv))).to(dtype)
    # SQUARED_NORM: inverse Hessian = (diag(s) - kappa y y^T) / (alpha - 1), by Sherman-Morrison
    s, kappa = w * norm ** (a - 2), (2 - a) / norm**2
    h = s - kappa * y
    hv = (h * v).sum(-1, keepdim=True)
    mass = torch.where(total == 0, 1, h.sum(-1, keepdim=True))
    return ((s * v - kappa * y * yv - h * hv / mass) / (a - 1)).to(dtype)


def _precise(x: Tensor, alpha: float, alphas: Tensor | None) -> Tensor:
    # powers below 1 amplify rounding near the edge of the support; alphas in a tensor are not read
    exact = (alphas is not None or alpha > 2) and x.device.type != "mps"
    return x.double() if exact else wide(x)


def _column(alpha: float, alphas: Tensor | None, x: Tensor) -> Tensor:
    if alphas is None:
        return torch.full(x.shape[:-1] + (1,), alpha, dtype=x.dtype, device=x.device)
    return alphas.to(x.dtype).unsqueeze(-1)
