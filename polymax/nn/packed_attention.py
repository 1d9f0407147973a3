"""Attention of packed sequences, and of nested tensors."""

from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.mappings import softmax
from polymax.nn.attention import attention_path, scaled_dot_product_attention
from polymax.nn.attention_pattern import pattern_of
from polymax.nn.fused_attention import Attention, autocast, fused_heads


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    mapping: Any = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal_offset: int = 0,
) -> Tensor:
    """Attention of packed sequences, one after the other in a single tensor of tokens.

    Sequence b has the queries cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1, and keys likewise; positions, for is_causal
    and windows, are counted in each. Heads of key and value may be fewer, and divide those of query.

    Shapes:
        query (tokens, heads, E); key (tokens, key heads, E); value (tokens, key heads, V); cu_seqlens (sequences + 1,)

    Example:
        >>> x = torch.randn(5, 2, 8)
        >>> starts = torch.tensor([0, 2, 5])
        >>> packed = varlen_attention(x, x, x, starts, starts, mapping=pm.sparsemax)
        >>> alone = pm.nn.scaled_dot_product_attention(*[x[2:].transpose(0, 1)] * 3, mapping=pm.sparsemax)
        >>> torch.allclose(packed[2:].transpose(0, 1), alone, atol=1e-6)
        True
    """
    for t, name in ((query, "query"), (key, "key"), (value, "value")):
        _check.floating(t, name)
        if t.dim() != 3:
            raise ValueError(f"{name} must be (tokens, heads, channels); got {tuple(t.shape)}")
    if len(key) != len(value):
        raise ValueError(f"value must have the {len(key)} tokens of key; got {tuple(value.shape)}")
    starts_q, starts_k = _starts(cu_seqlens_q, query, "cu_seqlens_q"), _starts(cu_seqlens_k, key, "cu_seqlens_k")
    if len(starts_q) != len(starts_k):
        raise ValueError(
            f"cu_seqlens_q and cu_seqlens_k must be of one length; got {len(starts_q)} and {len(starts_k)}"
        )
    pattern = pattern_of(is_causal, window, causal_offset)
    query, key, value = autocast(query, key, value)
    q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))
    longest_q, longest_k = (int(starts.diff().max()) if len(starts) > 1 else 0 for starts in (starts_q, starts_k))
    attention = Attention(q, k, v, None, 0.0, scale, True, mapping, pattern, softcap, sinks)
    if q.is_cuda and not attention.is_softmax() and attention.obstacle() is None:
        options = attention.options(q, k)._replace(
            starts_q=starts_q.to(q.device, torch.int32),
            starts_k=starts_k.to(q.device, torch.int32),
            longest_q=longest_q,
            longest_k=longest_k,
        )
        out = fused_heads(q, k, v, mapping, options)
        return out[0].transpose(0, 1)
    told: dict[str, Any] = {"mapping": mapping, "window": window, "softcap": softcap, "sinks": sinks}
    told |= {"is_causal": is_causal, "scale": scale, "enable_gqa": True, "causal_offset": causal_offset}
    bounds = zip(starts_q.tolist(), starts_q.tolist()[1:], starts_k.tolist(), starts_k.tolist()[1:], strict=False)
    parts = [scaled_dot_product_attention(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], **told) for a, b, c, d in bounds]
    rest = query.new_zeros(1, q.shape[1], len(query) - int(starts_q[-1]), v.shape[-1])
    return torch.cat([*parts, rest], 2)[0].transpose(0, 1)


def nested_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    mapping: Any,
    window: tuple[int, int] | None,
    softcap: float | None,
    sinks: Tensor | None,
    causal_offset: int,
) -> Tensor:
    """Attention of nested jagged tensors (batch, heads, tokens of each, channels), as torch's takes them."""
    q, k, v = _tokens_first(query, key, value, attn_mask, dropout_p)
    starts: list[Tensor] = [t.offsets() for t in (q, k)]
    options: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "mapping": mapping, "window": window}
    options |= {"softcap": softcap, "sinks": sinks, "causal_offset": causal_offset}
    out = varlen_attention(q.values(), k.values(), v.values(), *starts, **options)
    return torch.nested.nested_tensor_from_jagged(out.contiguous(), starts[0]).transpose(1, 2)


def nested_path(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    mapping: Any,
    window: tuple[int, int] | None,
    softcap: float | None,
    sinks: Tensor | None,
    causal_offset: int,
) -> str:
    """How nested tensors are computed: on CUDA as one, elsewhere each sequence by itself."""
    q, k, v = _tokens_first(query, key, value, attn_mask, dropout_p)
    told: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "mapping": mapping, "window": window}
    told |= {"softcap": softcap, "sinks": sinks, "causal_offset": causal_offset, "enable_gqa": True}
    if query.is_cuda:
        packed = attention_path(*(t.values().transpose(0, 1)[None] for t in (q, k, v)), **told)
        if packed.startswith("fused: the kernel"):
            return f"{packed}, in one launch for all sequences"
    # the sequence with the most keys
    at = int(k.offsets().diff().argmax())
    path = attention_path(*(t[at].transpose(0, 1) for t in (q, k, v)), **told)
    return f"each sequence by itself; the longest one {path}"


def _tokens_first(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float
) -> tuple[Any, Any, Any]:
    """Nested tensors (batch, tokens of each, heads, channels) without holes between sequences."""
    if attn_mask is not None or dropout_p > 0:
        raise ValueError("attn_mask must be None, and dropout_p 0, where query is a nested tensor")
    if not (key.is_nested and value.is_nested and query.layout == key.layout == value.layout == torch.jagged):
        raise ValueError("query, key and value must all be nested tensors of the layout torch.jagged, or none of them")
    for t, name in ((query, "query"), (key, "key"), (value, "value")):
        if t.dim() != 4:
            shape = "(batch, heads, tokens of each, channels)"
            raise ValueError(f"{name} must be {shape} where it is a nested tensor; got {t.dim()} dims")
    if len(key) != len(query):
        raise ValueError(f"key must have the {len(query)} sequences of query; got {len(key)}")
    turned: list[Any] = [t.transpose(1, 2) for t in (query, key, value)]
    q, k, v = (t if t.lengths() is None else t.contiguous() for t in turned)
    if k.offsets() is not v.offsets() and not torch.equal(k.offsets(), v.offsets()):
        raise ValueError(f"value must have sequences as long as those of key; got {v.offsets().diff().tolist()}")
    return q, k, v


def _starts(starts: Tensor, tokens: Tensor, name: str) -> Tensor:
    expected = f"{name} must be (sequences + 1,) integers, where sequences start and the last one ends"
    if not isinstance(starts, Tensor) or starts.dtype not in (torch.int32, torch.int64) or starts.dim() != 1:
        came = f"{starts.dtype} {tuple(starts.shape)}" if isinstance(starts, Tensor) else type(starts).__name__
        raise ValueError(f"{expected}; got {came}")
    if len(starts) == 0:
        raise ValueError(f"{expected}; got none")
    if torch.compiler.is_compiling():
        return starts
    # all conditions at once: a device is waited for a single time
    steps = torch.cat([starts[:1] == 0, starts.diff() >= 0, starts[-1:] <= len(tokens)])
    if not bool(steps.all()):
        raise ValueError(f"{expected}, from 0 on, in order, up to at most {len(tokens)}; got {starts.tolist()}")
    return starts
