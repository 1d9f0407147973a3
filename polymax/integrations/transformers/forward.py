"""The attention function that models of Transformers call in the place of their own."""

from typing import Any

import torch
from torch import Tensor, nn

from polymax.backend.function import surely
from polymax.integrations.transformers.cache import BOXES
from polymax.integrations.transformers.packed import (
    Sequences,
    own_documents,
    packed_sequences,
    paged_keys,
    says_the_same,
    window_of,
)
from polymax.integrations.transformers.process_heads import PerHead, of_process
from polymax.integrations.transformers.weights import weights_wanted
from polymax.nn.attention import attention_weights, scaled_dot_product_attention
from polymax.nn.attention_bias import with_bias
from polymax.nn.attention_mapping import Mapping
from polymax.nn.attention_scores import repeat_heads
from polymax.nn.attention_values import weighted_sum
from polymax.nn.block_routed import BlockRoutedAttention
from polymax.nn.packed_attention import varlen_attention

# other arguments with these words in their names may restrict the keys that a query sees
VISIBILITY = ("mask", "bias", "window", "slopes", "sink", "block", "chunk", "segment", "seqlens", "seq_lens", "indices")
# arguments that are honoured below or by the cache of continuous batching, or that choose outputs
HONOURED = {"sliding_window", "cu_seq_lens_q", "cu_seq_lens_k", "block_table", "logits_indices"}


def attention(
    mapping: Mapping,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    indices: Tensor | None = None,
    block_indices: Tensor | None = None,
    cache: Any = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as models call it: the context (N, L, heads, V), and weights (N, heads, L, S) if requested.

    Without weights, it is `pm.nn.scaled_dot_product_attention`, which need not store all weights at once, or, for
    sequences that are packed into a row, `pm.nn.varlen_attention`.

    `softcap` bounds scores, `position_bias` is added to them, and `s_aux` are scores of a sink for each head, which
    takes its part of the weights. `indices` (N, L, k) are the keys that an indexer has selected for each query, and
    `block_indices` (N, index heads, L, k) blocks of keys; -1 stands for none. `cu_seq_lens_q` and `cu_seq_lens_k`, or
    `position_ids` that begin again, mark the starts of packed sequences. `cache` holds the pages of continuous
    batching. `sliding_window` counts if there is no mask. Other arguments that may hide keys raise a ValueError; the
    rest, for kernels of other implementations, are ignored.

    Example:
        >>> q = torch.randn(1, 2, 5, 8)
        >>> context, weights = attention(pm.sparsemax, nn.Module(), q, q, q, None, output_attentions=True)
        >>> context.shape, weights.shape
        (torch.Size([1, 5, 2, 8]), torch.Size([1, 2, 5, 5]))
    """
    _refuse_unknown(options)
    sinks = None if s_aux is None else s_aux.reshape(-1)
    mapping, sinks, position_bias = of_process(module, query.shape[1], PerHead(mapping, sinks, position_bias))
    told: dict[str, Any] = {"scale": scaling, "mapping": mapping, "softcap": softcap, "sinks": sinks}
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    window, drop = window_of(options.get("sliding_window")), dropout if module.training else 0.0
    if cache is not None:
        key, value = paged_keys(cache, module, key, value, options)
    packed = packed_sequences(query, key, causal, window, options, attention_mask is None)
    biased = any(t is not None for t in (position_bias, indices, block_indices))
    if cache is not None:
        # the mask that a model makes from positions has only new tokens; cu_seq_lens are complete
        return _over_pages(query, key, value, packed, biased, told), None
    sizes, mask = (query.shape[2], key.shape[2]), attention_mask
    if packed is not None:
        extra = biased or torch.compiler.is_compiling()
        same = mask is None or (not extra and len(query) == 1 and says_the_same(mask, packed, *sizes))
        if same and not extra and not weights_wanted(module, options):
            return _one_by_one(query, key, value, packed, {**told, "dropout_p": drop}), None
        if len(query) > 1:
            raise ValueError("cu_seq_lens must be of one row of tokens if masks, weights or biases are given")
        # a mask of the model may hide more keys: both masks apply
        mask = with_bias(packed.mask(*sizes), None if mask is None else _kept(mask, sizes[1]))
        causal, window = False, None
    else:
        own = own_documents(options.get("position_ids"), query, key, mask, causal)
        if mask is not None:
            mask, causal, window = _kept(mask, sizes[1]), False, None
        # a single query comes after all keys
        causal = causal and sizes[0] > 1
        mask = with_bias(own, mask)
    if isinstance(mapping, BlockRoutedAttention):
        if packed is not None or indices is not None or block_indices is not None:
            raise ValueError("block routing over packed sequences takes neither masks of its own, weights nor indices")
        return _routed(module, query, key, value, with_bias(position_bias, mask), causal, drop, told, options)
    told |= {"enable_gqa": bool(key.shape[1] != query.shape[1]), "is_causal": causal}
    if window is not None and not surely(sizes[1] <= window[0] + 1):
        told |= {"window": window, "causal_offset": sizes[1] - 1 if sizes[0] == 1 else 0}
    mask = with_bias(position_bias, _selected_alone(module, mask, indices, block_indices, query.shape[1], sizes[1]))
    if not weights_wanted(module, options):
        told["key_boxes"] = getattr(key, BOXES, None)
        context = scaled_dot_product_attention(query, key, value, mask, drop, **told)
        return context.transpose(1, 2).contiguous(), None
    return _weighted(attention_weights(query, key, mask, **told), query, value, drop)


def _refuse_unknown(options: dict[str, Any]) -> None:
    """Raise ValueError for an argument that may hide keys and is not honoured."""
    for name, option in options.items():
        if option is not None and name not in HONOURED and any(word in name for word in VISIBILITY):
            raise ValueError(
                f"{name} must be None: attention by polymax does not support this argument, which may hide keys"
            )


def _weighted(weights: Tensor, query: Tensor, value: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """The context (N, L, heads, V) of these weights after dropout, and the weights."""
    weights = nn.functional.dropout(weights, dropout)
    values = value if value.shape[1] == query.shape[1] else repeat_heads(value, query, "value")
    return weighted_sum(weights, values).to(value.dtype).transpose(1, 2).contiguous(), weights


def layer_attention(name: str, module: nn.Module, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """`attention` by the mapping that belongs to the module, as `use` and `load` put it there."""
    mapping = getattr(module, "polymax_mapping", None)
    if mapping is None:
        raise RuntimeError(
            f"{type(module).__name__} has no mapping of its own, which {name!r} needs: call "
            f"polymax.integrations.transformers.use(model, {name!r}) before the optimizer is made, or load a saved "
            "model by polymax.integrations.transformers.load"
        )
    return attention(mapping, module, *args, **options)


def _one_by_one(query: Tensor, key: Tensor, value: Tensor, packed: Sequences, told: dict[str, Any]) -> Tensor:
    """The context (N, L, heads, V) of packed sequences; rows of a batch lie one after another."""
    if isinstance(told["mapping"], BlockRoutedAttention):
        return _routed_one_by_one(query, key, value, packed, told)
    q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (query, key, value))
    out = varlen_attention(
        q,
        k,
        v,
        packed.starts_q,
        packed.starts_k,
        is_causal=packed.is_causal,
        window=packed.window,
        causal_offset=packed.offset,
        max_seqlen_q=packed.longest_q,
        max_seqlen_k=packed.longest_k,
        **told,
    )
    return out.unflatten(0, (len(query), -1))


def _over_pages(
    query: Tensor, key: Tensor, value: Tensor, packed: Sequences | None, biased: bool, told: dict[str, Any]
) -> Tensor:
    """The context of the last tokens of sequences whose keys were read from pages; tokens behind them get zeros."""
    if packed is None:
        raise ValueError("cu_seq_lens_q and cu_seq_lens_k must be given with a cache of pages")
    if biased:
        raise ValueError("biases and indices must be None with a cache of pages: sequences differ in length")
    starts_q, starts_k = packed.starts_q, packed.starts_k
    queries, keys = int(starts_q[-1]), int(starts_k[-1])
    # the last query of a sequence stands at its last key
    packed = packed._replace(offset=starts_k.diff() - starts_q.diff(), longest_q=None, longest_k=None)
    out = _one_by_one(query[:, :, :queries], key[:, :, :keys], value[:, :, :keys], packed, told)
    return nn.functional.pad(out, (0, 0, 0, 0, 0, query.shape[2] - queries))


def _routed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    told: dict[str, Any],
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """The context and weights of attention to the blocks that the mapping of the module chooses."""
    routing: BlockRoutedAttention = told["mapping"]
    queries, keys = query.shape[2], key.shape[2]
    offset = 0
    if getattr(module, "is_causal", True) and queries < keys:
        # the last query stands at the last key that it sees
        seen = None if mask is None else mask if mask.dtype == torch.bool else mask > -torch.inf
        numbers = torch.arange(keys, device=query.device)
        last = keys - 1 if seen is None else int((seen[..., -1, :].int() * numbers).max())
        # without a mask, several queries are the first ones of a cache that is not full
        offset = last - queries + 1 if seen is not None or queries == 1 else 0
        causal = True
    more = {name: told[name] for name in ("softcap", "sinks")}
    given = {"attn_mask": mask, "is_causal": causal, "scale": told["scale"], "causal_offset": offset, **more}
    if not weights_wanted(module, options):
        out = routing(query, key, value, dropout_p=dropout, **given)
        return out.transpose(1, 2).contiguous(), None
    return _weighted(routing.weights(query, key, **given), query, value, dropout)


def _routed_one_by_one(query: Tensor, key: Tensor, value: Tensor, packed: Sequences, told: dict[str, Any]) -> Tensor:
    """The context (N, L, heads, V) of packed sequences, in each of which blocks are counted from its start."""
    if packed.window is not None:
        raise ValueError("sliding_window must be None with block routing over packed sequences")
    routing: BlockRoutedAttention = told["mapping"]
    q, k, v = (t.transpose(0, 1).flatten(1, 2)[None] for t in (query, key, value))
    starts_q, starts_k = packed.starts_q.tolist(), packed.starts_k.tolist()
    offsets = packed.offset.tolist() if isinstance(packed.offset, Tensor) else [packed.offset] * (len(starts_q) - 1)
    more = {name: told[name] for name in ("scale", "softcap", "sinks")}
    more |= {"is_causal": packed.is_causal, "dropout_p": told.get("dropout_p", 0.0)}
    pairs = zip(starts_q, starts_q[1:], starts_k, starts_k[1:], offsets, strict=False)
    parts = [
        routing(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], causal_offset=offset, **more) for a, b, c, d, offset in pairs
    ]
    return torch.cat(parts, 2)[0].transpose(0, 1).unflatten(0, (len(query), -1))


def _kept(mask: Tensor, keys: int) -> Tensor:
    """A mask for so many keys, bool (True = keep) or float with -inf."""
    mask = mask[..., :keys]
    # a float mask has the lowest number instead of -inf
    return mask if mask.dtype == torch.bool else mask.masked_fill(mask <= torch.finfo(mask.dtype).min, -torch.inf)


def _selected_alone(
    module: nn.Module,
    mask: Tensor | None,
    indices: Tensor | None,
    block_indices: Tensor | None,
    heads: int,
    keys: int,
) -> Tensor | None:
    """The mask, which also leaves out keys that are not among the selected keys and blocks, where these are given."""
    if indices is not None:
        mask = with_bias(_selection_mask(indices, keys), mask)
    if block_indices is not None:
        mask = with_bias(_block_mask(module, block_indices, heads, keys), mask)
    return mask


def _selection_mask(indices: Tensor, keys: int) -> Tensor:
    """True for the selected keys: bool (N, 1, L, keys)."""
    return _selected(indices, keys).unsqueeze(1)


def _selected(indices: Tensor, count: int) -> Tensor:
    """True at the numbers of the last dim: bool (..., count); -1 is none."""
    # an extra entry takes the places of -1
    keep = torch.zeros(*indices.shape[:-1], count + 1, dtype=torch.bool, device=indices.device)
    return keep.scatter(-1, indices.long().where(indices >= 0, count), True)[..., :count]


def _block_mask(module: nn.Module, block_indices: Tensor, heads: int, keys: int) -> Tensor:
    """True for the keys of the selected blocks: bool (N, heads, L, keys)."""
    size = getattr(getattr(module, "indexer", None), "block_size", None)
    if not isinstance(size, int):
        raise ValueError(
            f"block_indices must come from a module with an indexer that has a block_size; {type(module).__name__} has "
            "none"
        )
    blocks = _selected(block_indices, -(-keys // size)).repeat_interleave(size, -1)[..., :keys]
    return blocks.repeat_interleave(heads // block_indices.shape[1], 1)
