"""Sparse attention over a cache with all scores: the specification, which ignores boxes."""

from typing import Any

import torch
from torch import Tensor

from polymax.kernels.sparse_attention import reference
from polymax.kernels.sparse_attention.options import Options
from polymax.kernels.sparse_decoding.options import Cached


def sparse_decoding(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    cached = Cached(*given)
    mask, sides = cached.mask, (cached.left, cached.right, cached.offset)
    if cached.table is not None and cached.lengths is not None:
        k, v = (in_order(t, cached.table, cached.lengths) for t in (k, v))
        mask, sides = visible(cached, q.shape[2], k.shape[2]), (-1, -1, 0)
    sizes, numbers = (q.shape[2], k.shape[2]), (cached.scale, cached.softcap)
    options = Options(cached.alpha, cached.alphas, mask, cached.sinks, None, None, *sizes, *numbers, *sides)
    out, _, tau, support, *_ = reference.sparse_attention(q, k, v, *options)
    return out, tau, support


def in_order(pages: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Return the keys of each sequence, (B, G, S, D), from pages of a pool; 0 behind its end."""
    # the table may hold any number behind the end of a sequence, and pages any values
    found = pages[table.long().clamp(0, len(pages) - 1)].transpose(1, 2).flatten(2, 3)
    held = torch.arange(found.shape[2], device=found.device) < lengths[:, None]
    return torch.where(held[:, None, :, None], found, 0)


def visible(cached: Cached, queries: int, keys: int) -> Tensor:
    """Return a mask, bool (B, 1, queries, keys), that is True if a query sees a key."""
    assert cached.lengths is not None
    lengths = cached.lengths.long()[:, None, None]
    j = torch.arange(keys, device=lengths.device)
    ahead = j - (lengths - queries + torch.arange(queries, device=lengths.device)[:, None])
    sees = j < lengths
    if cached.left >= 0:
        sees = sees & (ahead >= -cached.left)
    return (sees & (ahead <= cached.right) if cached.right >= 0 else sees).expand(-1, queries, -1)[:, None]
