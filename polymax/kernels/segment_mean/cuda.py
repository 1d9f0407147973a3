"""Segment mean by scans over the row in registers, for Triton."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels import triton_rows
from polymax.kernels.triton_launch import Entry
from polymax.kernels.triton_math import on_device
from polymax.kernels.triton_rows import bit, following, load_row, previous, run_means, store_row


def segment_mean(z: Tensor, v: Tensor, order: Tensor | None = None, y: Tensor | None = None) -> Tensor:
    values = v.contiguous()
    out, n = torch.empty_like(values), z.shape[-1]
    if n > triton_rows.LONGEST:
        raise ValueError(f"z must have rows of at most {triton_rows.LONGEST} entries on CUDA; got {n}")
    count = z.numel() // max(n, 1)
    if count:
        # what is not there is not read
        weights, ranks = out if y is None else y.contiguous(), out if order is None else order.contiguous()
        tiles = tile if order is None else ordered_tile
        launch, grid = _launch(tiles, count, n, v.dtype, order is not None, y is not None)
        with on_device(z):
            launch(grid, z.contiguous(), values, weights, ranks, out, count, n)
    return out


@lru_cache(maxsize=4096)
def _launch(tiles, count, n, dtype, ordered, centred):
    """The kernel with its compile-time arguments, and its grid."""
    br, bt, be, warps = tiles(count, n)
    sizes = {"ORDERED": ordered, "CENTRED": centred, "WIDE": dtype == torch.float64}
    return _segment_mean.prepared(**sizes, BR=br, BT=bt, BE=be, num_warps=warps), (triton.cdiv(count, br),)


def tile(count: int, n: int) -> tuple[int, int, int, int]:
    """Rows per program, threads to a row, entries to a thread, and warps."""
    return triton_rows.chunks(count, n)


def ordered_tile(count: int, n: int) -> tuple[int, int, int, int]:
    """The same where entries are read here and there: two warps to a row keep fewer rows in the cache than one."""
    br, bt, be, warps = tile(count, n)
    return (br, 2 * bt, be // 2, 2 * warps) if be == 32 else (br, bt, be, warps)


@Entry
@triton.jit
def _segment_mean(
    p_z,
    p_v,
    p_y,
    p_order,
    p_out,
    count,
    n,
    ORDERED: tl.constexpr,
    CENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BT: tl.constexpr,
    BE: tl.constexpr,
):
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    # rows past the last do the last again
    i_r = tl.minimum(tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), count - 1)
    zs = load_row(p_z, p_order, i_r, n, float("-inf"), dtype, ORDERED, BT, BE)
    vs = load_row(p_v, p_order, i_r, n, 0, dtype, ORDERED, BT, BE)
    if CENTRED:
        vs = _centred(p_y, i_r, n, vs, ORDERED)

    # the last present entry of the threads before
    b_before = zs[0]
    for k in tl.static_range(1, BE):
        b_before = tl.where(zs[k] == float("-inf"), b_before, zs[k])
    b_before = previous(tl.associative_scan(b_before, 1, _latest), float("-inf"))
    b_present = tl.zeros([BR, BT], tl.uint32)
    b_begins = tl.zeros([BR, BT], tl.uint32)
    m_bad = tl.zeros([BR, BT], tl.int32)
    present = ()
    for k in tl.static_range(BE):
        m_here = zs[k] != float("-inf")
        b_present = b_present | (m_here.to(tl.uint32) << k)
        b_begins = b_begins | ((m_here & (zs[k] != b_before)).to(tl.uint32) << k)
        m_bad = m_bad | (zs[k] != zs[k]).to(tl.int32)
        b_before = tl.where(m_here, zs[k], b_before)
        present = present + (tl.where(m_here, vs[k], 0),)
    # absent entries before the first run make one of their own
    b_begins = b_begins | (tl.arange(0, BT) == 0).to(tl.uint32)[None, :]
    b_ends = (b_begins >> 1) | (following(b_begins & 1, 1) << (BE - 1))
    means, rests = run_means(present, b_present, b_begins, b_ends)
    m_bad = tl.max(m_bad, 1)[:, None] > 0
    out = ()
    for k in tl.static_range(BE):
        b_mean = tl.where(bit(b_present, k), means[k] + rests[k], 0)
        out = out + (tl.where(m_bad, float("nan"), b_mean),)
    store_row(p_out, p_order, i_r, n, out, ORDERED)


@triton.jit
def _centred(p_y, i_r, n, vs, ORDERED: tl.constexpr):
    """vs less their mean where weights are positive, 0 elsewhere."""
    BE: tl.constexpr = len(vs)
    BT: tl.constexpr = vs[0].shape[1]
    dtype: tl.constexpr = vs[0].dtype
    ys = load_row(p_y, p_y, i_r, n, 0, dtype, False, BT, BE)
    b_size = tl.zeros(vs[0].shape, tl.int32)
    for k in tl.static_range(BE):
        b_size += (ys[k] > 0).to(tl.int32)
    b_size = tl.sum(b_size, 1)[:, None]
    b_sum = tl.zeros(vs[0].shape, dtype)
    inside = ()
    for k in tl.static_range(BE):
        if ORDERED:
            # in falling order, the support comes first
            m_in = (tl.arange(0, BT) * BE + k)[None, :] < b_size
        else:
            m_in = ys[k] > 0
        b_sum += tl.where(m_in, vs[k], 0)
        inside = inside + (m_in,)
    b_mean = tl.sum(b_sum, 1)[:, None] / tl.maximum(b_size, 1).to(dtype)
    out = ()
    for k in tl.static_range(BE):
        out = out + (tl.where(inside[k], vs[k] - b_mean, 0),)
    return out


@triton.jit
def _latest(a, b):
    return tl.where(b == float("-inf"), a, b)
