"""Sparse attention in four launches: a scan of all scores, contexts, gradients of queries, gradients of keys.

Only the scan looks at every tile. It bounds each row's threshold from below, and what lies under the bound is never
looked at again: see cuda_scan.py. Tiles that are not empty are listed for blocks of 64 queries, and by a bit for each row.
"""

from typing import Any

import torch
from torch import Tensor

from polymax.kernels.sparse_attention.cuda_columns import key_gradients
from polymax.kernels.sparse_attention.cuda_rows import contexts, query_gradients
from polymax.kernels.sparse_attention.cuda_scan import scan
from polymax.kernels.sparse_attention.cuda_tile import FAR
from polymax.kernels.sparse_attention.tiles import Layout, layout
from polymax.kernels.triton_math import ceil_power, on_device

# how many tiles' maxima a step of the bound takes at once
CHUNK = 16
# rows whose bits are packed at once
PACK = 512


def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float,
    alphas: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    longest_q: int,
    longest_k: int,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (_rows(t) for t in (q, k, v))
    B, H, L, D = q.shape
    V = v.shape[-1]
    heads = (B if starts_q is None else len(starts_q) - 1) * H
    plan = layout(longest_q, longest_k)
    # tokens after the last packed sequence get zeros, as queries that see nothing
    new = torch.empty if starts_q is None else torch.zeros
    out, mean = (new(B, H, L, V, dtype=q.dtype, device=q.device) for _ in range(2))
    tau = torch.full((B, H, L), torch.inf, device=q.device) if starts_q is not None else q.new_empty((B, H, L), dtype=torch.float32)
    support = new(B, H, L, dtype=torch.int32, device=q.device)
    notes = torch.empty(heads * plan.size, dtype=torch.int32, device=q.device)
    if q.numel() == 0 or longest_q == 0:
        return out, mean, tau, support, notes
    if longest_k == 0:
        return out.zero_(), mean.zero_(), tau.fill_(torch.inf), support.zero_(), notes
    marks, sizes, flags = _common(q, k, alpha, alphas, mask, sinks, starts_q, starts_k, scale, softcap, left, right, offset)
    strides = (*q.stride()[:3], *k.stride()[:3])
    masked = _mask_strides(mask, q, k)
    shapes = {**flags, "D": D, "BD": max(ceil_power(D), 16), "PRECISION": _precision(q)}
    wide = shapes["BD"] > 64
    bm = 128 if longest_q > 64 else 64
    blocks = -(-longest_q // bm)
    programs = min(blocks * heads, _programs(q, 2))
    maxima = torch.empty(programs * bm * plan.tiles, device=q.device)
    with on_device(q):
        scan[(programs,)](
            q, k, *marks, maxima, tau, notes, *strides, *masked, H, H // k.shape[1], L, k.shape[2], longest_q,
            blocks * heads, blocks, plan.tiles, plan.size, *sizes,
            **shapes, BM=bm, CHUNK=CHUNK, STAGES=3 if not wide else 2, num_warps=8 if bm == 128 else 4,
        )  # fmt: skip
        contexts[(heads, plan.blocks)](
            q, k, v, *marks, notes, tau, support, out, mean, *strides, *v.stride()[:3], *masked, H, H // k.shape[1], L,
            k.shape[2], plan.blocks, plan.tiles, plan.size, *sizes, _tolerance(alpha, alphas),
            **shapes, V=V, BV=max(ceil_power(V), 16), STAGES=_stages(q, D), num_warps=8 if wide else 4,
        )  # fmt: skip
    return out, mean, tau, support, notes


def sparse_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mean: Tensor,
    tau: Tensor,
    plan: Tensor,
    alpha: float,
    alphas: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    longest_q: int,
    longest_k: int,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    offset: int,
    mask_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    if mask_gradient and mask is not None:
        raise NotImplementedError("the CUDA kernel of sparse attention has no gradient of an added mask")
    grad, q, k, v = (_rows(t) for t in (grad, q, k, v))
    B, H, L, D = q.shape
    G, V = k.shape[1], v.shape[-1]
    sequences = B if starts_q is None else len(starts_q) - 1
    sizes_of: Layout = layout(longest_q, longest_k)
    packed = starts_q is not None
    new = torch.zeros if packed or longest_k == 0 or longest_q == 0 else torch.empty
    dq, dk, dv = (new(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    dalpha, dsink, common = (new(tau.shape, device=q.device) for _ in range(3))
    empty = tau.new_empty(0)
    if q.numel() == 0 or longest_k == 0 or longest_q == 0:
        return dq, dk.zero_(), dv.zero_(), dalpha, dsink, empty
    marks, sizes, flags = _common(q, k, alpha, alphas, mask, sinks, starts_q, starts_k, scale, softcap, left, right, offset)
    strides = (*grad.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *_mask_strides(mask, q, k))
    shapes = {**flags, "D": D, "BD": max(ceil_power(D), 16), "V": V, "BV": max(ceil_power(V), 16)}
    shapes["PRECISION"] = _precision(q)
    wide = max(shapes["BD"], shapes["BV"]) > 64
    items = sequences * G * sizes_of.tiles
    programs = min(items, _programs(q, 2))
    rows = torch.empty(programs * longest_q, dtype=torch.int32, device=q.device)
    with on_device(q):
        query_gradients[(sequences * H, sizes_of.blocks)](
            grad, q, k, v, mean, *marks, plan, tau, common, dq, dalpha, dsink, *strides, H, H // G, L, k.shape[2],
            sizes_of.blocks, sizes_of.tiles, sizes_of.size, *sizes,
            **shapes, STAGES=_stages(q, D), num_warps=8 if wide else 4,
        )  # fmt: skip
        alphas_, masks_, _, q_, k_ = marks
        shapes.pop("SINKS")
        key_gradients[(programs,)](
            grad, q, k, v, alphas_, masks_, q_, k_, plan, tau, common, rows, dk, dv, *strides, H, H // G, L, k.shape[2],
            longest_q, items, sizes_of.tiles, sizes_of.size, *sizes,
            **shapes, BM=64, PACK=PACK, STAGES=_stages(q, D), num_warps=8 if wide else 4,
        )  # fmt: skip
    return dq, dk, dv, dalpha, dsink, empty


def _common(
    q: Tensor,
    k: Tensor,
    alpha: float,
    alphas: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    starts_q: Tensor | None,
    starts_k: Tensor | None,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    offset: int,
) -> tuple[tuple[Tensor, ...], tuple[Any, ...], dict[str, Any]]:
    """Tensors, numbers and flags that all kernels take; a tensor that is not there is any other."""
    marks = tuple(q if t is None else t for t in (alphas, mask, sinks, starts_q, starts_k))
    numbers = (alpha - 1, scale, softcap, left if left >= 0 else FAR, right if right >= 0 else FAR, offset)
    kind = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    power = {2.0: 1, 1.5: 2}.get(alpha, 0) if alphas is None else 0
    flags = {
        "LEARNED": alphas is not None,
        "SINKS": sinks is not None,
        "PACKED": starts_q is not None,
        "MASK": kind,
        "CAP": softcap > 0,
        "R": power,
    }
    return marks, numbers, flags


def _mask_strides(mask: Tensor | None, q: Tensor, k: Tensor) -> tuple[int, ...]:
    return (0, 0, 0, 0) if mask is None else mask.expand(*q.shape[:3], k.shape[2]).stride()


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _precision(q: Tensor) -> str:
    return "ieee" if q.dtype == torch.float32 else "tf32"


def _tolerance(alpha: float, alphas: Tensor | None) -> float:
    """How far the sum of weights may be from 1 before the last step: Newton squares that, but for kinks near alpha 2."""
    return 1e-3 if alphas is None and alpha <= 1.5 else 2e-6


def _stages(q: Tensor, size: int) -> int:
    return 2 if q.dtype == torch.float32 or size > 64 else 3


def _programs(q: Tensor, resident: int) -> int:
    if not q.is_cuda:
        return 4
    return resident * torch.cuda.get_device_properties(q.device).multi_processor_count
