"""Sparse attention: a scan of all scores, then contexts and gradients on what is not zero.

Only the scan looks at every tile. It bounds each row's threshold from below, and what lies under the bound is never
looked at again: see cuda_scan.py. Blocks of queries have lists of the tiles that are not empty, rows a bit for each.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from polymax.kernels.sparse_attention.cuda_collect import collect
from polymax.kernels.sparse_attention.cuda_columns import key_gradients
from polymax.kernels.sparse_attention.cuda_lists import listed_contexts, listed_gradients
from polymax.kernels.sparse_attention.cuda_masks import mask_gradients
from polymax.kernels.sparse_attention.cuda_rows import contexts, query_gradients
from polymax.kernels.sparse_attention.cuda_scan import scan
from polymax.kernels.sparse_attention.cuda_tile import FAR
from polymax.kernels.sparse_attention.dropout import threshold
from polymax.kernels.sparse_attention.options import Options, of_backward
from polymax.kernels.sparse_attention.tiles import HEIGHT, LONGEST, layout, lists_like
from polymax.kernels.triton_calls import Launches, Remembered, kind
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


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, ...]:
    options = _with_contiguous(Options(*given))
    q, k, v = _rows(q), _rows(k), _rows(v)
    call = _call_of(q, k, v, None, options)
    rows = q.shape[:-1]
    # tokens after the last packed sequence are queries that see nothing
    new = torch.zeros if call.dead else torch.empty
    notes = torch.empty(call.heads * call.plan.size, dtype=torch.int32, device=q.device)
    tau = torch.full(rows, torch.inf, device=q.device) if call.dead else torch.empty(rows, device=q.device)
    if call.empty:
        out, mean, support = _contexts_like(q, v, new)
        return out, mean, tau, support, notes, _lists(q, options)
    marks, seed = _marks(q, options), q if options.seed is None else options.seed
    with on_device(q):
        maxima = torch.empty(call.maxima, device=q.device)
        call.launch(scan, call.scan_grid, (q, k, *marks, maxima, tau, notes, *call.scan), call.scan_constants)
        # what follows may take its memory
        del maxima
        bits, lists = torch.empty(call.bits, dtype=torch.int32, device=q.device), _lists(q, options)
        tensors = (q, k, *marks, bits, tau, notes, lists)
        call.launch(collect, call.collect_grid, (*tensors, *call.collect), call.collect_constants)
        del bits
        out, mean, support = _contexts_like(q, v, new)
        call.launch(
            listed_contexts,
            call.row_grid,
            (q, k, v, *marks, seed, notes, lists, tau, support, out, mean, *call.listed),
            call.listed_constants,
        )
        call.launch(
            contexts,
            call.block_grid,
            (q, k, v, *marks, seed, notes, tau, support, out, mean, *call.tiled),
            call.tiled_constants,
        )
    return out, mean, tau, support, notes, lists


def sparse_attention_backward(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    (q, k, v, mean, tau, notes, lists), mask_gradient, options = of_backward(given)
    options = _with_contiguous(options)
    grad, q, k, v = _rows(grad), _rows(q), _rows(k), _rows(v)
    call = _call_of(q, k, v, grad, options)
    new = torch.zeros if call.dead else torch.empty
    dq, dk, dv = (new(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    dalpha, dsink, common = (new(tau.shape, device=q.device) for _ in range(3))
    mask = options.mask if mask_gradient else None
    if call.empty:
        return dq, dk, dv, dalpha, dsink, tau.new_zeros(0 if mask is None else mask.shape)
    marks, seed = _marks(q, options), q if options.seed is None else options.seed
    of_alpha, of_mask, _, of_q, of_k = marks
    with on_device(q):
        rows = torch.empty(call.packing, dtype=torch.int32, device=q.device)
        call.launch(
            listed_gradients,
            call.row_grid,
            (grad, q, k, v, mean, *marks, seed, notes, lists, tau, common, dq, dalpha, dsink, *call.listed_back),
            call.listed_back_constants,
        )
        call.launch(
            query_gradients,
            call.block_grid,
            (grad, q, k, v, mean, *marks, seed, notes, tau, common, dq, dalpha, dsink, *call.tiled_back),
            call.tiled_back_constants,
        )
        call.launch(
            key_gradients,
            call.column_grid,
            (grad, q, k, v, of_alpha, of_mask, of_q, of_k, seed, notes, tau, common, rows, dk, dv, *call.columns),
            call.columns_constants,
        )
        if mask is None:
            return dq, dk, dv, dalpha, dsink, tau.new_empty(0)
        dmask, loops = _mask_gradient_like(mask, q, k)
        apart = {"ROWS": dmask.shape[2] > 1, "KEYS": dmask.shape[3] > 1}
        grid = (
            call.plan.tiles if apart["KEYS"] else 1,
            call.plan.blocks if apart["ROWS"] else 1,
            dmask.shape[0] * dmask.shape[1],
        )
        call.launch(
            mask_gradients,
            grid,
            (grad, q, k, v, of_alpha, of_mask, seed, notes, tau, common, dmask, *call.masks, *loops),
            {**call.masks_constants, **apart},
        )
    return dq, dk, dv, dalpha, dsink, dmask.sum_to_size(mask.shape)


_CALLS = Remembered()


def _call_of(q: Tensor, k: Tensor, v: Tensor, grad: Tensor | None, options: Options) -> "_Call":
    """What is known of calls like this one."""
    tensors = (q, k, v, grad, *options[1:6], options.seed)
    # in tests, sizes may be set
    key = (*(kind(t) for t in tensors), options.alpha, options[6:14], q.device, FEW)
    return _CALLS.get(key) or _CALLS.put(key, _Call(q, k, v, grad, options))


class _Call(Launches):
    """Grids, numbers and constants of all kernels of a call; constants say what a kernel is compiled for."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, grad: Tensor | None, options: Options) -> None:
        super().__init__()
        (B, H, L, D), G, S, V = q.shape, k.shape[1], k.shape[2], v.shape[-1]
        alphas, mask, sinks, starts_q, _ = options[1:6]
        longest_q, longest_k = options.longest_q, options.longest_k
        sequences = B if starts_q is None else len(starts_q) - 1
        self.heads, self.plan = sequences * H, layout(longest_q, longest_k)
        self.empty = q.numel() == 0 or longest_q == 0 or longest_k == 0
        self.dead = starts_q is not None or self.empty
        if self.empty:
            return
        plan, heads = self.plan, self.heads
        scan_rows = SCAN_ROWS if longest_q > HEIGHT else HEIGHT
        blocks = -(-longest_q // scan_rows)
        scanning = min(blocks * heads, _programs(q, RESIDENT["scan"]))
        collecting = min(plan.blocks * heads, _programs(q, RESIDENT["collect"]))
        self.maxima, self.bits = scanning * scan_rows * plan.tiles, collecting * STRETCH * HEIGHT * 2
        self.scan_grid, self.collect_grid = (scanning,), (collecting,)
        # a warp for each row that has a list; the interpreter is faster with more
        list_rows = 1 if q.is_cuda else 16
        self.row_grid, self.block_grid = (-(-longest_q // list_rows), heads), (plan.blocks, heads)

        left, right = (side if side >= 0 else FAR for side in (options.left, options.right))
        numbers = options.alpha - 1, options.scale, options.softcap
        sides = left, right, options.offset
        drop = 0 if options.seed is None else threshold(options.dropout)
        # see last_error
        tolerance = 1e-3 if alphas is None and options.alpha <= 1.5 else 2e-6
        strides = (*q.stride()[:3], *k.stride()[:3])
        of_v, masked = v.stride()[:3], (0, 0, 0, 0) if mask is None else mask.expand(B, H, L, S).stride()
        places, sizes = (H, H // G, L, S), (plan.blocks, plan.tiles, plan.size)
        self.scan = (*strides, *masked, *places, longest_q, blocks * heads, blocks, *sizes[1:], *numbers, *sides)
        self.collect = (*strides, *masked, *places, longest_q, plan.blocks * heads, *sizes, *numbers, *sides)
        self.listed = (*strides, *of_v, *masked, *places, longest_q, *sizes, *numbers, drop, tolerance)
        self.tiled = (*strides, *of_v, *masked, *places, *sizes, *numbers, *sides, drop, tolerance)

        flags = {
            "LEARNED": alphas is not None,
            "SINKS": sinks is not None,
            "PACKED": starts_q is not None,
            "MASK": 0 if mask is None else 1 if mask.dtype == torch.bool else 2,
            "CAP": options.softcap > 0,
            "R": {2.0: 1, 1.5: 2}.get(options.alpha, 0) if alphas is None else 0,
            "D": D,
            "BD": max(ceil_power(D), 16),
        }
        more = {**flags, "DROP": options.seed is not None, "V": V, "BV": max(ceil_power(V), 16)}
        self.deep, self.single = max(D, V) > 64, q.dtype == torch.float32
        lists = {"LONGEST": LONGEST, "BR": list_rows}
        self.scan_constants = {**flags, **self.launching("scan"), "BR": scan_rows, "BT": CHUNK, "LONGEST": LONGEST}
        marking = {"LONGEST": LONGEST, "BT": STRETCH, "BS": SLOTS}
        self.collect_constants = {**flags, **self.launching("collect"), **marking}
        self.listed_constants = {**more, **lists, "BC": PART["listed_contexts"][self.deep], "num_warps": 1}
        self.tiled_constants = {**more, **self.launching("contexts")}
        if grad is None:
            return
        back = (*grad.stride()[:3], *strides, *of_v, *masked)
        items = sequences * G * plan.tiles
        packing = min(items, _programs(q, RESIDENT["key_gradients"]))
        self.packing, self.column_grid = packing * longest_q, (packing,)
        self.listed_back = (*back, *places, longest_q, *sizes, *numbers, drop, FEW)
        self.tiled_back = (*back, *places, *sizes, *numbers, *sides, drop, FEW)
        self.columns = (*back, *places, longest_q, items, *sizes[1:], *numbers, *sides, drop)
        self.masks = (*back, *places, *sizes, *numbers, *sides, drop)
        self.listed_back_constants = {**more, **lists, "BC": PART["listed_gradients"][self.deep], "num_warps": 1}
        self.tiled_back_constants = {**more, **self.launching("query_gradients")}
        without_sinks = {name: value for name, value in more.items() if name != "SINKS"}
        gathering = {"BR": KEY_ROWS, "BP": PACK}
        self.columns_constants = {**without_sinks, **self.launching("key_gradients"), **gathering}
        dense = {name: value for name, value in without_sinks.items() if name != "PACKED"}
        self.masks_constants = {**dense, "PRECISION": self.precision(), "num_warps": 4}

    def precision(self) -> str:
        return "tf32x3" if self.single else "tf32"

    def launching(self, name: str) -> dict[str, Any]:
        """Precision, warps, stages and registers of a kernel."""
        warps, stages, registers = LAUNCH[name][self.deep]
        found = {"PRECISION": self.precision(), "num_warps": warps, "STAGES": min(stages, 2) if self.single else stages}
        return {**found, "maxnreg": registers} if registers else found


def _with_contiguous(options: Options) -> Options:
    """Options whose numbers for each head or sequence lie side by side."""
    alphas, sinks, starts_q, starts_k = (
        None if t is None else t.contiguous()
        for t in (options.alphas, options.sinks, options.starts_q, options.starts_k)
    )
    return options._replace(alphas=alphas, sinks=sinks, starts_q=starts_q, starts_k=starts_k)


def _marks(q: Tensor, options: Options) -> tuple[Tensor, ...]:
    """Tensors that all kernels take; one that is not there is any other."""
    return tuple(q if t is None else t for t in options[1:6])


def _lists(q: Tensor, options: Options) -> Tensor:
    """Memory for lists; in the interpreter, where operators say that there are none, too."""
    if q.is_cuda:
        return lists_like(q, options.longest_k)
    return torch.empty(q.shape[:-1].numel() * LONGEST, dtype=torch.int16)


def _contexts_like(q: Tensor, v: Tensor, new: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for contexts, means and the sizes of supports."""
    rows = q.shape[:-1]
    out, mean = (new((*rows, v.shape[-1]), dtype=q.dtype, device=q.device) for _ in range(2))
    return out, mean, new(rows, dtype=torch.int32, device=q.device)


def _mask_gradient_like(mask: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Memory for the gradient of a mask, and how many batches, and heads, one program adds up.

    Where the mask has one row or one column, batches and heads are apart in it, and are added up afterwards: one
    program for all of them would take long.
    """
    batches, heads, rows, columns = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if rows == 1 or columns == 1:
        batches, heads = q.shape[:2]
    # the kernel knows a size of 1 from others: what is asked for is a number for each query and key, or one for all
    rows, columns = q.shape[2] if rows > 1 else 1, k.shape[2] if columns > 1 else 1
    loops = q.shape[0] // batches, q.shape[1] // heads
    return torch.empty(batches, heads, rows, columns, device=q.device), loops


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _programs(q: Tensor, resident: int) -> int:
    return resident * processors(q.device) if q.is_cuda else 4


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count
