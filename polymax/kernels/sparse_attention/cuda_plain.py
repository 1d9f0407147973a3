"""Sparse attention without masks, sinks, dropout and numbers for each head: most calls, at the least cost for the host.

The first call of a kind finds what the others need. All that the gradient takes beside queries, keys and values is one
piece of memory. Kernels are given addresses in it, and what only the forward pass needs lies where later kernels write.
"""

from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from polymax.backend.triton_math import on_device
from polymax.kernels.sparse_attention.cuda_call import Call, call_of
from polymax.kernels.sparse_attention.options import Options
from polymax.kernels.sparse_attention.tiles import LONGEST

# places begin at multiples of so many bytes
ALIGNED = 512
# what only the forward pass writes has memory of its own if it would make the notes larger than by this factor
SLACK = 1.25


class Place(NamedTuple):
    """Numbers of a type somewhere in a piece of memory."""

    at: int
    count: int
    dtype: torch.dtype

    def end(self) -> int:
        return self.at + -(-self.count * self.dtype.itemsize // ALIGNED) * ALIGNED

    def tensor(self, memory: Tensor) -> Tensor:
        return memory[self.at : self.at + self.count * self.dtype.itemsize].view(self.dtype)


Places = tuple[Place, ...]


class Plain:
    """What calls of a kind share: q (B, H, L, D), k (B, G, S, D) and v (B, G, S, V), `shape` that of the context."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, shape: torch.Size, options: Options) -> None:
        self.options, self.shape = options, shape
        self.shapes = q.shape, k.shape, v.shape
        self.call = call = call_of(q, k, v, None, options)
        self.gradients: dict[Hashable, tuple[Call, Places]] = {}
        self.back = 0
        rows = q.shape[:-1].numel()
        key = torch.int16 if options.longest_k <= 1 << 16 else torch.int32
        self.kept = _after(0, (rows, torch.float32), (rows, torch.float32), (call.heads * call.plan.size, torch.int32))
        free = self.kept[-1].end()
        # tops and depths of rows, the plan, lists, supports and means
        late = (rows * LONGEST, key), (rows, torch.int32), (rows * v.shape[-1], q.dtype)
        self.kept += _after(free, *late)
        # maxima, centres and radii, which are forgotten when lists are written, and bits, when means are
        early = (call.maxima, torch.float32), (call.balls * q.shape[-1], k.dtype), (call.balls, torch.float32)
        bits = call.bits, torch.int32
        self.passing = _after(free, *early) + _after(self.kept[-1].at, bits)
        end = self.kept[-1].end()
        self.size = max(end, *(place.end() for place in self.passing))
        self.scratch = 0
        if self.size - free > SLACK * (end - free):
            self.passing = _after(0, *early) + _after(0, bits)
            self.size, self.scratch = end, max(place.end() for place in self.passing)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, derived: bool = False) -> tuple[Tensor, Tensor]:
        """The context, and notes for its gradient, which will be asked for if `derived`."""
        call, device = self.call, q.device
        out = torch.empty(self.shape, dtype=q.dtype, device=device)
        if derived and not self.gradients:
            # its kernels are compiled meanwhile
            self._differentiated((out.stride(), True), out, q, k, v)
        notes = torch.empty(self.size, dtype=torch.uint8, device=device)
        scratch = torch.empty(self.scratch, dtype=torch.uint8, device=device) if self.scratch else notes
        ready = call.contexts.ready()
        kept, passing = _places(notes, self.kept, ready), _places(scratch, self.passing, ready)
        inputs = [t.data_ptr() for t in (q, k, v)] if ready else (q, k, v)
        first = inputs[0]
        (*tau, plan, lists, support, mean), (maxima, centres, radii, bits) = kept, passing
        # there are none, and any tensor stands for them
        marks = (first,) * 5
        with on_device(q):
            call.scan_all(first, inputs[1], marks, centres, radii, maxima, tau, plan)
            call.collect(first, inputs[1], *marks, bits, *tau, plan, lists)
            context = out.data_ptr() if ready else out
            call.sum_values(inputs, marks, first, (tau, plan, lists), support, context, mean)
        return out, notes

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, notes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v."""
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        key = grad.stride(), grad.data_ptr() & 15 == 0
        call, places = self.gradients.get(key) or self._differentiated(key, grad, q, k, v)
        device = q.device
        slopes = [torch.empty(t.shape, dtype=t.dtype, device=device) for t in (q, k, v)]
        scratch = torch.empty(self.back, dtype=torch.uint8, device=device)
        ready = call.key_gradients.ready()
        *tau, plan, lists, _, mean = _places(notes, self.kept, ready)
        common, rows, unread = _places(scratch, places, ready)
        tensors = (grad, q, k, v, *slopes)
        g, *given = [t.data_ptr() for t in tensors] if ready else tensors
        inputs, marks = given[:3], (given[0],) * 5
        with on_device(q):
            found = (*given[3:], unread, unread)
            call.differentiate(g, inputs, mean, marks, given[0], (tau, plan, lists), common, rows, found)
        return slopes[0], slopes[1], slopes[2]

    def four_dims(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_q, of_k, of_v = self.shapes
        return q.view(of_q), k.view(of_k), v.view(of_v)

    def _differentiated(self, key: Hashable, grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Call, Places]:
        grad = grad.view(*self.shapes[0][:-1], grad.shape[-1])
        call = call_of(*self.four_dims(q, k, v), grad, self.options)
        rows = self.kept[0].count
        size = max(call.packing, rows * 4 // call.row_numbers.itemsize)
        places = _after(0, (rows, torch.float32), (size, call.row_numbers))
        self.back = places[-1].end()
        # gradients of alpha and sinks, which nobody reads, lie where the numbers of rows come later
        places += (Place(places[-1].at, rows, torch.float32),)
        self.gradients[key] = call, places
        return call, places


def _after(start: int, *sizes: tuple[int, torch.dtype]) -> Places:
    """Places one after the other."""
    found: list[Place] = []
    for count, dtype in sizes:
        found.append(Place(found[-1].end() if found else start, count, dtype))
    return tuple(found)


def _places(memory: Tensor, places: Places, addresses: bool) -> list[int] | list[Tensor]:
    """Places as kernels take them."""
    if addresses:
        base = memory.data_ptr()
        return [base + place.at for place in places]
    return [place.tensor(memory) for place in places]
