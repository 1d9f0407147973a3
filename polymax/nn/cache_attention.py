"""Attention over a cache of keys and values."""

from typing import Any

import torch
from torch import Tensor

from polymax import _check
from polymax.kernels.sparse_decoding import reference
from polymax.mappings import softmax
from polymax.nn.attention import scaled_dot_product_attention
from polymax.nn.attention_bias import distance_bias, with_bias
from polymax.nn.attention_call import AttentionCall
from polymax.nn.attention_mapping import Mapping, checked_mapping
from polymax.nn.attention_obstacles import obstacle_over_pages
from polymax.nn.fused_attention import decoded_heads
from polymax.nn.key_value_cache import KeyValueCache, KeyValuePages
from polymax.nn.length_scaling import LengthScaling


def cache_attention(
    query: Tensor,
    cache: KeyValueCache | KeyValuePages,
    *,
    scale: float | None = None,
    mapping: Mapping = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    is_causal: bool = True,
    attn_mask: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    left_padding: Tensor | None = None,
    sequences: Tensor | None = None,
) -> Tensor:
    """Attention of the last tokens of a cache, which holds their own keys already.

    It is `scaled_dot_product_attention` of the queries and the keys and values in the cache. On CUDA, with sparsemax or
    entmax, boxes of keys leave out the pages that cannot have weight: these are not read, and the result is the same.

    Arguments:
        is_causal: a query sees no later keys; with False it sees all keys of its sequence
        attn_mask: bool (True = keep) or float (is added); column j belongs to key j of a sequence
        alibi_slopes: -slope |distance| is added to the scores
        left_padding: the number of padding keys at the start of each sequence, which no query sees
        sequences: the number of the sequence in the cache that each query attends to; all in order by default
        others: as in `scaled_dot_product_attention`

    Shapes:
        query (batch, heads, tokens, E), where the heads of the cache divide those of query; attn_mask broadcasts to
        (batch, heads, tokens, keys); alibi_slopes (heads,), or (batch, heads); left_padding and sequences (batch,)

    Example:
        >>> cache = pm.nn.KeyValueCache()
        >>> cache.append(torch.tensor([[[[4.0], [3.5], [0.0]]]]), torch.eye(3)[None, None])
        >>> cache_attention(torch.ones(1, 1, 1, 1), cache, mapping=pm.sparsemax)
        tensor([[[[0.7500, 0.2500, 0.0000]]]])
    """
    if not isinstance(cache, (KeyValueCache, KeyValuePages)):
        raise TypeError(f"cache must be a KeyValueCache or KeyValuePages; got {type(cache).__name__}")
    _check.floating(query, "query")
    if cache.keys.dim() != 4:
        raise ValueError("cache must hold keys and values: append those of the first tokens before attending to it")
    heads, channels = cache.keys.shape[1], cache.keys.shape[3]
    if query.dim() != 4 or heads == 0 or query.shape[1] % heads or query.shape[3] != channels:
        raise ValueError(
            f"query must be (batch, heads, tokens, {channels}), with heads that the {heads} of the cache divide; got "
            f"{tuple(query.shape)}"
        )
    held = len(cache.keys) if isinstance(cache, KeyValueCache) else len(cache.table)
    for name, t in (("left_padding", left_padding), ("sequences", sequences)):
        _check_numbers(t, name, len(query))
    if sequences is None and len(query) != held:
        raise ValueError(f"query must be of the {held} sequences of the cache; got {tuple(query.shape)}")
    if sequences is not None and _check.readable(sequences) and bool(((sequences < 0) | (sequences >= held)).any()):
        raise ValueError(f"sequences must be from 0 to {held - 1}; got {sequences.tolist()}")
    if alibi_slopes is not None and alibi_slopes.shape not in ((query.shape[1],), query.shape[:2]):
        shapes = f"({query.shape[1]},) or {tuple(query.shape[:2])}"
        raise ValueError(f"alibi_slopes must be {shapes}; got {tuple(alibi_slopes.shape)}")

    mapping = checked_mapping(mapping)
    told: dict[str, Any] = {"scale": scale, "mapping": mapping, "softcap": softcap, "sinks": sinks, "enable_gqa": True}
    extra = attn_mask, alibi_slopes, left_padding
    if isinstance(cache, KeyValuePages):
        return _over_pages(query, cache, sequences, extra, is_causal, window, told)
    keys, values, boxes = cache.keys, cache.values, cache.boxes
    if sequences is not None:
        keys, values, boxes = (t[sequences] for t in (keys, values, boxes))
    offset = cache.length - query.shape[2]
    places = torch.arange(query.shape[2], device=query.device) + offset
    mask = _mask(extra, places, cache.length, query)
    told |= {"is_causal": is_causal, "causal_offset": offset, "window": window}
    return scaled_dot_product_attention(query, keys, values, mask, key_boxes=boxes, **told)


def _over_pages(
    query: Tensor,
    cache: KeyValuePages,
    sequences: Tensor | None,
    extra: tuple[Tensor | None, ...],
    is_causal: bool,
    window: tuple[int, int] | None,
    told: dict[str, Any],
) -> Tensor:
    table, lengths = cache.table, cache.lengths
    if sequences is not None:
        table, lengths = table[sequences], lengths[sequences]
    mapping, tokens = told["mapping"], query.shape[2]
    places = lengths.long()[:, None] - tokens + torch.arange(tokens, device=lengths.device)
    # a LengthScaling is applied here: rows of different sequences have different lengths
    inner = {"mapping": mapping.mapping} if isinstance(mapping, LengthScaling) else {}
    call = AttentionCall(query, cache.keys, cache.values, is_causal=is_causal, window=window, **{**told, **inner})
    cached = call.cached(cache.keys)._replace(boxes=cache.boxes, table=table, lengths=lengths)
    if all(t is None for t in extra) and obstacle_over_pages(call) is None:
        q = call.query
        if isinstance(mapping, LengthScaling):
            low, high = call.pattern.bounds(places, lengths.long()[:, None])
            q = mapping.scaled(q, (high - low)[:, None])
        return decoded_heads(q, call.key, call.value, call.mapping, cached)
    keys, values = (reference.in_order(t, table, lengths) for t in (cache.keys, cache.values))
    seen = reference.visible(cached, tokens, keys.shape[2])
    return scaled_dot_product_attention(
        query, keys, values, with_bias(seen, _mask(extra, places, keys.shape[2], query)), **told
    )


def _mask(extra: tuple[Tensor | None, ...], places: Tensor, keys: int, query: Tensor) -> Tensor | None:
    """A mask, slopes of distances and padding at the left, as one mask."""
    mask, slopes, padding = extra
    if mask is not None and mask.shape[-1] not in (1, keys):
        # pages hold more keys than the longest sequence
        mask = torch.nn.functional.pad(mask, (0, keys - mask.shape[-1]))
    if slopes is not None:
        mask = with_bias(mask, distance_bias(slopes, places, keys, query.dtype))
    if padding is not None:
        kept = torch.arange(keys, device=padding.device) >= padding[:, None]
        mask = with_bias(kept[:, None, None], mask)
    return mask


def _check_numbers(t: Any, name: str, batch: int) -> None:
    if t is None:
        return
    if not isinstance(t, Tensor) or t.dtype not in (torch.int32, torch.int64) or t.shape != (batch,):
        came = f"{t.dtype} {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
        raise ValueError(f"{name} must be ({batch},) integers, one for each query of the batch; got {came}")
