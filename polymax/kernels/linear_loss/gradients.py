"""The gradients of hidden, weight and bias: sums over the words of lists, and dense blocks for rows without one."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymax.kernels.linear_loss.linear_mean import add_linear_mean
from polymax.kernels.linear_loss.passes import widened
from polymax.kernels.linear_loss.problem import Grads, LossProblem, Saved, backward_of
from polymax.kernels.linear_loss.steps import Cap, FlatRows, Listed, Steps, pieces


class Gradients:
    """The gradients of a call, filled step by step; those that are not needed are empty."""

    def __init__(self, problem: LossProblem, of_hidden: bool, of_words: bool, real: torch.dtype) -> None:
        hidden, weight = problem.hidden, problem.weight
        self.of_hidden, self.of_words, self._shape = of_hidden, of_words, weight.shape
        self.dh, self.dw = hidden.new_empty(0), weight.new_empty(0)
        self._db: Tensor | None = None
        self._real = real

    @property
    def db(self) -> Tensor:
        """The gradient of bias, which is filled with zeros when it is first needed: after products are queued."""
        if self._db is None:
            self._db = self.dw.new_zeros(self._shape[0] if self.of_words else 0, dtype=self._real)
        return self._db

    def memory(self, behind: int = 0) -> Tensor:
        """Return the gradient of weight with room for `behind` more words, which is taken at the first call."""
        if self.of_words and self.dw.dim() < 2:
            words, d = self._shape
            self._memory = self.dw.new_empty((words + behind, d))
            self.dw = self._memory[:words]
        return self._memory if self.of_words else self.dw

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.dh, self.dw, self.db


def gradients(steps: Steps, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients, by the steps of a device."""
    grads, problem, saved, of_hidden, of_words = backward_of(given)
    problem, real = widened(problem), saved.probs.dtype
    grads = counted_grads(grads, problem, real)
    found = Gradients(problem, of_hidden, of_words, real)
    flats = int(saved.extent[0])
    if not flats:
        return add_lists(steps, grads, problem, saved, found, None, None)
    at = (saved.count < 0).nonzero().squeeze(1) if flats < len(problem.hidden) else slice(None)
    dh = flat_gradients(steps, problem, at, (saved.top[at], saved.tau[at]), grads, found, saved.moment)
    return add_lists(steps, grads, problem, saved, found, at, dh)


def counted_grads(grads: Grads, problem: LossProblem, real: torch.dtype) -> Grads:
    """Return gradients in the dtype of sums, 0 for rows that do not count and places without a word."""
    named, counted = problem.named, problem.counted
    rows = [None if g is None else torch.where(counted, g.to(real), 0) for g in (grads.value, grads.mean, grads.moment)]
    chosen = grads.chosen.to(real) if named is None else torch.where(named < 0, 0, grads.chosen.to(real))
    value, mean, moment = rows
    assert value is not None
    assert mean is not None
    return Grads(value, chosen, mean, moment if problem.alpha == 1 else None)


def flat_grads(grads: Grads, moment: Tensor, at: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the multiples of the weights of rows: of the weights, of the spread, and of weights times scores."""
    if grads.moment is None:
        return grads.value[at], grads.mean[at], None
    # where no value has a meaning, none is multiplied by 0
    mixed = torch.where(grads.moment == 0, 0, grads.moment * (1 - moment))
    return (grads.value + mixed)[at], grads.mean[at], grads.moment[at]


class Entries(NamedTuple):
    """Words of rows that have a gradient and their coefficients (n, k), their numbers (n,), and sort keys."""

    words: Tensor
    coefs: Tensor
    sizes: Tensor
    keys: Tensor


class Begun(NamedTuple):
    """Entries of lists that are as long as lists can be, and the gradient of hidden, if it is needed."""

    entries: Entries
    dh: Tensor | None


def begin_lists(
    steps: Steps, grads: Grads, problem: LossProblem, ids: Tensor, chosen: Tensor, found: Listed, of_hidden: bool
) -> Begun:
    """Queue the gradients of hidden before it is known how long lists are."""
    saved = Saved(chosen, found.value, found.top, found.tau, ids, found.probs, found.count, found.extent)
    entries = Entries(*steps.listed(grads, problem, saved, ids.shape[1]))
    return Begun(entries, steps.row_sums(*entries[:3], problem.weight) if of_hidden else None)


def add_lists(
    steps: Steps,
    grads: Grads,
    problem: LossProblem,
    saved: Saved,
    found: Gradients,
    at: Any,
    dh_flat: Tensor | None,
    complete: bool = False,
    begun: Begun | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients after those of lists and of named words are added to those of rows `at`.

    If the gradients of rows `at` are `complete`, those of their named words are 0 in `grads`.
    """
    hidden, weight, spread = problem.hidden, problem.weight, problem.spread
    found.memory()
    if complete and dh_flat is not None and len(dh_flat) == len(hidden):
        found.dh = dh_flat.to(hidden.dtype) if found.of_hidden else found.dh
    else:
        longest = max(int(saved.extent[1]), 0)
        entries = Entries(*steps.listed(grads, problem, saved, longest)) if begun is None else begun.entries
        words, coefs, sizes, keys = entries
        if found.of_words:
            most = longest + (0 if problem.named is None else problem.named.shape[1])
            starts, order = _by_word(keys[:, :most], len(weight))
            steps.column_sums(starts, order, coefs, most, hidden, found.dw, found.db, at is not None)
        if found.of_hidden:
            known = None if begun is None else begun.dh
            found.dh = steps.row_sums(words, coefs, sizes, weight) if known is None else known
        if found.of_hidden and dh_flat is not None:
            found.dh[at] = (found.dh[at] + dh_flat).to(found.dh.dtype)
    if problem.linear and spread is not None:
        add_linear_mean(hidden, weight, spread, grads.mean, found.dh, found.dw, found.db)
    return found.all


class Unit:
    """A unit in which small gradients do not vanish in float16: a factor of rows, and its inverse for sums."""

    def __init__(self, rows: FlatRows, dtype: torch.dtype) -> None:
        self.scaled = dtype == torch.float16
        self.size: Tensor | float = 1.0
        if self.scaled:
            unit = torch.stack([t.abs().amax() for t in rows[2:] if t is not None]).amax()
            self.size = torch.where(unit > 0, unit, 1)

    def apply(self, rows: FlatRows) -> FlatRows:
        if not self.scaled:
            return rows
        return FlatRows(*rows[:2], *(None if t is None else t / self.size for t in rows[2:]))


def flat_gradients(
    steps: Steps,
    problem: LossProblem,
    at: Any,
    thresholds: tuple[Tensor, Tensor],
    grads: Grads,
    found: Gradients,
    moment: Tensor | None = None,
) -> Tensor:
    """Fill the gradients of weight and bias, unless they are empty; return the gradient of rows `at`, at least in
    float32.

    `thresholds` are top and tau of these rows; `moment`, of all rows, is needed if it has a gradient.
    """
    weight, bias = problem.weight, problem.bias
    spread = problem.curved
    spread = spread[at] if spread is not None and spread.dim() == 2 else spread
    cap = Cap(problem.softcap, problem.scale)
    rows = FlatRows(*thresholds, *flat_grads(grads, thresholds[0] if moment is None else moment, at))
    real = rows.top.dtype
    operand = problem.hidden.dtype if steps.half else real
    hidden = problem.hidden[at].to(operand)
    unit = Unit(rows, operand)
    rows = unit.apply(rows)
    found.memory()
    dw, db = found.dw, found.db if bias is not None else None
    dh = torch.zeros(hidden.shape, dtype=real, device=hidden.device)
    height = min(len(hidden), steps.rows)
    for words in pieces(len(weight), max(steps.flat // height, 1)):
        w = weight[words].to(operand)
        for some in pieces(len(hidden), steps.rows):
            x = steps.product(hidden[some], w)
            local = None if bias is None else bias[words]
            part = None if spread is None else spread[words] if spread.dim() == 1 else spread[some, words]
            dx = steps.slopes(x, local, part, rows.part(some), problem.alpha, cap, operand)
            del x
            if found.of_hidden:
                steps.add_product(dh[some], dx, w)
            if not found.of_words:
                continue
            if db is not None:
                db[words] += dx.sum(0, dtype=real) * unit.size
            if len(hidden) == height and not unit.scaled:
                torch.mm(dx.mT, hidden, out=dw[words]) if dw.dtype == operand else dw[words].copy_(dx.mT @ hidden)
            else:
                piece = steps.product(dx.mT, hidden[some].mT) * unit.size
                total = piece if some.start == 0 else total + piece  # noqa: F821
                dw[words] = total
    return dh * unit.size if unit.scaled else dh


def list_entries(
    grads: Grads, problem: LossProblem, saved: Saved, longest: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the words of each row that have a gradient, the gradients of their logits, their number, and sort keys.

    Named words come first. A key is the word, or the number of all words if the gradient is 0.

    Shapes: words and gradients (n, k); numbers (n,)
    """
    alpha, softcap, scale, named = problem.alpha, problem.softcap, problem.scale, problem.named
    words, probs, of_named = saved.ids[:, :longest], saved.probs[:, :longest], grads.chosen
    coefs = grads.value.unsqueeze(1) * probs
    if softcap:
        # recover the scores from their weights
        x = saved.top.unsqueeze(1) + (probs ** (alpha - 1) + saved.tau.unsqueeze(1)) / (alpha - 1) if longest else coefs
        coefs = coefs * (1 - (x / softcap).square())
        of_named = of_named * (1 - ((saved.chosen + saved.top.unsqueeze(1)) / (scale * softcap)).square())
    of_named = of_named if scale == 1 else of_named * scale
    sizes = saved.count.clamp(min=0)
    if named is not None:
        words = torch.cat([named.clamp(min=0).to(words.dtype), words], 1)
        coefs, sizes = torch.cat([of_named, coefs], 1), sizes + named.shape[1]
    inside = (torch.arange(words.shape[1], device=words.device) < sizes.unsqueeze(1)) & (coefs != 0)
    return words, coefs, sizes, torch.where(inside, words, len(problem.weight))


def _by_word(keys: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return the first entry of each word (vocabulary + 1,), and the places of all entries, by word and by row."""
    keys, order = torch.sort(keys.flatten(), stable=True)
    numbers = torch.arange(vocabulary + 1, dtype=keys.dtype, device=keys.device)
    return torch.searchsorted(keys, numbers, out_int32=True), order
