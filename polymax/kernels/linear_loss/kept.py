"""Values with their gradients, for gradients of values that are known in advance: three dense products for flat rows.

Logits of rows with many words are computed once and kept until the threshold is known. The CPU keeps them in memory of
their own, some rows at a time, and writes weights in their place. Other devices keep them in the memory of the gradient
of weight: a block of words has m logits for each word there, where d numbers of the gradient will be, and its gradient
is written after its logits are read. If there are more rows than dimensions, or the gradient of weight is not needed, d
rows at a time lie in memory of their own.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from polymax.kernels.linear_loss.flat import finish_exponentials
from polymax.kernels.linear_loss.gradients import (
    Gradients,
    Unit,
    add_lists,
    counted_grads,
    flat_gradients,
    flat_grads,
)
from polymax.kernels.linear_loss.passes import parts_of, rows_at, whole_rows, widened
from polymax.kernels.linear_loss.problem import Grads, LossProblem, slopes_of
from polymax.kernels.linear_loss.reference import capped_logits, spread_mean
from polymax.kernels.linear_loss.steps import Cap, Exponentials, FlatRows, Steps, pieces

# groups of rows whose gradients of weight are added up in the dtype of weight; more would lose digits
GROUPS = 4


def value_and_gradients(steps: Steps, *given: Any) -> tuple[Tensor, ...]:
    """Run `linear_loss_slopes`, by the steps of a device."""
    grads, problem, of_hidden, of_words = slopes_of(given)
    problem = widened(problem)
    real = torch.promote_types(problem.hidden.dtype, torch.float32)
    grads = counted_grads(grads, problem, real)
    found = Gradients(problem, of_hidden, of_words, real)
    dh: list[Tensor] = []

    def whole(part: LossProblem, at: Tensor) -> list[Tensor]:
        if not can_keep(steps, part, len(at), of_words):
            parts = whole_rows(steps, part, at)
            dh.append(flat_gradients(steps, part, at, (parts[4], parts[5]), grads, found))
            return parts
        parts, slope = _Kept(steps, part, at, grads, found).run()
        dh.append(slope)
        return parts

    parts = parts_of(steps, problem, whole)
    flats = int(parts.extent[0])
    at: Any = None
    if flats:
        at = (parts.count < 0).nonzero().squeeze(1) if flats < len(problem.hidden) else slice(None)
    return *parts[:3], *add_lists(steps, grads, problem, parts.saved, found, at, dh[0] if dh else None)


class _Kept:
    """The rows `at` of a call, their logits, and the gradients that are filled from these."""

    def __init__(self, steps: Steps, problem: LossProblem, at: Tensor, grads: Grads, found: Gradients) -> None:
        hidden, self.weight = rows_at(problem.hidden, at), problem.weight
        self.steps, self.problem, self.found = steps, problem, found
        self.cap = Cap(problem.softcap, problem.scale)
        self.real = torch.promote_types(hidden.dtype, torch.float32)
        self.operand = hidden.dtype if steps.half else self.real
        self.hidden = hidden.to(self.operand)
        self.named = None if problem.named is None else rows_at(problem.named, at)
        curved = problem.curved
        self.curved = rows_at(curved, at) if curved is not None and curved.dim() == 2 else curved
        empty = torch.empty(len(at), dtype=self.real, device=hidden.device)
        value, mean, _ = flat_grads(grads, empty, at)
        self.rows = FlatRows(empty, empty, value, mean)
        self.unit = Unit(self.rows, self.operand)
        self.rows = self.unit.apply(self.rows)
        # exponentials of the exact scores, of which those that are kept are rounded
        self.softmax = problem.alpha == 1 and not steps.kept
        self._memory: Tensor | None = None

    def run(self) -> tuple[list[Tensor], Tensor]:
        """Return the parts of the rows, and their gradients of hidden; fill the gradients of weight and bias."""
        m, d = self.hidden.shape
        dh = torch.zeros((m, d), dtype=self.real, device=self.hidden.device)
        parts = []
        for rows in pieces(m, self._height()):
            sums = Exponentials.empty(rows.stop - rows.start, self.hidden) if self.softmax else None
            words, blocks, reference, some = self._computed(rows, sums)
            if sums is None:
                top, value, tau = self.steps.solve_kept(blocks, self.problem.alpha)
                top = top if reference is None else top + reference
            else:
                top, value, tau, _ = finish_exponentials(sums)
            chosen, mean, mass = some
            mean = mean - mass * (top if reference is None else top - reference)
            nothing = torch.zeros_like(value)
            parts.append([value, chosen - top.unsqueeze(1), mean, nothing, top, tau, nothing])
            flat = self.rows.part(rows)._replace(top=top, tau=tau)
            self._add(rows, words, blocks, reference, flat, dh[rows])
        return [torch.cat(column) for column in zip(*parts)], dh * self.unit.size if self.unit.scaled else dh

    def _height(self) -> int:
        """Return the number of rows of a group."""
        m, d = self.hidden.shape
        return max(self.steps.kept // len(self.weight), 1) if self.steps.kept else min(m, d)

    def _regions(self, rows: slice) -> Iterator[tuple[slice, Tensor | None]]:
        """Yield blocks of words and the memory of their logits, None where a device keeps products as they are."""
        words, count = len(self.weight), rows.stop - rows.start
        if self.steps.kept:
            yield slice(0, words), None
            return
        width = max(self.steps.flat // count // self.steps.chunk, 1) * self.steps.chunk
        memory = self._memory = self.found.dw if self.found.of_words and count == len(self.hidden) else self._own(count)
        for block in pieces(words, width):
            size = block.stop - block.start
            yield block, memory[block].view(-1)[: count * size].view(count, size)

    def _own(self, count: int) -> Tensor:
        """Return memory for the logits of a group of rows, the same for all groups."""
        if self._memory is None:
            shape = len(self.weight), count
            self._memory = torch.empty(shape, dtype=self.operand, device=self.weight.device)
        return self._memory

    def _computed(
        self, rows: slice, sums: Exponentials | None
    ) -> tuple[list[slice], list[Tensor], Tensor | None, tuple[Tensor, Tensor, Tensor]]:
        """Return blocks of words and their scores less a reference, the reference, and the scores of named words, the
        mean by the spread, and the sum of the spread; add exponentials to their sums.
        """
        steps, bias, hidden = self.steps, self.problem.bias, self.hidden[rows]
        count = len(hidden)
        chosen = torch.zeros(
            (count, 0 if self.named is None else self.named.shape[1]), dtype=self.real, device=hidden.device
        )
        mean, mass = torch.zeros((2, count), dtype=self.real, device=hidden.device).unbind(0)
        reference: Tensor | None = None
        blocks, kept = [], []
        for words, memory in self._regions(rows):
            x = steps.product(hidden, self.weight[words].to(self.operand))
            local = None if bias is None else bias[words]
            if self.named is not None:
                steps.pick(x, local, self.named[rows], words.start, chosen, self.cap)
            if reference is None and self.operand != self.real:
                # near the largest scores, half precision has most digits
                first = x[:, : steps.chunk]
                first = first if local is None else first + local[: steps.chunk]
                reference = capped_logits(first.amax(1), *self.cap)
                reference = torch.where(reference.isfinite(), reference, 0)
            if sums is not None:
                steps.accumulate(x, local, sums, self.cap)
            x = steps.keep(x, local, reference, memory, self.cap)
            part = self._spread(rows, words)
            if part is not None:
                z = x.to(self.real)
                mean = mean + spread_mean(z, part)
                mass = mass + part.to(self.real).sum(-1)
            blocks.append(words)
            kept.append(x)
        return blocks, kept, reference, (chosen, mean, mass)

    def _spread(self, rows: slice, words: slice) -> Tensor | None:
        if self.curved is None:
            return None
        return self.curved[words] if self.curved.dim() == 1 else self.curved[rows, words]

    def _add(
        self,
        rows: slice,
        blocks: list[slice],
        kept: list[Tensor],
        reference: Tensor | None,
        flat: FlatRows,
        dh: Tensor,
    ) -> None:
        """Add the gradients of a group of rows."""
        steps, problem, found = self.steps, self.problem, self.found
        hidden, dw = self.hidden[rows], found.dw
        for words, x in zip(blocks, kept, strict=True):
            part = self._spread(rows, words)
            dx = steps.kept_slopes(x, reference, part, flat, problem.alpha, self.cap, self.operand)
            if found.of_hidden:
                steps.add_product(dh, dx, self.weight[words].to(self.operand))
            if not found.of_words:
                continue
            if problem.bias is not None:
                found.db[words] += dx.sum(0, dtype=self.real) * self.unit.size
            if self.unit.scaled:
                piece = (steps.product(dx.mT, hidden.mT) * self.unit.size).to(dw.dtype)
                dw[words] = piece if rows.start == 0 else dw[words] + piece
            elif rows.start == 0:
                torch.mm(dx.mT, hidden, out=dw[words])
            else:
                torch.addmm(dw[words], dx.mT, hidden, out=dw[words])


def can_keep(steps: Steps, problem: LossProblem, rows: int, of_words: bool) -> bool:
    """Return True if three products are enough: groups of rows are few, or added up in at least float32."""
    if steps.kept:
        return not problem.softcap and problem.hidden.dtype in (torch.float32, torch.float64)
    return not of_words or rows <= GROUPS * problem.hidden.shape[1]
