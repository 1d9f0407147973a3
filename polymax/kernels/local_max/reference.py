"""The smoothed maximum along the last dimension, in torch: the threshold by bisection."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

# halvings of an interval of length 1 to the last bit of float64
HALVINGS = 60


def weights(a: Tensor, alpha: float) -> Tensor:
    """Return the gradient of the smoothed maximum; 0 for a row of -inf, NaN if an entry is NaN or inf."""
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
    """Return max over p of <a, p> - Omega(p)."""
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
    """Return the derivative of the weights along da; 0 for an entry without weight, whatever its da."""
    return changes_of(weights(a, alpha), da, alpha)


def changes_of(p: Tensor, da: Tensor, alpha: float) -> Tensor:
    """Return the derivative of given weights p along da."""
    if alpha == math.inf:
        return torch.zeros_like(p)
    support = p != 0
    slope = torch.where(support, torch.where(support, p, 1) ** (2 - alpha), 0)
    da = torch.where(support, da, 0)
    total = slope.sum(-1, keepdim=True)
    mean = (slope * da).sum(-1, keepdim=True) / torch.where(total == 0, 1, total)
    return slope * (da - mean)


class TsallisMax(NamedTuple):
    """The smoothed maximum along any dim, with derivatives of any order, for recursions in torch."""

    alpha: float

    def max(self, a: Tensor, dim: int = -1) -> Tensor:
        return _RowValue.apply(a.movedim(dim, -1), self.alpha)

    def argmax(self, a: Tensor, dim: int = -1) -> Tensor:
        return _RowWeights.apply(a.movedim(dim, -1), self.alpha).movedim(-1, dim)

    def changes(self, a: Tensor, da: Tensor, dim: int = -1) -> Tensor:
        """Return the derivative of `argmax` along da."""
        p = _RowWeights.apply(a.movedim(dim, -1), self.alpha)
        return changes_of(p, da.movedim(dim, -1), self.alpha).movedim(-1, dim)


class _RowValue(Function):
    """The value, whose gradient is the weights."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, alpha: float) -> Tensor:
        return value(a, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        a, ctx.alpha = inputs
        ctx.save_for_backward(a)
        ctx.save_for_forward(a)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (a,) = ctx.saved_tensors
        p = _RowWeights.apply(a, ctx.alpha)
        return torch.where(p == 0, 0, p * g.unsqueeze(-1)), None

    @staticmethod
    def jvp(ctx: Any, da: Tensor, _: None) -> Tensor:
        (a,) = ctx.saved_tensors
        p = _RowWeights.apply(a, ctx.alpha)
        return torch.where(p == 0, 0, p * da).sum(-1)


class _RowWeights(Function):
    """The weights, whose derivative is a function of themselves."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, alpha: float) -> Tensor:
        return weights(a, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.alpha = inputs[1]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return changes_of(ctx.saved_tensors[0], g, ctx.alpha), None

    @staticmethod
    def jvp(ctx: Any, da: Tensor, _: None) -> Tensor:
        return changes_of(ctx.saved_tensors[0], da, ctx.alpha)
