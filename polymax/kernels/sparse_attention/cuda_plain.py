"""Sparse attention without masks, sinks, dropout or per-head numbers: the most frequent calls, at the least cost on the
host.

The first call of a kind computes its launches and memory layout, which later calls reuse. All saved tensors besides
queries, keys and values share one piece of memory. Kernels take addresses in it, and arrays that only the forward pass
needs lie in the part that later kernels overwrite.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from polymax.backend.triton_math import on_device
from polymax.backend.triton_memory import Arena, Array
from polymax.kernels.sparse_attention.cuda_call import Call, call_of
from polymax.kernels.sparse_attention.options import Options
from polymax.kernels.sparse_attention.short_rows import near
from polymax.kernels.sparse_attention.tiles import LONGEST

# forward-only arrays get their own memory if they would enlarge the saved piece by more than this factor
SLACK = 1.25


class Plain:
    """Launches and memory shared by calls of a kind: q (B, H, L, D), k (B, G, S, D) and v (B, G, S, V); `shape` is that
    of the context.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, shape: torch.Size, options: Options) -> None:
        self.options, self.shape = options, shape
        self.shapes = q.shape, k.shape, v.shape
        self.call = call = call_of(q, k, v, None, options, counts=False)
        self.gradients: dict[Hashable, tuple[Call, Arena, Arena]] = {}
        rows = q.shape[:-1].numel()
        key = torch.int16 if options.longest_k <= 1 << 16 else torch.int32
        # tops and depths of rows, the plan, lists, supports and means
        first = (rows, torch.float32), (rows, torch.float32), (call.heads * call.plan.size, torch.int32)
        late = (rows * LONGEST, key), (rows, torch.int32), (rows * v.shape[-1], q.dtype)
        self.kept = _arena(0, *first, *late)
        # maxima, centres and radii are overwritten when lists are written, bits when means are
        early = (call.maxima, torch.float32), (call.balls * q.shape[-1], k.dtype), (call.balls, torch.float32)
        bits = call.bits, torch.int32
        free, end = self.kept.starts[3], self.kept.end
        self.passing = _arena(free, *early), _arena(self.kept.starts[-1], bits)
        self.size, self.scratch = max(end, *(arena.end for arena in self.passing)), 0
        if self.size - free > SLACK * (end - free):
            self.passing = _arena(0, *early), _arena(0, bits)
            self.size, self.scratch = end, max(arena.end for arena in self.passing)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the context, and the saved tensors for its gradient in one piece of memory."""
        call, device = self.call, q.device
        out = torch.empty(self.shape, dtype=q.dtype, device=device)
        notes = torch.empty(self.size, dtype=torch.uint8, device=device)
        scratch = torch.empty(self.scratch, dtype=torch.uint8, device=device) if self.scratch else notes
        with on_device(q):
            ready = call.ready()
            *tau, plan, lists, support, mean = _places(ready, (self.kept, notes))
            maxima, centres, radii, bits = _places(ready, *[(arena, scratch) for arena in self.passing])
            inputs: Any = [t.data_ptr() for t in (q, k, v)] if ready else (q, k, v)
            first = inputs[0]
            # these optional tensors are missing: any tensor can take their place
            marks = (first,) * 5
            call.scan_all(first, inputs[1], marks, centres, radii, maxima, tau, plan)
            call.collect(first, inputs[1], *marks, bits, *tau, plan, lists)
            context = out.data_ptr() if ready else out
            call.sum_values(inputs, marks, first, (tau, plan, lists), support, context, mean)
        return out, notes

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, notes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of q, k and v."""
        grad = grad if near(grad) else grad.contiguous()
        key = grad.stride(), grad.data_ptr() & 15 == 0
        call, own, after = self.gradients.get(key) or self._differentiated(key, grad, q, k, v)
        device = q.device
        slopes = [torch.empty(t.shape, dtype=t.dtype, device=device) for t in (q, k, v)]
        scratch = own.memory(device)
        with on_device(q):
            ready = call.ready()
            *tau, plan, lists, _, mean = _places(ready, (self.kept, notes))
            common, rows, unread = _places(ready, (own, scratch), (after, scratch))
            tensors: Any = (grad, q, k, v, *slopes)
            g, *given = [t.data_ptr() for t in tensors] if ready else tensors
            inputs, marks = given[:3], (given[0],) * 5
            found = (*given[3:], unread, unread)
            call.differentiate(g, inputs, mean, marks, given[0], (tau, plan, lists), common, rows, found)
        return slopes[0], slopes[1], slopes[2]

    def four_dims(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_q, of_k, of_v = self.shapes
        return q.view(of_q), k.view(of_k), v.view(of_v)

    def _differentiated(
        self, key: Hashable, grad: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Call, Arena, Arena]:
        grad = grad.view(*self.shapes[0][:-1], grad.shape[-1])
        call = call_of(*self.four_dims(q, k, v), grad, self.options)
        rows = self.shapes[0][:-1].numel()
        size = max(call.packing, rows * 4 // call.row_numbers.itemsize)
        own = _arena(0, (rows, torch.float32), (size, call.row_numbers))
        # the unused gradients of alpha and sinks lie in memory that row numbers overwrite later
        self.gradients[key] = call, own, _arena(own.starts[-1], (rows, torch.float32))
        return self.gradients[key]


def _arena(start: int, *sizes: tuple[int, torch.dtype]) -> Arena:
    return Arena([Array(dtype, (count,)) for count, dtype in sizes], start)


def _places(ready: bool, *parts: tuple[Arena, Tensor]) -> list[Any]:
    """Return the arrays in pieces of memory as kernels take them: by addresses if the launches are ready."""
    found: list[Any] = []
    for arena, memory in parts:
        found += arena.addresses(memory) if ready else arena.tensors(memory)
    return found
