"""Attention of packed sequences, and of nested tensors."""

from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.mappings import softmax
from polymax.nn.attention import scaled_dot_product_attention
from polymax.nn.attention_bias import distance_bias, with_bias
from polymax.nn.attention_call import AttentionCall, Route
from polymax.nn.attention_mapping import Mapping, checked_mapping
from polymax.nn.attention_pattern import Pattern
from polymax.nn.fused_attention import fused_heads
from polymax.nn.length_scaling import LengthScaling

# routes of all tokens on which packed sequences are attended in one call
AT_ONCE = (Route.SPARSE, Route.SHORT, Route.FEW_QUERIES)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    mapping: Mapping = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal_offset: int | Tensor = 0,
    dropout_p: float = 0.0,
    attn_mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
) -> Tensor:
    """Attention of packed sequences, one after the other in a single tensor of tokens.

    Sequence b has the queries cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1, and keys likewise; positions, for is_causal
    and windows, are counted in each sequence. Heads of key and value may be fewer, and divide those of query.

    Arguments:
        cu_seqlens_q, cu_seqlens_k: the first token of each sequence, then the number of tokens; int32 or int64
        causal_offset: the key at which the first query of a sequence stands, an integer, or one for each sequence. The
            last query stands at the last key with `cu_seqlens_k.diff() - cu_seqlens_q.diff()`
        attn_mask: bool (True = keep) or float (is added); row i and column j belong to query i and key j of a sequence
        alibi_slopes: -slope |i + causal_offset - j| is added to the score of query i and key j
        max_seqlen_q, max_seqlen_k: the length of the longest sequence. With both, the call does not wait for a GPU
        others: as in `scaled_dot_product_attention`

    Shapes:
        query (tokens, heads, E); key (tokens, key heads, E); value (tokens, key heads, V); cu_seqlens (sequences + 1,);
        attn_mask (sequences or 1, heads or 1, longest q or 1, longest k or 1); alibi_slopes (heads,), or
        (sequences, heads)

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
    starts_q = _starts(cu_seqlens_q, query, "cu_seqlens_q", max_seqlen_q, "max_seqlen_q")
    starts_k = _starts(cu_seqlens_k, key, "cu_seqlens_k", max_seqlen_k, "max_seqlen_k")
    if len(starts_q) != len(starts_k):
        raise ValueError(
            f"cu_seqlens_q and cu_seqlens_k must be of one length; got {len(starts_q)} and {len(starts_k)}"
        )
    sequences = len(starts_q) - 1
    offsets = _offsets(causal_offset, sequences)
    _check_slopes(alibi_slopes, sequences, query.shape[1])
    mapping = checked_mapping(mapping)
    told: dict[str, Any] = {"mapping": mapping, "window": window, "softcap": softcap, "sinks": sinks}
    told |= {"is_causal": is_causal, "scale": scale, "enable_gqa": True, "dropout_p": dropout_p}
    q, k, v = (t.transpose(0, 1)[None] for t in (query, key, value))
    if attn_mask is None and alibi_slopes is None and isinstance(offsets, int):
        # a LengthScaling is applied here: keys are counted in each sequence
        inner = {"mapping": mapping.mapping} if isinstance(mapping, LengthScaling) else {}
        call = AttentionCall(q, k, v, causal_offset=offsets, **{**told, **inner})
        if call.decide().route in AT_ONCE:
            longest = _longest(starts_q, max_seqlen_q), _longest(starts_k, max_seqlen_k)
            return _at_once(call, mapping, starts_q, starts_k, longest)
    if attn_mask is not None:
        _check_mask(attn_mask, sequences, query.shape[1], _longest(starts_q, None), _longest(starts_k, None))
    return _one_by_one((q, k, v), (starts_q, starts_k), offsets, attn_mask, alibi_slopes, told)


def _one_by_one(
    tensors: tuple[Tensor, Tensor, Tensor],
    starts: tuple[Tensor, Tensor],
    offsets: int | list[int],
    attn_mask: Tensor | None,
    alibi_slopes: Tensor | None,
    told: dict[str, Any],
) -> Tensor:
    """The context (tokens, heads, V) by one call for each sequence."""
    (q, k, v), (starts_q, starts_k) = tensors, (t.tolist() for t in starts)
    of_each = [offsets] * (len(starts_q) - 1) if isinstance(offsets, int) else offsets
    bounds = zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False)
    parts = [q.new_empty(1, q.shape[1], 0, v.shape[-1])]
    for n, (a, b, c, d) in enumerate(bounds):
        mask = None if attn_mask is None else _part(attn_mask, n, b - a, d - c)
        if alibi_slopes is not None:
            slopes = alibi_slopes if alibi_slopes.dim() == 1 else alibi_slopes[n]
            places = torch.arange(b - a, device=q.device) + of_each[n]
            mask = with_bias(mask, distance_bias(slopes, places, d - c, q.dtype))
        q_n, k_n, v_n = q[:, :, a:b], k[:, :, c:d], v[:, :, c:d]
        parts.append(scaled_dot_product_attention(q_n, k_n, v_n, mask, causal_offset=of_each[n], **told))
    # autocast may have changed the dtype
    parts[0] = parts[0].to(parts[-1].dtype)
    return torch.cat(parts, 2)[0].transpose(0, 1)


def _at_once(call: AttentionCall, mapping: Any, starts_q: Tensor, starts_k: Tensor, longest: tuple[int, int]) -> Tensor:
    """The context (tokens, heads, V) of all sequences by one call of the kernel."""
    q, k, v = call.query, call.key, call.value
    starts_q, starts_k = (t.to(q.device, torch.int32) for t in (starts_q, starts_k))
    if isinstance(mapping, LengthScaling):
        q = mapping.scaled(q, _visible_in_each(call.pattern, starts_q, starts_k, q.shape[2]))
    options = call.options(q, k)._replace(
        starts_q=starts_q,
        starts_k=starts_k,
        longest_q=longest[0],
        longest_k=longest[1],
        short=call.sparse_route(longest[1]) is Route.SHORT,
    )
    return fused_heads(q, k, v, call.mapping, options)[0].transpose(0, 1)


def _visible_in_each(pattern: Pattern, starts_q: Tensor, starts_k: Tensor, tokens: int) -> Tensor:
    """The number of keys that each query sees in its sequence, (tokens,)."""
    i = torch.arange(tokens, device=starts_q.device)
    of = torch.bucketize(i, starts_q[1:], right=True).clamp(max=len(starts_q) - 2)
    low, high = pattern.bounds(i - starts_q[of] + pattern.offset, starts_k.diff()[of].long())
    return high - low


def nested_attention(call: AttentionCall) -> Tensor:
    """Attention of nested tensors (batch, heads, tokens of each, channels), the form of torch's own attention."""
    strided = call.query.layout == torch.strided
    q, k, v = _tokens_first(call)
    starts: list[Tensor] = [t.offsets() for t in (q, k)]
    options: dict[str, Any] = {"is_causal": call.is_causal, "scale": call.scale, "mapping": call.mapping}
    options |= {"window": call.window, "softcap": call.softcap, "sinks": call.sinks}
    out = varlen_attention(q.values(), k.values(), v.values(), *starts, causal_offset=call.causal_offset, **options)
    found = torch.nested.nested_tensor_from_jagged(out.contiguous(), starts[0])
    return as_strided(found, heads_first=True) if strided else found.transpose(1, 2)


def nested_path(call: AttentionCall) -> str:
    """Return how nested tensors are computed: by one call of the kernel, or each sequence by itself."""
    q, k, v = _tokens_first(call)
    told: dict[str, Any] = {"is_causal": call.is_causal, "scale": call.scale, "mapping": call.mapping}
    told |= {"window": call.window, "softcap": call.softcap, "sinks": call.sinks, "enable_gqa": True}
    told |= {"causal_offset": call.causal_offset}
    whole = AttentionCall(*(t.values().transpose(0, 1)[None] for t in (q, k, v)), **told)
    # the sequence with the most keys
    at = int(k.offsets().diff().argmax())
    if whole.decide().route in AT_ONCE:
        route = whole.sparse_route(int(k.offsets().diff()[at]))
        return f"{route.value}, in one call for all sequences"
    longest = AttentionCall(*(t[at].transpose(0, 1) for t in (q, k, v)), **told)
    longest.check()
    return f"each sequence by itself; the longest one {longest.decide().sentence()}"


def as_jagged(t: Tensor, heads_first: bool = False) -> Tensor:
    """Return a nested tensor in the layout torch.jagged, differentiable; a jagged tensor is returned unchanged.

    With `heads_first`, the sequences are (heads, tokens, channels).
    """
    if t.layout != torch.strided:
        return t
    parts = [part.transpose(0, 1) if heads_first else part for part in t.unbind()]
    found = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    return found.transpose(1, 2) if heads_first else found


def as_strided(t: Tensor, heads_first: bool = False) -> Tensor:
    """Return a jagged tensor in the layout torch.strided; with `heads_first`, sequences are transposed."""
    parts = [part.transpose(0, 1) if heads_first else part for part in t.unbind()]
    return torch.nested.as_nested_tensor(parts, layout=torch.strided)


def _tokens_first(call: AttentionCall) -> tuple[Any, Any, Any]:
    """Nested tensors (batch, tokens of each, heads, channels) without holes between sequences."""
    query, key, value = call.query, call.key, call.value
    if call.attn_mask is not None or call.dropout_p > 0:
        raise ValueError("attn_mask must be None, and dropout_p 0, where query is a nested tensor")
    if not (key.is_nested and value.is_nested and query.layout == key.layout == value.layout):
        raise ValueError("query, key and value must all be nested tensors of the layout torch.jagged, or none of them")
    for t, name in ((query, "query"), (key, "key"), (value, "value")):
        if t.dim() != 4:
            shape = "(batch, heads, tokens of each, channels)"
            raise ValueError(f"{name} must be {shape} where it is a nested tensor; got {t.dim()} dims")
    query, key, value = (as_jagged(t, heads_first=True) for t in (query, key, value))
    if key.size(0) != query.size(0):
        raise ValueError(f"key must have the {query.size(0)} sequences of query; got {key.size(0)}")
    turned: list[Any] = [t.transpose(1, 2) for t in (query, key, value)]
    q, k, v = (t if t.lengths() is None else t.contiguous() for t in turned)
    if k.offsets() is not v.offsets() and not torch.equal(k.offsets(), v.offsets()):
        raise ValueError(f"value must have sequences as long as those of key; got {v.offsets().diff().tolist()}")
    return q, k, v


def _starts(starts: Tensor, tokens: Tensor, name: str, longest: int | None, longest_name: str) -> Tensor:
    """The starts of sequences, checked; with `longest`, only as far as possible without waiting for a device."""
    expected = f"{name} must be (sequences + 1,) integers, the starts of sequences and the number of tokens"
    if not isinstance(starts, Tensor) or starts.dtype not in (torch.int32, torch.int64) or starts.dim() != 1:
        came = f"{starts.dtype} {tuple(starts.shape)}" if isinstance(starts, Tensor) else type(starts).__name__
        raise ValueError(f"{expected}; got {came}")
    if len(starts) == 0:
        raise ValueError(f"{expected}; got none")
    if longest is not None:
        _check_longest(longest, len(starts) - 1, len(tokens), longest_name)
    elif len(starts) == 1 and len(tokens) > 0:
        raise ValueError(f"{expected}; got no sequence for {len(tokens)} tokens")
    if torch.compiler.is_compiling() or (longest is not None and not _check.readable(starts)):
        return starts
    # all conditions in one tensor: a single wait for the device
    steps = torch.cat([starts[:1] == 0, starts.diff() >= 0, starts[-1:] == len(tokens)])
    if not bool(steps.all()):
        raise ValueError(
            f"{expected}, from 0 on, in order, up to {len(tokens)}; got {starts.tolist()}. Tokens that pad the end are "
            "a sequence of their own"
        )
    if longest is not None and _longest(starts, None) > longest:
        raise ValueError(f"{longest_name} must be at least the longest length, {_longest(starts, None)}; got {longest}")
    return starts


def _check_longest(longest: Any, sequences: int, tokens: int, name: str) -> None:
    if isinstance(longest, bool) or not isinstance(longest, (int, torch.SymInt)) or longest < 0:
        raise ValueError(f"{name} must be the length of the longest sequence, an integer; got {longest!r}")
    if not torch.compiler.is_compiling() and longest * sequences < tokens:
        raise ValueError(
            f"{name} must be so large that {sequences} sequences have {tokens} tokens; got {longest}: cu_seqlens would "
            "end before the last token"
        )


def _longest(starts: Tensor, known: int | None) -> int:
    if known is not None:
        return known
    return int(starts.diff().max()) if len(starts) > 1 else 0


def _offsets(offset: Any, sequences: int) -> int | list[int]:
    """The offset of all sequences, an integer, or a list with the offset of each sequence."""
    if not isinstance(offset, Tensor) or offset.dim() == 0:
        return offset if isinstance(offset, int) else int(offset) if isinstance(offset, Tensor) else offset
    if offset.dtype not in (torch.int32, torch.int64) or offset.shape != (sequences,):
        came = f"{offset.dtype} {tuple(offset.shape)}"
        raise ValueError(f"causal_offset must be an integer, or ({sequences},), one for each sequence; got {came}")
    found = offset.tolist()
    return found[0] if len(set(found)) == 1 else found


def _check_slopes(slopes: Any, sequences: int, heads: int) -> None:
    if slopes is None:
        return
    _check.floating(slopes, "alibi_slopes")
    if slopes.shape not in ((heads,), (sequences, heads)):
        raise ValueError(f"alibi_slopes must be ({heads},) or ({sequences}, {heads}); got {tuple(slopes.shape)}")


def _check_mask(mask: Any, sequences: int, heads: int, longest_q: int, longest_k: int) -> None:
    if not isinstance(mask, Tensor) or mask.dtype not in (torch.bool, *_check.FLOATS):
        raise TypeError(f"attn_mask must be a bool tensor (True = keep) or a float tensor; got {_check.kind(mask)}")
    shape = (sequences, heads, longest_q, longest_k)
    if mask.dim() != 4 or any(m not in (1, n) for m, n in zip(mask.shape, shape, strict=True)):
        raise ValueError(f"attn_mask must broadcast to {shape} and have 4 dims; got {tuple(mask.shape)}")


def _part(mask: Tensor, sequence: int, queries: int, keys: int) -> Tensor:
    """The mask of one sequence, (1, heads or 1, queries or 1, keys or 1)."""
    part = mask[sequence : sequence + 1] if len(mask) > 1 else mask
    return part[..., : queries if mask.shape[2] > 1 else 1, : keys if mask.shape[3] > 1 else 1]
