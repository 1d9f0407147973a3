"""The gradients of hidden, weight and bias: sums over the words of lists, and dense blocks for rows without one."""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.kernels.linear_loss.linear_mean import add_linear_mean
from polymax.kernels.linear_loss.problem import Grads, LossProblem, Saved, backward_of
from polymax.kernels.linear_loss.steps import FlatRows, Steps, pieces


def gradients(steps: Steps, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients, by the steps of a device."""
    grads, problem, saved, of_hidden, of_words = backward_of(given)
    hidden, weight, bias, target, spread = problem[:5]
    real = saved.probs.dtype
    problem = problem._replace(bias=None if bias is None else wide(bias))
    grads = Grads(*(g.to(real) if target is None else torch.where(target < 0, 0, g.to(real)) for g in grads))
    dh, dw, db = hidden.new_empty(0), weight.new_empty(0), saved.top.new_zeros(len(weight) if of_words else 0)
    if of_words:
        dw = torch.empty_like(weight, memory_format=torch.contiguous_format)
    dh_flat: Tensor | None = None
    at: Any = slice(None)
    flats, longest = saved.extent.tolist()
    linear = spread is not None and problem.has_lists
    if flats:
        at = (saved.count < 0).nonzero().squeeze(1) if flats < len(hidden) else slice(None)
        rows = FlatRows(saved.top[at], saved.tau[at], grads.value[at], grads.mean[at])
        curved = None if spread is None or linear else spread.to(real)
        flat = problem._replace(hidden=hidden[at], spread=curved)
        dh_flat = _flat_gradients(steps, flat, rows, dw, db, of_hidden)
    words, coefs, sizes = _entries(grads, problem, saved, max(longest, 0))
    if of_words:
        steps.column_sums(*_by_word(words, coefs, sizes, len(weight)), hidden, dw, db, bool(flats))
    if of_hidden:
        dh = steps.row_sums(words, coefs, sizes, weight)
    if of_hidden and dh_flat is not None:
        dh[at] = (dh[at] + dh_flat).to(dh.dtype)
    if linear and spread is not None:
        add_linear_mean(hidden, weight, spread, grads.mean, dh, dw, db)
    return dh, dw, db


def _flat_gradients(
    steps: Steps, problem: LossProblem, rows: FlatRows, dw: Tensor, db: Tensor, of_hidden: bool
) -> Tensor:
    """Fill the gradients of weight and bias, unless they are empty; return the gradient of rows, at least in
    float32.
    """
    weight, bias, spread = problem.weight, problem.bias, problem.spread
    real = rows.top.dtype
    operand = problem.hidden.dtype if steps.half else real
    hidden = problem.hidden.to(operand)
    # small gradients would vanish in float16
    unit = torch.maximum(rows.grad_value.abs().amax(), rows.grad_mean.abs().amax())
    scaled = operand == torch.float16
    unit = torch.where(unit > 0, unit, 1) if scaled else torch.ones_like(unit)
    rows = rows._replace(grad_value=rows.grad_value / unit, grad_mean=rows.grad_mean / unit)
    dh = torch.zeros(hidden.shape, dtype=real, device=hidden.device)
    height = min(len(hidden), steps.rows)
    for words in pieces(len(weight), max(steps.flat // height, 1)):
        w = weight[words].to(operand)
        for some in pieces(len(hidden), steps.rows):
            x = steps.product(hidden[some], w)
            local = [None if t is None else t[words] for t in (bias, spread)]
            dx = steps.slopes(x, *local, rows.part(some), problem.alpha, problem.softcap, operand)
            del x
            if of_hidden:
                steps.add_product(dh[some], dx, w)
            if dw.numel() == 0:
                continue
            if bias is not None:
                db[words] += dx.sum(0, dtype=real) * unit
            if len(hidden) == height and not scaled:
                torch.mm(dx.mT, hidden, out=dw[words]) if dw.dtype == operand else dw[words].copy_(dx.mT @ hidden)
            else:
                part = steps.product(dx.mT, hidden[some].mT) * unit
                total = part if some.start == 0 else total + part  # noqa: F821
                dw[words] = total
    return dh * unit


def _entries(grads: Grads, problem: LossProblem, saved: Saved, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the words of each row that have a gradient, the target first, the gradients of their logits, and their
    number.

    Shapes: words and gradients (n, k); numbers (n,)
    """
    alpha, softcap, target = problem.alpha, problem.softcap, problem.target
    ids, probs, of_target = saved.ids[:, :longest], saved.probs[:, :longest], grads.chosen
    coefs = grads.value.unsqueeze(1) * probs
    if softcap:
        # recover the scores from their weights
        x = saved.top.unsqueeze(1) + (probs ** (alpha - 1) + saved.tau.unsqueeze(1)) / (alpha - 1)
        coefs = coefs * (1 - (x / softcap).square())
        of_target = of_target * (1 - ((saved.chosen + saved.top) / softcap).square())
    sizes = saved.count.clamp(min=0)
    if target is None:
        return ids, coefs, sizes
    words = torch.cat([target.clamp(min=0).to(ids.dtype).unsqueeze(1), ids], 1)
    return words, torch.cat([of_target.unsqueeze(1), coefs], 1), sizes + 1


def _by_word(words: Tensor, coefs: Tensor, sizes: Tensor, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first entry of each word (vocabulary + 1,), and the rows and gradients of all entries, by word and by
    row.
    """
    inside = (torch.arange(words.shape[1], device=words.device) < sizes.unsqueeze(1)) & (coefs != 0)
    keys, order = torch.sort(torch.where(inside, words, vocabulary).flatten(), stable=True)
    numbers = torch.arange(vocabulary + 1, dtype=keys.dtype, device=keys.device)
    starts = torch.searchsorted(keys, numbers, out_int32=True)
    return starts, (order // max(words.shape[1], 1)).to(torch.int32), coefs.flatten()[order]
