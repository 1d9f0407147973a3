"""Rows in which many words have weight, in torch: their thresholds from all logits, and gradients by blocks."""

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.kernels.linear_loss.problem import LossProblem
from polymax.kernels.linear_loss.reference import cap_slope, capped_logits, shift, value_tau_slope
from polymax.kernels.linear_loss.steps import Cap, Exponentials, FlatRows, KeptLogits, Named, pieces
from polymax.kernels.threshold import TSALLIS, threshold

# logits that are widened at once
WHOLE = 2**24


def scores_in_torch(x: Tensor, bias: Tensor | None, cap: Cap) -> Tensor:
    """Return the scores of a block of logits, which may be overwritten."""
    x = x if bias is None else x.add_(bias)
    if cap.softcap:
        x = x.div_(cap.softcap).tanh_().mul_(cap.softcap)
    return x if cap.scale == 1 else x.mul_(cap.scale)


def pick_in_torch(x: Tensor, bias: Tensor | None, named: Tensor, first: int, chosen: Tensor, cap: Cap) -> None:
    """Write the scores of the named words of a block."""
    at = named - first
    inside = (at >= 0) & (at < x.shape[1])
    at = torch.where(inside, at, 0)
    found = x.gather(1, at)
    found = capped_logits(found if bias is None else found + bias[at], *cap)
    chosen.copy_(torch.where(inside, found, chosen))


def accumulate_in_torch(x: Tensor, bias: Tensor | None, sums: Exponentials, cap: Cap) -> None:
    """Add the exponentials of a block, which is overwritten."""
    x = scores_in_torch(x, bias, cap)
    top = torch.maximum(sums.top, x.amax(1))
    at = torch.where(top.isfinite(), top, 0)
    u = x.sub_(at.unsqueeze(1))
    e = u.exp()
    moved = torch.where(sums.top == -torch.inf, 0, sums.top - at)
    kept = torch.where(sums.top == -torch.inf, 0, torch.exp(moved))
    # exponentials that are 0 have no moment, and -inf has none either
    moment = kept * (sums.moment + moved * sums.total) + u.clamp_(min=-1e30).mul_(e).sum(1)
    sums.moment.copy_(moment)
    sums.total.copy_(kept * sums.total + e.sum(1))
    sums.top.copy_(top)


def finish_exponentials(sums: Exponentials) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return top, value, tau and moment of rows."""
    dead = sums.top == -torch.inf
    lost = torch.isnan(sums.top) | (sums.top == torch.inf)
    top = torch.where(sums.top.isfinite(), sums.top, 0)
    value = torch.where(lost, torch.nan, torch.log(sums.total))
    moment = torch.where(dead, 0, sums.moment / sums.total)
    # a row of -inf has no weights
    return top, value, torch.where(dead, torch.inf, value), moment


def solve_in_torch(
    x: Tensor, bias: Tensor | None, alpha: float, cap: Cap, sloped: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return top, value, tau and slope of whole rows, from their weights."""
    x = capped_logits(x if bias is None else x + bias, *cap)
    top = shift(x)
    return top, *value_tau_slope(x, threshold(x, alpha, TSALLIS), top, alpha, sloped)


def crowded_in_torch(x: Tensor, problem: LossProblem, size: int) -> Tensor:
    """Return which rows seem to have more than `size` words with weight, by a sample of logits, and which count.

    With F times as many words as in the sample, the threshold t solves F sum ((alpha - 1) x - t)_+ ^ (1 / (alpha - 1))
    = 1.
    """
    hidden, weight, bias, named, _, alpha, _, softcap, scale = problem
    a, every = alpha - 1, max(len(weight) // x.shape[1], 1)
    x = capped_logits(x if bias is None else x + bias[::every][: x.shape[1]], softcap, scale)
    times = len(weight) / x.shape[1]
    top = x.amax(1)
    most = threshold(times**a * x, alpha, TSALLIS).amax(1)
    bound = a * top - most**a / times**a
    if named is not None:
        # words with much weight are rarely in the sample, but often among the targets
        at = named[:, 0].clamp(min=0)
        chosen = (wide(hidden) * wide(weight[at])).sum(1)
        chosen = capped_logits(chosen if bias is None else chosen + bias[at], softcap, scale)
        bound = torch.maximum(bound, a * chosen - 1)
    support = times * (a * x > bound.unsqueeze(1)).sum(1)
    counted = problem.counted
    return torch.stack([(support > size) & counted, counted])


def refer_in_torch(
    x: Tensor, every: int, hidden: Tensor, weight: Tensor, bias: Tensor | None, named: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return references of rows, from logits x of words at a distance of `every`, and less these references."""
    scores = x if bias is None else x + bias[::every][: x.shape[1]]
    best = scores.argmax(1, keepdim=True)
    found, most = x.gather(1, best).squeeze(1), scores.gather(1, best).squeeze(1)
    if named is not None and named.shape[1]:
        word = named[:, 0].clamp(min=0)
        own = (hidden * weight[word]).sum(1, dtype=found.dtype)
        found = torch.where((own if bias is None else own + bias[word]) > most, own, found)
    less = torch.where(found.isfinite(), -found, 0).to(weight.dtype)
    return -less.to(found.dtype), less


def solve_columns_in_torch(kept: KeptLogits, alpha: float, cap: Cap) -> tuple[Tensor, Tensor, Tensor]:
    """Return top, value and tau of rows whose logits are kept, some rows at a time."""
    parts = []
    for rows in pieces(kept.x.shape[1], max(WHOLE // len(kept.x), 1)):
        x = wide(kept.x[:, rows]).mT + kept.reference[rows].unsqueeze(1)
        parts.append(solve_in_torch(x, kept.bias, alpha, cap, False)[:3])
    top, value, tau = (torch.cat(column) for column in zip(*parts))
    return top, value, tau


def slope_columns_in_torch(kept: KeptLogits, spread: Tensor | None, rows: FlatRows, alpha: float, cap: Cap) -> None:
    """Write gradients in the place of kept logits, some words at a time."""
    for words in pieces(len(kept.x), max(WHOLE // kept.x.shape[1], 1)):
        x = wide(kept.x[words]).mT + kept.reference.unsqueeze(1)
        bias = None if kept.bias is None else kept.bias[words]
        part = None if spread is None else spread[..., words]
        kept.x[words] = slopes_in_torch(x, bias, part, rows, alpha, cap, kept.x.dtype).mT


def pick_columns_in_torch(kept: KeptLogits, named: Tensor, cap: Cap) -> Tensor:
    """Return the scores of named words of kept rows; of the first word in places without a word."""
    word, rows = named.clamp(min=0), torch.arange(len(named), device=named.device).unsqueeze(1)
    x = wide(kept.x[word, rows]) + kept.reference.unsqueeze(1)
    return scores_in_torch(x, None if kept.bias is None else kept.bias[word], cap)


def name_columns_in_torch(
    kept: KeptLogits, spread: Tensor | None, rows: FlatRows, named: Named, alpha: float, cap: Cap
) -> None:
    """Write the gradients of the logits of named words, both parts of which are added up before they are rounded."""
    words, scores, slope = named
    word, own = words.clamp(min=0), torch.arange(len(words), device=words.device).unsqueeze(1)
    part = None if spread is None else spread[word] if spread.dim() == 1 else spread.gather(1, word)
    dx = slopes_of_scores(scores.clone(), part, rows, alpha, cap, rows.tau.dtype) + slope * cap_slope(scores, *cap)
    # places without a word get what the first word gets
    first = (words >= 0).to(torch.int32).argmax(1, keepdim=True)
    at = torch.where(words < 0, words.gather(1, first), words)
    kept.x[at, own] = torch.where(words < 0, dx.gather(1, first), dx).to(kept.x.dtype)


def slopes_in_torch(
    x: Tensor,
    bias: Tensor | None,
    spread: Tensor | None,
    rows: FlatRows,
    alpha: float,
    cap: Cap,
    dtype: torch.dtype,
) -> Tensor:
    """Return the gradient of a block of logits, in torch; the block is overwritten."""
    return slopes_of_scores(scores_in_torch(x, bias, cap), spread, rows, alpha, cap, dtype)


def slopes_of_scores(
    x: Tensor, spread: Tensor | None, rows: FlatRows, alpha: float, cap: Cap, dtype: torch.dtype
) -> Tensor:
    """Return the gradient of logits from a block of scores, in torch; the block is overwritten."""
    factor = cap_slope(x, *cap)
    # powers below 1 amplify rounding near the edge of the support
    z = (x.double() if alpha > 2 else x).sub_(rows.top.unsqueeze(1))
    multiple = rows.grad_value.unsqueeze(1)
    if rows.grad_moment is not None:
        # words of -inf have no weight
        multiple = multiple + rows.grad_moment.unsqueeze(1) * z.clamp(min=-1e30)
    if alpha == 1:
        p = z.sub_(rows.tau.unsqueeze(1)).exp_()
    else:
        w = z.mul_(alpha - 1).sub_(rows.tau.unsqueeze(1)).clamp_(min=0)
        p = w.square_() if alpha == 1.5 else w.pow_(1 / (alpha - 1)) if alpha != 2 else w
    dx = p.mul_(multiple)
    if spread is not None:
        dx.addcmul_(rows.grad_mean.unsqueeze(1), spread.to(dx.dtype))
    return (dx if isinstance(factor, float) and factor == 1 else dx.mul_(factor)).to(dtype)
