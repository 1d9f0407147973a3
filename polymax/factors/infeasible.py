"""Graphs whose factors have no point in common: an error that names one of them."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polymax.factors.agreement import Agreed, Agreement

if TYPE_CHECKING:
    from polymax.factors.graph import FactorGraph

# with scores of 0, factors that are still this far apart after so many rounds have nothing in common
_FAR, _ROUNDS = 1e-3, 60


class Infeasible(ValueError):
    """The factors of a graph have no point in common; `factor` is the number of one that is missed."""

    def __init__(self, message: str, factor: int) -> None:
        super().__init__(message)
        self.factor = factor


def refuse_infeasible(graph: "FactorGraph", scores: tuple[Tensor, ...], apart: Tensor) -> Tensor:
    """Which instances have a structure, (B,); a ValueError names the factor if none has, whatever the scores.

    `apart` are the instances in doubt. With finite scores of 0 in their place the factors agree if anything can.
    """
    batch = scores[0].shape[:-1]
    flat = apart.reshape(batch)
    blank = tuple(torch.zeros_like(t) for t in scores)
    problem = graph._agreement(blank)
    found = problem.solve(_ROUNDS)
    hopeless = (found.residual > _FAR).reshape(batch) & flat
    if bool(hopeless.any()):
        instance = tuple(int(i) for i in hopeless.nonzero()[0])
        f, miss = _worst(problem, found, int(hopeless.reshape(-1).nonzero()[0]))
        where = f" in instance {instance if len(instance) > 1 else instance[0]}" if instance else ""
        raise Infeasible(
            f"the factors have no point in common{where}: factor {f} ({graph.factors[f]}) is missed by {miss:.2g}", f
        )
    forbidden = tuple(torch.where(t == -torch.inf, t, 0) for t in scores)
    if not any(bool((t == -torch.inf).any()) for t in scores):
        return torch.ones_like(apart)
    again = graph._agreement(forbidden).solve(_ROUNDS)
    return ~(apart & (again.residual > _FAR))


def _worst(problem: Agreement, found: Agreed, i: int) -> tuple[int, float]:
    """The factor that is missed most in instance i, and by how much."""
    rows = found.graph.rows
    most, factor = -1.0, 0
    if rows.columns.shape[1]:
        offset = rows.offset.expand(len(found.mu), -1)[i]
        over = rows.sums(found.mu)[i] - offset
        # prices of 0 and more belong to sums that may not exceed their bound
        missed = torch.where(rows.least == 0, over, torch.where(rows.most == 0, -over, over.abs()))
        r = int(missed.argmax())
        most, factor = float(missed[r]), int(rows.factor[r])
    for p in found.projected:
        away = torch.where(p.block.shared, p.z - p.block.gather(found.mu), 0)[i].abs().amax(-1)
        k = int(away.argmax())
        if float(away[k]) > most:
            most, factor = float(away[k]), p.block.members[k]
    return factor, most
