"""Plain calls with short rows on CUDA: one launch forward and two backward, with addresses of three pieces of memory.

See cuda_plain.py, which does the same for long rows.
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


class ShortPlain:
    """Launches and memory shared by calls of a kind: q (B, H, L, D), k (B, G, S, D) and v (B, G, S, V); `shape` is that
    of the context.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, shape: torch.Size, options: Options) -> None:
        self.options, self.shape = options, shape
        self.shapes = q.shape, k.shape, v.shape
        self.call = call_of(q, k, v, None, options, counts=False)
        self.gradients: dict[Hashable, Call] = {}
        rows = q.shape[:-1].numel()
        # tops and depths of rows, and means
        self.kept = Arena([*[Array(torch.float32, (rows,))] * 2, Array(q.dtype, (rows * v.shape[-1],))])
        # for each row the product of its gradient and its mean, and the unused gradients of alpha and of the sink
        self.scratch = Arena([Array(torch.float32, (rows,))] * 2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the context, and the saved tensors for its gradient in one piece of memory."""
        call = self.call
        out = torch.empty(self.shape, dtype=q.dtype, device=q.device)
        notes = self.kept.memory(q.device)
        with on_device(q):
            ready = call.ready()
            top, depth, mean = _places(ready, self.kept, notes)
            tensors: Any = (q, k, v, out)
            *inputs, context = [t.data_ptr() for t in tensors] if ready else tensors
            # optional tensors are missing, and supports are not counted: any tensor can take their place
            call.short_contexts(*inputs, *(inputs[0],) * 6, top, depth, top, context, mean)
        return out, notes

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, notes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of q, k and v."""
        grad = grad if near(grad) else grad.contiguous()
        key = grad.stride(), grad.data_ptr() & 15 == 0
        call = self.gradients.get(key) or self._differentiated(key, grad, q, k, v)
        slopes = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v)]
        scratch = self.scratch.memory(q.device)
        with on_device(q):
            ready = call.ready()
            *tau, mean = _places(ready, self.kept, notes)
            common, unread = _places(ready, self.scratch, scratch)
            tensors: Any = (grad, q, k, v, *slopes)
            g, *given = [t.data_ptr() for t in tensors] if ready else tensors
            marks, found = (given[0],) * 5, (*given[3:], unread, unread)
            call.differentiate_short(g, given[:3], mean, marks, given[0], tau, common, found)
        return slopes[0], slopes[1], slopes[2]

    def four_dims(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_q, of_k, of_v = self.shapes
        return q.view(of_q), k.view(of_k), v.view(of_v)

    def _differentiated(self, key: Hashable, grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Call:
        grad = grad.view(*self.shapes[0][:-1], grad.shape[-1])
        self.gradients[key] = call_of(*self.four_dims(q, k, v), grad, self.options)
        return self.gradients[key]


def _places(ready: bool, arena: Arena, memory: Tensor) -> list[Any]:
    """Return the arrays in a piece of memory as kernels take them: by addresses if the launches are ready."""
    return arena.addresses(memory) if ready else list(arena.tensors(memory))
