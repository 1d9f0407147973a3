"""Arithmetic is done at least in float32."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """x itself, or in float32 where it came in half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
