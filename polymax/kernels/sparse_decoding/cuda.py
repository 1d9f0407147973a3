"""Sparse attention over a cache: bounds of pages, scores of those that can matter, thresholds, and values, in parts."""

from typing import Any

import torch
from torch import Tensor

from polymax.kernels.sparse_attention.cuda_call import processors
from polymax.kernels.sparse_attention.cuda_tile import FAR
from polymax.kernels.sparse_decoding.cuda_pages import page_bounds, page_scores
from polymax.kernels.sparse_decoding.cuda_rows import contexts, thresholds, value_sums
from polymax.kernels.sparse_decoding.options import PAGE, Cached
from polymax.kernels.triton_calls import Prepared, Remembered, kind
from polymax.kernels.triton_math import ceil_power, on_device

# programs for each multiprocessor that share the pages
RESIDENT = 6
# pages whose boxes, and whose bounds, are looked at at once
BOXES, BOUNDS = 32, 128
# maxima of pages that are looked at at once, and scores
MAXIMA, SCORES = 1024, 4096
# parts of a row's values, and of its pages at most
PARTS, MOST_PARTS = 16, 64


def sparse_decoding(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    cached = Cached(*given)
    whole = {n: t.contiguous() for n, t in cached._asdict().items() if n != "mask" and isinstance(t, Tensor)}
    cached = cached._replace(**whole)
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    boxes = cached.boxes
    if cached.mask is not None and cached.mask.dtype != torch.bool:
        # what is added may lift any page
        boxes = None
    rows = q.shape[:-1]
    out, support = (torch.empty(shape, dtype=d, device=q.device) for shape, d in _results(q, v))
    tau = torch.empty((2, *rows), device=q.device)
    call = _call_of(q, k, v, cached._replace(boxes=boxes))
    if call.empty:
        tau[0], tau[1] = torch.inf, 0.0
        return out.zero_(), tau, support.zero_()
    # bounds and maxima of pages, scores, lists; sums, masses and sizes in parts; seeds
    scratch = torch.empty(call.scratch, device=q.device)
    bounds, maxima, scores, lists, counts, sums, masses, sizes, seeds = scratch.split(call.splits)
    lists, counts, sizes = (t.view(torch.int32) for t in (lists, counts, sizes))
    table, lengths, alphas, mask, sinks = (
        q if t is None else t for t in (cached.table, cached.lengths, cached.alphas, cached.mask, cached.sinks)
    )
    with on_device(q):
        if boxes is not None:
            call.bound(q, k, boxes, table, lengths, alphas, mask, bounds, seeds)
        call.score(q, k, table, lengths, alphas, mask, sinks, bounds, seeds, lists, scores, maxima)
        call.find(alphas, sinks, lengths, scores, maxima, lists, *tau, counts)
        call.sum(v, table, alphas, scores, lists, *tau, counts, sums, masses, sizes)
        call.join(alphas, sinks, *tau, sums, masses, sizes, out, support)
    return out, tau, support


def _results(q: Tensor, v: Tensor) -> tuple[tuple[Any, torch.dtype], ...]:
    return ((*q.shape[:-1], v.shape[-1]), q.dtype), (q.shape[:-1], torch.int32)


_CALLS = Remembered()


def _call_of(q: Tensor, k: Tensor, v: Tensor, cached: Cached) -> "_Call":
    tensors = (q, k, v, *cached[:3], *cached[4:7])
    key = (*(kind(t) for t in tensors), cached.alpha, cached[7:], q.device)
    return _CALLS.get(key) or _CALLS.put(key, _Call(q, k, v, cached))


class _Call:
    """All kernels of a call with their grids, numbers and constants."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, cached: Cached) -> None:
        (B, H, L, D), G, V = q.shape, k.shape[1], v.shape[-1]
        boxes, table, mask = cached.boxes, cached.table, cached.mask
        page = PAGE if table is None else k.shape[2]
        pages = -(-k.shape[2] // PAGE) if table is None else table.shape[1]
        keys = k.shape[2] if table is None else pages * page
        self.empty = 0 in (B, H, L, pages)
        if self.empty:
            return
        group, rows = H // G, B * H * L
        programs = RESIDENT * processors(q.device) if q.is_cuda else 4
        splits = max(min(-(-programs // (B * G)), MOST_PARTS, pages), 1)
        # the interpreter is faster with few programs
        parts = max(min(PARTS if q.is_cuda else 2, pages), 1)
        page_grid, row_grid, part_grid = (splits, B * G), (rows,), (parts, rows)
        padded = max(ceil_power(group * L), 16)
        BD, BV = max(ceil_power(D), 16), max(ceil_power(V), 16)
        known = boxes is not None
        bounds = rows * pages if known else 0
        seeds = B * G * splits * 2 * padded if known else 0
        self.splits = [bounds, rows * pages, rows * pages * page, rows * pages, rows, rows * parts * BV]
        self.splits += [rows * parts, rows * parts, seeds]
        # each begins at a multiple of 16 bytes
        self.splits = [-(-n // 4) * 4 for n in self.splits]
        self.scratch = sum(self.splits)

        left, right = (side if side >= 0 else FAR for side in (cached.left, cached.right))
        sides = left, right, cached.offset
        of_q, of_mask = q.stride()[:3], (0, 0, 0, 0) if mask is None else mask.expand(B, H, L, keys).stride()
        of_k, of_v = ((t.stride(0), t.stride(1), page * t.stride(2), t.stride(2)) for t in (k, v))
        of_boxes = (0, 0, 0) if boxes is None else (boxes.stride(0), boxes.stride(1), boxes.stride(2))
        of_table = 0 if table is None else table.stride(0)
        numbers = cached.alpha - 1, cached.scale, cached.softcap, *sides
        tolerance = 1e-3 if cached.alphas is None and cached.alpha <= 1.5 else 2e-6
        bounding = (*of_q, *of_k, *of_boxes, *of_mask, of_table, H, group, L, keys, pages, *numbers)
        scoring = (*of_q, *of_k, *of_mask, of_table, H, group, L, keys, pages, *numbers)
        finding = (H, L, keys, pages, cached.alpha - 1, *sides, tolerance)
        summing = (*of_v, of_table, H, group, L, pages, cached.alpha - 1)
        joining = (H, L, parts, cached.alpha - 1)

        learned = {"LEARNED": cached.alphas is not None}
        paged, sunk = {"PAGED": table is not None}, {"SINKS": cached.sinks is not None}
        power = {"R": {2.0: 1, 1.5: 2}.get(cached.alpha, 0) if cached.alphas is None else 0}
        masked = {"MASK": 0 if mask is None else 1 if mask.dtype == torch.bool else 2, "CAP": cached.softcap > 0}
        depth = {"BR": padded, "D": D, "BD": BD, "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32"}
        size, values = {"BN": page}, {"V": V, "BV": BV}
        bounding_constants = {**learned, **paged, **masked, **power, **depth, **size, "BP": BOXES}
        bounding_constants |= {"num_warps": 4}
        scoring_constants = {**learned, **sunk, **paged, "BOXES": known, **masked, **power, **depth, **size}
        scoring_constants |= {"BP": BOUNDS, "BS": max(ceil_power(splits), 16), "STAGES": 3, "num_warps": 4}
        finding_constants = {**learned, **sunk, **paged, **power, **size, "BP": MAXIMA, "BC": SCORES // page}
        finding_constants |= {"num_warps": 8}
        summing_constants = {**learned, **paged, **power, **values, **size, "num_warps": 4}
        joining_constants = {**learned, **sunk, **power, **values, "BS": ceil_power(parts), "num_warps": 1}
        self.bound = Prepared(page_bounds, page_grid, bounding, bounding_constants)
        self.score = Prepared(page_scores, page_grid, scoring, scoring_constants)
        self.find = Prepared(thresholds, row_grid, finding, finding_constants)
        self.sum = Prepared(value_sums, part_grid, summing, summing_constants)
        self.join = Prepared(contexts, row_grid, joining, joining_constants)
