"""Two classes of sums for Triton: sums of rows are formed in registers, a tile of frames, states and classes at a time.

Each sum is divided by its own largest term, so that no factor underflows. The gradient of e adds up over states, and
that of p over frames, each in one program in a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import on_device
from polymax.kernels.additive_classes import empty_results

# frames, states and classes of a tile
FRAMES, STATES, CLASSES = 8, 16, 32


def additive_classes(
    e: Tensor, p: Tensor, at: Tensor, frames: Tensor, states: Tensor, blank: int
) -> tuple[Tensor, Tensor, Tensor]:
    out = empty_results(e, p)
    batch, n, k = out[0].shape
    if out[0].numel():
        given = (t.contiguous() for t in (e, p, at, frames, states))
        grid = triton.cdiv(n, FRAMES), triton.cdiv(k, STATES), batch
        with on_device(e):
            _forward[grid](*given, *out, n, k, e.shape[2], blank, **_tile(e))
    return out


def additive_classes_backward(
    e: Tensor,
    p: Tensor,
    at: Tensor,
    frames: Tensor,
    states: Tensor,
    total: Tensor,
    g_blank: Tensor,
    g_label: Tensor,
    blank: int,
) -> tuple[Tensor, Tensor]:
    g_e, g_p = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (e, p))
    (batch, n, classes), k = e.shape, p.shape[1]
    given = [t.contiguous() for t in (e, p, at, frames, states, total, g_blank, g_label)]
    blocks = triton.cdiv(classes, CLASSES)
    with on_device(e):
        for out, rows in ((g_e, triton.cdiv(n, FRAMES)), (g_p, triton.cdiv(k, STATES))):
            if out.numel():
                _by_row[(blocks, rows, batch)](*given, out, n, k, classes, blank, OF_E=out is g_e, **_tile(e))
    return g_e, g_p


def _tile(e):
    return {"WIDE": e.dtype == torch.float64, "BT": FRAMES, "BU": STATES, "BV": CLASSES, "num_warps": 4}


@triton.jit
def _sums(p_e, p_p, o_t, o_u, o_v, frames, states, n_v, dtype: tl.constexpr):
    """Return the sums (BT, BU, BV) of rows of e and of p; -inf for classes and rows that are not there."""
    m_v = o_v < n_v
    b_e = tl.load(
        p_e + o_t[:, None] * n_v + o_v[None, :], mask=(o_t < frames)[:, None] & m_v[None, :], other=float("-inf")
    )
    b_p = tl.load(
        p_p + o_u[:, None] * n_v + o_v[None, :], mask=(o_u < states)[:, None] & m_v[None, :], other=float("-inf")
    )
    return b_e.to(dtype)[:, None, :] + b_p.to(dtype)[None, :, :]


@Entry
@triton.jit
def _forward(
    p_e,
    p_p,
    p_at,
    p_frames,
    p_states,
    p_first,
    p_second,
    p_total,
    n,
    k,
    n_v,
    blank,
    WIDE: tl.constexpr,
    BT: tl.constexpr,
    BU: tl.constexpr,
    BV: tl.constexpr,
):
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    i_b = tl.program_id(2).to(tl.int64)
    o_t, o_u = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1) * BU + tl.arange(0, BU)
    frames, states = tl.load(p_frames + i_b), tl.load(p_states + i_b)
    p_e += i_b * n * n_v
    p_p += i_b * k * n_v
    m_cell = (o_t < frames)[:, None] & (o_u < states)[None, :]
    # a block of padding has no classes to add up
    there = (tl.program_id(0) * BT < frames) & (tl.program_id(1) * BU < states)
    last = tl.where(there, n_v, 0)
    # entries of a tile are compared, and added up, once after the loops: across threads, that takes longest
    b_most = tl.full([BT, BU, BV], float("-inf"), dtype)
    for left in range(0, last, BV):
        b_most = tl.maximum(b_most, _sums(p_e, p_p, o_t, o_u, left + tl.arange(0, BV), frames, states, n_v, dtype))
    b_top = tl.max(b_most, 2)
    b_top = tl.where(b_top > float("-inf"), b_top, 0.0)
    b_each = tl.zeros([BT, BU, BV], dtype)
    for left in range(0, last, BV):
        b_x = _sums(p_e, p_p, o_t, o_u, left + tl.arange(0, BV), frames, states, n_v, dtype)
        b_each += tl.exp(b_x - b_top[:, :, None])
    b_sum = tl.sum(b_each, 2)
    b_none = b_sum == 0
    # a NaN shows in the sum
    b_total = tl.where(b_none, float("-inf"), b_top + tl.log(tl.where(b_none, 1.0, b_sum)))
    b_base = tl.where(b_none, 0.0, b_total)
    b_at = tl.load(p_at + i_b * k + o_u, mask=o_u < states, other=0)
    m_t, m_u = o_t < frames, o_u < states
    b_first = tl.load(p_e + o_t * n_v + blank, mask=m_t, other=0.0).to(dtype)[:, None]
    b_first += tl.load(p_p + o_u * n_v + blank, mask=m_u, other=0.0).to(dtype)[None, :]
    b_second = tl.load(p_e + o_t[:, None] * n_v + b_at[None, :], mask=m_cell, other=0.0).to(dtype)
    b_second += tl.load(p_p + o_u * n_v + b_at, mask=m_u, other=0.0).to(dtype)[None, :]
    o_cell = i_b * n * k + o_t[:, None] * k + o_u[None, :]
    m_out = (o_t < n)[:, None] & (o_u < k)[None, :]
    tl.store(p_first + o_cell, tl.where(m_cell, b_first - b_base, 0.0), mask=m_out)
    tl.store(p_second + o_cell, tl.where(m_cell, b_second - b_base, 0.0), mask=m_out)
    tl.store(p_total + o_cell, tl.where(m_cell, b_total, 0.0), mask=m_out)


@triton.jit
def _slopes(
    p_e,
    p_p,
    p_at,
    p_total,
    p_g_blank,
    p_g_label,
    o_t,
    o_u,
    left,
    frames,
    states,
    n_v,
    k,
    blank,
    dtype: tl.constexpr,
    BV: tl.constexpr,
):
    """Return the derivatives (BT, BU, BV) in the sums of rows."""
    o_v = left + tl.arange(0, BV)
    m_cell = (o_t < frames)[:, None] & (o_u < states)[None, :]
    o_cell = o_t[:, None] * k + o_u[None, :]
    b_total = tl.load(p_total + o_cell, mask=m_cell, other=0.0).to(dtype)
    b_blank = tl.load(p_g_blank + o_cell, mask=m_cell, other=0.0).to(dtype)
    b_label = tl.load(p_g_label + o_cell, mask=m_cell, other=0.0).to(dtype)
    b_at = tl.load(p_at + o_u, mask=o_u < states, other=-1).to(tl.int32)
    b_weight = -(b_blank + b_label)
    # without a gradient or a sum no entry has a weight
    m_some = (b_weight != 0) & (b_total != float("-inf"))
    b_weight = tl.where(b_total == float("-inf"), 0.0, b_weight)
    b_base = tl.where(m_some | (b_weight != b_weight), b_total, float("inf"))
    b_x = _sums(p_e, p_p, o_t, o_u, o_v, frames, states, n_v, dtype)
    b_g = b_weight[:, :, None] * tl.exp(b_x - b_base[:, :, None])
    # few tiles have the blank, or the class of a state
    if (blank >= left) & (blank < left + BV):
        b_g += tl.where((o_v == blank)[None, None, :], b_blank[:, :, None], 0.0)
    if tl.sum(((b_at >= left) & (b_at < left + BV)).to(tl.int32), 0) > 0:
        b_g += tl.where((o_v[None, :] == b_at[:, None])[None, :, :], b_label[:, :, None], 0.0)
    return b_g


@Entry
@triton.jit
def _by_row(
    p_e,
    p_p,
    p_at,
    p_frames,
    p_states,
    p_total,
    p_g_blank,
    p_g_label,
    p_out,
    n,
    k,
    n_v,
    blank,
    OF_E: tl.constexpr,
    WIDE: tl.constexpr,
    BT: tl.constexpr,
    BU: tl.constexpr,
    BV: tl.constexpr,
):
    """Write the gradient of a block of rows of e, which adds up over states, or of p, which adds up over frames."""
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    BR: tl.constexpr = BT if OF_E else BU
    BS: tl.constexpr = BU if OF_E else BT
    i_b = tl.program_id(2).to(tl.int64)
    left = tl.program_id(0) * BV
    o_v, o_r = left + tl.arange(0, BV), tl.program_id(1) * BR + tl.arange(0, BR)
    frames, states = tl.load(p_frames + i_b), tl.load(p_states + i_b)
    rows, others, size = (frames, states, n) if OF_E else (states, frames, k)
    b_each = tl.zeros([BT, BU, BV], dtype)
    for first in range(0, tl.where(tl.program_id(1) * BR < rows, others, 0), BS):
        o_s = first + tl.arange(0, BS)
        b_each += _slopes(
            p_e + i_b * n * n_v,
            p_p + i_b * k * n_v,
            p_at + i_b * k,
            p_total + i_b * n * k,
            p_g_blank + i_b * n * k,
            p_g_label + i_b * n * k,
            o_r if OF_E else o_s,
            o_s if OF_E else o_r,
            left,
            frames,
            states,
            n_v,
            k,
            blank,
            dtype,
            BV,
        )
    # the sums of a padding row are NaN if the other term is: its gradient is 0 all the same
    b_out = tl.where((o_r < rows)[:, None], tl.sum(b_each, 1 if OF_E else 0), 0.0)
    o_out = i_b * size * n_v + o_r[:, None] * n_v + o_v[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=(o_r < size)[:, None] & (o_v < n_v)[None, :])
