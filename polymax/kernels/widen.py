"""Room for arithmetic: at least float32, and rows in a unit in which their sums stay finite."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """x itself, or in float32 where it came in half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# by dtype, the range from which on a row is computed in a smaller unit, and that unit
UNITS = {torch.float64: (1e250, 2.0**-300), torch.float32: (1e28, 2.0**-40)}


def unit(low: Tensor, top: Tensor) -> Tensor:
    """What rows between low and top are multiplied by: 1, or a power of two that keeps sums of their entries finite."""
    widest, small = UNITS[top.dtype]
    # a difference that overflows is too wide, too
    return torch.where(top - low > widest, torch.full_like(top, small), 1)
