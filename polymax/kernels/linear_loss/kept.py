"""Values with their gradients, for gradients of values that are known in advance: three dense products for flat rows.

Logits of rows with many words are computed once and kept until the threshold is known: see `kept_rows` (CPU) and
`kept_columns` (other devices).
"""

from typing import Any

import torch
from torch import Tensor

from polymax.kernels.linear_loss.gradients import (
    Begun,
    Gradients,
    add_lists,
    begin_lists,
    counted_grads,
    flat_gradients,
)
from polymax.kernels.linear_loss.kept_columns import gradients_by_columns
from polymax.kernels.linear_loss.kept_rows import gradients_by_rows
from polymax.kernels.linear_loss.passes import parts_of, whole_rows, widened
from polymax.kernels.linear_loss.problem import Grads, LossProblem, slopes_of
from polymax.kernels.linear_loss.steps import Listed, RowKeeping, Steps

# groups of rows whose gradients of weight are added up in the dtype of weight; more would lose digits
GROUPS = 4


def value_and_gradients(steps: Steps, *given: Any) -> tuple[Tensor, ...]:
    """Run `linear_loss_slopes`, by the steps of a device."""
    grads, problem, of_hidden, of_words = slopes_of(given)
    problem = widened(problem)
    real = torch.promote_types(problem.hidden.dtype, torch.float32)
    found = Gradients(problem, of_hidden, of_words, real)
    known: list[Grads] = []

    def counted() -> Grads:
        if not known:
            known.append(counted_grads(grads, problem, real))
        return known[0]

    dh: list[Tensor] = []
    # rows whose named words are in the gradient already
    done: list[Tensor] = []

    def whole(part: LossProblem, at: Tensor) -> list[Tensor]:
        keeping = steps.keeping
        if not can_keep(steps, part, len(at), of_words):
            parts = whole_rows(steps, part, at)
            slope = flat_gradients(steps, part, at, (parts[4], parts[5]), counted(), found)
        elif isinstance(keeping, RowKeeping):
            parts, slope = gradients_by_rows(steps, keeping, part, at, counted(), found)
        else:
            parts, slope = gradients_by_columns(keeping, part, at, counted, found)
            done.append(at)
        dh.append(slope)
        return parts

    begun: list[Begun] = []

    def meanwhile(ids: Tensor, chosen: Tensor, listed: Listed) -> None:
        begun.append(begin_lists(steps, counted(), problem, ids, chosen, listed, of_hidden))

    parts = parts_of(steps, problem, whole, meanwhile if steps.ahead else None)
    flats = int(parts.extent[0])
    at: Any = None
    if flats:
        at = (parts.count < 0).nonzero().squeeze(1) if flats < len(problem.hidden) else slice(None)
    of_rows = counted()
    if done and flats < len(problem.hidden):
        of_rows = of_rows._replace(chosen=of_rows.chosen.index_fill(0, done[0], 0))
    # gradients of lists that were begun have named words of all rows
    known = begun[0] if begun and not flats else None
    dh_flat = dh[0] if dh else None
    return *parts[:3], *add_lists(steps, of_rows, problem, parts.saved, found, at, dh_flat, bool(done), known)


def can_keep(steps: Steps, problem: LossProblem, rows: int, of_words: bool) -> bool:
    """Return True if three products are enough: groups of rows are few, or added up in at least float32."""
    if isinstance(steps.keeping, RowKeeping):
        return not problem.softcap and problem.hidden.dtype in (torch.float32, torch.float64)
    return not of_words or rows <= GROUPS * problem.hidden.shape[1]
