"""Segment mean by scans over the row in registers, for Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend import triton_rows
from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import on_device
from polymax.backend.triton_rows import bit, following, load_row, previous, run_means, store_row
from polymax.kernels.segment_mean import reference


def segment_mean(z: Tensor, v: Tensor, order: Tensor | None = None, y: Tensor | None = None) -> Tensor:
    if order is not None or y is not None:
        # fusedmax and oscarmax, which need `order` and `y`, have their own operators on CUDA
        return reference.segment_mean(z, v, order, y)
    values = v.contiguous()
    out, n = torch.empty_like(values), z.shape[-1]
    if n > triton_rows.LONGEST:
        raise ValueError(f"z must have rows of at most {triton_rows.LONGEST} entries on CUDA; got {n}")
    count = z.numel() // max(n, 1)
    if count:
        br, bt, be, warps = tile(count, n)
        sizes = {"WIDE": v.dtype == torch.float64, "BR": br, "BT": bt, "BE": be}
        with on_device(z):
            _segment_mean[(triton.cdiv(count, br),)](z.contiguous(), values, out, count, n, **sizes, num_warps=warps)
    return out


def tile(count: int, n: int) -> tuple[int, int, int, int]:
    """Return rows per program, threads to a row, entries to a thread, and warps."""
    return triton_rows.chunks(count, n)


@Entry
@triton.jit
def _segment_mean(
    p_z,
    p_v,
    p_out,
    count,
    n,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BT: tl.constexpr,
    BE: tl.constexpr,
):
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    # programs past the last row repeat the last row
    i_r = tl.minimum(tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), count - 1)
    zs = load_row(p_z, i_r, n, float("-inf"), dtype, BT, BE)
    vs = load_row(p_v, i_r, n, 0, dtype, BT, BE)

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
    # absent entries before the first run form a run of their own
    b_begins = b_begins | (tl.arange(0, BT) == 0).to(tl.uint32)[None, :]
    b_ends = (b_begins >> 1) | (following(b_begins & 1, 1) << (BE - 1))
    means, rests = run_means(present, b_present, b_begins, b_ends)
    m_bad = tl.max(m_bad, 1)[:, None] > 0
    out = ()
    for k in tl.static_range(BE):
        b_mean = tl.where(bit(b_present, k), means[k] + rests[k], 0)
        out = out + (tl.where(m_bad, float("nan"), b_mean),)
    store_row(p_out, i_r, n, out)


@triton.jit
def _latest(a, b):
    return tl.where(b == float("-inf"), a, b)
