"""Sparse attention: a scan of all scores, then contexts and gradients on what is not zero.

Only the scan looks at every tile. It bounds each row's threshold from below, and what lies under the bound is never
looked at again: see cuda_scan.py. Blocks of queries have lists of the tiles that are not empty, rows a bit for each.
"""

from typing import Any

import torch
from torch import Tensor

from polymax.kernels.sparse_attention.cuda_collect import collect
from polymax.kernels.sparse_attention.cuda_columns import key_gradients
from polymax.kernels.sparse_attention.cuda_lists import listed_contexts, listed_gradients
from polymax.kernels.sparse_attention.cuda_rows import contexts, query_gradients
from polymax.kernels.sparse_attention.cuda_scan import scan
from polymax.kernels.sparse_attention.cuda_tile import FAR
from polymax.kernels.sparse_attention.tiles import HEIGHT, LONGEST, layout, lists_like
from polymax.kernels.triton_math import ceil_power, on_device

# warps, steps of a loop that are loaded ahead, and registers of a thread (0: as the compiler likes), for heads of up to
# 64 channels and for wider ones
LAUNCH = {
    "scan": ((4, 3, 0), (4, 3, 0)),
    "collect": ((4, 3, 0), (4, 3, 0)),
    "contexts": ((4, 3, 0), (4, 2, 0)),
    "query_gradients": ((4, 2, 0), (4, 2, 0)),
    "key_gradients": ((4, 2, 0), (4, 2, 0)),
}
# programs of a multiprocessor that take one block after the other
RESIDENT = {"scan": 6, "collect": 6, "key_gradients": 2}
# entries of a list whose keys or values are gathered at once
PART = {"listed_contexts": (16, 8), "listed_gradients": (8, 8)}
# blocks of no more tiles than this have the gradient of their queries from tiles, though they have lists
FEW = 16
# how many tiles' maxima a step of the bound takes at once
CHUNK = 64
# tiles whose bits are expanded at once
STRETCH = 32
# of these, tiles in registers
SLOTS = 8
# rows of the scan
SCAN_ROWS = 128
# rows that are gathered at once for the gradients of keys
KEY_ROWS = 64
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (_rows(t) for t in (q, k, v))
    B, H, L, D = q.shape
    V = v.shape[-1]
    heads = (B if starts_q is None else len(starts_q) - 1) * H
    plan = layout(longest_q, longest_k)
    notes = torch.empty(heads * plan.size, dtype=torch.int32, device=q.device)
    # tokens after the last packed sequence are queries that see nothing
    dead = starts_q is not None or longest_q == 0 or longest_k == 0
    tau = torch.full((B, H, L), torch.inf, device=q.device) if dead else torch.empty((B, H, L), device=q.device)
    empty = q.numel() == 0 or longest_q == 0 or longest_k == 0
    if not empty:
        marks, sizes, flags = _common(
            q, k, alpha, alphas, mask, sinks, starts_q, starts_k, scale, softcap, left, right, offset
        )
        strides, masked = (*q.stride()[:3], *k.stride()[:3]), _mask_strides(mask, q, k)
        places = H, H // k.shape[1], L, k.shape[2]
        shapes = {**flags, "D": D, "BD": max(ceil_power(D), 16)}
        precise = {"PRECISION": _precision(q)}
        bm = SCAN_ROWS if longest_q > HEIGHT else HEIGHT
        blocks = -(-longest_q // bm)
        programs = min(blocks * heads, _programs(q, RESIDENT["scan"]))
        maxima = torch.empty(programs * bm * plan.tiles, device=q.device)
        with on_device(q):
            scan[(programs,)](
                q, k, *marks, maxima, tau, notes, *strides, *masked, *places, longest_q, blocks * heads, blocks,
                plan.tiles, plan.size, *sizes, **shapes, **precise, BM=bm, CHUNK=CHUNK, LONGEST=LONGEST,
                **_launch("scan", q, D, V),
            )  # fmt: skip
        # what follows may take its memory
        del maxima
    new = torch.zeros if dead else torch.empty
    out, mean = (new(B, H, L, V, dtype=q.dtype, device=q.device) for _ in range(2))
    support = new(B, H, L, dtype=torch.int32, device=q.device)
    lists = lists_like(q, longest_k) if q.is_cuda else torch.empty(B * H * L * LONGEST, dtype=torch.int16)
    if empty:
        return out, mean, tau, support, notes, lists
    shapes_v = {**shapes, "V": V, "BV": max(ceil_power(V), 16)}
    programs = min(plan.blocks * heads, _programs(q, RESIDENT["collect"]))
    bits = torch.empty(programs * STRETCH * HEIGHT * 2, dtype=torch.int32, device=q.device)
    tolerance = _tolerance(alpha, alphas)
    with on_device(q):
        collect[(programs,)](
            q, k, *marks, bits, tau, notes, lists, *strides, *masked, *places, longest_q, plan.blocks * heads,
            plan.blocks, plan.tiles, plan.size, *sizes, **shapes, **precise, LONGEST=LONGEST, STRETCH=STRETCH,
            SLOTS=SLOTS,
            **_launch("collect", q, D, V),
        )  # fmt: skip
        listed_contexts[(-(-longest_q // _list_rows(q)), heads)](
            q, k, v, *marks, notes, lists, tau, support, out, mean, *strides, *v.stride()[:3], *masked, *places,
            longest_q,
            plan.blocks, plan.tiles, plan.size, *sizes[:3], tolerance,
            **shapes_v, LONGEST=LONGEST, ROWS=_list_rows(q), PART=PART["listed_contexts"][max(D, V) > 64],
            num_warps=1,
        )  # fmt: skip
        contexts[(plan.blocks, heads)](
            q, k, v, *marks, notes, tau, support, out, mean, *strides, *v.stride()[:3], *masked, *places,
            plan.blocks, plan.tiles, plan.size, *sizes, tolerance,
            **shapes_v, **precise, **_launch("contexts", q, D, V),
        )  # fmt: skip
    return out, mean, tau, support, notes, lists


def sparse_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mean: Tensor,
    tau: Tensor,
    plan: Tensor,
    lists: Tensor,
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
    sizes_of = layout(longest_q, longest_k)
    empty = q.numel() == 0 or longest_k == 0 or longest_q == 0
    new = torch.zeros if starts_q is not None or empty else torch.empty
    dq, dk, dv = (new(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    dalpha, dsink, common = (new(tau.shape, device=q.device) for _ in range(3))
    nothing = tau.new_empty(0)
    if empty:
        return dq, dk, dv, dalpha, dsink, nothing
    marks, sizes, flags = _common(
        q, k, alpha, alphas, mask, sinks, starts_q, starts_k, scale, softcap, left, right, offset
    )
    strides = (*grad.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *_mask_strides(mask, q, k))
    shapes = {**flags, "D": D, "BD": max(ceil_power(D), 16), "V": V, "BV": max(ceil_power(V), 16)}
    precise = {"PRECISION": _precision(q)}
    places = H, H // G, L, k.shape[2]
    plan_sizes = sizes_of.tiles, sizes_of.size
    items = sequences * G * sizes_of.tiles
    programs = min(items, _programs(q, RESIDENT["key_gradients"]))
    rows = torch.empty(programs * longest_q, dtype=torch.int32, device=q.device)
    few = FEW
    with on_device(q):
        listed_gradients[(-(-longest_q // _list_rows(q)), sequences * H)](
            grad, q, k, v, mean, *marks, plan, lists, tau, common, dq, dalpha, dsink, *strides, *places, longest_q,
            sizes_of.blocks, *plan_sizes, *sizes[:3], few,
            **shapes, LONGEST=LONGEST, ROWS=_list_rows(q), PART=PART["listed_gradients"][max(D, V) > 64],
            num_warps=1,
        )  # fmt: skip
        query_gradients[(sizes_of.blocks, sequences * H)](
            grad, q, k, v, mean, *marks, plan, tau, common, dq, dalpha, dsink, *strides, *places, sizes_of.blocks,
            *plan_sizes, *sizes, few, **shapes, **precise, **_launch("query_gradients", q, D, V),
        )  # fmt: skip
        shapes.pop("SINKS")
        of_alpha, of_mask, _, of_q, of_k = marks
        key_gradients[(programs,)](
            grad, q, k, v, of_alpha, of_mask, of_q, of_k, plan, tau, common, rows, dk, dv, *strides, *places, longest_q,
            items, *plan_sizes, *sizes, **shapes, **precise, BM=KEY_ROWS, PACK=PACK, **_launch("key_gradients", q, D,
            V),
        )  # fmt: skip
    return dq, dk, dv, dalpha, dsink, nothing


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
    return "tf32x3" if q.dtype == torch.float32 else "tf32"


def _tolerance(alpha: float, alphas: Tensor | None) -> float:
    """How far the sum of weights may be from 1 before the last step, which squares that where alpha <= 1.5."""
    return 1e-3 if alphas is None and alpha <= 1.5 else 2e-6


def _launch(name: str, q: Tensor, D: int, V: int) -> dict[str, int]:
    warps, stages, registers = LAUNCH[name][max(D, V) > 64]
    options = {"num_warps": warps, "STAGES": min(stages, 2) if q.dtype == torch.float32 else stages}
    return {**options, "maxnreg": registers} if registers else options


def _list_rows(q: Tensor) -> int:
    """Rows of a program that works on lists: a warp for each; the interpreter is faster with more."""
    return 1 if q.is_cuda else 16


def _programs(q: Tensor, resident: int) -> int:
    if not q.is_cuda:
        return 4
    return resident * torch.cuda.get_device_properties(q.device).multi_processor_count
