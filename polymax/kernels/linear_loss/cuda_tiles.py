"""Sums of exponentials from those of tiles, for Triton, and the launches of `gluon_tiles`."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.linear_loss.steps import Cap, Exponentials, pieces

# named words of a row that are picked from tiles
NAMED = 8
# the fewest logits that are worth tiles
LEAST = 2**24
# rows whose sums of tiles are in memory at once
TOGETHER = 2**14
# tiles and rows of a program that adds up these sums
ADDED, COLUMNS = 32, 32


@triton.jit
def add_tiles(p_tiles, p_top, p_total, p_moment, n, tiles, BT: tl.constexpr, BN: tl.constexpr):
    """Write the largest score of BN rows, and the sums of exp u and u exp u, from those of tiles."""
    o_n = tl.program_id(0) * BN + tl.arange(0, BN)
    m_n = o_n < n
    b_tops = tl.full((BT, BN), float("-inf"), tl.float32)
    for i_t in range(0, tiles, BT):
        o_t = i_t + tl.arange(0, BT)
        m_t = (o_t < tiles)[:, None] & m_n[None, :]
        p_t = p_tiles + o_t.to(tl.int64)[:, None] * 3 * n + o_n[None, :]
        b_tops = tl.maximum(b_tops, tl.load(p_t, mask=m_t, other=float("-inf")))
    b_top = tl.max(b_tops, 0)
    b_at = tl.where((b_top > float("-inf")) & (b_top < float("inf")), b_top, 0)
    b_total = tl.zeros((BT, BN), tl.float32)
    b_moment = tl.zeros((BT, BN), tl.float32)
    for i_t in range(0, tiles, BT):
        o_t = i_t + tl.arange(0, BT)
        m_t = (o_t < tiles)[:, None] & m_n[None, :]
        p_t = p_tiles + o_t.to(tl.int64)[:, None] * 3 * n + o_n[None, :]
        b_own = tl.load(p_t, mask=m_t, other=float("-inf"))
        b_sum = tl.load(p_t + n, mask=m_t, other=0.0)
        b_moved = tl.where(b_own > float("-inf"), b_own - b_at[None, :], 0)
        b_kept = tl.where(b_own > float("-inf"), tl.exp(b_moved), 0)
        # the sum of a tile of NaN stays, though the tile has no largest score
        b_kept = tl.where(b_sum == b_sum, b_kept, 1)
        b_total += b_kept * b_sum
        b_moment += b_kept * (tl.load(p_t + 2 * n, mask=m_t, other=0.0) + b_moved * b_sum)
    tl.store(p_top + o_n, b_top, mask=m_n)
    tl.store(p_total + o_n, tl.sum(b_total, 0), mask=m_n)
    tl.store(p_moment + o_n, tl.sum(b_moment, 0), mask=m_n)


def tiled_sums(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, named: Tensor | None, cap: Cap
) -> tuple[Exponentials, Tensor] | None:
    """Return sums of exponentials and the scores of named words, or None for rows and devices without tiles."""
    n, words, d, k = len(hidden), len(weight), hidden.shape[1], 0 if named is None else named.shape[1]
    if n * words < LEAST or not d or k > NAMED or not _fits(hidden) or not _fits(weight):
        return None
    # Triton of other versions lacks the language of this kernel
    from polymax.kernels.linear_loss.gluon_tiles import ROWS, WORDS, sum_tiles

    top, total, moment = (torch.empty(n, dtype=torch.float32, device=hidden.device) for _ in range(3))
    chosen, tiles = top.new_empty(n, k), triton.cdiv(words, WORDS.value)
    named = None if named is None else named.contiguous()
    for rows in pieces(n, TOGETHER):
        some = hidden[rows]
        m = len(some)
        parts = top.new_empty(tiles, 3, m)
        sum_tiles[(min(_processors(hidden.device), tiles * triton.cdiv(m, 2 * ROWS.value)),)](
            _described(some, ROWS.value), _described(weight, WORDS.value), parts if bias is None else bias,
            hidden if named is None else named[rows], chosen[rows], parts, m, words, d, k, *cap, BIAS=bias is not None,
            CAP=cap.softcap > 0, num_warps=4,
        )  # fmt: skip
        add_tiles[(triton.cdiv(m, COLUMNS),)](
            parts, top[rows], total[rows], moment[rows], m, tiles, BT=ADDED, BN=COLUMNS, num_warps=4
        )  # fmt: skip
    return Exponentials(top, total, moment), chosen


def _described(t: Tensor, rows: int) -> Any:
    """Return a matrix in the parts in which it is copied."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from polymax.kernels.linear_loss.gluon_tiles import CHANNELS

    block, dtype = [rows, CHANNELS.value], gl.bfloat16 if t.dtype == torch.bfloat16 else gl.float16
    return TensorDescriptor.from_tensor(t, block, gl.NVMMASharedLayout.get_default_for(block, dtype))


def _fits(t: Tensor) -> bool:
    """Return True if the device copies tiles of this matrix to shared memory."""
    half = t.dtype in (torch.float16, torch.bfloat16)
    # copies are in units of 16 bytes, of rows that do not overlap
    aligned = t.stride(1) == 1 and t.stride(0) % 8 == 0 and t.stride(0) >= t.shape[1] and t.data_ptr() % 16 == 0
    return half and aligned and _copies_tiles(t.device)


@cache
def _copies_tiles(device: torch.device) -> bool:
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if device.type != "cuda" or torch.version.hip is not None or version < (3, 6):
        return False
    return torch.cuda.get_device_capability(device)[0] == 9 and find_spec("triton.experimental.gluon") is not None


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
