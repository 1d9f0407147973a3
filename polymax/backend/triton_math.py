"""Basics of every Triton kernel: tile sizes, the device to launch on, and powers."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import libdevice

# Triton's interpreter runs kernels on the CPU for tests; it has no device library
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


_HERE = nullcontext()


def on_device(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which launches go to the device of x. On the CPU (Triton's interpreter) it does nothing."""
    # switching to the current device takes as long as some kernels
    elsewhere = x.is_cuda and x.get_device() != torch._C._cuda_getDevice()
    return torch.cuda.device(x.device) if elsewhere else _HERE


def here(x: Tensor) -> bool:
    """Return True if launches go to the device of x without a switch."""
    return not x.is_cuda or x.get_device() == torch._C._cuda_getDevice()


def beside(numbers: Tensor, shape: torch.Size) -> Tensor:
    """Return the numbers expanded to a shape, or a single number for all its entries."""
    return numbers if numbers.numel() == 1 else numbers.expand(shape).contiguous()


def ceil_power(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def tile(count: int, n: int) -> tuple[int, int, int]:
    """Return rows per program, padded row length, and warps for rows held in registers."""
    bn = ceil_power(n)
    br = max(1, 512 // bn)
    return br, bn, min(max(br * bn // 512, 2), 32)


@triton.jit
def log2_1p(b_t, WIDE: tl.constexpr):
    """Return log2(1 + t) for t > -1, accurate relative to t near 0."""
    # near 0, log(1 + t) = 2 atanh(t / (2 + t)); elsewhere 1 + t keeps enough digits
    b_s = b_t / (2 + b_t)
    b_q = b_s * b_s
    b_series = 1 + b_q * (1 / 3 + b_q * (1 / 5 + b_q * (1 / 7 + b_q / 9)))
    if WIDE:
        b_tail = 1 / 11 + b_q * (1 / 13 + b_q * (1 / 15 + b_q * (1 / 17 + b_q * (1 / 19 + b_q / 21))))
        b_series += b_q * b_q * b_q * b_q * b_q * b_tail
    return tl.where((b_t > -0.25) & (b_t < 0.33), 2.8853900817779268 * b_s * b_series, tl.log2(1 + b_t))


@triton.jit
def fast_log2(b_x):
    """Return log2(x) in float32 by the hardware instruction: within 2^-22, relative to max(|log2(x)|, 1)."""
    if INTERPRETED:
        b_log = tl.log2(b_x)
    else:
        b_log = libdevice.fast_log2f(b_x)
    return b_log
