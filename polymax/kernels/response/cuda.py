"""The response of weights and mean for Triton, one program to an instance; and the mean itself."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from polymax.kernels.active_set.triton_lists import gather, spread
from polymax.kernels.active_set.triton_weights import places_up_to, product, put, renew
from polymax.kernels.response.reference import held
from polymax.kernels.triton_launch import Entry
from polymax.kernels.triton_math import ceil_power, on_device

_WARPS = 4
# entries of a tile
_TILE = 2048


def response(places: Tensor, overlaps: Tensor, probs: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    count, k, parts = places.shape
    total = torch.zeros(g.shape, dtype=torch.float64, device=g.device)
    q = torch.zeros_like(h, memory_format=torch.contiguous_format)
    if count and k:
        room, width = max(ceil_power(k), 16), _width(parts)
        more = room - k
        gram = torch.nn.functional.pad(overlaps.float(), (0, more, 0, more))
        system = torch.zeros(count, room + 3, room, dtype=torch.float64, device=g.device)
        system[:, -2] = torch.nn.functional.pad(torch.where(held(overlaps, probs), 1.0, -1.0), (0, more), value=-1)
        tensors = places.contiguous(), gram, system, probs.contiguous(), g.contiguous(), h.contiguous(), q, total
        rows, some = (max(min(_TILE // n, room), 2) for n in (room, width))
        with on_device(g):
            _response[(count,)](
                *tensors, k, parts, g.shape[1], K=room, BR=rows, BP=some, BU=width, num_warps=_WARPS, num_stages=1
            )
    return total.to(g.dtype), q


def mixture(places: Tensor, probs: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    count, k, parts = places.shape
    total = torch.zeros(count, d, dtype=torch.float64, device=probs.device)
    if count and k:
        with on_device(probs):
            tensors = places.contiguous(), probs.contiguous(), total
            _mixture[(count,)](*tensors, k, parts, d, BU=_width(parts), num_warps=_WARPS)
    return total.to(dtype)


def _width(parts: int) -> int:
    return min(max(ceil_power(parts), 32), 256)


@Entry
@triton.jit(do_not_specialize=["k", "parts", "d"])
def _response(
    p_places, p_gram, p_system, p_probs, p_g, p_h, p_q, p_total, k, parts, d,
    K: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64)
    p_places += i_b * k * parts
    p_gram += i_b * K * K
    p_system += i_b * (K + 3) * K
    p_q += i_b * k
    p_x = p_system + (K + 2) * K
    o_k = tl.arange(0, K)
    top = places_up_to(tl.load(p_system + (K + 1) * K + o_k), K)
    gather(p_places, p_g + i_b * d, p_system + K * K, top, parts, BP, BU)
    renew(p_gram, p_system, K, BR)
    m_on = tl.load(p_system + (K + 1) * K + o_k) >= 0
    b_b = tl.load(p_system + K * K + o_k) + tl.load(p_h + i_b * k + o_k, mask=o_k < k, other=0)
    b_left = tl.where(m_on, b_b, 0.0)
    b_q = tl.zeros([K], tl.float64)
    # the second round solves for what the first has left
    for _ in range(2):
        put(p_x, b_left, K)
        b_step, b_one = product(p_system, p_x, top, K, BR)
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
    spread(p_places, p_x, p_total + i_b * d, k, parts, BU)


@Entry
@triton.jit(do_not_specialize=["k", "parts", "d"])
def _mixture(p_places, p_probs, p_total, k, parts, d, BU: tl.constexpr):
    i_b = tl.program_id(0).to(tl.int64)
    spread(p_places + i_b * k * parts, p_probs + i_b * k, p_total + i_b * d, k, parts, BU)
