"""Fusedmax and oscarmax on devices where one kernel is the whole mapping; it also returns how the row is divided.

A row is read once, in its own dtype. Besides the weights, a byte of each entry is kept for the gradient, or its place
in the order.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.function import apply_function, recording
from polymax.backend.widen import constant, wide
from polymax.kernels.fusedmax import ABOVE, BELOW, WITHOUT, fusedmax, fusedmax_backward
from polymax.kernels.oscarmax import oscarmax, oscarmax_backward


def weights(x: Tensor, strength: float | Tensor, ordered: bool) -> Tensor:
    """The weights of fusedmax, or of oscarmax if `ordered`, as a node of the graph if gradients are recorded."""
    mapping = oscarmax if ordered else fusedmax
    if type(strength) is float and not x.requires_grad and x.dtype.itemsize >= 4:
        # the common call, kept short
        run = mapping.direct(x)
        if run is not None and not recording(x):
            return run(x, constant.kept(strength, x.dim() - 1, x.dtype, x.device))[0]
    return apply_function(DividedWeights, x, per_row(strength, x), ordered)[0]


def per_row(strength: float | Tensor, x: Tensor) -> Tensor:
    """A strength for each row of x, or one for all of them, in the dtype of arithmetic."""
    if not isinstance(strength, Tensor):
        return constant(float(strength), x.dim() - 1, wide(x).dtype, x.device)
    return strength.to(wide(x).dtype).expand(*x.shape[:-1], 1).squeeze(-1)


class DividedWeights(Function):
    """The weights, and how the row is divided: marks of the entries, or codes if `ordered`; piecewise linear."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, strength: Tensor, ordered: bool) -> tuple[Tensor, Tensor]:
        return oscarmax(x, strength) if ordered else fusedmax(x, strength)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.ordered = inputs[2]
        ctx.mark_non_differentiable(output[1])
        # the gradient of marks would be a row of zeros
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, v: Tensor | None, _: None) -> tuple[Tensor | None, Tensor | None, None]:
        if v is None:
            return None, None, None
        y, division = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return apply_function(Averaged, y, division, v, ctx.ordered), None, None
        dx = apply_function(Averaged, y, division, wide(v), ctx.ordered)
        return dx.to(v.dtype), (_slope_by_codes if ctx.ordered else _slope_by_marks)(dx, division), None


def _slope_by_marks(dx: Tensor, mark: Tensor) -> Tensor:
    """The gradient of the strength of fusedmax: it pulls an entry and the entry before it towards each other."""
    pull = (mark == ABOVE).to(dx.dtype) - ((mark == BELOW) | (mark == WITHOUT)).to(dx.dtype)
    return -(step(dx, mark >= WITHOUT) * pull).sum(-1)


def _slope_by_codes(dx: Tensor, code: Tensor) -> Tensor:
    """The gradient of the strength of oscarmax: it raises the r-th largest score by r, up to a constant.

    The sum of dx is 0, so that the constant does not matter.
    """
    rank = torch.arange(code.shape[-1], device=code.device)
    return (dx.gather(-1, (code >> 2).clamp(min=0).long()) * rank).sum(-1)


class Averaged(Function):
    """v centred on the support and averaged over entries of one weight, by marks, or by codes if `ordered`.

    A symmetric projection. It depends on the weights y only by their division into runs: its derivative in y is 0.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, division: Tensor, v: Tensor, ordered: bool) -> Tensor:
        return oscarmax_backward(division, v) if ordered else fusedmax_backward(division, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        y, division, _, ctx.ordered = inputs
        ctx.save_for_backward(y, division)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, None, Tensor, None]:
        y, division = ctx.saved_tensors
        return torch.zeros_like(y), None, apply_function(Averaged, y, division, u, ctx.ordered), None


def step(p: Tensor, keep: Tensor | None) -> Tensor:
    """p_i - p_j with j the last entry to keep before i; 0 if there is none."""
    n = p.shape[-1]
    index = torch.arange(n, device=p.device).expand(p.shape)
    if keep is not None:
        index = torch.where(keep, index, -1)
    last = torch.cummax(index, -1).values if keep is not None else index
    before = torch.cat([torch.full_like(last[..., :1], -1), last[..., :-1]], -1) if n else last
    valid = before >= 0 if keep is None else (before >= 0) & keep
    return torch.where(valid, p - p.gather(-1, before.clamp(min=0)), 0)
