"""Tsallis slope in one pass over each row, for Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import on_device, tile

# entries of a row that are read at once
CHUNK = 4096


def tsallis_slope(y: Tensor, g: Tensor, alphas: Tensor) -> Tensor:
    out = torch.zeros_like(alphas, memory_format=torch.contiguous_format)
    count, n = y.shape[:-1].numel(), y.shape[-1]
    if count and n:
        br, bn, warps = tile(count, min(n, CHUNK))
        args = y.contiguous(), g.contiguous(), alphas.contiguous(), out, count, n
        with on_device(y):
            _tsallis_slope[(triton.cdiv(count, br),)](
                *args, WIDE=y.dtype == torch.float64, BR=br, BN=bn, num_warps=warps
            )
    return out


@Entry
@triton.jit
def _tsallis_slope(p_y, p_g, p_alpha, p_out, count, n, WIDE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr):
    dtype = tl.float64 if WIDE else tl.float32
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    m_r = i_r < count
    b_a = tl.load(p_alpha + i_r, mask=m_r, other=2.0).to(dtype)[:, None] - 1
    b_total = tl.zeros([BR], dtype)
    for start in range(0, n, BN):
        o_n = start + tl.arange(0, BN)
        m_n = m_r[:, None] & (o_n < n)[None, :]
        o_y = i_r[:, None] * n + o_n[None, :]
        b_y = tl.load(p_y + o_y, mask=m_n, other=1).to(dtype)
        b_g = tl.load(p_g + o_y, mask=m_n, other=0).to(dtype)
        b_log = tl.log(tl.where(b_y > 0, b_y, 1))
        b_total += tl.sum(b_g * b_log * b_log * curve(b_a * b_log, WIDE), 1)
    tl.store(p_out + i_r, (-b_total).to(p_out.dtype.element_ty), mask=m_r)


@triton.jit
def curve(b_t, WIDE: tl.constexpr):
    """Return (exp(t) (t - 1) + 1) / t^2, by its series near 0, where the formula cancels."""
    b_near = tl.abs(b_t) < 0.5
    b_s = 1 / 5760 + b_t * (1 / 45360 + b_t * (1 / 403200 + b_t / 3991680))
    if WIDE:
        b_tail = 1 / 43545600 + b_t * (1 / 518918400 + b_t * (1 / 6706022400 + b_t / 93405312000))
        b_s += b_t * b_t * b_t * b_t * (b_tail + b_t * b_t * b_t * b_t * (1 / 1394852659200 + b_t / 22230464256000))
    b_s = 1 / 2 + b_t * (1 / 3 + b_t * (1 / 8 + b_t * (1 / 30 + b_t * (1 / 144 + b_t * (1 / 840 + b_t * b_s)))))
    # for alpha < 1 powers of small weights are large; they are multiplied by even smaller numbers
    b_far = tl.where(b_near, 1, tl.minimum(b_t, 40))
    return tl.where(b_near, b_s, (tl.exp(b_far) * (b_far - 1) + 1) / (b_far * b_far))
