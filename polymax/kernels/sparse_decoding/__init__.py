"""Sparse attention of a few queries over a long cache of keys, with as few reads of the cache as possible.

    p = (u - tau)_+ ^ (1 / (alpha - 1))        as in kernels/sparse_attention, without a gradient

Keys lie in pages. A page may have a box: the least and the largest number of each channel among its keys. The largest
score that a key in a box can have,

    sum over channels of max(q low, q high)

bounds all scores of the page, and pages are skipped once some scores are known: the threshold of any part of a row is a
lower bound of tau. Only pages whose bound exceeds it are read, and values only if their weights are not 0.

Without a table, keys are (B, G, S, D), in pages of PAGE neighbours, and query i has position offset + i. With a table,
(B, pages) integers, keys are pages of a pool, (blocks, G, page, D), and table[b, n] is the block of page n of sequence
b. The queries are the last of the lengths[b] keys of the sequence. A query sees the keys from `left` before it to
`right` after it; -1 means no limit.

Shapes: q (B, H, L, D); boxes (B, G, pages, 2, D), or (blocks, G, 2, D) with a table; lengths (B,); mask broadcasts to
(B, H, L, S), without a table; sinks and alphas (H,); the context (B, H, L, V), tau (2, B, H, L), as in
kernels/sparse_attention, and the size of the support (B, H, L)
"""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.dispatch import declare
from polymax.kernels.sparse_decoding.options import SCHEMA


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows = q.shape[:-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    return (
        q.new_empty(*rows, v.shape[-1]),
        q.new_empty((2, *rows), dtype=wide),
        q.new_empty(rows, dtype=torch.int32),
    )


sparse_decoding = declare(
    __name__, f"sparse_decoding(Tensor q, Tensor k, Tensor v, {SCHEMA}) -> (Tensor, Tensor, Tensor)", _fake
)
