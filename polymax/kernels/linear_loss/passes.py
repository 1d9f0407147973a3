"""One dense product in blocks of words, each logit read once; later steps use only the few words with weight.

A block is scanned as soon as it is computed, and then dropped. Every row has a lower bound of its threshold that only
rises: the largest logit so far less 1 / (alpha - 1), and the threshold of any part of the words. Words below it never
get weight, so a short list of the others is enough. Rows whose lists overflow, as in the first steps of a training, are
computed again, as whole rows in groups; their gradients are computed by blocks of words.
"""

from typing import Any

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.kernels.linear_loss import FLAT, capacity
from polymax.kernels.linear_loss.linear_mean import linear_mean
from polymax.kernels.linear_loss.problem import LossProblem, problem_of
from polymax.kernels.linear_loss.reference import capped_logits, value_tau_slope
from polymax.kernels.linear_loss.steps import Lists, Steps, pieces
from polymax.kernels.threshold import TSALLIS, threshold

# numbers of whole rows are multiples of this, which fill the tiles of a product
TILE = 128


def value_and_lists(steps: Steps, *given: Any) -> tuple[Tensor, ...]:
    """Run the operator, by the steps of a device."""
    problem = problem_of(given)
    hidden, weight, bias, target, spread = problem[:5]
    n, words = len(hidden), len(weight)
    problem = problem._replace(bias=None if bias is None else wide(bias))
    lists = Lists.empty(n, capacity(words), hidden)
    if problem.has_lists and n and words:
        _scan_all(steps, problem, lists)
    else:
        lists.count.fill_(FLAT)
    counted = torch.ones_like(lists.count, dtype=torch.bool) if target is None else target >= 0
    # a row without a candidate has no finite logit: rows with NaN or infinities are solved as whole rows
    flat = ((lists.count < 1) | ~lists.top.isfinite()) & counted
    count = torch.where(flat, FLAT, torch.where(counted, lists.count, 0))
    # queue work for the device before the counts are copied to the host
    value, tau, slope, probs = _finished(lists, count, problem)
    top = torch.where(lists.top.isfinite(), lists.top, 0)
    chosen = lists.chosen - top
    mean = torch.zeros_like(value)
    extent = torch.stack([flat.sum(), count.amax()]).cpu() if n else torch.zeros(2, dtype=torch.int64, device="cpu")
    if extent[0]:
        at = flat.nonzero().squeeze(1)
        for all_rows, some in zip((value, chosen, mean, top, tau, slope), _whole_rows(steps, problem, at)):
            all_rows[at] = some
    if spread is not None and problem.has_lists:
        mean = linear_mean(hidden, weight, bias, spread, top)
    if target is not None:
        value, chosen, mean = (torch.where(counted, t, 0) for t in (value, chosen, mean))
    return value, chosen, mean, top, tau, slope, lists.ids, probs, count, extent


def _scan_all(steps: Steps, problem: LossProblem, lists: Lists) -> None:
    hidden, weight, bias, target = problem[:4]
    for rows in pieces(len(hidden), steps.rows):
        part, wanted = lists.part(rows), None if target is None else target[rows]
        blocks = list(pieces(len(weight), max(steps.entries // (rows.stop - rows.start), 1)))
        for k, words in enumerate(blocks):
            x = steps.product(hidden[rows], weight[words])
            some = None if bias is None else bias[words]
            steps.scan(x, some, wanted, words.start, part, problem.alpha, problem.softcap)
            # the first block shows if logits are flat: then skip the other blocks
            if k == 0 and len(blocks) > 2 and bool((part.count < 0).double().mean() > 0.75):
                part.count.fill_(FLAT)
                break


def _finished(lists: Lists, count: Tensor, problem: LossProblem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return value, tau, slope and the weights of lists."""
    if lists.values.numel() == 0 or not 1 < problem.alpha <= 2:
        nothing = torch.zeros_like(lists.top)
        return nothing.clone(), nothing.clone(), nothing, torch.zeros_like(lists.values)
    inside = torch.arange(lists.values.shape[1], device=count.device) < count.unsqueeze(1)
    x = torch.where(inside, lists.values, -torch.inf)
    probs = threshold(x, problem.alpha, TSALLIS)
    return *value_tau_slope(x, probs, torch.where(count > 0, lists.top, 0), problem.alpha, problem.sloped), probs


def _whole_rows(steps: Steps, problem: LossProblem, at: Tensor) -> list[Tensor]:
    """Return value, chosen, mean, top, tau and slope of rows `at`, from all of their logits."""
    hidden, weight, bias, target, spread, alpha, _, softcap = problem
    size = max(2 * steps.flat // len(weight), 1)
    parts = []
    for some in pieces(len(at), size - size % TILE or size):
        rows = at[some]
        x = steps.product(hidden[rows], weight)
        top, value, tau, slope = steps.solve(x, bias, alpha, softcap, problem.sloped)
        chosen = mean = torch.zeros_like(value)
        if target is not None:
            y = target[rows].clamp(min=0)
            chosen = x.gather(1, y.unsqueeze(1)).squeeze(1)
            chosen = capped_logits(chosen if bias is None else chosen + bias[y], softcap) - top
        if spread is not None:
            z = capped_logits(x if bias is None else x + bias, softcap) - top.unsqueeze(1)
            mean = z @ spread.to(z.dtype)
        parts.append((value, chosen, mean, top, tau, slope))
    return [torch.cat(column) for column in zip(*parts)]
