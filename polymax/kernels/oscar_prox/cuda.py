"""OSCAR prox for Triton: sort, isotonic regression and the way back in one kernel.

Scores are sorted as integers: the bits of the float, ordered, above the index, so that ties go by index.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.isotonic.cuda import isotonic, non_increasing
from polymax.kernels.triton_launch import Entry
from polymax.kernels.triton_math import beside, ceil_power, on_device
from polymax.kernels.triton_rows import extent, stack, unstack
from polymax.kernels.widen import unit, wide

# longer rows, and float64, which has no wider integer to be packed into, are sorted by torch
LONGEST_SORTED = 2048


def oscar_prox(x: Tensor, strength: Tensor, shifted: bool = False) -> tuple[Tensor, Tensor]:
    n = x.shape[-1]
    if n > LONGEST_SORTED or x.dtype == torch.float64:
        return by_parts(x, strength, shifted)
    scores = x.contiguous()
    z, order = torch.empty_like(scores), torch.empty_like(scores, dtype=torch.int32)
    count = x.numel() // max(n, 1)
    if count:
        strengths = beside(strength, x.shape[:-1])
        launch, grid = _launch(tile, count, n, x.dtype, shifted, strengths.numel() > 1)
        with on_device(x):
            launch(grid, scores, strengths, z, order, count, n)
    return z, order


@lru_cache(maxsize=4096)
def _launch(tiles, count, n, dtype, shifted, many):
    """The kernel with its compile-time arguments, and its grid."""
    br, bt, be, warps = tiles(count, n)
    sizes = {"MANY": many, "HALF": dtype.itemsize == 2, "SHIFTED": shifted, "LOWEST": torch.finfo(dtype).min}
    return _oscar_prox.prepared(**sizes, BR=br, BT=bt, BE=be, num_warps=warps), (triton.cdiv(count, br),)


def tile(count: int, n: int) -> tuple[int, int, int, int]:
    """Rows per program, threads to a row, entries to a thread, and warps."""
    bn = ceil_power(n)
    # the sort is straight-line code that grows with the entries to a thread and should stay in the instruction cache
    be = min(16 if bn == 1024 else 8, max(bn // 8, 1))
    bt = bn // be
    br = max(1, min(32 // bt, ceil_power(count)))
    return br, bt, be, max(1, br * bt // 32)


def by_parts(x, strength, shifted):
    n = x.shape[-1]
    if n == 0:
        return x.clone(), torch.empty_like(x, dtype=torch.int32)
    y = wide(x)
    s = strength.double().unsqueeze(-1)
    good = (x < torch.inf).all(-1, keepdim=True) & (s >= 0)
    ordered, order = torch.where(good, y, 0).sort(dim=-1, descending=True, stable=True)
    # thousands of ranks times the strength leave scores few digits of float32
    ordered = ordered.double()
    count = (ordered != -torch.inf).sum(-1, keepdim=True)
    top = ordered.amax(-1, keepdim=True).clamp(min=torch.finfo(ordered.dtype).min)
    lowest = torch.where(ordered == -torch.inf, top, ordered).amin(-1, keepdim=True)
    scale = unit(lowest, top)
    # beyond this all entries are one cluster
    s = (s * scale).minimum(top * scale - lowest * scale)
    raised = ordered * scale - top * scale + s * torch.arange(n, device=x.device)
    lowered = isotonic(raised)
    lowered = (lowered - lowered[..., :1]) / scale if shifted else (lowered - s * (0.5 * (count - 1))) / scale + top
    # a shifted entry may be lower than any finite number
    lowered = torch.where(ordered == -torch.inf, ordered, lowered.clamp(min=torch.finfo(x.dtype).min))
    z = torch.empty_like(ordered).scatter_(-1, order, lowered)
    return torch.where(good, z, torch.nan).to(x.dtype), order.to(torch.int32)


@Entry
@triton.jit
def _oscar_prox(
    p_x,
    p_strength,
    p_z,
    p_order,
    count,
    n,
    MANY: tl.constexpr,
    HALF: tl.constexpr,
    SHIFTED: tl.constexpr,
    LOWEST: tl.constexpr,
    BR: tl.constexpr,
    BT: tl.constexpr,
    BE: tl.constexpr,
):
    BN: tl.constexpr = BT * BE
    # rows past the last do the last again
    i_r = tl.minimum(tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR), count - 1)
    o_r = (i_r * n)[:, None]
    o_n = tl.arange(0, BN)[None, :]
    b_x = tl.load(p_x + o_r + o_n, mask=o_n < n, other=float("-inf")).to(tl.float32)
    b_s = tl.load(p_strength + (i_r if MANY else i_r * 0)).to(tl.float32)[:, None]
    m_good, b_unit, b_range, b_base = extent(b_x)
    m_good = m_good & (b_s >= 0)
    # beyond this all entries are one cluster
    b_s = tl.minimum(b_s * b_unit, b_range)
    # bad rows keep their order; -0.0 is a tie with 0.0
    b_x = tl.where((m_good | (o_n >= n)) & (b_x != 0), b_x, 0.0)
    b_count = tl.sum((b_x != float("-inf")).to(tl.int32), 1)[:, None]
    b_x, b_index = sorted_rows(b_x, o_n, p_x.dtype.element_ty, HALF)
    # x - strength ((m + 1) / 2 - rank) but for a constant, so that the largest scores keep their digits
    b_y = b_x * b_unit - b_base + b_s * o_n
    zs = non_increasing(unstack(tl.reshape(b_y, [BR, BT, BE])))
    b_z = tl.reshape(stack(zs), [BR, BN])
    if SHIFTED:
        b_z = b_z - tl.max(b_z, 1)[:, None]
    else:
        b_z = b_z - 0.5 * b_s * (b_count - 1) + b_base
    # a shifted entry may be lower than any finite number
    b_z = tl.where(b_x == float("-inf"), b_x, tl.maximum(b_z * (1 / b_unit), LOWEST))
    b_z = tl.where(m_good, b_z, float("nan")).to(p_z.dtype.element_ty)
    tl.store(p_z + o_r + b_index, b_z, mask=b_index < n)
    tl.store(p_order + o_r + o_n, b_index, mask=o_n < n)


@triton.jit
def sorted_rows(b_x, o_n, dtype: tl.constexpr, HALF: tl.constexpr):
    """Rows in decreasing order, and where each entry was."""
    BN: tl.constexpr = b_x.shape[1]
    SHIFT: tl.constexpr = 16 if HALF else 32
    LOW: tl.constexpr = (1 << (SHIFT - 1)) - 1
    if HALF:
        b_bits = b_x.to(dtype).to(tl.int16, bitcast=True).to(tl.int32)
    else:
        b_bits = b_x.to(tl.int32, bitcast=True).to(tl.int64)
    # the bits of negative floats descend where the floats ascend
    b_keys = tl.where(b_bits < 0, b_bits ^ LOW, b_bits) << SHIFT
    b_keys = tl.sort(b_keys | (BN - 1 - o_n), descending=True)
    b_index = BN - 1 - (b_keys & (2 * LOW + 1)).to(tl.int32)
    b_bits = b_keys >> SHIFT
    b_bits = tl.where(b_bits < 0, b_bits ^ LOW, b_bits)
    if HALF:
        return b_bits.to(tl.int16).to(dtype, bitcast=True).to(tl.float32), b_index
    else:
        return b_bits.to(tl.int32).to(tl.float32, bitcast=True), b_index
