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
from polymax.kernels.sparse_attention.options import Options
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
    q: Tensor, k: Tensor, v: Tensor, *given: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = Options(*given)
    q, k, v = _rows(q), _rows(k), _rows(v)
    call = _Call(q, k, v, options)
    B, H, L, _ = q.shape
    plan, heads = call.plan, call.sequences * H
    # tokens after the last packed sequence are queries that see nothing
    dead = options.starts_q is not None or call.empty
    new = torch.zeros if dead else torch.empty
    notes = torch.empty(heads * plan.size, dtype=torch.int32, device=q.device)
    tau = torch.full((B, H, L), torch.inf, device=q.device) if dead else torch.empty((B, H, L), device=q.device)
    lists = call.lists()
    if call.empty:
        out, mean, support = _contexts_like(q, v, new)
        return out, mean, tau, support, notes, lists
    bm = SCAN_ROWS if options.longest_q > HEIGHT else HEIGHT
    blocks = -(-options.longest_q // bm)
    scanning = min(blocks * heads, _programs(q, RESIDENT["scan"]))
    collecting = min(plan.blocks * heads, _programs(q, RESIDENT["collect"]))
    # maxima of tiles, and then bits
    size = max(scanning * bm * plan.tiles, collecting * STRETCH * HEIGHT * 2)
    scratch = torch.empty(size, device=q.device)
    with on_device(q):
        scan[(scanning,)](
            q, k, *call.marks, scratch, tau, notes, *call.strides, *call.masked, *call.places, options.longest_q,
            blocks * heads, blocks, plan.tiles, plan.size, *call.numbers, **call.flags, **call.depth, **call.precise,
            BM=bm, CHUNK=CHUNK, LONGEST=LONGEST, **call.launch("scan"),
        )  # fmt: skip
        collect[(collecting,)](
            q, k, *call.marks, scratch.view(torch.int32), tau, notes, lists, *call.strides, *call.masked, *call.places,
            options.longest_q, plan.blocks * heads, plan.blocks, plan.tiles, plan.size, *call.numbers, **call.flags,
            **call.depth, **call.precise, LONGEST=LONGEST, STRETCH=STRETCH, SLOTS=SLOTS, **call.launch("collect"),
        )  # fmt: skip
        # what follows may take its memory
        del scratch
        out, mean, support = _contexts_like(q, v, new)
        tolerance = _tolerance(options)
        listed_contexts[(-(-options.longest_q // _list_rows(q)), heads)](
            q, k, v, *call.marks, call.seed, notes, lists, tau, support, out, mean, *call.strides, *v.stride()[:3],
            *call.masked, *call.places, options.longest_q, plan.blocks, plan.tiles, plan.size, *call.numbers[:3],
            call.drop, tolerance, **call.flags, **call.dropping, **call.depths, LONGEST=LONGEST, ROWS=_list_rows(q),
            PART=call.part("listed_contexts"), num_warps=1,
        )  # fmt: skip
        contexts[(plan.blocks, heads)](
            q, k, v, *call.marks, call.seed, notes, tau, support, out, mean, *call.strides, *v.stride()[:3],
            *call.masked, *call.places, plan.blocks, plan.tiles, plan.size, *call.numbers, call.drop, tolerance,
            **call.flags, **call.dropping, **call.depths, **call.precise, **call.launch("contexts"),
        )  # fmt: skip
    return out, mean, tau, support, notes, lists


def sparse_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mean: Tensor,
    tau: Tensor,
    notes: Tensor,
    lists: Tensor,
    mask_gradient: bool,
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = Options(*given)
    grad, q, k, v = _rows(grad), _rows(q), _rows(k), _rows(v)
    call = _Call(q, k, v, options)
    plan, heads = call.plan, call.sequences * q.shape[1]
    new = torch.zeros if options.starts_q is not None or call.empty else torch.empty
    dq, dk, dv = (new(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    dalpha, dsink, common = (new(tau.shape, device=q.device) for _ in range(3))
    mask = options.mask if mask_gradient else None
    if call.empty:
        return dq, dk, dv, dalpha, dsink, tau.new_zeros(0 if mask is None else mask.shape)
    strides = (*grad.stride()[:3], *call.strides, *v.stride()[:3], *call.masked)
    sizes = plan.tiles, plan.size
    items = call.sequences * k.shape[1] * plan.tiles
    programs = min(items, _programs(q, RESIDENT["key_gradients"]))
    rows = torch.empty(programs * options.longest_q, dtype=torch.int32, device=q.device)
    of_alpha, of_mask, _, of_q, of_k = call.marks
    flags = {name: value for name, value in call.flags.items() if name != "SINKS"}
    with on_device(q):
        listed_gradients[(-(-options.longest_q // _list_rows(q)), heads)](
            grad, q, k, v, mean, *call.marks, call.seed, notes, lists, tau, common, dq, dalpha, dsink, *strides,
            *call.places, options.longest_q, plan.blocks, *sizes, *call.numbers[:3], call.drop, FEW, **call.flags,
            **call.dropping, **call.depths, LONGEST=LONGEST, ROWS=_list_rows(q), PART=call.part("listed_gradients"),
            num_warps=1,
        )  # fmt: skip
        query_gradients[(plan.blocks, heads)](
            grad, q, k, v, mean, *call.marks, call.seed, notes, tau, common, dq, dalpha, dsink, *strides, *call.places,
            plan.blocks, *sizes, *call.numbers, call.drop, FEW, **call.flags, **call.dropping, **call.depths,
            **call.precise, **call.launch("query_gradients"),
        )  # fmt: skip
        key_gradients[(programs,)](
            grad, q, k, v, of_alpha, of_mask, of_q, of_k, call.seed, notes, tau, common, rows, dk, dv, *strides,
            *call.places, options.longest_q, items, *sizes, *call.numbers, call.drop, **flags, **call.dropping,
            **call.depths, **call.precise, BM=KEY_ROWS, PACK=PACK, **call.launch("key_gradients"),
        )  # fmt: skip
        if mask is None:
            return dq, dk, dv, dalpha, dsink, tau.new_empty(0)
        dmask, loops = _mask_gradient_like(mask, q, k)
        rows_apart, keys_apart = dmask.shape[2] > 1, dmask.shape[3] > 1
        grid = (plan.tiles if keys_apart else 1, plan.blocks if rows_apart else 1, dmask.shape[0] * dmask.shape[1])
        flags.pop("PACKED")
        mask_gradients[grid](
            grad, q, k, v, of_alpha, of_mask, call.seed, notes, tau, common, dmask, *strides, *call.places, plan.blocks,
            *sizes, *call.numbers, call.drop, *loops, **flags, **call.dropping, **call.depths, **call.precise,
            ROWS=rows_apart, KEYS=keys_apart, num_warps=4,
        )  # fmt: skip
    return dq, dk, dv, dalpha, dsink, dmask.sum_to_size(mask.shape)


class _Call:
    """What the kernels of a call take in common; a tensor that is not there is any other."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, options: Options) -> None:
        self.q, self.options = q, options
        D, V = q.shape[-1], v.shape[-1]
        self.sequences = q.shape[0] if options.starts_q is None else len(options.starts_q) - 1
        self.plan = layout(options.longest_q, options.longest_k)
        self.empty = q.numel() == 0 or options.longest_q == 0 or options.longest_k == 0
        alphas, mask, sinks, starts_q, starts_k = options[1:6]
        self.marks = tuple(q if t is None else t for t in (alphas, mask, sinks, starts_q, starts_k))
        self.seed = q if options.seed is None else options.seed
        left, right = (side if side >= 0 else FAR for side in (options.left, options.right))
        self.numbers = options.alpha - 1, options.scale, options.softcap, left, right, options.offset
        self.drop = 0 if options.seed is None else threshold(options.dropout)
        self.flags = {
            "LEARNED": alphas is not None,
            "SINKS": sinks is not None,
            "PACKED": starts_q is not None,
            "MASK": 0 if mask is None else 1 if mask.dtype == torch.bool else 2,
            "CAP": options.softcap > 0,
            "R": {2.0: 1, 1.5: 2}.get(options.alpha, 0) if alphas is None else 0,
        }
        self.dropping = {"DROP": options.seed is not None}
        self.strides = (*q.stride()[:3], *k.stride()[:3])
        self.masked = (0, 0, 0, 0) if mask is None else mask.expand(*q.shape[:3], k.shape[2]).stride()
        self.places = q.shape[1], q.shape[1] // max(k.shape[1], 1), q.shape[2], k.shape[2]
        self.depth = {"D": D, "BD": max(ceil_power(D), 16)}
        self.depths = {**self.depth, "V": V, "BV": max(ceil_power(V), 16)}
        self.precise = {"PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32"}
        self.deep = max(D, V) > 64

    def launch(self, name: str) -> dict[str, int]:
        """Warps, stages and registers of a kernel."""
        warps, stages, registers = LAUNCH[name][self.deep]
        found = {"num_warps": warps, "STAGES": min(stages, 2) if self.q.dtype == torch.float32 else stages}
        return {**found, "maxnreg": registers} if registers else found

    def part(self, name: str) -> int:
        """Entries of a list that are gathered at once."""
        return PART[name][self.deep]

    def lists(self) -> Tensor:
        """Memory for the lists of all rows."""
        if self.q.is_cuda:
            return lists_like(self.q, self.options.longest_k)
        return torch.empty(self.q.shape[:-1].numel() * LONGEST, dtype=torch.int16)


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


def _tolerance(options: Options) -> float:
    """How far the sum of weights may be from 1 before the last step, which squares that where alpha <= 1.5."""
    return 1e-3 if options.alphas is None and options.alpha <= 1.5 else 2e-6


def _list_rows(q: Tensor) -> int:
    """Rows of a program that works on lists: a warp for each; the interpreter is faster with more."""
    return 1 if q.is_cuda else 16


def _programs(q: Tensor, resident: int) -> int:
    return resident * processors(q.device) if q.is_cuda else 4


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count
