"""The threshold mapping with its derivatives: scores, alpha, and both again."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from polymax.backend.dispatch import bare, transforming, wrapped
from polymax.backend.function import apply_function
from polymax.backend.widen import wide
from polymax.kernels import threshold as kernels
from polymax.kernels.threshold import reference
from polymax.kernels.tsallis_slope import tsallis_slope

# d/dalpha of the gradient of Omega at y, up to a constant along the row
Sensitivity = Callable[[Tensor, Tensor], Tensor]


def threshold(x: Tensor, alpha: float | Tensor, family: int, sensitivity: Sensitivity) -> Tensor:
    """Argmax of <x, p> - Omega(p) for the family of Omega and alpha, a number or a tensor of size 1 along the row."""
    if isinstance(alpha, Tensor):
        alphas = alpha.expand(*x.shape[:-1], 1).squeeze(-1)
        return apply_function(_traced(), x, alphas, 0.0, family, sensitivity)
    # the common calls, kept short: they cost microseconds
    if not x.requires_grad and bare(x):
        return kernels.threshold.cpu(x, float(alpha), family)
    if torch.compiler.is_compiling() or transforming() or forward_ad._current_level >= 0:
        return _traced().apply(x, None, float(alpha), family, sensitivity)
    if x.requires_grad and torch.is_grad_enabled():
        return (Weights.apply if wrapped(x) else _weights)(x, float(alpha), family)
    return kernels.threshold(x, float(alpha), family)


def _traced() -> "type[Threshold]":
    # the compiler refuses functions with a forward-mode derivative
    return Threshold if torch.compiler.is_compiling() else ForwardThreshold


class Weights(Function):
    """y = argmax over the simplex of <x, p> - Omega_alpha(p), for a number alpha, where autograd alone looks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float, family: int) -> Tensor:
        y = (kernels.threshold.direct(x) or kernels.threshold)(x, alpha, family)
        ctx.save_for_backward(y)
        ctx.alpha, ctx.family = alpha, family
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        return jacobian(y, v, ctx.alpha, ctx.family, None), None, None


# torch's way to a function looks for torch.func on its way, which `threshold` has done
_weights = super(Function, Weights).apply


class Threshold(Function):
    """y = argmax over the simplex of <x, p> - Omega_alpha(p)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, alphas: Tensor | None, alpha: float, family: int, sensitivity: Sensitivity) -> Tensor:
        return kernels.threshold(x, alpha, family, alphas)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, alphas, ctx.alpha, ctx.family, ctx.sensitivity = inputs
        ctx.save_for_backward(output, alphas)
        ctx.save_for_forward(output, alphas)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        y, alphas = ctx.saved_tensors
        dx = jacobian(y, v, ctx.alpha, ctx.family, alphas)
        dalpha = None
        if alphas is not None and ctx.needs_input_grad[1]:
            dalpha = _slope(y, dx, alphas, ctx.family, ctx.sensitivity)
        return dx, dalpha, None, None, None


class ForwardThreshold(Threshold):
    """Threshold with its derivative in forward mode too."""

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dalphas: Tensor | None, *_: None) -> Tensor:
        y, alphas = ctx.saved_tensors
        direction = torch.zeros_like(y) if dx is None else dx
        if dalphas is not None:
            moved = ctx.sensitivity(wide(y), alphas.unsqueeze(-1)) * dalphas.unsqueeze(-1)
            direction = direction - moved.to(y.dtype)
        return jacobian(y, direction, ctx.alpha, ctx.family, alphas)


def jacobian(y: Tensor, v: Tensor, alpha: float, family: int, alphas: Tensor | None) -> Tensor:
    """J v, with J symmetric; in differentiable torch when a second derivative will be asked for."""
    if torch.is_grad_enabled():
        return reference.threshold_backward(y, v, alpha, family, alphas)
    return kernels.threshold_backward(y, v, alpha, family, alphas)


def _slope(y: Tensor, dx: Tensor, alphas: Tensor, family: int, sensitivity: Sensitivity) -> Tensor:
    """The gradient of alphas; in differentiable torch when a second derivative will be asked for."""
    if family == kernels.TSALLIS and not torch.is_grad_enabled():
        return tsallis_slope(y, dx, alphas)
    # x = grad Omega_alpha(y) + tau on the support: alpha moves y as scores -d(grad Omega)/dalpha would
    return -(wide(dx) * sensitivity(wide(y), alphas.unsqueeze(-1))).sum(-1).to(alphas.dtype)
