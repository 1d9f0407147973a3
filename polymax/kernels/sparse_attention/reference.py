"""Sparse attention with the matrix of all scores: the specification."""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.kernels.sparse_attention.dropout import kept
from polymax.kernels.sparse_attention.geometry import allowed
from polymax.kernels.sparse_attention.options import Options, of_backward
from polymax.kernels.threshold import TSALLIS
from polymax.kernels.threshold.reference import threshold
from polymax.kernels.tsallis_slope.reference import sensitivity


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, ...]:
    options = Options(*given)
    x, _ = scores(q, k, options)
    a = exponents(q, options)
    p, p_sink, tau = _weights(x, a, options.sinks)
    s, s_sink = p ** (2 - a) * (p > 0), p_sink ** (2 - a) * (p_sink > 0)
    values = repeat_heads(wide(v), q)
    total = s.sum(-1, keepdim=True) + s_sink
    factor = dropout_factors(p, options)
    mean = ((factor * s) @ values) / torch.where(total == 0, 1, total)
    support = ((p > 0).sum(-1) + (p_sink > 0).squeeze(-1)).to(torch.int32)
    notes = q.new_empty(0, dtype=torch.int32)
    return ((factor * p) @ values).to(q.dtype), mean.to(q.dtype), tau, support, notes, notes.to(torch.int16)


def sparse_attention_backward(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    (q, k, v, mean, tau, *_), mask_gradient, options = of_backward(given)
    x, slope = scores(q, k, options)
    a = exponents(q, options)
    p, p_sink, _ = _weights(x, a, options.sinks)
    factor = dropout_factors(p, options)
    s, s_sink = p ** (2 - a) * (p > 0), p_sink ** (2 - a) * (p_sink > 0)
    g, groups = wide(grad), q.shape[1] // k.shape[1]
    common = (g * wide(mean)).sum(-1, keepdim=True)
    dx = s * (factor * (g @ repeat_heads(wide(v), q).mT) - common)
    dsink = -s_sink * common
    # x = p^(a - 1) / (a - 1) + a constant: a change of alpha moves p as the opposite change of this function of the
    # scores would
    dalpha = torch.zeros_like(tau[0])
    if options.alphas is not None:
        dalpha = -(dx * sensitivity(p, a)).sum(-1) - (dsink * sensitivity(p_sink, a)).squeeze(-1)
    dmask = tau.new_empty(0)
    if options.mask is not None and mask_gradient:
        dmask = dx.sum_to_size(options.mask.shape)
    dx = dx * slope * options.scale
    dq = dx @ repeat_heads(wide(k), q)
    dk, dv = (t.unflatten(1, (-1, groups)).sum(2) for t in (dx.mT @ wide(q), (factor * p).mT @ g))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dalpha, dsink.squeeze(-1), dmask


def scores(q: Tensor, k: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Return scores (B, H, L, S), -inf if a query does not see a key, and their derivatives in scale q k^T."""
    scale, softcap, mask = options.scale, options.softcap, options.mask
    x = (wide(q) * scale) @ repeat_heads(wide(k), q).mT
    slope = torch.ones_like(x)
    if softcap > 0:
        bent = torch.tanh(x / softcap)
        x, slope = softcap * bent, 1 - bent.square()
    if mask is not None:
        x = x.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else x + mask
    sizes, places = (q.shape[2], k.shape[2]), (options.left, options.right, options.offset)
    sees = allowed(*sizes, options.starts_q, options.starts_k, *places, q.device)
    return x.masked_fill(~sees, -torch.inf), slope


def exponents(q: Tensor, options: Options) -> Tensor:
    """Return alpha of each head, to broadcast with scores."""
    wide_q = torch.promote_types(q.dtype, torch.float32)
    if options.alphas is None:
        return torch.full((1, 1, 1), options.alpha, dtype=wide_q, device=q.device)
    return options.alphas.to(wide_q).reshape(-1, 1, 1)


def dropout_factors(p: Tensor, options: Options) -> Tensor:
    """Return the factors of weights (B, H, L, S): 0 for dropped weights; a scalar 1 without dropout."""
    if options.seed is None:
        return p.new_ones(())
    return kept(options.seed, options.dropout, p.shape[:-1].numel(), p.shape[-1]).to(p.dtype).reshape(p.shape)


def repeat_heads(x: Tensor, q: Tensor) -> Tensor:
    """Return keys or values repeated for all heads of queries: neighbouring heads share one head of keys."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _weights(x: Tensor, a: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights of the keys (B, H, L, S) and of the sink (B, H, L, 1), and tau (2, B, H, L)."""
    rows = x.shape[:-1]
    sink = x.new_full((1,), -torch.inf) if sinks is None else sinks.to(x.dtype)
    joint = torch.cat([x, sink.reshape(1, -1, 1, 1).expand(*rows, 1)], -1)
    p = threshold(joint, 0.0, TSALLIS, a.squeeze(-1).expand(rows))
    top, at = joint.max(-1, keepdim=True)
    # the largest weight is (u - tau)^(1 / (alpha - 1)) too
    tau = torch.stack([(a - 1) * top, p.gather(-1, at) ** (a - 1)])
    blind = torch.stack([torch.full_like(top, torch.inf), torch.zeros_like(top)])
    return p[..., :-1], p[..., -1:], torch.where(top == -torch.inf, blind, tau).squeeze(-1)
