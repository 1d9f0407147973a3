"""Sparse attention: a scan of all scores, then contexts and gradients from the tiles or keys with nonzero weight.

Short rows take one launch for contexts and two for gradients instead: see cuda_short_contexts.py.

Only the scan reads every tile; for long sequences it skips the tiles that balls around keys rule out: see
cuda_candidates.py. It bounds each row's threshold from below, and later kernels skip all scores under the bound: see
cuda_scan.py. Blocks of queries have lists of their nonempty tiles, rows a bit for each tile.
"""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.triton_math import on_device
from polymax.kernels.sparse_attention.cuda_call import Call, call_of
from polymax.kernels.sparse_attention.options import Options, of_backward
from polymax.kernels.sparse_attention.short_rows import near
from polymax.kernels.sparse_attention.tiles import LONGEST, lists_like, plan_numbers


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, ...]:
    options = _with_contiguous(Options(*given))
    q, k, v = _rows(q), _rows(k), _rows(v)
    call = call_of(q, k, v, None, options)
    rows = q.shape[:-1]
    # tokens after the last packed sequence are queries that see nothing
    new = torch.zeros if call.dead else torch.empty
    notes = torch.empty(plan_numbers(call.heads, options), dtype=torch.int32, device=q.device)
    tau = torch.empty((2, *rows), device=q.device)
    if call.dead:
        tau[0], tau[1] = torch.inf, 0.0
    if call.empty:
        out, mean, support = _contexts_like(q, v, new)
        return out, mean, tau, support, notes, _lists(q, options)
    marks, seed = _marks(q, options), q if options.seed is None else options.seed
    if options.short:
        out, mean, support = _contexts_like(q, v, new)
        with on_device(q):
            call.short_contexts(q, k, v, *marks, seed, *tau, support, out, mean)
        return out, mean, tau, support, notes, _lists(q, options)
    with on_device(q):
        _scan(call, q, k, marks, tau, notes)
        # the bits reuse the memory of the scan's maxima
        bits, lists = torch.empty(call.bits, dtype=torch.int32, device=q.device), _lists(q, options)
        call.collect(q, k, *marks, bits, *tau, notes, lists)
        del bits
        out, mean, support = _contexts_like(q, v, new)
        call.sum_values((q, k, v), marks, seed, (tau, notes, lists), support, out, mean)
    return out, mean, tau, support, notes, lists


def _scan(call: Call, q: Tensor, k: Tensor, marks: tuple[Tensor, ...], tau: Tensor, notes: Tensor) -> None:
    centres = torch.empty(call.balls * q.shape[-1], dtype=k.dtype, device=q.device) if call.balls else q
    radii = torch.empty(call.balls, device=q.device) if call.balls else q
    call.scan_all(q, k, marks, centres, radii, torch.empty(call.maxima, device=q.device), tau, notes)


def sparse_attention_backward(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    (q, k, v, mean, tau, notes, lists), mask_gradient, options = of_backward(given)
    options = _with_contiguous(options)
    grad, q, k, v = _rows(grad), _rows(q), _rows(k), _rows(v)
    call = call_of(q, k, v, grad, options)
    new = torch.zeros if call.dead else torch.empty
    dq, dk, dv = (new(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    dalpha, dsink, common = (new(q.shape[:-1], device=q.device) for _ in range(3))
    mask = options.mask if mask_gradient else None
    if call.empty:
        return dq, dk, dv, dalpha, dsink, tau.new_zeros(0 if mask is None else mask.shape)
    marks, seed = _marks(q, options), q if options.seed is None else options.seed
    with on_device(q):
        slopes = dq, dk, dv, dalpha, dsink
        if options.short:
            call.differentiate_short(grad, (q, k, v), mean, marks, seed, tau, common, slopes)
        else:
            rows = torch.empty(call.packing, dtype=call.row_numbers, device=q.device)
            call.differentiate(grad, (q, k, v), mean, marks, seed, (tau, notes, lists), common, rows, slopes)
        if mask is None:
            return dq, dk, dv, dalpha, dsink, tau.new_empty(0)
        dmask = torch.empty(call.of_mask, device=q.device)
        call.mask_gradients(grad, q, k, v, *marks[:2], seed, notes, *tau, common, dmask)
    return dq, dk, dv, dalpha, dsink, dmask.sum_to_size(mask.shape)


def _with_contiguous(options: Options) -> Options:
    """Return the options with contiguous tensors of numbers for each head or sequence."""
    alphas, sinks, starts_q, starts_k = (
        None if t is None else t.contiguous()
        for t in (options.alphas, options.sinks, options.starts_q, options.starts_k)
    )
    return options._replace(alphas=alphas, sinks=sinks, starts_q=starts_q, starts_k=starts_k)


def _marks(q: Tensor, options: Options) -> tuple[Tensor, ...]:
    """Return the optional tensors that all kernels take; a missing tensor is replaced by q, which kernels then do not
    read.
    """
    return tuple(q if t is None else t for t in options[1:6])


def _lists(q: Tensor, options: Options) -> Tensor:
    """Return memory for lists. Triton's interpreter gets it although the operator reports empty lists there."""
    if q.is_cuda or options.short:
        return lists_like(q, options)
    return torch.empty(q.shape[:-1].numel() * LONGEST, dtype=torch.int16)


def _contexts_like(q: Tensor, v: Tensor, new: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for contexts, means and the sizes of supports."""
    rows = q.shape[:-1]
    out, mean = (new((*rows, v.shape[-1]), dtype=q.dtype, device=q.device) for _ in range(2))
    return out, mean, new(rows, dtype=torch.int32, device=q.device)


def _rows(x: Tensor) -> Tensor:
    return x if near(x) else x.contiguous()
