"""Flat rows of a GPU: a column of kept logits for each row, which become gradients in their place.

Logits are kept less a reference near the largest logit of their row, so that likely words keep their digits in half
precision. They lie in the memory of the gradient of weight, some words behind the gradient: gradients of words are
computed from the first word to the last, and overwrite only what was read. If there are more rows than dimensions, or
the gradient of weight is not needed, groups of at most d rows lie in memory of their own, one after another.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.kernels.linear_loss.flat import scores_in_torch
from polymax.kernels.linear_loss.gradients import Gradients, Unit, flat_grads
from polymax.kernels.linear_loss.passes import rows_at
from polymax.kernels.linear_loss.problem import Grads, LossProblem
from polymax.kernels.linear_loss.steps import Cap, ColumnKeeping, FlatRows, KeptLogits, Named, pieces

# rows of a group in own memory are a multiple of this
TILE = 64
# logits of a mean that are widened at once
WIDENED = 2**22


def gradients_by_columns(
    keeping: ColumnKeeping, problem: LossProblem, at: Tensor, given: Callable[[], Grads], found: Gradients
) -> tuple[list[Tensor], Tensor]:
    """Return the parts of rows `at`, and their gradients of hidden; fill the gradients of weight and bias.

    `given` returns the gradients of all parts.
    """
    hidden, weight, d = rows_at(problem.hidden, at), problem.weight, problem.hidden.shape[1]
    named = None if problem.named is None else rows_at(problem.named, at)
    spread = problem.curved
    spread = rows_at(spread, at) if spread is not None and spread.dim() == 2 else spread
    problem = problem._replace(hidden=hidden, named=named, spread=spread)
    m = len(hidden)
    inside = found.of_words and m <= d
    memory = found.memory(keeping.words) if inside else _own_memory(weight, m, d)
    groups = [_Group(keeping, problem, rows) for rows in pieces(m, m if inside else _height(m, d))]
    # the device has work while the host does the rest
    groups[0].compute(memory)
    grads = given()
    empty = torch.empty_like(grads.value)
    of_value, of_mean, _ = flat_grads(grads, empty, slice(None))
    flat = FlatRows(*(rows_at(t, at) for t in (empty, empty, of_value, of_mean)))
    unit = Unit(flat, hidden.dtype)
    flat = unit.apply(flat)
    of_chosen = rows_at(grads.chosen, at) / unit.size if unit.scaled else rows_at(grads.chosen, at)
    found.memory()
    dw = found.dw
    dh = torch.empty_like(hidden)
    parts = []
    for group in groups:
        rows = group.rows
        if rows.start:
            group.compute(memory)
        parts.append(group.parts())
        group.become_gradients(flat.part(rows)._replace(top=parts[-1][4], tau=parts[-1][5]), of_chosen[rows])
        if found.of_words and problem.bias is not None:
            found.db.add_(group.x.sum(1, dtype=found.db.dtype) * unit.size)
        if found.of_hidden:
            torch.mm(group.x.mT, weight, out=dh[rows])
        if found.of_words:
            for words in pieces(len(weight), keeping.words if inside else len(weight)):
                _fill_words(group.x[words], hidden[rows], dw[words], unit, rows.start > 0)
    columns = parts[0] if len(parts) == 1 else [torch.cat(column) for column in zip(*parts)]
    return columns, wide(dh) * unit.size if unit.scaled else dh


def _height(m: int, d: int) -> int:
    """Return the number of rows of a group in own memory: groups are of nearly the same size."""
    groups = -(-m // max(d, 1))
    return min(-(-m // (groups * TILE)) * TILE, max(d, 1))


def _own_memory(weight: Tensor, m: int, d: int) -> Tensor:
    return weight.new_empty(len(weight) * min(_aligned(min(_height(m, d), m)), max(d, 1)))


def _aligned(m: int) -> int:
    """Return a distance between words for which rows of a matrix are aligned to 16 bytes."""
    return -(-m // 8) * 8


def _fill_words(dx: Tensor, hidden: Tensor, dw: Tensor, unit: Unit, added: bool) -> None:
    if unit.scaled:
        # float16 has no room for both small gradients and their sum
        piece = (wide(dx) @ wide(hidden) * unit.size).to(dw.dtype)
        dw.copy_(dw + piece if added else piece)
    elif added:
        torch.addmm(dw, dx, hidden, out=dw)
    else:
        torch.mm(dx, hidden, out=dw)


class _Group:
    """A group of rows: their kept logits x, (words, rows), until these become gradients."""

    def __init__(self, keeping: ColumnKeeping, problem: LossProblem, rows: slice) -> None:
        self.keeping, self.problem, self.rows = keeping, problem, rows
        self.hidden = problem.hidden[rows]
        self.named = None if problem.named is None else problem.named[rows]
        spread = problem.spread
        self.spread = spread if spread is None or spread.dim() == 1 else spread[rows]
        self.curved = None if problem.linear else self.spread
        self.cap = Cap(problem.softcap, problem.scale)

    def compute(self, memory: Tensor) -> None:
        """Compute logits less their references at the end of the memory."""
        weight, (m, d) = self.problem.weight, self.hidden.shape
        words, stride = len(weight), min(_aligned(m), max(d, m))
        self.x = memory.view(-1)[-words * stride :].view(words, stride)[:, :m]
        if self.cap.softcap:
            # large logits are flattened, and small ones have most digits as they are
            real = torch.promote_types(weight.dtype, torch.float32)
            self.reference = torch.zeros(m, dtype=real, device=weight.device)
            torch.mm(weight, self.hidden.mT, out=self.x)
            return
        self.reference, less = self.keeping.refer(self.hidden, weight, self.problem.bias, self.named)
        torch.addmm(less, weight, self.hidden.mT, out=self.x)

    def parts(self) -> list[Tensor]:
        """Return value, chosen, mean, moment, top, tau and slope."""
        kept = KeptLogits(self.x, self.reference, self.problem.bias)
        top, value, tau = self.keeping.solve(kept, self.problem.alpha, self.cap)
        nothing = torch.zeros_like(value)
        mean = nothing if self.curved is None else self._mean(self.curved, top)
        self.chosen = value.new_zeros(len(top), 0)
        if self.named is not None and self.named.shape[1]:
            self.chosen = self.keeping.pick(kept, self.named, self.cap)
        return [value, self.chosen - top.unsqueeze(1), mean, nothing, top, tau, nothing]

    def _mean(self, spread: Tensor, top: Tensor) -> Tensor:
        total, bias = torch.zeros_like(top), self.problem.bias
        for words in pieces(len(self.x), max(WIDENED // len(top), 1)):
            z = self.x[words].to(top.dtype) + self.reference
            z = scores_in_torch(z, None if bias is None else bias[words].unsqueeze(1), self.cap).sub_(top)
            part = (spread[words].unsqueeze(1) if spread.dim() == 1 else spread[:, words].mT).to(top.dtype)
            total += torch.where(part == 0, 0, z * part).sum(0)
        return total

    def become_gradients(self, flat: FlatRows, of_chosen: Tensor) -> None:
        """Write the gradients of logits in their place."""
        kept = KeptLogits(self.x, self.reference, self.problem.bias)
        alpha, spread = self.problem.alpha, self.curved
        self.keeping.slopes(kept, spread, flat, alpha, self.cap)
        if self.named is not None and self.named.shape[1]:
            self.keeping.name(kept, spread, flat, Named(self.named, self.chosen, of_chosen), alpha, self.cap)
