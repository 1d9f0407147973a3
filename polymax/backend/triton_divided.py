"""Launches of fusedmax and oscarmax: a first kernel solves the rows that it can, a second kernel the rest.

The saved tensor holds for each entry how its row is divided; the first kernel marks the rows it leaves there.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from polymax.backend import triton_rows
from polymax.backend.triton_launch import Bound, Entry
from polymax.backend.triton_math import beside, on_device

# rows up to this length go straight to the second kernel, which is done before a first one could be launched
SHORT = 64


def weights(x: Tensor, strength: Tensor, kept: torch.dtype, launches: Callable[..., Any]) -> tuple[Tensor, Tensor]:
    """Return the weights of rows, and how rows are divided, in the dtype `kept`.

    `launches(count, n, dtype, dtype of strengths, True if each row has its own)` returns the launches, called in order.
    """
    scores = x.contiguous()
    y, division, n = torch.empty_like(scores), torch.empty_like(scores, dtype=kept), x.shape[-1]
    count = x.numel() // max(n, 1)
    if count:
        strengths = beside(strength, x.shape[:-1])
        with on_device(x):
            for launch in launches(count, n, x.dtype, strengths.dtype, strengths.numel() > 1):
                launch(scores, strengths, y, division)
    return y, division


def means(kernel: Entry, division: Tensor, v: Tensor) -> Tensor:
    """Return rows v centred on the support and averaged over its parts."""
    values = v.contiguous()
    out, n = torch.empty_like(values), v.shape[-1]
    count = v.numel() // max(n, 1)
    if count:
        with on_device(v):
            _means(kernel, count, n, v.dtype)(division.contiguous(), values, out)
    return out


@lru_cache(maxsize=4096)
def _means(kernel: Entry, count: int, n: int, dtype: torch.dtype) -> Bound:
    br, bn, warps = triton_rows.flat(n)
    sizes = {"WIDE": dtype == torch.float64, "BR": br, "BN": bn}
    return Bound(kernel.prepared(**sizes, num_warps=warps), (-(-count // br),), count, n)
