"""How sparse attention is: what users look at before they hope for speed."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.mappings import softmax
from polymax.nn.attention import Mapping, attention_weights

# rows whose weights are held at once
ROWS = 1024


class AttentionStatistics(NamedTuple):
    """Of each head, over all sequences of a batch: see `attention_statistics`."""

    zeros: Tensor
    empty_tiles: Tensor
    support: Tensor
    largest_support: Tensor


def attention_statistics(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mapping: Mapping = softmax,
    tile: int = 64,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal_offset: int = 0,
) -> AttentionStatistics:
    """Shares of exact zeros and of empty tiles among what queries may see, and sizes of supports, by head.

    `zeros` is the share of visible weights that are 0, `empty_tiles` that of tiles (tile x tile) with a visible weight
    in which all are 0, and `support` the mean number of weights of a query that are not, `largest_support` the largest.
    Weights are computed for some rows at a time. What is visible is what a mask, is_causal and a window allow.

    Shapes: query (*batch, heads, L, E), or (L, E); key (*batch, heads, S, E), or (S, E); results (heads,), or ()

    Example:
        >>> q = torch.randn(2, 4, 100, 16)
        >>> found = attention_statistics(8 * q, q, is_causal=True, mapping=pm.sparsemax)
        >>> found.support.shape, bool((found.zeros > 0.5).all())
        (torch.Size([4]), True)
    """
    if isinstance(tile, bool) or not isinstance(tile, int) or tile < 1:
        raise ValueError(f"tile must be a positive integer; got {tile!r}")
    queries = query.shape[-2]
    rows = max(tile, ROWS // tile * tile)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa, "window": window, "is_causal": is_causal}
    totals: Tensor | None = None
    largest: Tensor | None = None
    with torch.no_grad():
        for start in range(0, max(queries, 1), rows):
            part = query[..., start : start + rows, :]
            mask = attn_mask
            if mask is not None and mask.dim() > 1 and mask.shape[-2] > 1:
                mask = mask[..., start : start + rows, :]
            here = {**options, "causal_offset": causal_offset + start}
            weights = attention_weights(part, key, mask, mapping=mapping, softcap=softcap, sinks=sinks, **here)
            # a query without scores sees with equal weight all that it may see
            equal = attention_weights(torch.zeros_like(part), key, _forbidding(mask), mapping=softmax, **here)
            seen, on = equal > 0, weights != 0
            support = on.sum(-1)
            counts = [seen.sum((-2, -1)), (seen & ~on).sum((-2, -1)), support.sum(-1)]
            counts += [_tiles(seen, tile), _tiles(seen, tile) - _tiles(on, tile)]
            found = torch.stack([_by_head(t) for t in counts]).double()
            most = _by_head(support.amax(-1) if support.shape[-1] else support.sum(-1), torch.amax)
            totals = found if totals is None else totals + found
            largest = most if largest is None else torch.maximum(largest, most)
    assert totals is not None
    assert largest is not None
    visible, zeros, on_all, tiles, empty = totals
    count = max(query.shape[:-2].numel() // (query.shape[-3] if query.dim() > 2 else 1) * queries, 1)
    return AttentionStatistics(
        zeros / visible.clamp(min=1), empty / tiles.clamp(min=1), on_all / count, largest.to(torch.int64)
    )


def _forbidding(mask: Tensor | None) -> Tensor | None:
    """What a mask forbids, without what it adds."""
    return mask if mask is None or mask.dtype == torch.bool else mask > -torch.inf


def _tiles(marks: Tensor, tile: int) -> Tensor:
    """How many tiles have a mark: (*batch, L, S) to (*batch)."""
    rows, columns = (-size % tile for size in marks.shape[-2:])
    padded = torch.nn.functional.pad(marks, (0, columns, 0, rows))
    tiles = padded.unflatten(-1, (-1, tile)).unflatten(-3, (-1, tile))
    return tiles.any(-1).any(-2).sum((-2, -1))


def _by_head(t: Tensor, reduce: Any = torch.sum) -> Tensor:
    """(*batch, heads) reduced to (heads,)."""
    return t if t.dim() < 2 else reduce(t.flatten(0, -2), 0)
