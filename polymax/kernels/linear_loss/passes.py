"""One dense product in blocks of words, whose logits are looked at once; then only the few words that have weight.

A block is scanned as soon as it is there, and forgotten. Every row has a lower bound of its threshold, from what it has
seen, that only rises: the largest logit less 1 / (alpha - 1), and the threshold of any part of the words. What lies
below it never gets weight, so a short list of the rest is enough. Rows whose lists overflow, as those of the first
steps of a training, are computed again, some whole rows at a time; their gradients by blocks of words.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.kernels.linear_loss import FLAT, capacity
from polymax.kernels.linear_loss.reference import capped, shift, solved
from polymax.kernels.threshold import TSALLIS, threshold
from polymax.kernels.widen import wide


@dataclass(frozen=True)
class Steps:
    """What a device does with blocks of logits, and with lists.

    `rows` and `entries` bound a block: the rows of a product, and its logits; `flat` is for logits of rows that are
    computed in whole, or for their gradients. `half` is True if products of half
    precision are summed in float32; otherwise they are taken of wider copies.
    """

    rows: int
    entries: int
    flat: int
    half: bool
    # a (n, d), b (m, d) -> a b^T (n, m), at least in float32
    product: Callable[[Tensor, Tensor], Tensor]
    # sum (n, d) += a (n, m) b (m, d)
    add_product: Callable[[Tensor, Tensor, Tensor], None]
    # logits (n, m) of words from `first` on, their bias, targets, lists, alpha, softcap
    scan: Callable[[Tensor, Tensor | None, Tensor | None, int, "Lists", float, float], None]
    # logits of all words, bias, alpha, softcap, whether the slope is asked for -> top, value, tau, slope
    solve: Callable[[Tensor, Tensor | None, float, float, bool], tuple[Tensor, Tensor, Tensor, Tensor]]
    # logits, bias, spread, rows, alpha, softcap, dtype -> the gradient of logits
    slopes: Callable[[Tensor, Tensor | None, Tensor | None, "FlatRows", float, float, torch.dtype], Tensor]
    # words and coefficients (n, k), how many of them (n,), weight -> sums (n, d)
    row_sums: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    # the first entry of each word (words + 1,), rows and coefficients of entries by word, hidden, weight's and bias's
    # gradients, True if they are added to
    column_sums: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool], None]


class Lists(NamedTuple):
    """The words of each row that can have weight, with their logits; the largest logit; the bound of the threshold.

    The bound is in units of (alpha - 1) x. `chosen` are the logits of targets.
    """

    count: Tensor
    ids: Tensor
    values: Tensor
    top: Tensor
    bound: Tensor
    chosen: Tensor

    @classmethod
    def empty(cls, n: int, size: int, like: Tensor) -> "Lists":
        real = wide(like[:0]).dtype
        count = torch.zeros(n, dtype=torch.int32, device=like.device)
        lowest = torch.full((2, n), -torch.inf, dtype=real, device=like.device)
        ids = torch.empty((n, size), dtype=torch.int32, device=like.device)
        values = torch.empty((n, size), dtype=real, device=like.device)
        return cls(count, ids, values, *lowest.unbind(0), torch.zeros(n, dtype=real, device=like.device))

    def part(self, rows: slice) -> "Lists":
        return Lists(*(t[rows] for t in self))


class FlatRows(NamedTuple):
    """Rows whose weights are computed from their threshold, with the gradients of their values and means."""

    top: Tensor
    tau: Tensor
    grad_value: Tensor
    grad_mean: Tensor

    def part(self, rows: slice) -> "FlatRows":
        return FlatRows(*(t[rows] for t in self))


def value_and_lists(
    steps: Steps,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor | None,
    spread: Tensor | None,
    alpha: float,
    alphas: Tensor | None,
    softcap: float,
) -> tuple[Tensor, ...]:
    """The operator, by the steps of a device."""
    alpha = alpha if alphas is None else float(alphas)
    n, words = len(hidden), len(weight)
    bias = None if bias is None else wide(bias)
    lists = Lists.empty(n, capacity(words), hidden)
    listed = _has_lists(alpha, softcap, spread)
    if listed and n and words:
        _scan_all(steps, hidden, weight, bias, target, lists, alpha, softcap)
    else:
        lists.count.fill_(FLAT)
    counted = torch.ones_like(lists.count, dtype=torch.bool) if target is None else target >= 0
    # a row without a candidate has no finite logit: NaN and infinities are for the whole rows
    flat = ((lists.count < 1) | ~lists.top.isfinite()) & counted
    count = torch.where(flat, FLAT, torch.where(counted, lists.count, 0))
    # work for the device while what was counted comes to the host
    value, tau, slope, probs = _finished(lists, count, alpha, alphas is not None)
    top = torch.where(lists.top.isfinite(), lists.top, 0)
    chosen = lists.chosen - top
    mean = torch.zeros_like(value)
    extent = torch.stack([flat.sum(), count.amax()]).cpu() if n else torch.zeros(2, dtype=torch.int64)
    if extent[0]:
        at = flat.nonzero().squeeze(1)
        found = _whole_rows(steps, hidden, weight, bias, target, spread, at, alpha, alphas is not None, softcap)
        for all_rows, some in zip((value, chosen, mean, top, tau, slope), found):
            all_rows[at] = some
    if spread is not None and listed:
        mean = _linear_mean(hidden, weight, bias, spread, top)
    if target is not None:
        value, chosen, mean = (torch.where(counted, t, 0) for t in (value, chosen, mean))
    return value, chosen, mean, top, tau, slope, lists.ids, probs, count, extent


def gradients(
    steps: Steps,
    grad_value: Tensor,
    grad_chosen: Tensor,
    grad_mean: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor | None,
    spread: Tensor | None,
    alpha: float,
    alphas: Tensor | None,
    softcap: float,
    chosen: Tensor,
    top: Tensor,
    tau: Tensor,
    ids: Tensor,
    probs: Tensor,
    count: Tensor,
    extent: Tensor,
    of_hidden: bool,
    of_words: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient, by the steps of a device."""
    alpha = alpha if alphas is None else float(alphas)
    n, words = len(hidden), len(weight)
    bias = None if bias is None else wide(bias)
    grad_value, grad_chosen, grad_mean = (g.to(probs.dtype) for g in (grad_value, grad_chosen, grad_mean))
    if target is not None:
        grads = grad_value, grad_chosen, grad_mean
        grad_value, grad_chosen, grad_mean = (torch.where(target < 0, 0, g) for g in grads)
    dh, dw, db = hidden.new_empty(0), weight.new_empty(0), probs.new_zeros(words if of_words else 0)
    if of_words:
        dw = torch.empty_like(weight, memory_format=torch.contiguous_format)
    dh_flat: Tensor | None = None
    at: Any = slice(None)
    flats, longest = extent.tolist()
    linear = spread is not None and _has_lists(alpha, softcap, spread)
    if flats:
        at = (count < 0).nonzero().squeeze(1) if flats < n else slice(None)
        rows = FlatRows(top[at], tau[at], grad_value[at], grad_mean[at])
        curved = None if spread is None or linear else spread.to(probs.dtype)
        dh_flat = _flat_gradients(steps, hidden[at], weight, bias, curved, rows, alpha, softcap, dw, db, of_hidden)
    longest = max(longest, 0)
    entries, coefs, sizes = _entries(
        grad_value,
        grad_chosen,
        target,
        alpha,
        softcap,
        chosen,
        top,
        tau,
        ids[:, :longest],
        probs[:, :longest],
        count,
    )
    if of_words:
        steps.column_sums(*_by_word(entries, coefs, sizes, words), hidden, dw, db, bool(flats))
    if of_hidden:
        dh = steps.row_sums(entries, coefs, sizes, weight)
    if of_hidden and dh_flat is not None:
        dh[at] = (dh[at] + dh_flat).to(dh.dtype)
    if linear and spread is not None:
        _add_linear_mean(hidden, weight, spread, grad_mean, dh, dw, db)
    return dh, dw, db


def _has_lists(alpha: float, softcap: float, spread: Tensor | None) -> bool:
    """True if rows may have few words with a gradient: under a cap, all have a part in the gradient of their mean."""
    return 1 < alpha <= 2 and not (softcap and spread is not None)


def _scan_all(
    steps: Steps,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor | None,
    lists: Lists,
    alpha: float,
    softcap: float,
) -> None:
    for rows in pieces(len(hidden), steps.rows):
        part, wanted = lists.part(rows), None if target is None else target[rows]
        blocks = list(pieces(len(weight), max(steps.entries // (rows.stop - rows.start), 1)))
        for k, words in enumerate(blocks):
            x = steps.product(hidden[rows], weight[words])
            steps.scan(x, None if bias is None else bias[words], wanted, words.start, part, alpha, softcap)
            # the first block tells flat logits apart, before all of them are computed in vain
            if k == 0 and len(blocks) > 2 and bool((part.count < 0).double().mean() > 0.75):
                part.count.fill_(FLAT)
                break


def _finished(lists: Lists, count: Tensor, alpha: float, sloped: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """value, tau, slope and the weights of lists."""
    if lists.values.numel() == 0 or not 1 < alpha <= 2:
        nothing = torch.zeros_like(lists.top)
        return nothing.clone(), nothing.clone(), nothing, torch.zeros_like(lists.values)
    inside = torch.arange(lists.values.shape[1], device=count.device) < count.unsqueeze(1)
    x = torch.where(inside, lists.values, -torch.inf)
    probs = threshold(x, alpha, TSALLIS)
    return *solved(x, probs, torch.where(count > 0, lists.top, 0), alpha, sloped), probs


def _whole_rows(
    steps: Steps,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor | None,
    spread: Tensor | None,
    at: Tensor,
    alpha: float,
    sloped: bool,
    softcap: float,
) -> list[Tensor]:
    """value, chosen, mean, top, tau and slope of rows `at`, from all of their logits."""
    parts = []
    for some in pieces(len(at), max(2 * steps.flat // len(weight), 1)):
        rows = at[some]
        x = steps.product(hidden[rows], weight)
        top, value, tau, slope = steps.solve(x, bias, alpha, softcap, sloped)
        chosen = mean = torch.zeros_like(value)
        if target is not None:
            y = target[rows].clamp(min=0)
            chosen = x.gather(1, y.unsqueeze(1)).squeeze(1)
            chosen = capped(chosen if bias is None else chosen + bias[y], softcap) - top
        if spread is not None:
            z = capped(x if bias is None else x + bias, softcap) - top.unsqueeze(1)
            mean = z @ spread.to(z.dtype)
        parts.append((value, chosen, mean, top, tau, slope))
    return [torch.cat(column) for column in zip(*parts)]


def solve_in_torch(
    x: Tensor, bias: Tensor | None, alpha: float, softcap: float, sloped: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """top, value, tau and slope of whole rows, from their weights."""
    x = capped(x if bias is None else x + bias, softcap)
    top = shift(x)
    return top, *solved(x, threshold(x, alpha, TSALLIS), top, alpha, sloped)


def slopes_in_torch(
    x: Tensor, bias: Tensor | None, spread: Tensor | None, rows: FlatRows, alpha: float, softcap: float, dtype: Any
) -> Tensor:
    """The gradient of a block of logits, in torch; the block is written over."""
    x = x if bias is None else x.add_(bias)
    factor = None
    if softcap:
        x = capped(x, softcap)
        factor = 1 - (x / softcap).square()
    # powers below 1 amplify rounding near the edge of the support
    z = (x.double() if alpha > 2 else x).sub_(rows.top.unsqueeze(1))
    if alpha == 1:
        p = z.sub_(rows.tau.unsqueeze(1)).exp_()
    else:
        w = z.mul_(alpha - 1).sub_(rows.tau.unsqueeze(1)).clamp_(min=0)
        p = w.square_() if alpha == 1.5 else w.pow_(1 / (alpha - 1)) if alpha != 2 else w
    dx = p.mul_(rows.grad_value.unsqueeze(1))
    if spread is not None:
        dx.addcmul_(rows.grad_mean.unsqueeze(1), spread)
    return (dx if factor is None else dx.mul_(factor)).to(dtype)


def _flat_gradients(
    steps: Steps,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    spread: Tensor | None,
    rows: FlatRows,
    alpha: float,
    softcap: float,
    dw: Tensor,
    db: Tensor,
    of_hidden: bool,
) -> Tensor:
    """Fill the gradients of weight and bias, unless they are empty; return that of rows, at least in float32."""
    real = rows.top.dtype
    operand = hidden.dtype if steps.half else real
    hidden = hidden.to(operand)
    # small gradients vanish in float16
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
            dx = steps.slopes(x, *local, rows.part(some), alpha, softcap, operand)
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


def _entries(
    grad_value: Tensor,
    grad_chosen: Tensor,
    target: Tensor | None,
    alpha: float,
    softcap: float,
    chosen: Tensor,
    top: Tensor,
    tau: Tensor,
    ids: Tensor,
    probs: Tensor,
    count: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The words of each row that have a gradient, the target first; the gradients of their logits; how many they are.

    Shapes: words and gradients (n, k); how many (n,)
    """
    coefs = grad_value.unsqueeze(1) * probs
    if softcap:
        # weights tell the scores that they belong to
        x = top.unsqueeze(1) + (probs ** (alpha - 1) + tau.unsqueeze(1)) / (alpha - 1)
        coefs = coefs * (1 - (x / softcap).square())
        grad_chosen = grad_chosen * (1 - ((chosen + top) / softcap).square())
    sizes = count.clamp(min=0)
    if target is None:
        return ids, coefs, sizes
    words = torch.cat([target.clamp(min=0).to(ids.dtype).unsqueeze(1), ids], 1)
    return words, torch.cat([grad_chosen.unsqueeze(1), coefs], 1), sizes + 1


def _by_word(words: Tensor, coefs: Tensor, sizes: Tensor, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first entry of each word (vocabulary + 1,), and the rows and gradients of all entries, by word and by row."""
    inside = (torch.arange(words.shape[1], device=words.device) < sizes.unsqueeze(1)) & (coefs != 0)
    keys, order = torch.sort(torch.where(inside, words, vocabulary).flatten(), stable=True)
    numbers = torch.arange(vocabulary + 1, dtype=keys.dtype, device=keys.device)
    starts = torch.searchsorted(keys, numbers, out_int32=True)
    return starts, (order // max(words.shape[1], 1)).to(torch.int32), coefs.flatten()[order]


def _linear_mean(hidden: Tensor, weight: Tensor, bias: Tensor | None, spread: Tensor, top: Tensor) -> Tensor:
    """The sum over words of spread (x - top), which is linear in hidden."""
    c = spread.to(top.dtype)
    mean = _rows_times(hidden, _mixed(weight, c)) - c.sum() * top
    return mean if bias is None else mean + c @ bias.to(c.dtype)


def _add_linear_mean(
    hidden: Tensor, weight: Tensor, spread: Tensor, grad_mean: Tensor, dh: Tensor, dw: Tensor, db: Tensor
) -> None:
    c = spread.to(grad_mean.dtype)
    of_rows, of_words = _mixed(weight, c), _mixed(hidden, grad_mean)
    for rows in pieces(len(dh), PIECE):
        dh[rows] = (dh[rows] + grad_mean[rows].unsqueeze(1) * of_rows).to(dh.dtype)
    for words in pieces(len(dw), PIECE):
        dw[words] = (dw[words] + c[words].unsqueeze(1) * of_words).to(dw.dtype)
    if len(db):
        db += c * grad_mean.sum()


# rows that are widened at once
PIECE = 1024


def _mixed(matrix: Tensor, weights: Tensor) -> Tensor:
    """weights^T matrix, in the dtype of the weights."""
    total = weights.new_zeros(matrix.shape[1])
    for rows in pieces(len(matrix), PIECE):
        total += weights[rows] @ matrix[rows].to(weights.dtype)
    return total


def _rows_times(matrix: Tensor, vector: Tensor) -> Tensor:
    parts = [matrix[rows].to(vector.dtype) @ vector for rows in pieces(len(matrix), PIECE)]
    return torch.cat(parts) if parts else vector.new_zeros(0)


def pieces(n: int, size: int) -> Iterator[slice]:
    """0 to n in slices of a size, the last one perhaps smaller."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
