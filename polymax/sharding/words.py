"""The smoothed maximum of a linear layer whose weight is sharded by words: exact, with two collectives.

Each process scans its words as one process alone would (`kernels.linear_loss`), and has, for each row, the few words
that may have weight and a lower bound of the threshold. One maximum over the processes gives the largest logit and the
largest bound; the words above it, at most `rows.PLACES` of a process, are gathered with the logit of the target; and
every process solves the same short row. Rows of which a process has more words, as in the first steps of a training,
and alpha = 1, are solved by sums over the processes. Gradients are those of each process's own words.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from polymax.backend.function import once_differentiable
from polymax.kernels.linear_loss import FLAT, linear_loss, linear_loss_backward
from polymax.kernels.linear_loss.reference import logits, value_tau_slope
from polymax.kernels.threshold import TSALLIS, threshold
from polymax.kernels.tsallis_slope.reference import sensitivity
from polymax.sharding.collectives import gathered, max_over, sum_over
from polymax.sharding.rows import PLACES, Groups, newton_threshold

# logits of rows with many words that are in memory at once
ENTRIES = 2**22


class Head(NamedTuple):
    """The process's part of a linear layer: its words' weight and bias, and how logits become weights."""

    weight: Tensor
    bias: Tensor | None
    alpha: float
    softcap: float
    scale: float
    groups: Groups


class LocalRows(NamedTuple):
    """The results of `kernels.linear_loss` for the words of this process; `own` is -inf without a finite logit."""

    chosen: Tensor
    mean: Tensor
    moment: Tensor
    top: Tensor
    own: Tensor
    tau: Tensor
    ids: Tensor
    probs: Tensor
    sizes: Tensor
    value: Tensor


class Solved(NamedTuple):
    """The row as a whole, the same on all processes, but for `probs`, the weights of the process's own list."""

    value: Tensor
    chosen: Tensor
    mean: Tensor
    moment: Tensor
    top: Tensor
    tau: Tensor
    slope: Tensor
    probs: Tensor


def smoothed_max(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    mine: Tensor,
    spread: Tensor | None,
    alpha: float | Tensor,
    softcap: float,
    groups: Groups,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The smoothed maximum of each row, the logit of its target, the mean of logits weighted by `spread`, and, at
    alpha = 1, their mean weighted by probabilities.

    All of them are counted from the largest logit of the row, and are the same on all processes of the groups.

    Shapes: hidden (n, d); weight (words of this process, d); bias and spread (words of this process,); target (n,), the
    place of the target among the words of this process, -1 for a row that does not count; mine (n,), True where the
    process has the target; results (n,)
    """
    learned = alpha.reshape(()) if isinstance(alpha, Tensor) else None
    number = float(alpha.detach()) if isinstance(alpha, Tensor) else float(alpha)
    if not 1 <= number <= 2:
        raise ValueError(f"alpha must be in [1, 2] if weight is sharded by words; got {number:g}")
    return _SmoothedMax.apply(hidden, weight, bias, learned, target, mine, spread, number, softcap, scale, groups)


class _SmoothedMax(Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        alphas: Tensor | None,
        target: Tensor,
        mine: Tensor,
        spread: Tensor | None,
        alpha: float,
        softcap: float,
        scale: float,
        groups: Groups,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        head = Head(weight, bias, alpha, softcap, scale, groups)
        value, chosen, mean, moment, top, tau, ids, probs, count, extent = _local(head, hidden, target, spread)
        # the operator gives 0 to rows that do not count
        own = torch.where(value == -torch.inf, value, torch.where(value.isnan(), value, top))
        part = LocalRows(chosen, mean, moment, top, torch.where(target < 0, 0, own), tau, ids, probs, count, value)
        mass = top.new_zeros(()) if spread is None else spread.sum().to(top.dtype)
        solved = _solved(head, hidden, part, mine, mass, target >= 0, alphas is not None)
        ctx.save_for_backward(
            hidden, weight, bias, alphas, target, mine, spread, chosen + top - solved.top, solved.moment, solved.top,
            solved.tau, solved.slope, ids, solved.probs, count, extent,
        )  # fmt: skip
        ctx.alpha, ctx.softcap, ctx.scale = alpha, softcap, scale
        ctx.set_materialize_grads(False)
        return solved.value, solved.chosen, solved.mean, solved.moment

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        hidden, weight, bias, alphas, target, mine, spread, chosen, moment, top, tau, slope, *lists = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        of_value, of_chosen, of_mean = (torch.zeros_like(top) if g is None else g for g in grads[:3])
        of_chosen = torch.where(mine, of_chosen, 0)
        if len(weight):
            dh, dw, db = linear_loss_backward(
                of_value, of_chosen.unsqueeze(1), of_mean, grads[3], hidden, weight, bias, target.unsqueeze(1), spread,
                ctx.alpha, None, ctx.softcap, ctx.scale, chosen.unsqueeze(1), moment, top, tau, *lists, wanted[0],
                wanted[1] or wanted[2],
            )  # fmt: skip
        else:
            dh, dw, db = torch.zeros_like(hidden), torch.zeros_like(weight), weight.new_zeros(0)
        return (
            dh if wanted[0] else None,
            dw if wanted[1] else None,
            db.to(bias.dtype) if bias is not None and wanted[2] else None,
            (of_value * slope).sum().to(alphas.dtype) if alphas is not None and wanted[3] else None,
            *(None,) * 7,
        )


def _local(head: Head, hidden: Tensor, target: Tensor, spread: Tensor | None) -> tuple[Tensor, ...]:
    """The results of `linear_loss` for the words of this process, with one named word, and without the slope."""
    # a process without words takes part in all that is communicated
    if not len(head.weight):
        return _none(hidden)
    value, chosen, mean, moment, top, tau, _, *lists = linear_loss(
        hidden, head.weight, head.bias, target.unsqueeze(1), spread, head.alpha, None, head.softcap, head.scale
    )
    return value, chosen.squeeze(1), mean, moment, top, tau, *lists


def _none(hidden: Tensor) -> tuple[Tensor, ...]:
    """The results of `_local` for no words."""
    n = len(hidden)
    value = hidden.new_full((n,), -torch.inf, dtype=torch.promote_types(hidden.dtype, torch.float32))
    zeros = [torch.zeros_like(value) for _ in range(5)]
    ids, count = (torch.zeros(size, dtype=torch.int32, device=hidden.device) for size in ((n, 1), (n,)))
    return value, *zeros, ids, value.new_zeros(n, 1), count, torch.zeros(2, dtype=torch.int64)


def _solved(
    head: Head, hidden: Tensor, part: LocalRows, mine: Tensor, mass: Tensor, counted: Tensor, sloped: bool
) -> Solved:
    """The rows from the parts of all processes."""
    a = head.alpha - 1
    bound = torch.where(part.own == -torch.inf, part.own, a * part.top + part.tau)
    largest = max_over(torch.stack([part.own, bound], -1), head.groups)
    top, bound = largest.unbind(-1)
    lost = torch.isnan(top) | (top == torch.inf)
    top = torch.where(top.isfinite(), top, 0)
    # the target's logit is handed over by the process that has it, and the means are added up
    given = torch.where(mine & counted, part.chosen + part.top - top, 0)
    mean = part.mean + mass * (part.top - top)
    if head.alpha == 1:
        found = _by_exponentials(head, part, top, given, mean, counted, sloped, hidden)
    else:
        found = _by_lists(head, hidden, part, top, bound, given, mean, counted, sloped)
    value = torch.where(lost & counted, torch.nan, found.value)
    return found._replace(value=torch.where(counted, value, 0), top=top)


def _by_exponentials(
    head: Head, part: LocalRows, top: Tensor, given: Tensor, mean: Tensor, counted: Tensor, sloped: bool, hidden: Tensor
) -> Solved:
    """Softmax: log-sum-exps of the parts, added up in the same order on all processes."""
    mass = torch.where(counted, torch.exp(part.value + part.top - top), 1)
    # a part of -inf has no mass
    mass = torch.where(part.own == -torch.inf, 0, mass)
    local = torch.where(mass == 0, 0, mass * (part.moment + part.top - top))
    everyone = gathered(torch.stack([mass, given, mean, local], -1), head.groups).unflatten(-1, (-1, 4))
    total, chosen, mean, moment = everyone.sum(1).unbind(-1)
    value, moment = torch.log(total), torch.where(counted, moment / total, 0)
    slope = torch.zeros_like(value)
    if sloped:
        slope = _slopes(head, hidden, top, value, value, counted)
    return Solved(value, chosen, mean, moment, top, value, slope, part.probs)


def _by_lists(
    head: Head,
    hidden: Tensor,
    part: LocalRows,
    top: Tensor,
    bound: Tensor,
    given: Tensor,
    mean: Tensor,
    counted: Tensor,
    sloped: bool,
) -> Solved:
    """Entmax with 1 < alpha <= 2: the words above the bound of all processes, and the same short row on each."""
    n, a = len(top), head.alpha - 1
    eps = torch.finfo(top.dtype).eps
    least = torch.where(bound.isfinite(), bound - a * top, -torch.inf) - 16 * eps * (1 + a * top.abs())
    listed = torch.arange(part.probs.shape[1], device=top.device) < part.sizes.unsqueeze(1)
    # weights tell the logits that they belong to
    z = part.probs**a + (part.tau + a * (part.top - top)).unsqueeze(1)
    above = listed & (part.probs > 0) & (z > least.unsqueeze(1))
    size = min(PLACES, part.probs.shape[1])
    found, _ = torch.where(above, z, -torch.inf).topk(size, -1)
    entries = torch.where((part.sizes == FLAT) & counted, PLACES + 1, above.sum(-1))
    row = z.new_full((n, PLACES + 3), -torch.inf)
    row[:, :size] = found
    row[:, PLACES:] = torch.stack([entries.to(z.dtype), given, mean], -1)
    everyone = gathered(row, head.groups).unflatten(-1, (-1, PLACES + 3))
    crowded = (everyone[..., PLACES] > PLACES).any(-1)
    chosen, mean = everyone[..., PLACES + 1 :].sum(1).unbind(-1)
    short = everyone[..., :PLACES].flatten(1) / a
    p = threshold(short, head.alpha, TSALLIS)
    value, tau, slope = value_tau_slope(short, p, torch.zeros_like(top), head.alpha, sloped)
    at = crowded.nonzero().squeeze(1)
    if len(at):
        value[at], tau[at], slope[at] = _by_sums(head, hidden, top, least, at, sloped)
    mine = torch.where(listed, (z - tau.unsqueeze(1)).clamp(min=0), 0) ** (1 / a)
    return Solved(value, chosen, mean, torch.zeros_like(value), top, tau, slope, mine)


def _by_sums(
    head: Head, hidden: Tensor, top: Tensor, least: Tensor, at: Tensor, sloped: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """value, tau and slope of rows `at`, by Newton's method on sums over all processes."""
    a, alpha = head.alpha - 1, head.alpha
    # all processes take the same pieces
    widest = int(max_over(top.new_tensor([float(len(head.weight))]), head.groups))
    columns = []
    for rows in at.split(max(ENTRIES // widest, 1)):
        x = logits(hidden[rows], head.weight, head.bias, head.softcap, head.scale) - top[rows].unsqueeze(1)
        x = torch.where(x.isfinite(), x, -torch.inf)
        tau = newton_threshold(a * x, least[rows].unsqueeze(1), alpha, head.groups)
        p = (a * x - tau).clamp(min=0) ** (1 / a)
        mean = torch.where(p > 0, p * torch.where(p > 0, x, 0), 0).sum(-1)
        moved = (p * sensitivity(p, torch.as_tensor(alpha, dtype=p.dtype, device=p.device))).sum(-1) if sloped else mean
        mean, moved = sum_over(torch.stack([mean, moved], -1), head.groups).unbind(-1)
        tau = tau.squeeze(-1).to(top.dtype)
        value = a * mean / alpha + (tau + 1) / (alpha * a)
        slope = (mean - value - moved) / alpha if sloped else torch.zeros_like(value)
        columns.append((value, tau, slope))
    value, tau, slope = (torch.cat(c) for c in zip(*columns))
    return value, tau, slope


def _slopes(head: Head, hidden: Tensor, top: Tensor, tau: Tensor, value: Tensor, counted: Tensor) -> Tensor:
    """The derivative of value in alpha at alpha = 1."""
    widest = int(max_over(top.new_tensor([float(len(head.weight))]), head.groups))
    parts = []
    for rows in torch.arange(len(top), device=top.device).split(max(ENTRIES // widest, 1)):
        x = logits(hidden[rows], head.weight, head.bias, head.softcap, head.scale) - top[rows].unsqueeze(1)
        p = torch.exp(x - tau[rows].unsqueeze(1))
        mean = torch.where(p > 0, p * torch.where(p > 0, x, 0), 0).sum(-1)
        moved = (p * sensitivity(p, torch.ones((), dtype=p.dtype, device=p.device))).sum(-1)
        mean, moved = sum_over(torch.stack([mean, moved], -1), head.groups).unbind(-1)
        parts.append(mean - value[rows] - moved)
    return torch.where(counted, torch.cat(parts), 0) if parts else torch.zeros_like(top)


def listed(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    first: int,
    alpha: float | Tensor,
    softcap: float,
    groups: Groups,
) -> tuple[Tensor, Tensor]:
    """The words that have weight in each row, and their weights (n, k), the likeliest first, the same everywhere.

    `first` is the number of the first word of this process.
    """
    target = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
    nothing = torch.zeros_like(target, dtype=torch.bool)
    number = float(alpha)
    head = Head(weight, bias, number, softcap, 1.0, groups)
    value, chosen, mean, moment, top, tau, ids, probs, count, _ = _local(head, hidden, target, None)
    own = torch.where(value == -torch.inf, value, torch.where(value.isnan(), value, top))
    part = LocalRows(chosen, mean, moment, top, own, tau, ids, probs, count, value)
    solved = _solved(head, hidden, part, nothing, top.new_zeros(()), ~nothing, False)
    probs, places = solved.probs, ids.long() + first
    flat = (count == FLAT).nonzero().squeeze(1)
    if len(flat):
        # whole rows of this process's words: their weights by the threshold that all processes have
        x = logits(hidden[flat], weight, bias, softcap) - solved.top[flat].unsqueeze(1)
        tau = solved.tau[flat].unsqueeze(1)
        p = torch.exp(x - tau) if number == 1 else ((number - 1) * x - tau).clamp(min=0) ** (1 / (number - 1))
        missing = (0, max(p.shape[1] - probs.shape[1], 0))
        probs, places = torch.nn.functional.pad(probs, missing), torch.nn.functional.pad(places, missing)
        probs[flat] = torch.nn.functional.pad(p, (0, probs.shape[1] - p.shape[1])).to(probs.dtype)
        places[flat, : p.shape[1]] = torch.arange(p.shape[1], device=p.device) + first
    widest = int(max_over(top.new_tensor([float((probs > 0).sum(-1).amax()) if len(probs) else 0.0]), groups))
    probs, order = probs.sort(dim=-1, descending=True, stable=True)
    missing = (0, max(widest - probs.shape[1], 0))
    probs = torch.nn.functional.pad(probs, missing)[:, :widest]
    places = torch.nn.functional.pad(places.gather(1, order), missing)[:, :widest]
    everyone, numbers = gathered(probs, groups), gathered(places, groups)
    # equally likely words come in the order of the vocabulary
    by_number = torch.where(everyone > 0, numbers, torch.iinfo(torch.long).max).argsort(dim=-1, stable=True)
    everyone, numbers = everyone.gather(1, by_number), numbers.gather(1, by_number)
    everyone, order = everyone.sort(dim=-1, descending=True, stable=True)
    numbers = torch.where(everyone > 0, numbers.gather(1, order), -1)
    used = max(int((everyone > 0).sum(-1).amax()), 1) if len(everyone) else 1
    return numbers[:, :used], everyone[:, :used]
