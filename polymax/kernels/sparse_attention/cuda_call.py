"""Launches of a call of sparse attention: all kernels with their grids, numbers and constants."""

from collections.abc import Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from polymax.backend.triton_launch import Bound, Entry, kind, ready, remembered
from polymax.backend.triton_math import ceil_power
from polymax.kernels.sparse_attention.cuda_candidates import balls, candidates
from polymax.kernels.sparse_attention.cuda_collect import collect
from polymax.kernels.sparse_attention.cuda_columns import key_gradients
from polymax.kernels.sparse_attention.cuda_lists import listed_contexts, listed_gradients
from polymax.kernels.sparse_attention.cuda_masks import mask_gradients
from polymax.kernels.sparse_attention.cuda_rows import contexts, query_gradients, thresholds
from polymax.kernels.sparse_attention.cuda_scan import scan
from polymax.kernels.sparse_attention.cuda_short_call import dense_launches, forward_launch, gradient_launches
from polymax.kernels.sparse_attention.cuda_tile import FAR
from polymax.kernels.sparse_attention.dropout import threshold
from polymax.kernels.sparse_attention.options import Options
from polymax.kernels.sparse_attention.tiles import HEIGHT, LONGEST, layout

# launch options in half precision, for heads of up to 64 channels and for wider heads: (warps, loop steps loaded ahead,
# registers of a thread or 0 for the compiler's choice)
LAUNCH = {
    "candidates": ((4, 1, 0), (4, 1, 0)),
    "scan": ((4, 3, 0), (4, 3, 0)),
    "listed_scan": ((4, 3, 128), (4, 3, 0)),
    "collect": ((4, 3, 0), (4, 3, 0)),
    "thresholds": ((4, 3, 0), (4, 2, 0)),
    "contexts": ((4, 3, 168), (4, 2, 0)),
    "query_gradients": ((4, 2, 168), (4, 2, 0)),
    "key_gradients": ((4, 3, 0), (4, 2, 0)),
}
# programs of a multiprocessor that loop over blocks
RESIDENT = {"scan": 6, "listed_scan": 8, "collect": 8, "key_gradients": 4}
# launch options of kernels over rows with lists, which keep many loads in flight: (rows of a warp at once, repetitions,
# entries of a list whose keys or values are gathered at once, registers as above)
LISTS = {
    "listed_contexts": ((1, 4, 16, 72), (1, 4, 8, 0)),
    "listed_gradients": ((2, 2, 4, 64), (1, 4, 8, 0)),
}
# FEW_IN_ALL: a head has no lists if none of its blocks has more tiles
# FEW: nor has a block with at most so many tiles in a long sequence
FEW_IN_ALL, FEW = 20, 12
# LONG_KEYS: number of keys from which on a sequence is long
# FAR_KEYS: number of keys from which on the scan skips tiles ruled out by balls
LONG_KEYS, FAR_KEYS = 8192, 8192
# DENSE_KEYS: least number of queries and of keys of a sequence with dense heads
# DENSE_WEIGHTS: nonzero weights of a row in 64 keys that make a head dense, if rows see the share DENSE_SEEN of keys
DENSE_KEYS, DENSE_WEIGHTS, DENSE_SEEN = 8192, 1.6, 0.5
# FEW_SEEN: the scan reads all tiles of a block that sees at most so many tiles whole
# SHARE: and of a block that may have support in more than so many eighths of them
FEW_SEEN, SHARE = 16, 5
# tiles whose maxima a step of the bound takes at once
CHUNK = 64
# tiles whose bits are expanded at once
STRETCH = 32
# of these, tiles kept in registers
SLOTS = 8
# rows of a block of the scan
SCAN_ROWS = 128
# rows that are gathered at once for the gradients of keys
KEY_ROWS = 64
# PACK: rows whose bits are packed at once; the first PACK hold all rows that see a part of a tile
# SPAN: rows that are packed before they are gathered
PACK, SPAN = 2048, 8192


_CALLS: dict[Hashable, "Call"] = {}


def call_of(q: Tensor, k: Tensor, v: Tensor, grad: Tensor | None, options: Options, counts: bool = True) -> "Call":
    """Return the launches for calls of this kind, from a cache; for short rows, supports are counted if `counts`."""
    tensors = (q, k, v, grad, *options[1:6], options.seed)
    # tests change the sizes, so that they belong to the key
    numbers = options.alpha, options[6:14], options.short, counts
    key = (
        *(kind(t) for t in tensors),
        *numbers,
        q.device,
        FEW_IN_ALL,
        FEW,
        FAR_KEYS,
        FEW_SEEN,
        DENSE_KEYS,
        DENSE_WEIGHTS,
        DENSE_SEEN,
    )
    return remembered(_CALLS, key, lambda: Call(q, k, v, grad, options, counts))


class Call:
    """Launches of all kernels of a call, and sizes of their outputs; constants are fixed at compile time."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, grad: Tensor | None, options: Options, counts: bool) -> None:
        (B, H, L, D), G, S, V = q.shape, k.shape[1], k.shape[2], v.shape[-1]
        alphas, mask, sinks, starts_q, _ = options[1:6]
        sequences = B if starts_q is None else len(starts_q) - 1
        self.longest_q, self.longest_k = options.longest_q, options.longest_k
        self.heads, self.plan = sequences * H, layout(self.longest_q, self.longest_k)
        self.empty = q.numel() == 0 or self.longest_q == 0 or self.longest_k == 0
        self.dead = starts_q is not None or self.empty
        if self.empty:
            return
        plan, short = self.plan, options.short
        left, right = (side if side >= 0 else FAR for side in (options.left, options.right))
        self.numbers, self.sides = (options.alpha - 1, options.scale, options.softcap), (left, right, options.offset)
        self.drop = 0 if options.seed is None else threshold(options.dropout)
        self.strides, self.of_v = (*q.stride()[:3], *k.stride()[:3]), v.stride()[:3]
        self.masked = (0, 0, 0, 0) if mask is None else mask.expand(B, H, L, S).stride()
        # all queries share one row of the mask
        self.one_row = mask is not None and (mask.dim() == 1 or mask.shape[-2] == 1)
        self.places, self.sizes = (H, H // G, L, S), (plan.blocks, plan.tiles, plan.size)
        self.flags = {
            "LEARNED": alphas is not None,
            "SINKS": sinks is not None,
            "PACKED": starts_q is not None,
            "MASK": 0 if mask is None else 1 if mask.dtype == torch.bool else 2,
            "CAP": options.softcap > 0,
            # u is a factor times the products of queries and keys
            "PLAIN": options.softcap <= 0 and sinks is None and (mask is None or mask.dtype == torch.bool),
            "R": {2.0: 1, 1.5: 2}.get(options.alpha, 0) if alphas is None else 0,
            "D": D,
            "BD": max(ceil_power(D), 16),
        }
        self.more = {**self.flags, "DROP": options.seed is not None, "V": V, "BV": max(ceil_power(V), 16)}
        self.deep, self.single = max(D, V) > 64, q.dtype == torch.float32
        # heads may be dense: see cuda_dense.py
        self.marked = not short and self.flags["R"] > 0 and not self.single and max(D, V) <= 128
        self.marked = self.marked and min(self.longest_q, self.longest_k) >= DENSE_KEYS
        self.dense = DENSE_KEYS, DENSE_WEIGHTS, DENSE_SEEN
        self.marks = {"MARKED": self.marked}
        self.precision = "tf32x3" if self.single else "tf32"
        self.block_grid = plan.blocks, self.heads
        # see last_error
        tolerance = 1e-3 if alphas is None and options.alpha <= 1.5 else 2e-6
        if grad is not None:
            if short:
                self.short_query_gradients, self.short_key_gradients = gradient_launches(self, grad, sequences * G)
            else:
                self._prepare_gradients(q, grad, sequences * G)
                if self.marked:
                    found = gradient_launches(self, grad, sequences * G, dense=True)
                    self.dense_query_gradients, self.dense_key_gradients = found
            if mask is not None:
                self._prepare_mask_gradient(q, k, mask, grad, short)
        elif short:
            self.short_contexts = forward_launch(self, counts, tolerance)
        else:
            self._prepare_scans(q, k, sequences * G)
            self._prepare_contexts(q, tolerance)
            if self.marked:
                found = dense_launches(self, counts, sequences * G)
                self.find_dense_heads, self.dense_thresholds, self.dense_contexts = found
        self.launches = [launch for launch in vars(self).values() if type(launch) is Bound]

    def scan_all(self, q: Any, k: Any, marks: Any, centres: Any, radii: Any, maxima: Any, tau: Any, plan: Any) -> None:
        """Launch the scan, which writes bounds of thresholds and the tiles that matter; arguments are tensors or
        addresses.
        """
        if self.marked:
            self.find_dense_heads(q, k, *marks, plan)
        if self.balls > 0:
            self.find_balls(k, *marks[3:], centres, radii)
            self.find_candidates(q, k, *marks, centres, radii, plan)
        self.scan(q, k, *marks, maxima, *tau, plan)
        if self.balls > 0:
            self.scan_lists(q, k, *marks, maxima, *tau, plan)

    def ready(self) -> bool:
        """Return True if all launches of the pass take addresses."""
        return ready(*self.launches)

    def sum_values(self, inputs: Any, marks: Any, seed: Any, notes: Any, support: Any, out: Any, mean: Any) -> None:
        """Launch thresholds and contexts; `notes` are tau (the tops and depths of rows), the plan and lists."""
        tau, plan, lists = notes
        self.listed_contexts(*inputs, *marks, seed, plan, lists, *tau, support, out, mean)
        self.thresholds(*inputs[:2], *marks, plan, *tau)
        self.contexts(*inputs, *marks, seed, plan, *tau, support, out, mean)
        if self.marked:
            self.dense_thresholds(*inputs[:2], *marks, plan, *tau, support)
            self.dense_contexts(*inputs, *marks, seed, plan, *tau, support, out, mean)

    def differentiate(
        self, grad: Any, inputs: Any, mean: Any, marks: Any, seed: Any, notes: Any, common: Any, rows: Any, slopes: Any
    ) -> None:
        """Launch all gradients but that of the mask; `slopes` are the gradients of q, k, v, of alpha and of the
        sink.
        """
        (tau, plan, lists), (dq, dk, dv, dalpha, dsink) = notes, slopes
        of_alpha, of_mask, _, of_q, of_k = marks
        self.listed_gradients(grad, *inputs, mean, *marks, seed, plan, lists, *tau, common, dq, dalpha, dsink)
        self.query_gradients(grad, *inputs, mean, *marks, seed, plan, *tau, common, dq, dalpha, dsink)
        self.key_gradients(grad, *inputs, of_alpha, of_mask, of_q, of_k, seed, plan, *tau, common, rows, dk, dv)
        if self.marked:
            self.dense_query_gradients(grad, *inputs, mean, *marks, seed, plan, *tau, common, dq, dalpha, dsink)
            of_keys = of_alpha, of_mask, of_q, of_k
            self.dense_key_gradients(grad, *inputs, *of_keys, seed, plan, *tau, common, dk, dv)

    def differentiate_short(
        self, grad: Any, inputs: Any, mean: Any, marks: Any, seed: Any, tau: Any, common: Any, slopes: Any
    ) -> None:
        """Launch the gradients of short rows, but that of the mask; arguments as in `differentiate`."""
        of_alpha, of_mask, _, of_q, of_k = marks
        dq, dk, dv, dalpha, dsink = slopes
        # no plan is read
        plan = inputs[0]
        self.short_query_gradients(grad, *inputs, mean, *marks, seed, plan, *tau, common, dq, dalpha, dsink)
        self.short_key_gradients(grad, *inputs, of_alpha, of_mask, of_q, of_k, seed, plan, *tau, common, dk, dv)

    def _prepare_scans(self, q: Tensor, k: Tensor, key_heads: int) -> None:
        plan, heads = self.plan, self.heads
        # if there are few rows, smaller blocks share them among more programs
        many = self.longest_q * heads >= _programs(q, RESIDENT["listed_scan"]) * SCAN_ROWS
        rows = SCAN_ROWS if self.longest_q > HEIGHT and many else HEIGHT
        blocks = -(-self.longest_q // rows)
        few = FEW if self.longest_k >= LONG_KEYS else 0
        scanning = min(blocks * heads, _programs(q, RESIDENT["scan"]))
        listing = min(plan.blocks * heads, _programs(q, RESIDENT["listed_scan"]))
        # an added mask has no bound, so that balls cannot rule tiles out
        looks = self.longest_k >= FAR_KEYS and self.flags["MASK"] < 2
        self.balls = key_heads * plan.tiles if looks else 0
        self.maxima = max(scanning * rows, listing * HEIGHT if looks else 0) * plan.tiles

        first, last = (*self.strides, *self.masked, *self.places), (*self.sizes[1:], *self.numbers, *self.sides)
        constants = {**self.flags, **self.marks, **self._launching("scan"), "BR": rows, "BT": CHUNK, "LONGEST": LONGEST}
        constants |= {"TILES": "unlisted" if looks else "all"}
        numbers = (*first, self.longest_q, blocks * heads, blocks, *last, few)
        self.scan = _bound(scan, (scanning,), numbers, constants)
        if not looks:
            return
        constants = {**constants, **self._launching("listed_scan"), "BR": HEIGHT, "TILES": "listed"}
        numbers = (*first, self.longest_q, plan.blocks * heads, plan.blocks, *last, few)
        self.scan_lists = _bound(scan, (listing,), numbers, constants)
        constants = {**self.flags, **self.marks, **self._launching("candidates"), "BT": CHUNK, "SHARE": SHARE}
        numbers = (*first, plan.blocks, *last, FEW_SEEN)
        self.find_candidates = _bound(candidates, self.block_grid, numbers, constants)
        constants = {name: self.flags[name] for name in ("PACKED", "D", "BD")}
        numbers = (*k.stride()[:3], k.shape[1], *self.places[2:], plan.tiles)
        self.find_balls = _bound(balls, (plan.tiles, key_heads), numbers, constants)

    def _prepare_contexts(self, q: Tensor, tolerance: float) -> None:
        items = self.plan.blocks * self.heads
        collecting = min(items, _programs(q, RESIDENT["collect"]))
        self.bits = collecting * STRETCH * HEIGHT * 2
        constants = {**self.flags, **self._launching("collect"), "LONGEST": LONGEST, "BT": STRETCH, "BS": SLOTS}
        numbers = (*self.strides, *self.masked, *self.places, self.longest_q, items, *self.sizes, *self.numbers)
        self.collect = _bound(collect, (collecting,), (*numbers, *self.sides, FEW_IN_ALL), constants)

        first = *self.strides, *self.of_v, *self.masked, *self.places
        grid, constants = self._of_lists(q, "listed_contexts")
        numbers = (*first, self.longest_q, *self.sizes, *self.numbers, self.drop, tolerance)
        self.listed_contexts = _bound(listed_contexts, grid, numbers, constants)
        constants = {**self.flags, **self._launching("thresholds")}
        numbers = (*self.strides, *self.masked, *self.places, *self.sizes, *self.numbers, *self.sides, tolerance)
        self.thresholds = _bound(thresholds, self.block_grid, numbers, constants)
        constants = {**self.more, **self._launching("contexts")}
        numbers = (*first, *self.sizes, *self.numbers, *self.sides, self.drop)
        self.contexts = _bound(contexts, self.block_grid, numbers, constants)

    def _prepare_gradients(self, q: Tensor, grad: Tensor, key_heads: int) -> None:
        first = (*grad.stride()[:3], *self.strides, *self.of_v, *self.masked, *self.places)
        grid, constants = self._of_lists(q, "listed_gradients")
        numbers = (*first, self.longest_q, *self.sizes, *self.numbers, self.drop)
        self.listed_gradients = _bound(listed_gradients, grid, numbers, constants)
        constants = {**self.more, **self._launching("query_gradients")}
        numbers = (*first, *self.sizes, *self.numbers, *self.sides, self.drop)
        self.query_gradients = _bound(query_gradients, self.block_grid, numbers, constants)

        items = key_heads * self.plan.tiles
        packing = min(items, _programs(q, RESIDENT["key_gradients"]))
        span = min(-(-self.longest_q // PACK) * PACK, SPAN)
        self.packing = packing * span
        self.row_numbers = torch.int16 if self.longest_q <= 1 << 16 else torch.int32
        constants = {**_without(self.more, "SINKS"), **self.marks, **self._launching("key_gradients")}
        constants |= {"BR": KEY_ROWS, "BP": PACK}
        numbers = (*first, self.longest_q, span, items, *self.sizes[1:], *self.numbers, *self.sides, self.drop)
        self.key_gradients = _bound(key_gradients, (packing,), numbers, constants)

    def _prepare_mask_gradient(self, q: Tensor, k: Tensor, mask: Tensor, grad: Tensor, short: bool) -> None:
        """Prepare the gradient of a mask: its shape, and how many batches and heads one program adds up.

        If the mask has one row or one column, batches and heads are kept apart and added up afterwards: one program for
        all of them would take long.
        """
        batches, heads, rows, columns = (1,) * (4 - mask.dim()) + tuple(mask.shape)
        if rows == 1 or columns == 1:
            batches, heads = q.shape[:2]
        # size 1 is a case of its own in the kernel: it sums over all queries (or keys) instead of one number for each
        by_row, by_key = rows > 1, columns > 1
        self.of_mask = (batches, heads, q.shape[2] if by_row else 1, k.shape[2] if by_key else 1)
        grid = (self.plan.tiles if by_key else 1, self.plan.blocks if by_row else 1, batches * heads)
        numbers = (*grad.stride()[:3], *self.strides, *self.of_v, *self.masked, *self.places, *self.sizes)
        loops = q.shape[0] // batches, q.shape[1] // heads
        numbers = (*numbers, *self.numbers, *self.sides, self.drop, *loops)
        constants = {**_without(self.more, "SINKS", "PACKED"), **self.marks, "ROWS": by_row, "KEYS": by_key}
        constants |= {"SHORT": short, "PRECISION": self.precision, "num_warps": 4}
        self.mask_gradients = _bound(mask_gradients, grid, numbers, constants)

    def _launching(self, name: str) -> dict[str, Any]:
        """Return precision, warps, stages and registers of a kernel."""
        warps, stages, registers = LAUNCH[name][self.deep]
        found = {
            "PRECISION": self.precision,
            "num_warps": warps,
            # products of float32 keep their operands twice
            "STAGES": min(stages, 1 if self.deep else 2) if self.single else stages,
        }
        return {**found, "maxnreg": registers} if registers and not self.single else found

    def _of_lists(self, q: Tensor, name: str) -> tuple[tuple[int, int], dict[str, Any]]:
        """Return the grid of programs over rows with lists, and their constants."""
        rows, run, entries, registers = LISTS[name][self.deep]
        if not q.is_cuda:
            # the interpreter is faster with more rows at once
            rows, run = 16, 2
        found = {**self.more, "LONGEST": LONGEST, "RUN": run, "BR": rows, "BC": entries, "num_warps": 1}
        if registers and not self.single:
            found["maxnreg"] = registers
        return (-(-self.longest_q // (rows * run)), self.heads), found


def _bound(kernel: Entry, grid: tuple[int, ...], numbers: tuple[float, ...], constants: dict[str, Any]) -> Bound:
    return Bound(kernel.prepared(**constants), grid, *numbers)


def _without(constants: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in constants.items() if name not in names}


def _programs(q: Tensor, resident: int) -> int:
    return resident * processors(q.device) if q.is_cuda else 4


@cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count
