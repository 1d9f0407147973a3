"""Attention without a matrix of all scores: the operators for a mapping, and their derivatives."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.function import apply_function
from polymax.backend.widen import wide
from polymax.kernels.sparse_attention import reference, sparse_attention, sparse_attention_backward
from polymax.kernels.sparse_attention.options import Options
from polymax.kernels.sparse_decoding import sparse_decoding
from polymax.kernels.sparse_decoding.options import Cached
from polymax.mappings import entmax
from polymax.nn.attention_mapping import entmax_alpha

# with fewer keys (CPU) or queries (CUDA), computing all scores is faster
CPU_KEYS = 1024
CUDA_QUERIES = 16
# the most queries times heads per key head that the kernel for a few queries takes
DECODED_ROWS = 64
# below this alpha, powers of 1 / (alpha - 1) have few digits; the CPU, with powers relative to the largest score, has
# more
LEAST_ALPHA = 1.001
LEAST_ON_CPU = 1 + 1e-8


def decoded_heads(q: Tensor, k: Tensor, v: Tensor, mapping: Any, cached: Cached) -> Tensor:
    """Sparse attention of a few queries (B, H, L, D) over a cache, without a gradient."""
    alpha, alphas = _alphas(mapping, q.shape[1])
    return sparse_decoding(q, k, v, *cached._replace(alpha=alpha, alphas=alphas))[0]


def fused_heads(q: Tensor, k: Tensor, v: Tensor, mapping: Any, options: Options) -> Tensor:
    """Sparse attention of (B, H, L, D) by a mapping that is sparsemax or entmax."""
    alpha, alphas = _alphas(mapping, q.shape[1])
    options = options._replace(alpha=alpha, alphas=alphas)
    tensors = (options.alphas, options.mask, options.sinks, options.starts_q, options.starts_k, options.seed)
    without = options._replace(alphas=None, mask=None, sinks=None, starts_q=None, starts_k=None, seed=None)
    if torch.compiler.is_compiling():
        # the compiler refuses the same tensor as two arguments, as in self-attention
        q, k, v = (t.view_as(t) for t in (q, k, v))
    return apply_function(SparseAttention, q, k, v, *tensors, without)[0]


def _alphas(mapping: Any, heads: int) -> tuple[float, Tensor | None]:
    """The alpha of a mapping as the operators take it: a number and None, or 0 and a tensor (heads,)."""
    alpha = entmax_alpha(mapping)
    assert alpha is not None, "the mapping is sparsemax or entmax"
    if isinstance(alpha, Tensor):
        return 0.0, _in_range(alpha).reshape(-1).expand(heads).contiguous()
    return alpha, None


def _in_range(alpha: Tensor) -> Tensor:
    """alpha, raised to the least value that kernels take; the gradient passes, so that a learned alpha can rise again.

    An alpha above 2 that cannot be read becomes NaN: kernels would return wrong weights.
    """
    if alpha.device.type == "cpu":
        # in float32 the least value would be rounded to 1
        alpha, least = alpha.double(), LEAST_ON_CPU
    else:
        least = LEAST_ALPHA
    known = alpha.detach()
    taken = known.clamp(min=least)
    return alpha + (torch.where(known > 2, torch.nan, taken) - known)


class SparseAttention(Function):
    """The operator and its gradient; second derivatives go through the matrix of all scores."""

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        alphas: Tensor | None,
        mask: Tensor | None,
        sinks: Tensor | None,
        starts_q: Tensor | None,
        starts_k: Tensor | None,
        seed: Tensor | None,
        without: Options,
    ) -> tuple[Tensor, ...]:
        return sparse_attention(q, k, v, *_with(without, alphas, mask, sinks, starts_q, starts_k, seed))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.without = inputs
        ctx.mark_non_differentiable(*output[1:])
        # zeros for outputs without a gradient would double the memory
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, output[1], output[2], *output[4:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        q, k, v, alphas, mask, sinks, starts_q, starts_k, seed, *notes = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        options = _with(ctx.without, alphas, mask, sinks, starts_q, starts_k, seed)
        if torch.is_grad_enabled():
            return (*recorded(grad, q, k, v, options, wanted), *[None] * (len(wanted) - 6))
        bias = mask is not None and wanted[4]
        dq, dk, dv, dalpha, dsink, dmask = sparse_attention_backward(grad, q, k, v, *notes, bias, *options)
        return (
            dq,
            dk,
            dv,
            dalpha.sum((0, 2)).to(alphas.dtype) if alphas is not None else None,
            dmask.to(mask.dtype) if bias and mask is not None else None,
            dsink.sum((0, 2)).to(sinks.dtype) if sinks is not None else None,
            *[None] * (len(wanted) - 6),
        )


def _with(without: Options, *tensors: Tensor | None) -> Options:
    """The options with their tensors, which are separate arguments for autograd."""
    alphas, mask, sinks, starts_q, starts_k, seed = tensors
    return without._replace(alphas=alphas, mask=mask, sinks=sinks, starts_q=starts_q, starts_k=starts_k, seed=seed)


def recorded(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, options: Options, wanted: tuple[bool, ...]
) -> list[Tensor | None]:
    """The gradients in differentiable torch."""
    inputs = q, k, v, options.alphas, options.mask, options.sinks
    x, _ = reference.scores(q, k, options)
    if options.sinks is not None:
        x = torch.cat([x, options.sinks.to(x.dtype)[:, None, None].expand(*x.shape[:-1], 1)], -1)
    weights = entmax(x, options.alpha if options.alphas is None else options.alphas[:, None, None])[..., : k.shape[2]]
    weights = weights * reference.dropout_factors(weights, options)
    out = (weights @ reference.repeat_heads(wide(v), q)).to(v.dtype)
    chosen = [t for t, wants in zip(inputs, wanted, strict=False) if wants and t is not None]
    slopes = iter(torch.autograd.grad(out, chosen, grad, create_graph=True))
    return [next(slopes) if wants and t is not None else None for t, wants in zip(inputs, wanted, strict=False)]
