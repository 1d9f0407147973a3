"""Scores of attention as one matrix: products of queries and keys, masks, and heads that share keys."""

import torch
from torch import Tensor

from polymax import _check
from polymax.backend.widen import wide
from polymax.nn.attention_checks import check_mask
from polymax.nn.attention_values import multiplies_wide, product


def scaled_products(q: Tensor, k: Tensor, factor: float | Tensor) -> Tensor:
    """Products (*batch, L, S) of queries and keys times a factor, which comes first if products may overflow."""
    if multiplies_wide(q, k) or (isinstance(factor, Tensor) and factor.dim() > 0):
        return product(q, k.mT) * factor
    q = wide(q) * factor
    if torch.is_grad_enabled() and _not_finite(q, k):
        return _masked_scores(q, k)
    return product(q, k.mT)


def _not_finite(q: Tensor, k: Tensor) -> bool:
    """True if q or k requires a gradient, and has an entry that is NaN or infinite."""
    return (
        (q.requires_grad or k.requires_grad)
        and _check.readable(q)
        and _check.readable(k)
        and not (bool(q.isfinite().all()) and bool(k.isfinite().all()))
    )


def _masked_scores(q: Tensor, k: Tensor) -> Tensor:
    """Scores whose gradient has no product of 0 and NaN if a query does not see a key that is not finite."""
    bad_q, bad_k = (~t.isfinite().all(-1) for t in (q, k))
    clean = product(q.masked_fill(bad_q[..., None], 0), k.masked_fill(bad_k[..., None], 0).mT)
    return torch.where(bad_q[..., None] | bad_k[..., None, :], product(q, k.mT).detach(), clean)


def masked(scores: Tensor, attn_mask: Tensor | None) -> Tensor:
    """Scores (*batch, L, S) with -inf at keys that a bool mask hides, or plus a float mask."""
    if attn_mask is None:
        return scores
    check_mask(attn_mask, scores.shape)
    if attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, -torch.inf)
    return scores + attn_mask.to(scores.dtype)


def repeat_heads(key: Tensor, query: Tensor, name: str) -> Tensor:
    """Return keys (*batch, heads, S, E) for as many heads as the query has: neighbouring ones share a key."""
    if key.dim() < 3 or query.dim() < 3 or key.shape[-3] == 0 or query.shape[-3] % key.shape[-3]:
        raise ValueError(
            f"{name} must have heads that divide those of query {tuple(query.shape)}; got {tuple(key.shape)}"
        )
    return key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
