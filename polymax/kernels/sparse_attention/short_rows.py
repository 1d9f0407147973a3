"""The calls on CUDA that take the kernels of short rows, by sizes and options alone, and the views that they read."""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.function import surely

# the most keys of a row in half precision, for sparsemax, for alpha 1.5, and for any other alpha or one for each head,
# which take powers
MOST_KEYS = {2.0: 1024, 1.5: 2048, None: 2048}
# the most channels of queries and of values
MOST_CHANNELS = 128
# both limits in float32, where each product is three
MOST_SINGLE_KEYS, MOST_SINGLE_CHANNELS = 512, 64


def takes_short_rows(alpha: Any, longest_k: Any, channels: int, dtype: torch.dtype) -> bool:
    """Return True if rows of so many keys go to the kernels of short rows; in a compiled graph, if all rows are known
    to.
    """
    if dtype == torch.float32:
        return channels <= MOST_SINGLE_CHANNELS and surely(longest_k <= MOST_SINGLE_KEYS)
    most = MOST_KEYS.get(alpha if isinstance(alpha, float) else None, MOST_KEYS[None])
    return channels <= MOST_CHANNELS and surely(longest_k <= most)


def near(t: Tensor) -> bool:
    """Return True if kernels read a tensor (..., rows, channels) without a copy: channels lie side by side, and 32 bits
    count the entries from the first row of a head to the last.
    """
    return t.stride(-1) == 1 and surely(t.shape[-2] * t.stride(-2) < 1 << 31)
