"""The smoothed maximum along the last dimension, in torch: the threshold by halving the interval that it is in."""

import math

import torch
from torch import Tensor

# an interval of length 1 ends at the last bit of float64
HALVINGS = 60


def weights(a: Tensor, alpha: float) -> Tensor:
    """The gradient of the smoothed maximum; 0 where all of a row is -inf, NaN where an entry is NaN or inf."""
    top = a.amax(-1, keepdim=True)
    z = a - torch.where(top == -torch.inf, 0, top)
    if alpha == 1:
        p = z.exp()
    elif alpha == math.inf:
        p = ((z == 0) & ((z == 0).cumsum(-1) == 1)).to(a.dtype)
    else:
        low, high = torch.full_like(top, -1), torch.zeros_like(top)
        for _ in range(HALVINGS):
            tau = (low + high) / 2
            over = _powers(z, tau, alpha).sum(-1, keepdim=True) >= 1
            low, high = torch.where(over, tau, low), torch.where(over, high, tau)
        p = _powers(z, low, alpha)
    total = p.sum(-1, keepdim=True)
    p = p / torch.where(total == 0, 1, total)
    return torch.where(top < torch.inf, p, torch.nan)


def _powers(z: Tensor, tau: Tensor, alpha: float) -> Tensor:
    return ((alpha - 1) * z - tau).clamp(min=0) ** (1 / (alpha - 1))


def value(a: Tensor, alpha: float) -> Tensor:
    """max over p of <a, p> - Omega(p)."""
    p = weights(a, alpha)
    if alpha == 1:
        omega = torch.special.xlogy(p, p).sum(-1)
    elif alpha == math.inf:
        omega = p.new_zeros(p.shape[:-1])
    else:
        omega = ((p**alpha).sum(-1) - 1) / (alpha * (alpha - 1))
    found = torch.where(p == 0, 0, p * a).sum(-1) - omega
    return torch.where((a == -torch.inf).all(-1), -torch.inf, found)


def changes(a: Tensor, da: Tensor, alpha: float) -> Tensor:
    """The derivative of the weights along da; that of an entry without weight is 0, whatever its da."""
    p = weights(a, alpha)
    if alpha == math.inf:
        return torch.zeros_like(p)
    slope = torch.where(p == 0, 0, p ** (2 - alpha))
    da = torch.where(p == 0, 0, da)
    total = slope.sum(-1, keepdim=True)
    mean = (slope * da).sum(-1, keepdim=True) / torch.where(total == 0, 1, total)
    return slope * (da - mean)
