"""The thin stack: stacks of many parsers that never copy their nodes."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.nn.shift_reduce import REDUCE, SHIFT


class ThinStack:
    """Stacks and buffers of R parsers, over one memory of all nodes that were ever made.

    A stack is a list of places in the memory: to pop is to forget a place. Nodes are vectors (w,), and those of tokens
    are in memory from the beginning, which makes the buffer a count of what was shifted.

    Shapes: leaves (B, n, w); rows (R,), the sentence of each parser; lengths (R,)

    See: Bowman et al. 2016, A fast unified model for parsing and sentence understanding, section 3.2.
    """

    def __init__(self, leaves: Tensor, rows: Tensor, lengths: Tensor, steps: int) -> None:
        count, n, w = leaves.shape
        # each sentence has a node of 0 after its last, for what is not there
        filled = torch.nn.functional.pad(leaves, (0, 0, 0, 1)).reshape(count * (n + 1), w)
        self.memory = torch.nn.functional.pad(filled, (0, 0, 0, steps * rows.shape[0]))
        self.next = count * (n + 1)
        self.first = rows * (n + 1)
        self.lengths = lengths
        self.stack = (self.first + n).unsqueeze(-1).repeat(1, n + 2)
        self.size = torch.zeros_like(lengths)
        self.shifted = torch.zeros_like(lengths)
        self.seen = self.memory[self._looked_at()]

    def allowed(self) -> Tensor:
        """True where a parser can shift, and where it can reduce, (R, 2)."""
        return torch.stack([self.shifted < self.lengths, self.size > 1], -1)

    def keep(self, parsers: Tensor) -> None:
        """Go on with these parsers (R,), which may repeat."""
        self.stack, self.size, self.shifted = (t[parsers] for t in (self.stack, self.size, self.shifted))

    def push(self, node: Tensor, y: Tensor) -> None:
        """Put a node (R, w) on each stack, and take what y (R, 2) says from the buffer, or the stack.

        After it `seen` (R, 3, w) are the first node of the buffer, the topmost and the second of the stack, 0 where
        there is none. A parser for which y is 0 stays as it is.
        """
        shift, reduce = (y[:, action] > 0 for action in (SHIFT, REDUCE))
        self.size = self.size + shift.long() - reduce.long()
        self.shifted = self.shifted + shift.long()
        top = self.size.unsqueeze(-1)
        made = self.next + torch.arange(node.shape[0], device=node.device).unsqueeze(-1)
        made = torch.where((shift | reduce).unsqueeze(-1), made, self.stack.gather(1, top))
        self.stack = self.stack.scatter(1, top, made)
        self.memory, self.seen = _Write.apply(self.memory, node, self.next, self._looked_at())
        self.next += node.shape[0]

    def roots(self) -> Tensor:
        """The nodes (R, w) that are left at the end, one on each stack, 0 of an empty sentence.

        Where NaN kept a parser from choosing, something else is left, and the node is NaN.
        """
        bottom = self.memory[torch.where(self.lengths > 0, self.stack[:, 1], self.stack[:, 0])]
        stuck = (self.shifted < self.lengths) | (self.size > 1)
        return bottom.masked_fill(stuck.unsqueeze(-1), torch.nan)

    def _looked_at(self) -> Tensor:
        """Places in memory (R, 3) of what is seen."""
        # the buffer ends with a node of 0, behind the padding
        buffer = torch.where(self.shifted < self.lengths, self.first + self.shifted, self.stack[:, 0])
        below = (self.size.unsqueeze(-1) - torch.arange(2, device=self.size.device)).clamp(min=0)
        return torch.cat([buffer.unsqueeze(-1), self.stack.gather(1, below)], 1)


class _Write(Function):
    """Memory (M, w) with nodes (R, w) written at `begin`, and what places (R, k) of it hold.

    A step must not cost more than what it reads and writes. So memory is written in place, as is its gradient: both
    belong to the chain of steps alone, and a place is written before it is read.
    """

    @staticmethod
    def forward(ctx: Any, memory: Tensor, node: Tensor, begin: int, places: Tensor) -> tuple[Tensor, Tensor]:
        ctx.span = (begin, begin + node.shape[0])
        ctx.shape = memory.shape
        ctx.save_for_backward(places)
        ctx.set_materialize_grads(False)
        memory[begin : begin + node.shape[0]] = node
        ctx.mark_dirty(memory)
        return memory, memory[places]

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, seen: Tensor | None) -> tuple[Any, ...]:
        (places,) = ctx.saved_tensors
        if g is None and seen is None:
            return None, None, None, None
        slope = seen.new_zeros(ctx.shape) if g is None else g  # type: ignore[union-attr]
        if seen is not None:
            # a gradient that is to be differentiated itself is kept as it was
            put = slope.index_put if torch.is_grad_enabled() else slope.index_put_
            slope = put((places,), seen, accumulate=True)
        begin, end = ctx.span
        return slope, slope[begin:end], None, None
