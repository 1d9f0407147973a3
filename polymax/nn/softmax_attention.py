"""Attention by softmax through torch's own kernels, with the second derivative that they lack."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import scaled_dot_product_attention

from polymax.backend.function import refuse_trace, tracing
from polymax.backend.widen import wide
from polymax.kernels.sparse_attention.geometry import allowed
from polymax.kernels.sparse_attention.reference import repeat_heads
from polymax.nn.attention_pattern import Pattern


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, pattern: Pattern, scale: float | None
) -> Tensor:
    """softmax(scale q k^T + mask) v of (B, H, L, D); a query that sees nothing gets zeros."""
    if tracing():
        refuse_trace()
    causal = pattern.is_plain_causal()
    dead = None
    if mask is not None or not (causal or pattern.sees_all()):
        mask = _whole_mask(mask, pattern, q, k)
        # torch's kernels disagree on queries that see no key: such queries see all keys, and their result is set to 0
        dead = (~mask if mask.dtype == torch.bool else mask == -torch.inf).all(-1, keepdim=True)
        mask = mask | dead if mask.dtype == torch.bool else mask.masked_fill(dead, 0)
        causal = False
        if mask.shape[-1] < k.shape[2]:
            # torch's kernels need masks with contiguous rows
            mask = mask.expand(*mask.shape[:-1], k.shape[2]).contiguous()
        if q.is_cuda:
            # with a mask, torch's kernels do not share keys between heads
            k, v = repeat_heads(k, q), repeat_heads(v, q)
    inputs = q, k, v, mask
    recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    # a compiled backward pass is never differentiable
    watched = recorded and not torch.compiler.is_compiling()
    if watched:
        seen = _Seen(causal, scale)
        q, k, v, mask = _Inputs.apply(seen, *inputs)
    # with symbolic sizes, bool() adds a guard: torch's argument must be a bool
    shared = bool(k.shape[1] != q.shape[1])
    out = scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=shared)
    if watched:
        out.register_hook(seen.note)
    return out if dead is None else out.masked_fill(dead, 0)


def _whole_mask(mask: Tensor | None, pattern: Pattern, q: Tensor, k: Tensor) -> Tensor:
    """A mask and a pattern as one mask."""
    if mask is not None and pattern.sees_all():
        return mask
    sees = allowed(q.shape[2], k.shape[2], None, None, *pattern, q.device)
    if mask is None:
        return sees
    return mask & sees if mask.dtype == torch.bool else mask.masked_fill(~sees, -torch.inf)


class _Seen:
    """The arguments of a call of torch's kernel, and its incoming gradient if second derivatives may follow."""

    def __init__(self, causal: bool, scale: float | None) -> None:
        self.causal, self.scale = causal, scale
        self.grad: Tensor | None = None

    def note(self, grad: Tensor) -> None:
        if torch.is_grad_enabled():
            self.grad = grad


class _Inputs(Function):
    """The inputs of torch's kernel; under create_graph, their gradient is computed by differentiable torch."""

    @staticmethod
    def forward(ctx: Any, seen: _Seen, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.seen = seen
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        return tuple(None if t is None else t.view_as(t) for t in inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if not torch.is_grad_enabled() or ctx.seen.grad is None:
            return None, *grads
        grad, ctx.seen.grad = ctx.seen.grad, None
        return None, *_recorded(grad, ctx.saved_tensors, ctx.needs_input_grad[1:], ctx.seen)


def _recorded(
    grad: Tensor, inputs: tuple[Tensor | None, ...], wanted: tuple[bool, ...], seen: _Seen
) -> list[Tensor | None]:
    """The gradients, computed in torch so that autograd can differentiate them again."""
    q, k, v, mask = inputs
    assert q is not None
    assert k is not None
    assert v is not None
    scale = q.shape[-1] ** -0.5 if seen.scale is None else seen.scale
    x = (wide(q) * scale) @ repeat_heads(wide(k), q).mT
    if mask is not None:
        x = x.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else x + mask
    if seen.causal:
        sees = allowed(q.shape[2], k.shape[2], None, None, -1, 0, 0, q.device)
        x = x.masked_fill(~sees, -torch.inf)
    out = (x.softmax(-1) @ repeat_heads(wide(v), q)).to(v.dtype)
    chosen = [t for t, wants in zip(inputs, wanted, strict=True) if wants and t is not None]
    slopes = iter(torch.autograd.grad(out, chosen, grad, create_graph=True))
    return [next(slopes) if wants and t is not None else None for t, wants in zip(inputs, wanted, strict=True)]
