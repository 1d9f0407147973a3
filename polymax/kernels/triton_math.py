"""What every Triton kernel is made of: tile sizes, the device to launch on, and powers."""

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Launches go to the current device: make it that of x. On the CPU (Triton's interpreter) there is none."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def ceil_power(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def tile(count: int, n: int) -> tuple[int, int, int]:
    """Rows per program, padded row length, and warps for rows held in registers."""
    bn = ceil_power(n)
    br = max(1, min(2048 // bn, ceil_power(count)))
    warps = min(max(br * bn // 512, 1), 32)
    return br, bn, warps


@triton.jit
def log2_1p(b_t):
    """log2(1 + t) for t > -1, accurate relative to t near 0."""
    # near 0, log(1 + t) = 2 atanh(t / (2 + t)); elsewhere 1 + t keeps the digits that count
    b_s = b_t / (2 + b_t)
    b_q = b_s * b_s
    b_series = 1 / 13 + b_q * (1 / 15 + b_q * (1 / 17 + b_q * (1 / 19 + b_q / 21)))
    b_series = 1 / 7 + b_q * (1 / 9 + b_q * (1 / 11 + b_q * b_series))
    b_series = 1 + b_q * (1 / 3 + b_q * (1 / 5 + b_q * b_series))
    b_near = 2.8853900817779268 * b_s * b_series
    return tl.where(b_t > -0.25, b_near, tl.log2(1 + b_t))


@triton.jit
def rough_power_1p(b_t, b_k):
    """(1 + t) ** k for t >= -1 in float32, within about one per cent."""
    # the bits of a float, as an integer, are 2^23 (log2(x) + a bump over the mantissa); the same backwards
    b_log = ((1 + b_t).to(tl.int32, bitcast=True) - 0x3F800000).to(tl.float32) * (1 / 8388608)
    b_g = b_log - tl.floor(b_log)
    b_log = b_k * (b_log + 0.344 * b_g * (1 - b_g))
    b_log = tl.maximum(b_log, -126)
    b_g = b_log - tl.floor(b_log)
    b_log = b_log - 0.337 * b_g * (1 - b_g)
    b_bits = (b_log * 8388608).to(tl.int32) + 0x3F800000
    return tl.where(b_t > -1, b_bits.to(tl.float32, bitcast=True), 0)
