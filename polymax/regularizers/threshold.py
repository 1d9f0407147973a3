"""The threshold mapping with its first and second derivatives in scores and alpha."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from polymax.backend.derived import derived, node
from polymax.backend.dispatch import PLAIN, modes, transforming, wrapped
from polymax.backend.function import tracing
from polymax.backend.widen import wide
from polymax.kernels import threshold as kernels
from polymax.kernels.threshold import reference
from polymax.kernels.tsallis_slope import tsallis_slope

# the derivative in alpha of the gradient of Omega at y, up to a constant along the row
Sensitivity = Callable[[Tensor, Tensor], Tensor]


def threshold(x: Tensor, alpha: float | Tensor, family: int, sensitivity: Sensitivity) -> Tensor:
    """Argmax of <x, p> - Omega(p) for the family of Omega and alpha, a number or a tensor of size 1 along the row."""
    if isinstance(alpha, Tensor):
        alphas = alpha.expand(*x.shape[:-1], 1).squeeze(-1)
        return _threshold(x, alphas, 0.0, family, sensitivity)
    # the common calls, kept short: they cost microseconds
    if not x.requires_grad:
        run = kernels.threshold.direct(x)
        if run is not None:
            return run(x, float(alpha), family)
    elif torch.is_grad_enabled() and not (
        torch.compiler.is_compiling() or transforming() or forward_ad._current_level >= 0 or wrapped(x)
    ):
        return _weights(x, float(alpha), family)
    return _threshold(x, None, float(alpha), family, sensitivity)


class Weights(Function):
    """`Threshold` for a number alpha, in the form that costs least, for calls that only autograd records."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float, family: int) -> Tensor:
        # a fake tensor has no memory to compute on
        seen = type(x) not in PLAIN or x.is_neg() or modes() or tracing()
        y = (kernels.threshold if seen else kernels.threshold.functions[x.device.type])(x, alpha, family)
        ctx.save_for_backward(y)
        ctx.alpha, ctx.family = alpha, family
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, None, None]:
        return jacobian(ctx.saved_tensors[0], v, ctx.alpha, ctx.family, None), None, None


_weights = node(Weights)


class Threshold(Function):
    """y = argmax over the simplex of <x, p> - Omega_alpha(p)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, alphas: Tensor | None, alpha: float, family: int, sensitivity: Sensitivity) -> Tensor:
        return (kernels.threshold.direct(x, alphas) or kernels.threshold)(x, alpha, family, alphas)

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

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dalphas: Tensor | None, *_: None) -> Tensor:
        y, alphas = ctx.saved_tensors
        direction = torch.zeros_like(y) if dx is None else dx
        if dalphas is not None:
            moved = ctx.sensitivity(wide(y), alphas.unsqueeze(-1)) * dalphas.unsqueeze(-1)
            direction = direction - moved.to(y.dtype)
        return jacobian(y, direction, ctx.alpha, ctx.family, alphas)


_threshold = derived(Threshold)


def jacobian(y: Tensor, v: Tensor, alpha: float, family: int, alphas: Tensor | None) -> Tensor:
    """J v, with J symmetric; in differentiable torch if a second derivative may be taken."""
    if torch.is_grad_enabled():
        return reference.threshold_backward(y, v, alpha, family, alphas)
    return kernels.threshold_backward(y, v, alpha, family, alphas)


def _slope(y: Tensor, dx: Tensor, alphas: Tensor, family: int, sensitivity: Sensitivity) -> Tensor:
    """The gradient of alphas; in differentiable torch if a second derivative may be taken."""
    if family == kernels.TSALLIS and not torch.is_grad_enabled():
        return tsallis_slope(y, dx, alphas)
    # x = grad Omega_alpha(y) + tau on the support: alpha moves y as scores -d(grad Omega)/dalpha would
    return -(wide(dx) * sensitivity(wide(y), alphas.unsqueeze(-1))).sum(-1).to(alphas.dtype)
