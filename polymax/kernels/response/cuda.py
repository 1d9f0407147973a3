"""The response of weights and mean for Triton, one program per instance; and the mean itself."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.backend.triton_launch import Entry
from polymax.backend.triton_math import ceil_power, on_device
from polymax.backend.triton_memory import Array, new
from polymax.kernels.active_set.triton_factor import factorize, solve_both
from polymax.kernels.active_set.triton_lists import gather, spread
from polymax.kernels.active_set.triton_rows import round_row, write_row, write_system
from polymax.kernels.active_set.triton_weights import places_up_to, product, put

_WARPS = 4
# entries of a tile
_TILE = 2048
# rows of a block of columns
_ROWS = 64


def response(
    places: Tensor, overlaps: Tensor, probs: Tensor, g: Tensor, h: Tensor | None, d: int
) -> tuple[Tensor, Tensor]:
    count, k, parts = places.shape
    out = torch.empty((count, d), dtype=g.dtype, device=g.device)
    q = torch.empty((count, k), dtype=torch.float64, device=g.device)
    if not count or not k:
        return out.zero_(), q
    room, width, real = _places(k), _width(parts), torch.float64
    # gram, system, and sums of parts
    arrays = Array(torch.float32, (count, room, room)), Array(real, (count, room + 3, room)), Array(real, (count, d))
    own = new(arrays, g.device)
    known = places.contiguous(), overlaps.contiguous(), probs.contiguous()
    moved = g.contiguous(), q if h is None else h.contiguous()
    rows, some = (max(min(_TILE // n, room), 2) for n in (room, width))
    sizes = {"K": room, "BR": rows, "BP": some, "BU": width, "BD": _row(d), "BM": min(room, _ROWS)}
    with on_device(g):
        responding[(count,)](
            *known, q, *own, *moved, out, k, parts, g.shape[1], d, int(h is not None), **sizes,
            num_warps=_WARPS, num_stages=1,
        )  # fmt: skip
    return out, q


def mixture(places: Tensor, probs: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    count, k, parts = places.shape
    out = torch.empty((count, d), dtype=dtype, device=probs.device)
    if not count or not k:
        return out.zero_()
    total = out if dtype == torch.float64 else torch.empty((count, d), dtype=torch.float64, device=probs.device)
    sizes = {"BU": _width(parts), "BD": _row(d), "num_warps": _WARPS}
    with on_device(probs):
        mixing[(count,)](places.contiguous(), probs.contiguous(), total, out, k, parts, d, **sizes)
    return out


def _places(k: int) -> int:
    return max(ceil_power(k), 16)


def _width(parts: int) -> int:
    return min(max(ceil_power(parts), 32), 256)


def _row(d: int) -> int:
    return min(max(ceil_power(d), 128), _TILE)


@Entry
@triton.jit(do_not_specialize=["k", "parts", "size", "d", "weighted"])
def responding(
    p_places, p_overlaps, p_probs, p_q, p_gram, p_system, p_total, p_g, p_h, p_out,
    k, parts, size, d, weighted,
    K: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr, BD: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Write the response; g has `size` columns; h is read if `weighted` is 1."""
    i_b = tl.program_id(0).to(tl.int64)
    p_places += i_b * k * parts
    p_gram += i_b * K * K
    p_system += i_b * (K + 3) * K
    p_q += i_b * k
    p_total += i_b * d
    write_system(p_overlaps + i_b * k * k, p_probs + i_b * k, p_gram, p_system, k, K, BR)
    # the memory of the sum first holds g
    write_row(p_g + i_b * size, p_total, size, d, BD)
    p_x = p_system + (K + 2) * K
    o_k = tl.arange(0, K)
    p_y, p_p = p_system + K * K, p_system + (K + 1) * K
    top = places_up_to(tl.load(p_p + o_k), K)
    gather(p_places, p_total, p_y, top, parts, BP, BU)
    b_b = tl.load(p_y + o_k) + tl.load(p_h + i_b * k + o_k, mask=(o_k < k) & (weighted > 0), other=0)
    factorize(p_gram, p_system, p_p, top, K, BM)
    m_on = tl.load(p_p + o_k) >= 0
    b_left = tl.where(m_on, b_b, 0.0)
    b_q = tl.zeros([K], tl.float64)
    # the second round solves for the residual of the first
    for _ in range(2):
        put(p_x, b_left, K)
        put(p_y, m_on.to(tl.float64), K)
        solve_both(p_system, p_x, p_y, top, K, BM)
        b_step, b_one = tl.load(p_x + o_k, mask=m_on, other=0), tl.load(p_y + o_k, mask=m_on, other=0)
        ones = tl.sum(b_one, 0)
        ones = tl.where(ones > 0, ones, 1.0)
        b_q += tl.where(m_on, b_step - b_one * ((tl.sum(b_q, 0) + tl.sum(b_step, 0)) / ones), 0.0)
        put(p_x, b_q, K)
        b_gone, _ = product(p_gram, p_x, top, K, BR)
        b_left = b_b - b_gone
        b_left = tl.where(m_on, b_left - tl.sum(b_left * b_one, 0) / ones, 0.0)
    b_probs = tl.load(p_probs + i_b * k + o_k, mask=o_k < k, other=0)
    b_q = tl.where(b_probs != b_probs, float("nan"), b_q)
    tl.store(p_q + o_k, b_q, mask=o_k < k)
    put(p_x, b_q, K)
    write_row(p_g, p_total, 0, d, BD)
    spread(p_places, p_x, p_total, k, parts, BU)
    round_row(p_total, p_out + i_b * d, d, BD)


@Entry
@triton.jit(do_not_specialize=["k", "parts", "d"])
def mixing(p_places, p_probs, p_total, p_out, k, parts, d, BU: tl.constexpr, BD: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    p_total += i_b * d
    write_row(p_probs, p_total, 0, d, BD)
    spread(p_places + i_b * k * parts, p_probs + i_b * k, p_total, k, parts, BU)
    round_row(p_total, p_out + i_b * d, d, BD)
