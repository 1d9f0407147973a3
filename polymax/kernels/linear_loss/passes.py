"""A dense product in blocks of words, each logit read once; later steps use only the few words with weight.

A block is scanned as soon as it is computed, and then dropped. Every row has a lower bound of its threshold that only
rises: the largest logit so far less 1 / (alpha - 1), and the threshold of any part of the words. Words below it never
get weight, so a short list of the others is enough. Rows whose lists overflow are computed again, as whole rows in
groups; their gradients are computed by blocks of words. If a sample says that most rows would overflow, as in the first
steps of a training, nothing is scanned. At alpha = 1 the scan adds up exponentials instead.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from polymax.backend.widen import wide
from polymax.kernels.linear_loss import FLAT, capacity
from polymax.kernels.linear_loss.flat import finish_exponentials
from polymax.kernels.linear_loss.linear_mean import linear_mean
from polymax.kernels.linear_loss.problem import LossProblem, Parts, problem_of
from polymax.kernels.linear_loss.reference import spread_mean, value_tau_slope
from polymax.kernels.linear_loss.steps import Cap, Exponentials, Listed, Lists, Steps, pieces
from polymax.kernels.threshold import TSALLIS, threshold

# numbers of whole rows are multiples of this, which fill the tiles of a product
TILE = 128
# rows and words of the sample that tells if logits are flat
ROWS, WORDS = 256, 1024
# samples of fewer words than one in so many are not worth their time
FEWEST = 4

# the parts of FLAT rows `at`: value, chosen, mean, moment, top, tau and slope
WholeRows = Callable[[LossProblem, Tensor], list[Tensor]]
Meanwhile = Callable[[Tensor, Tensor, Listed], None]


def value_and_lists(steps: Steps, *given: Any) -> Parts:
    """Run the operator, by the steps of a device."""
    problem = widened(problem_of(given))
    return parts_of(steps, problem, lambda part, at: whole_rows(steps, part, at))


def widened(problem: LossProblem) -> LossProblem:
    return problem._replace(bias=None if problem.bias is None else wide(problem.bias))


def parts_of(steps: Steps, problem: LossProblem, whole: WholeRows, meanwhile: Meanwhile | None = None) -> Parts:
    """Return the results of the operator; `whole` computes rows that have no list.

    `meanwhile` is given ids of lists, scores of named words and other results, to queue work for the device before the
    host reads their lengths.
    """
    hidden, weight, bias, named, spread = problem[:5]
    n, words, counted = len(hidden), len(weight), problem.counted
    size = capacity(words)
    if not problem.has_lists or not n or not words:
        return _flat_parts(problem, counted, whole)
    guess = _guessed(steps, problem, size)
    # what the scan needs is made before the host waits for the guess
    lists = Lists.empty(counted, size, hidden)
    chosen = lists.top.new_empty((n, 0) if named is None else named.shape)
    if flat_likely(guess):
        return _flat_parts(problem, counted, whole)
    _scan_all(steps, problem, lists, chosen)
    found = steps.finish(lists, counted, problem)
    value, top, tau, slope, probs, count, lengths = found
    chosen = chosen - top.unsqueeze(1)
    chosen = chosen if named is None else torch.where(named < 0, 0, chosen)
    if meanwhile is not None:
        meanwhile(lists.ids, chosen, found)
    mean, moment = torch.zeros_like(value), torch.zeros_like(value)
    extent = lengths.cpu()
    if extent[0]:
        at = (count == FLAT).nonzero().squeeze(1)
        for all_rows, some in zip((value, chosen, mean, moment, top, tau, slope), whole(problem, at)):
            all_rows[at] = some
        chosen = chosen if named is None else torch.where(named < 0, 0, chosen)
    if spread is not None and problem.linear:
        mean = torch.where(counted, linear_mean(hidden, weight, bias, spread, top), 0)
    return Parts(value, chosen, mean, moment, top, tau, slope, lists.ids, probs, count, extent)


def _flat_parts(problem: LossProblem, counted: Tensor, whole: WholeRows) -> Parts:
    """Return the results if no row has a list. The device gets its first product early."""
    hidden, weight, bias, named, spread = problem[:5]
    n, size = len(hidden), capacity(len(weight))
    flats = n if named is None else int(counted.sum())
    real = torch.promote_types(hidden.dtype, torch.float32)
    columns = [hidden.new_zeros(n, dtype=real) for _ in range(7)] if flats < n or not n else []
    if flats:
        at = torch.arange(n, device=hidden.device) if flats == n else counted.nonzero().squeeze(1)
        found = whole(problem, at)
        if columns:
            columns[1] = found[1].new_zeros((n, found[1].shape[1]))
            for all_rows, some in zip(columns, found):
                all_rows[at] = some
        else:
            columns = found
    elif named is not None:
        columns[1] = columns[0].new_zeros(named.shape)
    value, chosen, mean, moment, top, tau, slope = columns
    if named is None:
        chosen = value.new_zeros((n, 0))
    else:
        chosen = torch.where(named < 0, 0, chosen)
    if spread is not None and problem.linear:
        mean = torch.where(counted, linear_mean(hidden, weight, bias, spread, top), 0)
    ids = torch.zeros((n, size), dtype=torch.int32, device=hidden.device)
    extent = torch.tensor([flats, 0], device="cpu")
    count = torch.where(counted, FLAT, 0).to(torch.int32)
    return Parts(value, chosen, mean, moment, top, tau, slope, ids, value.new_zeros((n, size)), count, extent)


def _scan_all(steps: Steps, problem: LossProblem, lists: Lists, chosen: Tensor) -> None:
    hidden, weight, bias, named = problem[:4]
    cap = Cap(problem.softcap, problem.scale)
    for rows in pieces(len(hidden), steps.rows):
        part = lists.part(rows)
        for words in pieces(len(weight), max(steps.entries // (rows.stop - rows.start), 1)):
            x = steps.product(hidden[rows], weight[words])
            some = None if bias is None else bias[words]
            if named is not None:
                steps.pick(x, some, named[rows], words.start, chosen[rows], cap)
            steps.scan(x, some, words.start, part, problem.alpha, problem.softcap)


def _guessed(steps: Steps, problem: LossProblem, size: int) -> Tensor | None:
    """Return which rows of a sample seem to have more than `size` words with weight, and which count, (2, rows)."""
    rows, words = max(len(problem.hidden) // ROWS, 1), len(problem.weight) // WORDS
    if words < FEWEST:
        return None
    named = None if problem.named is None else problem.named[::rows]
    some = problem._replace(hidden=problem.hidden[::rows], named=named)
    # a count of words that fills the tiles of a product
    x = steps.product(some.hidden, problem.weight[::words][:WORDS])
    return steps.crowded(x, some, size)


def flat_likely(guess: Tensor | None) -> bool:
    """Return True if most rows that count seem to have no list. A wrong guess costs time alone."""
    if guess is None:
        return False
    crowded, counted = guess.cpu().sum(1).tolist()
    return bool(2 * crowded > counted)


def finish_in_torch(lists: Lists, counted: Tensor, problem: LossProblem) -> Listed:
    """Return the results of rows with lists."""
    finite = lists.top.isfinite()
    # a row without a candidate has no finite logit: rows with NaN or infinities are solved as whole rows
    flat = ((lists.count < 1) | ~finite) & counted
    count = torch.where(flat, FLAT, torch.where(counted, lists.count, 0))
    top = torch.where(finite, lists.top, 0)
    inside = torch.arange(lists.values.shape[1], device=count.device) < count.unsqueeze(1)
    x = torch.where(inside, lists.values, -torch.inf)
    probs = threshold(x, problem.alpha, TSALLIS)
    value, tau, slope = value_tau_slope(x, probs, torch.where(count > 0, top, 0), problem.alpha, problem.sloped)
    value = torch.where(count > 0, value, 0)
    return Listed(value, top, tau, slope, probs, count, torch.stack([flat.sum(), count.amax()]))


def whole_rows(steps: Steps, problem: LossProblem, at: Tensor) -> list[Tensor]:
    """Return value, chosen, mean, moment, top, tau and slope of rows `at`, from all of their logits."""
    if problem.alpha == 1 and not problem.sloped:
        return _rows_of_softmax(steps, problem, at)
    hidden, weight, bias, named, _, alpha = problem[:6]
    cap, curved = Cap(problem.softcap, problem.scale), problem.curved
    size = max(2 * steps.flat // len(weight), 1)
    parts = []
    for some in pieces(len(at), size - size % TILE or size):
        rows = at[some]
        x = steps.product(hidden[rows], weight)
        top, value, tau, slope = steps.solve(x, bias, alpha, cap, problem.sloped)
        chosen = value.new_zeros((len(rows), 0))
        if named is not None:
            chosen = value.new_zeros((len(rows), named.shape[1]))
            steps.pick(x, bias, named[rows], 0, chosen, cap)
            chosen = chosen - top.unsqueeze(1)
        mean, moment = torch.zeros_like(value), torch.zeros_like(value)
        if curved is not None or alpha == 1:
            z = steps.keep(x, bias, top, None, cap)
            if curved is not None:
                mean = spread_mean(z, _rows_of(curved, rows))
            if alpha == 1:
                moment = torch.exp(z - tau.unsqueeze(1)).mul_(z.clamp_(min=-1e30)).sum(1)
        parts.append((value, chosen, mean, moment, top, tau, slope))
    return [torch.cat(column) for column in zip(*parts)]


def _rows_of_softmax(steps: Steps, problem: LossProblem, at: Tensor) -> list[Tensor]:
    """Return the parts of rows `at` at alpha = 1, by sums of exponentials over blocks of words."""
    weight, bias, named = problem.weight, problem.bias, problem.named
    cap, curved = Cap(problem.softcap, problem.scale), problem.curved
    hidden = rows_at(problem.hidden, at)
    named = None if named is None else rows_at(named, at)
    tiled = None if steps.tiled is None or curved is not None else steps.tiled(hidden, weight, bias, named, cap)
    if tiled is not None:
        top, value, tau, moment = finish_exponentials(tiled[0])
        chosen = tiled[1] - top.unsqueeze(1)
        return [value, chosen, torch.zeros_like(value), moment, top, tau, torch.zeros_like(value)]
    sums = Exponentials.empty(len(at), hidden)
    chosen = sums.top.new_zeros(len(at), 0 if named is None else named.shape[1])
    mean, mass = torch.zeros_like(sums.top), torch.zeros_like(sums.top)
    for some in pieces(len(at), steps.rows):
        for words in pieces(len(weight), max(steps.entries // (some.stop - some.start), 1)):
            x = steps.product(hidden[some], weight[words])
            local = None if bias is None else bias[words]
            if named is not None:
                steps.pick(x, local, named[some], words.start, chosen[some], cap)
            if curved is not None:
                x, local, part = steps.keep(x, local, None, None, cap), None, _rows_of(curved, at[some])[..., words]
                mean[some] += spread_mean(x, part)
                mass[some] += part.to(x.dtype).sum(-1)
            # scores that were kept are not capped again
            steps.accumulate(x, local, sums.part(some), cap if curved is None else Cap(0.0, 1.0))
    top, value, tau, moment = finish_exponentials(sums)
    return [value, chosen - top.unsqueeze(1), mean - mass * top, moment, top, tau, torch.zeros_like(value)]


def rows_at(t: Tensor, at: Tensor) -> Tensor:
    """Return rows `at`, in order and each once: the tensor itself if these are all rows."""
    return t if len(at) == len(t) else t[at]


def _rows_of(spread: Tensor, rows: Tensor) -> Tensor:
    return spread if spread.dim() == 1 else spread[rows]
