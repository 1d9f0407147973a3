"""The thin stack: stacks of many parsers without copies of nodes."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.nn.shift_reduce import REDUCE, SHIFT


class ThinStack:
    """Stacks and buffers of R parsers, over one memory of all nodes.

    A stack is a list of places in the memory; a pop drops a place. Nodes are vectors (w,). The nodes of tokens are in
    memory from the beginning, so that a buffer is the number of tokens shifted.

    Shapes: leaves (B, n, w); rows (R,), the sentence of each parser; lengths (R,)

    See: Bowman et al. 2016, A fast unified model for parsing and sentence understanding, section 3.2.
    """

    def __init__(self, leaves: Tensor, rows: Tensor, lengths: Tensor, steps: int) -> None:
        count, n, w = leaves.shape
        # each sentence has a node of 0 after its last node, for empty stacks and buffers
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
        """A bool tensor (R, 2), True if a parser can shift, and if it can reduce."""
        return torch.stack([self.shifted < self.lengths, self.size > 1], -1)

    def keep(self, parsers: Tensor) -> None:
        """Keep the parsers with these indices (R,), which may repeat."""
        self.stack, self.size, self.shifted = (t[parsers] for t in (self.stack, self.size, self.shifted))

    def push(self, node: Tensor, y: Tensor) -> None:
        """Apply actions y (R, 2): remove a token from the buffer, or two nodes from the stack; push `node` (R, w).

        Then `seen` (R, 3, w) holds the first node of the buffer, and the topmost and the second node of the stack; 0
        for missing nodes. Parsers whose y is 0 do not change.
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
        """The last node (R, w) on each stack after parsing; 0 for an empty sentence.

        The node is NaN if a parser did not finish because of NaN scores.
        """
        bottom = self.memory[torch.where(self.lengths > 0, self.stack[:, 1], self.stack[:, 0])]
        stuck = (self.shifted < self.lengths) | (self.size > 1)
        return bottom.masked_fill(stuck.unsqueeze(-1), torch.nan)

    def _looked_at(self) -> Tensor:
        """The places in memory (R, 3) of the nodes in `seen`."""
        # the buffer ends with a node of 0, behind the padding
        buffer = torch.where(self.shifted < self.lengths, self.first + self.shifted, self.stack[:, 0])
        below = (self.size.unsqueeze(-1) - torch.arange(2, device=self.size.device)).clamp(min=0)
        return torch.cat([buffer.unsqueeze(-1), self.stack.gather(1, below)], 1)


class _Write(Function):
    """Memory (M, w) with nodes (R, w) written at `begin`, and its rows at places (R, k).

    Memory and its gradient are written in place, so that a step costs only its reads and writes. This is safe because
    no other code uses them, and a place is written before it is read.
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
            # under create_graph the gradient must not be changed in place
            put = slope.index_put if torch.is_grad_enabled() else slope.index_put_
            slope = put((places,), seen, accumulate=True)
        begin, end = ctx.span
        return slope, slope[begin:end], None, None
