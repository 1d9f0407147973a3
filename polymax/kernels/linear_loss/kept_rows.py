"""Flat rows of the CPU: some rows at a time, whose weights are written in the place of their logits."""

import torch
from torch import Tensor

from polymax.kernels.linear_loss.gradients import Gradients, flat_grads
from polymax.kernels.linear_loss.passes import rows_at
from polymax.kernels.linear_loss.problem import Grads, LossProblem
from polymax.kernels.linear_loss.reference import spread_mean
from polymax.kernels.linear_loss.steps import Cap, FlatRows, RowKeeping, Steps, pieces


def gradients_by_rows(
    steps: Steps, keeping: RowKeeping, problem: LossProblem, at: Tensor, grads: Grads, found: Gradients
) -> tuple[list[Tensor], Tensor]:
    """Return the parts of rows `at`, and their gradients of hidden; fill the gradients of weight and bias."""
    hidden, weight, bias = rows_at(problem.hidden, at), problem.weight, problem.bias
    cap, words = Cap(problem.softcap, problem.scale), len(weight)
    named = None if problem.named is None else rows_at(problem.named, at)
    spread = problem.curved
    spread = rows_at(spread, at) if spread is not None and spread.dim() == 2 else spread
    of_value, of_mean, _ = flat_grads(grads, grads.value, at)
    dh, dw = torch.empty_like(hidden), found.memory()
    parts = []
    for rows in pieces(len(hidden), max(keeping.entries // words, 1)):
        x = steps.product(hidden[rows], weight)
        chosen = x.new_zeros(len(x), 0 if named is None else named.shape[1])
        if named is not None:
            steps.pick(x, bias, named[rows], 0, chosen, cap)
        x = steps.keep(x, bias, None, None, cap)
        part = None if spread is None else spread if spread.dim() == 1 else spread[rows]
        for some in pieces(len(x), max(keeping.near // words, 1)):
            part = None if spread is None else spread if spread.dim() == 1 else spread[rows][some]
            z = x[some]
            mean = mass = z.new_zeros(len(z))
            if part is not None:
                mean, mass = spread_mean(z, part), part.to(x.dtype).sum(-1)
            p, top, value, tau = keeping.solve(z, problem.alpha)
            nothing = torch.zeros_like(value)
            parts.append([value, chosen[some] - top.unsqueeze(1), mean - mass * top, nothing, top, tau, nothing])
            flat = FlatRows(top, tau, of_value[rows][some], of_mean[rows][some])
            keeping.slopes(p, part, flat, cap, z)
        # scores have become gradients
        dx = x
        if found.of_hidden:
            torch.mm(dx, weight, out=dh[rows])
        if found.of_words:
            if bias is not None:
                found.db.add_(dx.sum(0))
            torch.mm(dx.mT, hidden[rows], out=dw) if rows.start == 0 else dw.addmm_(dx.mT, hidden[rows])
    return [torch.cat(column) for column in zip(*parts)], dh
