"""Scaled dot-product attention with any mapping in the place of softmax."""

from collections.abc import Callable

import torch
from torch import Tensor

from polymax.backend.function import under_transform, without_autocast
from polymax.backend.widen import wide
from polymax.kernels.sparse_attention.geometry import allowed
from polymax.mappings import softmax
from polymax.nn import fused_attention, plain_attention
from polymax.nn.attention_checks import (
    check_boxes,
    check_keys,
    check_mask,
    check_values,
    checked_dropout,
    checked_scale,
    checked_sinks,
    checked_softcap,
    default_scale,
    score_batch,
)
from polymax.nn.attention_pattern import Pattern, pattern_of
from polymax.regularizers import Regularizer
from polymax.smoothing import Smoothing

# scores to weights along the last dimension: a function (x, dim=-1), a regularizer, or a smoothing of a set of items
Mapping = Callable[..., Tensor] | Regularizer | Smoothing


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mapping: Mapping = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal_offset: int = 0,
    key_boxes: Tensor | None = None,
) -> Tensor:
    """torch's scaled_dot_product_attention, with any mapping in the place of softmax.

        mapping(softcap tanh(scale query key^T / softcap) + attn_mask) value

    A bool mask is True where attention is allowed; a float mask is added. A query that may attend to nothing gets
    zeros. A mapping is a function as in `polymax.mappings`, a regularizer, or a smoothing such as SparseMap(Subset(3)).
    Query i stands at key i + causal_offset: is_causal hides the keys after it, and window=(left, right) those more than
    `left` before or `right` after, -1 being no limit. A sink is a score that takes weight in each row of its head and
    has no value. `key_boxes`, as `pm.nn.key_boxes` computes them and a `KeyValueCache` keeps them, say which keys a few
    queries need not read; they do not change the result. `attention_path` with the same arguments says how the result
    is computed.

    Shapes:
        query (*batch, L, E); key (*batch, S, E); value (*batch, S, V); attn_mask broadcasts to (*batch, L, S); sinks
        (heads,), where batch ends in heads; with enable_gqa, the heads of key and value divide those of query

    Example:
        >>> query, key, value = torch.tensor([[1.0]]), torch.tensor([[4.0], [3.5], [0.0]]), torch.eye(3)
        >>> scaled_dot_product_attention(query, key, value, mapping=pm.sparsemax)
        tensor([[0.7500, 0.2500, 0.0000]])
    """
    if not isinstance(query, Tensor):
        raise TypeError(f"query must be a tensor; got {type(query).__name__}")
    if query.is_nested:
        # packed sequences are attended to one by one by this very function
        from polymax.nn.packed_attention import nested_attention

        return nested_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, mapping, window, softcap, sinks, causal_offset
        )
    if query.is_cuda and attn_mask is None and sinks is None and key_boxes is None and dropout_p == 0:
        more = is_causal, scale, enable_gqa, window, softcap, causal_offset
        if (known := plain_attention.known_call(query, key, value, mapping, more)) is not None:
            return plain_attention.attend(query, key, value, known)
    pattern = pattern_of(is_causal, window, causal_offset)
    scale, dropout_p = checked_scale(scale), checked_dropout(dropout_p)
    query, key, value = fused_attention.autocast(query, key, value)
    if key_boxes is not None:
        check_boxes(key_boxes, key)
    attention = fused_attention.Attention(
        query, key, value, attn_mask, dropout_p, scale, enable_gqa, mapping, pattern, softcap, sinks, key_boxes
    )
    if attention.obstacle() is None:
        return attention.fused()
    weights = _weights(query, key, attn_mask, pattern, scale, enable_gqa, mapping, softcap, sinks)
    check_values(query, key, value, enable_gqa)
    if dropout_p > 0:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    value = repeat_heads(value, query, "value") if enable_gqa else value
    if _multiplies_wide(weights, value):
        return _product(weights.to(value.dtype), value).to(value.dtype)
    return _product(weights, value).to(value.dtype)


def attention_path(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mapping: Mapping = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal_offset: int = 0,
    key_boxes: Tensor | None = None,
) -> str:
    """How `scaled_dot_product_attention` computes a call with these arguments, and why, in a sentence.

    Example:
        >>> q = torch.randn(2, 1200, 16)
        >>> attention_path(q, q, q, mapping=pm.entmax)
        'fused: the kernel of sparse attention keeps only weights that are not zero'
        >>> attention_path(q, q, q, mapping=pm.fusedmax)
        'all scores at once: the mapping is none of softmax, sparsemax and entmax'
    """
    if not isinstance(query, Tensor):
        raise TypeError(f"query must be a tensor; got {type(query).__name__}")
    if query.is_nested:
        from polymax.nn.packed_attention import nested_path

        return nested_path(
            query, key, value, attn_mask, dropout_p, is_causal, scale, mapping, window, softcap, sinks, causal_offset
        )
    pattern = pattern_of(is_causal, window, causal_offset)
    scale, dropout_p = checked_scale(scale), checked_dropout(dropout_p)
    query, key, value = fused_attention.autocast(query, key, value)
    if key_boxes is not None:
        check_boxes(key_boxes, key)
    attention = fused_attention.Attention(
        query, key, value, attn_mask, dropout_p, scale, enable_gqa, mapping, pattern, softcap, sinks, key_boxes
    )
    checked_mapping(mapping)
    checked_softcap(softcap)
    if sinks is not None:
        checked_sinks(sinks, query)
    obstacle = attention.obstacle()
    if obstacle is not None:
        check_keys(query, key, enable_gqa)
        check_values(query, key, value, enable_gqa)
        if attn_mask is not None:
            check_mask(attn_mask, torch.Size((*score_batch(query, key, enable_gqa), query.shape[-2], key.shape[-2])))
        return f"all scores at once: {obstacle}"
    if attention.is_softmax():
        return "fused: torch's scaled_dot_product_attention, for the mapping is softmax"
    if query.is_cuda and query.shape[-2] < fused_attention.CUDA_QUERIES:
        return "fused: the kernel for a few queries reads values only where weights are not zero"
    return "fused: the kernel of sparse attention keeps only weights that are not zero"


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mapping: Mapping = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal_offset: int = 0,
) -> Tensor:
    """The weights (*batch, L, S) by which `scaled_dot_product_attention` sums values.

    Example:
        >>> attention_weights(torch.tensor([[1.0]]), torch.tensor([[4.0], [3.5], [0.0]]), mapping=pm.sparsemax)
        tensor([[0.7500, 0.2500, 0.0000]])
    """
    pattern = pattern_of(is_causal, window, causal_offset)
    weights = _weights(query, key, attn_mask, pattern, scale, enable_gqa, mapping, softcap, sinks)
    return weights.to(query.dtype)


def _weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    pattern: Pattern,
    scale: float | None,
    enable_gqa: bool,
    mapping: Mapping,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Weights, at least in float32."""
    check_keys(query, key, enable_gqa)
    mapping, scale = checked_mapping(mapping), checked_scale(scale)
    if enable_gqa:
        key = repeat_heads(key, query, "key")
    factor = default_scale(query.shape[-1]) if scale is None else scale
    scores = _product(query, key.transpose(-2, -1)) * factor
    cap = checked_softcap(softcap)
    if cap > 0:
        scores = cap * torch.tanh(scores / cap)
    scores = _masked(scores, attn_mask)
    if not pattern.sees_all():
        left, right, offset = pattern
        sees = allowed(scores.shape[-2], scores.shape[-1], None, None, left, right, offset, scores.device)
        scores = scores.masked_fill(~sees, -torch.inf)
    if sinks is None:
        return apply_mapping(mapping, scores)
    column = checked_sinks(sinks, query).to(scores.dtype)
    column = column[:, None, None] if scores.dim() > 2 else column[:, None]
    joint = torch.cat([scores, column.expand(*scores.shape[:-1], 1)], -1)
    return apply_mapping(mapping, joint)[..., :-1]


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product in float32, or float64."""
    with without_autocast(a.device):
        if a.dtype == b.dtype and _multiplies_wide(a, b):
            found = torch.bmm(a.flatten(0, -3), b.flatten(0, -3), out_dtype=torch.float32)
            return found.unflatten(0, a.shape[:-2])
        return wide(a) @ wide(b)


def _multiplies_wide(a: Tensor, b: Tensor) -> bool:
    """True if the device multiplies matrices of b's half precision to float32: a cache need not be copied for it."""
    recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    batched = a.dim() > 2 and a.shape[:-2] == b.shape[:-2]
    half = b.dtype in (torch.float16, torch.bfloat16)
    return b.is_cuda and half and batched and not recorded and not under_transform()


def apply_mapping(mapping: Mapping, scores: Tensor) -> Tensor:
    """Weights of scores along the last dimension; -inf is a forbidden entry."""
    if isinstance(mapping, Regularizer):
        return mapping.argmax(scores)
    return mapping(scores) if isinstance(mapping, Smoothing) else mapping(scores, dim=-1)


def checked_mapping(mapping: Mapping) -> Mapping:
    """What stands for softmax, or a TypeError."""
    if isinstance(mapping, type) or not (callable(mapping) or isinstance(mapping, Regularizer)):
        came = f"the class {mapping.__name__}" if isinstance(mapping, type) else type(mapping).__name__
        raise TypeError(f"mapping must be a function, a Regularizer or a Smoothing; got {came}")
    return mapping


def _masked(scores: Tensor, attn_mask: Tensor | None) -> Tensor:
    """Scores (*batch, L, S) with -inf where attention is not allowed, and with what a float mask adds."""
    if attn_mask is None:
        return scores
    check_mask(attn_mask, scores.shape)
    if attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, -torch.inf)
    return scores + attn_mask.to(scores.dtype)


def keys_after(queries: int, keys: int, device: torch.device) -> Tensor:
    """True where the key is after the query, both counted from the first: bool (queries, keys)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(1)


def repeat_heads(key: Tensor, query: Tensor, name: str) -> Tensor:
    """Keys (*batch, heads, S, E) for as many heads as the query has: neighbouring ones share a key."""
    if key.dim() < 3 or query.dim() < 3 or key.shape[-3] == 0 or query.shape[-3] % key.shape[-3]:
        raise ValueError(
            f"{name} must have heads that divide those of query {tuple(query.shape)}; got {tuple(key.shape)}"
        )
    return key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
