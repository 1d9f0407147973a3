"""Precision and range of arithmetic: at least float32, and rows in a unit in which their sums stay finite."""

from collections.abc import Callable

import torch
from torch import Tensor

from polymax.backend.function import keep_tensors


def wide(x: Tensor) -> Tensor:
    """Return x itself, or in float32 if x is in half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def wide_like(x: Tensor, *_: object) -> Tensor:
    """Return an empty contiguous tensor of x's shape, at least in float32; also the fake of operators with such
    results.
    """
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def like_argument(place: int) -> Callable[..., Tensor]:
    """Return the fake of an operator whose result is contiguous, and otherwise like its argument number `place`."""
    return lambda *args: torch.empty_like(args[place], memory_format=torch.contiguous_format)


@keep_tensors(512)
def constant(value: float, dims: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a cached tensor of size 1 in every dim that holds a number, to broadcast; it must not be written to."""
    return torch.full((1,) * dims, value, dtype=dtype, device=device)


# for each dtype, the range beyond which a row is computed in a smaller unit, and this unit
UNITS = {torch.float64: (1e250, 2.0**-300), torch.float32: (1e28, 2.0**-40)}


def unit(low: Tensor, top: Tensor) -> Tensor:
    """Return the factor of rows between low and top: 1, or a power of two that keeps sums of their entries finite."""
    widest, small = UNITS[top.dtype]
    # a difference that overflows is also too wide
    return torch.where(top - low > widest, torch.full_like(top, small), 1)
