"""Attention over a cache of keys and values."""

from typing import Any

from torch import Tensor

from polymax import _check
from polymax.kernels.sparse_decoding import reference
from polymax.mappings import softmax
from polymax.nn.attention import scaled_dot_product_attention
from polymax.nn.attention_pattern import pattern_of
from polymax.nn.fused_attention import Attention, decoded_heads
from polymax.nn.key_value_cache import KeyValueCache, KeyValuePages


def cache_attention(
    query: Tensor,
    cache: KeyValueCache | KeyValuePages,
    *,
    scale: float | None = None,
    mapping: Any = softmax,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of the last tokens of a cache, which holds their own keys already.

    It is `scaled_dot_product_attention` of the queries and what the cache holds. On CUDA, with sparsemax or entmax,
    boxes of keys leave out the pages that cannot have weight: these are not read, and the result is the same.

    Shapes: query (batch, heads, tokens, E), where the heads of the cache divide those of query

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
    told: dict[str, Any] = {"scale": scale, "mapping": mapping, "softcap": softcap, "sinks": sinks, "enable_gqa": True}
    if isinstance(cache, KeyValueCache):
        told |= {"is_causal": True, "causal_offset": cache.length - query.shape[2], "window": window}
        return scaled_dot_product_attention(query, cache.keys, cache.values, key_boxes=cache.boxes, **told)
    if len(query) != len(cache.table):
        raise ValueError(f"query must be of the {len(cache.table)} sequences of the cache; got {tuple(query.shape)}")
    pattern = pattern_of(True, window, 0)
    attention = Attention(query, cache.keys, cache.values, None, 0.0, scale, True, mapping, pattern, softcap, sinks)
    cached = attention.cached(cache.keys)._replace(boxes=cache.boxes, table=cache.table, lengths=cache.lengths)
    if attention.obstacle_over_pages() is None:
        return decoded_heads(query, cache.keys, cache.values, mapping, cached)
    keys, values = (reference.in_order(t, cache.table, cache.lengths) for t in (cache.keys, cache.values))
    mask = reference.visible(cached, query.shape[2], keys.shape[2])
    return scaled_dot_product_attention(query, keys, values, mask, **told)
