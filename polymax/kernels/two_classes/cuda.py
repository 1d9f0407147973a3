"""Two classes of each row for Triton: scores are read once for the results, and once for the gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device

# TILE: entries that a program holds at a time
# WIDEST: longest stretch of a row
TILE, WIDEST = 2048, 1024


def two_classes(x: Tensor, at: Tensor, blank: int) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    first, second, total = (torch.empty(x.shape[:-1], dtype=dtype, device=x.device) for _ in range(3))
    count, n = x.shape[:-1].numel(), x.shape[-1]
    if count:
        br, bn = _sizes(n)
        classes, *rows = chosen(at)
        x, apart = apart_rows(x)
        args = x, classes, first, second, total, count, n, apart, blank, *rows
        with on_device(x):
            _forward[(triton.cdiv(count, br),)](*args, WIDE=dtype == torch.float64, BR=br, BN=bn, num_warps=4)
    return first, second, total


def two_classes_backward(x: Tensor, at: Tensor, total: Tensor, g_blank: Tensor, g_label: Tensor, blank: int) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    count, n = x.shape[:-1].numel(), x.shape[-1]
    if count:
        br, bn = _sizes(n)
        classes, *rows = chosen(at)
        given = (t.contiguous() for t in (classes, total, g_blank, g_label))
        x, apart = apart_rows(x)
        args = x, *given, out, count, n, apart, blank, *rows
        with on_device(x):
            wide = x.dtype == torch.float64
            _backward[(triton.cdiv(count, br),)](*args, WIDE=wide, BR=br, BN=bn, num_warps=4)
    return out


def apart_rows(x: Tensor) -> tuple[Tensor, int]:
    """Return x, or a contiguous copy, and the distance between its rows in memory.

    A slice of each row is not copied, if the rows are equally far apart.
    """
    if x.dim() > 1 and x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1]:
        size = x.stride(-2)
        if all(x.stride(k) == x.stride(k + 1) * x.shape[k + 1] for k in range(x.dim() - 2)):
            return x, size
    return x.contiguous(), x.shape[-1]


def chosen(at: Tensor) -> tuple[Tensor, int, int]:
    """Return the stored classes; the number of rows after which they advance, and after which they repeat.

    Row r has class (r // many) * few + r % few. All frames of an utterance have the same classes, as an expanded
    tensor, which is not copied.
    """
    if at.dim() == 3 and at.stride(1) == 0 and at.stride(2) == 1 and at.stride(0) == at.shape[2]:
        return at[:, 0], at.shape[1] * at.shape[2], at.shape[2]
    return at.contiguous(), max(at.numel(), 1), max(at.numel(), 1)


def _sizes(n: int) -> tuple[int, int]:
    """Return rows per program, and entries of a row at a time."""
    bn = min(ceil_power(n), WIDEST)
    return max(1, min(TILE // bn, 64)), bn


@Entry
@triton.jit
def _forward(
    p_x,
    p_at,
    p_first,
    p_second,
    p_total,
    count,
    n,
    apart,
    blank,
    many,
    few,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
):
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    m_r = i_r < count
    b_top = tl.full([BR], float("-inf"), dtype)
    b_sum = tl.zeros([BR], dtype)
    for left in range(0, n, BN):
        o_n = left + tl.arange(0, BN)
        m_x = m_r[:, None] & (o_n < n)[None, :]
        b_x = tl.load(p_x + i_r[:, None] * apart + o_n[None, :], mask=m_x, other=float("-inf")).to(dtype)
        b_new = tl.maximum(b_top, tl.max(b_x, 1))
        b_base = tl.where(b_new > float("-inf"), b_new, 0.0)
        b_sum = b_sum * tl.exp(b_top - b_base) + tl.sum(tl.exp(b_x - b_base[:, None]), 1)
        b_top = b_new
    b_none = b_sum == 0
    # a NaN shows in the sum
    b_total = tl.where(b_none, float("-inf"), tl.where(b_top > float("-inf"), b_top, 0.0) + tl.log(b_sum))
    b_base = tl.where(b_none, 0.0, b_total)
    b_at = tl.load(p_at + (i_r // many) * few + i_r % few, mask=m_r, other=0)
    b_first = tl.load(p_x + i_r * apart + blank, mask=m_r, other=0.0).to(dtype)
    b_second = tl.load(p_x + i_r * apart + b_at, mask=m_r, other=0.0).to(dtype)
    tl.store(p_first + i_r, b_first - b_base, mask=m_r)
    tl.store(p_second + i_r, b_second - b_base, mask=m_r)
    tl.store(p_total + i_r, b_total, mask=m_r)


@Entry
@triton.jit
def _backward(
    p_x,
    p_at,
    p_total,
    p_g_blank,
    p_g_label,
    p_out,
    count,
    n,
    apart,
    blank,
    many,
    few,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BN: tl.constexpr,
):
    dtype: tl.constexpr = tl.float64 if WIDE else tl.float32
    i_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    m_r = i_r < count
    b_at = tl.load(p_at + (i_r // many) * few + i_r % few, mask=m_r, other=0)
    b_total = tl.load(p_total + i_r, mask=m_r, other=0.0).to(dtype)
    b_base = tl.where(b_total == float("-inf"), 0.0, b_total)
    b_blank = tl.load(p_g_blank + i_r, mask=m_r, other=0.0).to(dtype)
    b_label = tl.load(p_g_label + i_r, mask=m_r, other=0.0).to(dtype)
    # the gradient of a padding row is 0, whatever its entries
    m_none = (b_blank == 0) & (b_label == 0)
    for left in range(0, n, BN):
        o_n = left + tl.arange(0, BN)
        m_x = m_r[:, None] & (o_n < n)[None, :]
        o_x = i_r[:, None] * n + o_n[None, :]
        b_x = tl.load(p_x + i_r[:, None] * apart + o_n[None, :], mask=m_x, other=float("-inf")).to(dtype)
        b_g = -(b_blank + b_label)[:, None] * tl.exp(b_x - b_base[:, None])
        b_g += tl.where(o_n[None, :] == blank, b_blank[:, None], 0.0)
        b_g += tl.where(o_n[None, :] == b_at[:, None], b_label[:, None], 0.0)
        b_g = tl.where(m_none[:, None], 0.0, b_g)
        tl.store(p_out + o_x, b_g.to(p_out.dtype.element_ty), mask=m_x)
