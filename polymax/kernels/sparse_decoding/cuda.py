"""Sparse attention over a cache: bounds of pages, scores of those that can matter, thresholds, and values, in parts."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from polymax.backend.triton_launch import Bound, kind, ready, remembered, told
from polymax.backend.triton_math import ceil_power, on_device
from polymax.backend.triton_memory import Arena, Array
from polymax.kernels.sparse_attention.cuda_call import processors
from polymax.kernels.sparse_attention.cuda_tile import FAR
from polymax.kernels.sparse_decoding.cuda_pages import page_bounds, page_scores
from polymax.kernels.sparse_decoding.cuda_rows import contexts, thresholds, value_sums
from polymax.kernels.sparse_decoding.options import PAGE, Cached

# programs for each multiprocessor that share the pages
RESIDENT = 6
# BOXES: pages whose boxes are read at once
# BOUNDS: pages whose bounds are read at once
BOXES, BOUNDS = 32, 128
# MAXIMA: maxima of pages that are read at once
# SCORES: scores that are read at once
MAXIMA, SCORES = 1024, 4096
# PARTS: parts of a row's values
# MOST_PARTS: most parts of a row's pages
PARTS, MOST_PARTS = 16, 64


def sparse_decoding(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    cached = Cached(*given)
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    boxes, table, lengths, alphas, sinks = (
        t if t is None or t.is_contiguous() else t.contiguous()
        for t in (cached.boxes, cached.table, cached.lengths, cached.alphas, cached.sinks)
    )
    mask = cached.mask
    if mask is not None:
        # an added mask may raise the scores of any page, so that boxes give no bound
        boxes = boxes if mask.dtype == torch.bool else None
        keys = k.shape[2] if table is None else table.shape[1] * k.shape[2]
        mask = mask.expand(*q.shape[:3], keys)
    rows, device = q.shape[:-1], q.device
    out = torch.empty(*rows, v.shape[-1], dtype=q.dtype, device=device)
    tau, support = torch.empty((2, *rows), device=device), torch.empty(rows, dtype=torch.int32, device=device)
    if 0 in rows or k.shape[2] == 0 or (table is not None and table.shape[1] == 0):
        tau[0], tau[1] = torch.inf, 0.0
        return out.zero_(), tau, support.zero_()
    cached = Cached(boxes, table, lengths, cached.alpha, alphas, mask, sinks, *cached[7:])
    with on_device(q):
        _call_of(q, k, v, cached)(q, k, v, cached, out, tau, support)
    return out, tau, support


_CALLS: dict[Hashable, "_Call"] = {}


def _call_of(q: Tensor, k: Tensor, v: Tensor, cached: Cached) -> "_Call":
    """Return the cached launches for calls like this one; a growing cache of keys keeps its kind."""
    tensors = (k, v, cached.boxes, cached.table, cached.lengths, cached.alphas, cached.mask, cached.sinks)
    kinds = [None if t is None else t.dtype for t in tensors]
    page = None if cached.table is None else k.shape[2]
    sizes = k.shape[1], v.shape[3], page, cached.alpha, cached.softcap > 0, *cached[9:11]
    return remembered(_CALLS, (kind(q), *kinds, *sizes, q.device), lambda: _Call(q, k, v, cached))


class _Call:
    """All kernels of a call, with their constants; grids and numbers depend on the number of keys."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, cached: Cached) -> None:
        (B, H, L, D), G, V = q.shape, k.shape[1], v.shape[-1]
        table, mask = cached.table, cached.mask
        self.page = page = PAGE if table is None else k.shape[2]
        self.known, self.group, self.rows, self.key_heads = cached.boxes is not None, H // G, B * H * L, B * G
        self.programs = RESIDENT * processors(q.device) if q.is_cuda else 4
        # the interpreter is faster with few programs
        self.most_parts = PARTS if q.is_cuda else 2
        self.padded, self.width = max(ceil_power(self.group * L), 16), max(ceil_power(V), 16)
        self.tolerance = 1e-3 if cached.alphas is None and cached.alpha <= 1.5 else 2e-6

        learned = {"LEARNED": cached.alphas is not None}
        paged, sunk = {"PAGED": table is not None}, {"SINKS": cached.sinks is not None}
        power = {"R": {2.0: 1, 1.5: 2}.get(cached.alpha, 0) if cached.alphas is None else 0}
        masked = {"MASK": 0 if mask is None else 1 if mask.dtype == torch.bool else 2, "CAP": cached.softcap > 0}
        depth = {"BR": self.padded, "D": D, "BD": max(ceil_power(D), 16)}
        depth["PRECISION"] = "tf32x3" if q.dtype == torch.float32 else "tf32"
        size, values = {"BN": page}, {"V": V, "BV": self.width}
        bounding = {**learned, **paged, **masked, **power, **depth, **size, "BP": BOXES, "num_warps": 4}
        scoring = {**learned, **sunk, **paged, "BOXES": self.known, **masked, **power, **depth, **size}
        scoring |= {"BP": BOUNDS, "BS": MOST_PARTS, "STAGES": 3, "num_warps": 4}
        finding = {**learned, **sunk, **paged, **power, **size, "BP": MAXIMA, "BC": SCORES // page, "num_warps": 8}
        summing = {**learned, **paged, **power, **values, **size, "num_warps": 4}
        joining = {**learned, **sunk, **power, **values, "BS": PARTS, "num_warps": 1}
        kernels = page_bounds, page_scores, thresholds, value_sums, contexts
        constants = bounding, scoring, finding, summing, joining
        self.kernels = [kernel.prepared(**given) for kernel, given in zip(kernels, constants, strict=True)]
        # by the kinds of their numbers, and by the numbers of pages and parts
        self.launches: dict[Hashable, list[Bound]] = {}
        self.arenas: dict[Hashable, Arena] = {}

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, cached: Cached, out: Tensor, tau: Tensor, support: Tensor
    ) -> None:
        boxes, table, mask = cached.boxes, cached.table, cached.mask
        (_, H, L, _), page = q.shape, self.page
        pages = -(-k.shape[2] // page) if table is None else table.shape[1]
        keys = k.shape[2] if table is None else pages * page
        # distance of rows: kernels are compiled for a multiple of 16
        row_pages = -(-pages // 16) * 16
        splits = max(min(-(-self.programs // self.key_heads), MOST_PARTS, pages), 1)
        parts = min(self.most_parts, pages)
        sides = tuple(side if side >= 0 else FAR for side in cached[9:11])
        a1, numbers = cached.alpha - 1, (cached.alpha - 1, cached.scale, cached.softcap, *sides, cached.offset)
        of_q, of_mask = q.stride()[:3], (0, 0, 0, 0) if mask is None else mask.stride()
        of_k, of_v = ((t.stride(0), t.stride(1), page * t.stride(2), t.stride(2)) for t in (k, v))
        of_table = 0 if table is None else table.stride(0)
        common = (*of_mask, of_table, H, self.group, L, keys, row_pages, *numbers)
        of_boxes = () if boxes is None else boxes.stride()[:3]
        numbers_of = (
            (*of_q, *of_k, *of_boxes, *common),
            (*of_q, *of_k, *common),
            (H, L, keys, row_pages, a1, *sides, cached.offset, self.tolerance),
            (*of_v, of_table, H, self.group, L, row_pages, a1),
            (H, L, parts, a1),
        )
        row = self.rows, 1, 1
        grids = (splits, self.key_heads, 1), (splits, self.key_heads, 1), row, (parts, self.rows, 1), row
        kinds: list[Any] = []
        told(numbers_of, kinds)
        # launches compiled for numbers of these kinds
        launches = remembered(self.launches, tuple(kinds), lambda: list(map(Bound, self.kernels, grids)))
        launches = launches if boxes is not None else launches[1:]

        arena = remembered(self.arenas, (pages, splits, parts), lambda: self._arena(row_pages, splits, parts))
        scratch = arena.memory(q.device)
        # a missing tensor is replaced by q, which kernels then do not read
        given: list[Any] = [q if t is None else t for t in (q, k, v, *cached[:3], *cached[4:7], out, support, *tau)]
        if ready(*launches) and not any(t.data_ptr() & 15 for t in given):
            given = [t.data_ptr() for t in given] + arena.addresses(scratch)
        else:
            given += arena.tensors(scratch)
        q_, k_, v_, boxes_, table_, lengths_, alphas_, mask_, sinks_, out_, support_, top, depth, *own = given
        bounds, maxima, scores, lists, counts, sums, masses, counted, seeds = own
        tensors_of = (
            (q_, k_, boxes_, table_, lengths_, alphas_, mask_, bounds, seeds),
            (q_, k_, table_, lengths_, alphas_, mask_, sinks_, bounds, seeds, lists, scores, maxima),
            (alphas_, sinks_, lengths_, scores, maxima, lists, top, depth, counts),
            (v_, table_, alphas_, scores, lists, top, depth, counts, sums, masses, counted),
            (alphas_, sinks_, top, depth, sums, masses, counted, out_, support_),
        )
        skipped = len(grids) - len(launches)
        for launch, grid, tensors, numbers in zip(
            launches, grids[skipped:], tensors_of[skipped:], numbers_of[skipped:], strict=True
        ):
            launch.on(grid, tensors, numbers)

    def _arena(self, pages: int, splits: int, parts: int) -> Arena:
        """Return the arena: bounds and maxima of pages, scores, lists, counts of pages; sums, masses and sizes in
        parts; seeds.
        """
        rows, real, integer = self.rows, torch.float32, torch.int32
        bounds, seeds = (rows * pages, self.key_heads * splits * 2 * self.padded) if self.known else (0, 0)
        of_pages = Array(real, (bounds,)), Array(real, (rows * pages,)), Array(real, (rows * pages * self.page,))
        lists = Array(integer, (rows * pages,)), Array(integer, (rows,))
        sums = Array(real, (rows * parts * self.width,)), Array(real, (rows * parts,)), Array(integer, (rows * parts,))
        return Arena([*of_pages, *lists, *sums, Array(real, (seeds,))])
